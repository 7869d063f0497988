"""What the claims about lateness share: a server and a node that runs a timer, jobs to add, and when they came."""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import anyio

from actors.jobs.adds import Stored
from actors.jobs.rules.due_times import PARTITIONS
from actors.jobs.rules.job_rules import BACKSTOP_MS
from actors.jobs.store import JobStore
from penstock.demo.processes import NodeProcess
from streams.clock import monotonic_s
from streams.embedded.server import EmbeddedServer, embedded_server
from streams.errors import StreamError
from streams.jobs.timetable import at_line
from streams.link.connection import Connection, connect
from streams.link.server_clock import ServerClock, server_time_s
from streams.messages.jobs import JobRecord, body_of, encode_job
from streams.publish.outcomes import Outgoing
from streams.publish.publisher import Publisher
from streams.reads.direct_get import NONE, get_batch
from streams.topology.specs import wanted
from streams.topology.topology import apply

TOPIC = "bench"
FILLED = "waiting"
"""The topic of the jobs that only wait."""
BODY = body_of("x" * 198)
PAGE = 2_000
LOOK_S = 0.05
START_S = 60.0


class Came(NamedTuple):
    """A job that became ready: its number, and how late to the microsecond, by the server's own stamp."""

    number: int
    late_ms: float


class Lateness(NamedTuple):
    """`lowest_ms` below 0 would be early. `missing` jobs have not come, `doubled` messages were stored beyond one a
    job."""

    p50_ms: float
    p99_ms: float
    most_ms: float
    lowest_ms: float
    missing: int
    doubled: int


class Bed:
    """A server, a node with a timer, and a store to add jobs with. The node logs to a file."""

    def __init__(self, server: EmbeddedServer, folder: Path, connection: Connection, publisher: Publisher) -> None:
        self.server = server
        self.connection = connection
        self.publisher = publisher
        self.namespace = connection.namespace
        self.stream = self.namespace.stream("JOBS")
        self.clock = ServerClock(connection, self.namespace.jobs_streams())
        self.store = JobStore(connection, publisher, self.namespace, self.clock)
        self._log = folder / "node.log"
        self._log.touch()
        arguments = ["--nats", server.url, "--roles", "timer"]
        self.node = NodeProcess("timer", arguments, self._log, {"PENSTOCK_LOG_LEVEL": "info"})
        self._next = 0

    async def start_node(self) -> float:
        """Start the node. Return how many seconds passed until it knows every job and holds every partition."""
        began_s, before = monotonic_s(), self._log.stat().st_size
        self.node.start()
        with anyio.fail_after(START_S):
            await self._until_ready(before)
        return monotonic_s() - began_s

    async def _until_ready(self, logged_before: int) -> None:
        while True:
            lines = self._log.read_bytes()[logged_before:].decode().splitlines()
            held = sum('"lease.acquired"' in line and '"jobs.timer.' in line for line in lines)
            if held >= PARTITIONS and any('"timer.swept"' in line for line in lines):
                return
            await anyio.sleep(LOOK_S)

    async def add(self, dues_ms: Sequence[int]) -> int:
        """Add a job for each due time. Return the first one's number."""
        first, now_ms = self._next, self.clock.now_ms()
        self._next += len(dues_ms)
        jobs = [self.job(first + at, due_ms, now_ms) for at, due_ms in enumerate(dues_ms)]
        for start in range(0, len(jobs), 1_000):
            for answer in await self.store.add_many([(job, "keep") for job in jobs[start : start + 1_000]]):
                assert isinstance(answer, Stored), answer
        return first

    async def fill(self, count: int, dues_ms: range, *, first: int = 0) -> None:
        """Put delayed jobs there as the store would, without its conditions and notices: filling is not measured."""
        now_ms = self.clock.now_ms()
        for start in range(first, first + count, 5_000):
            numbers = range(start, min(start + 5_000, first + count))
            jobs = [self.job(n, dues_ms[n * 7_919 % len(dues_ms)], now_ms, FILLED) for n in numbers]
            answers = await self.publisher.publish_many([self._delayed(job) for job in jobs])
            assert all(not isinstance(answer, Exception) for answer in answers)

    async def is_answered(self) -> bool:
        """Ask the server about its jobs, once. Return whether it answered."""
        try:
            await self.last_seq()
        except StreamError:
            return False
        return True

    async def last_seq(self) -> int:
        state = (await self.connection.api(f"STREAM.INFO.{self.stream}"))["state"]
        return int(state["last_seq"])

    async def came(self, after_seq: int) -> list[Came]:
        """Return the jobs that are ready, of those stored after a sequence."""
        pattern, seq, found = self.namespace.jobs_in("ready", TOPIC), after_seq + 1, list[Came]()
        while True:
            asked = {"seq": seq, "next_by_subj": pattern, "batch": PAGE}
            messages, end = await get_batch(self.connection, self.stream, asked, timeout_s=START_S)
            for message in messages:
                number = int(message.headers["Nats-Subject"].rpartition(".")[2])
                stored_ms = server_time_s(message.headers["Nats-Time-Stamp"]) * 1000
                due_ms = int(message.payload.partition(b'"due_ms":')[2].partition(b",")[0])
                found.append(Came(number, stored_ms - due_ms))
            if end.status == NONE or not messages or end.headers.get("Nats-Num-Pending", "0") == "0":
                return found
            seq = int(messages[-1].headers["Nats-Sequence"]) + 1

    async def measured(self, dues_ms: Sequence[int], after_seq: int, *, within_s: float = 5.0) -> Lateness:
        """Wait until the jobs for these due times, all that was added after a sequence, have come."""
        await anyio.sleep(max(0.0, self.clock.seconds_until(max(dues_ms))))
        with anyio.move_on_after(within_s):
            while True:
                if await self.last_seq() >= after_seq + 2 * len(dues_ms):  # each is stored twice: delayed, ready
                    break
                await anyio.sleep(LOOK_S)
        await anyio.sleep(4 * LOOK_S)  # for a copy too many
        came = await self.came(after_seq)
        stored = await self.last_seq() - after_seq - len(dues_ms)
        return lateness_of(came, asked=len(dues_ms), stored=stored)

    def job(self, number: int, due_ms: int, now_ms: int, topic: str = TOPIC) -> JobRecord:
        """Return the record of a job."""
        return JobRecord(
            topic=topic, id=str(number), due_ms=due_ms, body=BODY, added_ms=now_ms, ttr_ms=60_000, most_attempts=10
        )

    def _delayed(self, job: JobRecord) -> Outgoing:
        headers = {
            "Nats-Schedule": at_line(job.due_ms + BACKSTOP_MS),
            "Nats-Schedule-Target": self.namespace.job("ready", job.topic, job.id),
        }
        return Outgoing(self.namespace.job("delayed", job.topic, job.id), encode_job(job), None, headers)


def lateness_of(came: Sequence[Came], *, asked: int, stored: int) -> Lateness:
    """Return the figures of the jobs that came, out of so many. `stored`: messages stored on the way."""
    late = sorted(each.late_ms for each in came) or [float("inf")]
    cuts = statistics.quantiles(late, n=100) if len(late) > 1 else late * 99
    come = len({each.number for each in came})
    return Lateness(statistics.median(late), cuts[98], late[-1], late[0], asked - come, stored - come)


def memory_mb(pid: int) -> float:
    """Return how much memory a process has, in MB (Linux)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


@asynccontextmanager
async def lateness_bed() -> AsyncIterator[Bed]:
    """Open a bed on a fresh server. Its node is not started yet. Everything ends with the block."""
    with TemporaryDirectory(prefix="penstock-bench-") as folder:
        async with embedded_server(Path(folder) / "server") as server:
            async with connect(server.url, name="bench") as connection, Publisher(connection) as publisher:
                await apply(connection, wanted(connection.namespace, profile="fast"))
                bed = Bed(server, Path(folder), connection, publisher)
                await bed.clock.measure()
                try:
                    yield bed
                finally:
                    with anyio.CancelScope(shield=True):
                        await bed.node.stop()
