"""How many jobs of 200 B a desk adds, and reserves and finishes by receipt, called in its own process.

No user's program has a desk in its process: `bench client` measures what those reach.

Beside it plain nats-py in the same run, 256 at a time: `js.publish` for an add, and the same steps on the broker for
reserve and finish (bench/_jobs_theirs.py). The targets are the design's figures, or their ratio to what nats-py did on
the machine on which they were set, 23,300 adds and 11,000 of both steps a second: machines differ, ratios hold. Also:
adds by single calls, adds with a delay, all of it through the service of a node, how long after a job's becoming ready
a long poll is answered, and what the jobs take of memory.

The peers' figures are those of the design (§10), measured once on such a machine: two cores shared by the server and
two workers, 200 B jobs that do nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import nats

from actors.jobs.desk import JobDesk
from actors.jobs.rules.job_answers import Added
from actors.jobs.store import JobStore
from actors.jobs.topics import Topics
from actors.runtime.bounds import Anywhere
from actors.runtime.rates.shares import Shares
from bench._fetch import Bench, fetch_bench
from bench._jobs_theirs import Theirs
from bench.harness import Result, Rounds, in_turns, rate_of
from penstock.node.jobs.doors import open_desk
from penstock.sdk.client import Client
from penstock.sdk.client import connect as connect_client
from streams.clock import SYSTEM, monotonic_s
from streams.messages.jobs import NewJob, body_of

NAME = "jobs"
ADD_REACH, TAKE_REACH = 40_000, 15_000
ADD_RATIO, TAKE_RATIO = 1.72, 1.36
ANSWER_MS = 5.0
ROUNDS, FEW_ROUNDS = 3, 2
ADDED, SINGLES, DELAYED, TAKEN, SERVED, THEIRS = 12_000, 3_000, 6_000, 6_000, 6_000, 6_000
"""Jobs a round."""
PAGE, AT_ONCE, CALLERS = 500, 4, 256
POLLS, PACE_S = 100, 0.01
HOUR_MS = 3_600_000
BODY = body_of("x" * 198)
PEERS = {
    "celery, Redis": (3_300, 1_500),
    "celery, RabbitMQ": (5_800, 3_800),
    "dramatiq, RabbitMQ": (19_700, 14_600),
    "taskiq, NATS": (17_900, 13_700),
    "faststream, NATS, lists": (18_900, 56_300),
    "arq": (9_500, 2_500),
    "huey": (12_500, 10_300),
    "beanstalkd": (16_200, 25_300),
    "procrastinate": (14_800, 860),
    "bare nats-py": (23_300, 78_600),
}
"""Added and drained a second."""


async def run() -> Result:
    """Measure each side in turns on one server."""
    async with fetch_bench() as bench, open_bench_desk(bench) as desk:
        client = await nats.connect(bench.url)
        try:
            theirs = Theirs(client)
            await theirs.prepare(bench.connection)
            added = await in_turns(
                lambda number: _add(desk, f"add{number}", ADDED),
                lambda number: theirs.add(number, THEIRS),
                rounds=ROUNDS,
            )
            taken = await _taken(desk, theirs)
        finally:
            await client.close()
        singles = await _median(lambda number: _add_singly(desk, f"single{number}"))
        delayed = await _median(lambda number: _add(desk, f"delayed{number}", DELAYED, delay_ms=HOUR_MS))
        answered_ms = await _answers(desk)
        memory = _memory_mb()
        served = await _served(bench)
        is_sound = await _is_sound(desk)
    adds, takes = statistics.median(added.ours), statistics.median(taken.ours)
    adds_fast = adds >= ADD_REACH or added.ratio >= ADD_RATIO
    takes_fast = takes >= TAKE_REACH or taken.ratio >= TAKE_RATIO
    p50_ms, p99_ms = statistics.median(answered_ms), statistics.quantiles(answered_ms, n=100)[98]
    return Result(
        what="jobs of 200 B added by a desk that is called in its own process, each with its answer",
        ours=round(adds),
        theirs=round(statistics.median(added.theirs)),
        ratio=round(added.ratio, 2),
        target=f">= {ADD_REACH:,}/s or {ADD_RATIO} x theirs; reserved and finished >= {TAKE_REACH:,}/s or "
        f"{TAKE_RATIO} x theirs; a long poll answered within {ANSWER_MS:g} ms at p99",
        ok=is_sound and adds_fast and takes_fast and p99_ms <= ANSWER_MS,
        more={
            "added_by_single_calls": round(singles),
            "added_with_a_delay": round(delayed),
            "reserved_and_finished": round(takes),
            "reserved_and_finished_theirs": round(statistics.median(taken.theirs)),
            "reserved_and_finished_ratio": round(taken.ratio, 2),
            **served,
            "long_poll_p50_ms": round(p50_ms, 2),
            "long_poll_p99_ms": round(p99_ms, 2),
            "process_mb": memory,
            "is_sound": is_sound,
            "peers_added_drained": PEERS,
        },
    )


async def _median(side: Callable[[int], object]) -> float:
    """Return the median rate of the counted rounds."""
    rates = [await rate_of(side, number) for number in range(FEW_ROUNDS + 1)]  # type: ignore[arg-type] # a Side
    return statistics.median(rates[1:])


@asynccontextmanager
async def open_bench_desk(bench: Bench) -> AsyncIterator[JobDesk]:
    """Open a desk as a node has it."""
    namespace = bench.connection.namespace
    topics = Topics(bench.bucket("TOPICS"), bench.connection, namespace)
    store = JobStore(bench.connection, bench.publisher, namespace, SYSTEM)
    rates = Shares(lambda topic: topics.current(topic).rate or None)
    async with anyio.create_task_group() as tasks:
        await tasks.start(topics.run)
        opened = open_desk(
            bench.connection,
            store=store,
            topics=topics,
            rates=rates,
            clock=SYSTEM,
            leases=bench.bucket("LEASES"),
            handling=lambda _topic: (),
            bounds=Anywhere(),
            unmade=lambda _topic, _consumer: "",
        )
        async with opened as desk:
            yield desk
        tasks.cancel_scope.cancel()


def _jobs(topic: str, first: int, count: int, delay_ms: int = 0) -> list[NewJob]:
    return [NewJob(topic=topic, id=f"{number}", body=BODY, delay_ms=delay_ms) for number in range(first, first + count)]


async def _in_parts(count: int, part: Callable[[int, int], object]) -> None:
    """Have `AT_ONCE` callers go through a number of jobs, page by page."""
    firsts = iter(range(0, count, PAGE))

    async def call() -> None:
        for first in firsts:
            await part(first, min(PAGE, count - first))  # type: ignore[misc] # an awaitable

    async with anyio.create_task_group() as tasks:
        for _ in range(AT_ONCE):
            tasks.start_soon(call)


async def _add(desk: JobDesk, topic: str, count: int, delay_ms: int = 0) -> int:
    async def part(first: int, size: int) -> None:
        _check_added(await desk.add(_jobs(topic, first, size, delay_ms)))

    await _in_parts(count, part)
    return count


async def _add_singly(desk: JobDesk, topic: str) -> int:
    jobs = iter(_jobs(topic, 0, SINGLES))

    async def call() -> None:
        for job in jobs:
            _check_added(await desk.add([job]))

    async with anyio.create_task_group() as tasks:
        for _ in range(CALLERS):
            tasks.start_soon(call)
    return SINGLES


def _check_added(answers: Sequence[object]) -> None:
    assert all(isinstance(answer, Added) and answer.is_new for answer in answers)


async def _taken(desk: JobDesk, theirs: Theirs) -> Rounds:
    """Reserve and finish what was added before, in turns."""
    rates = Rounds([], [])
    for number in range(FEW_ROUNDS + 1):
        await _add(desk, f"take{number}", TAKEN)
        await theirs.fill(TAKEN)
        our_rate = await rate_of(lambda number: _take(desk, f"take{number}", TAKEN), number)
        their_rate = await rate_of(lambda _: theirs.take(TAKEN), number)
        if number:
            rates.ours.append(our_rate)
            rates.theirs.append(their_rate)
    return rates


async def _take(desk: JobDesk, topic: str, count: int) -> int:
    taken = 0

    async def call() -> None:
        nonlocal taken
        while taken < count:
            jobs = await desk.reserve(topic, most=PAGE // 2)
            answers = await desk.finish([job.receipt for job in jobs])
            taken += sum(answer.code == "ok" for answer in answers)

    async with anyio.create_task_group() as tasks:
        for _ in range(AT_ONCE):
            tasks.start_soon(call)
    return taken


async def _answers(desk: JobDesk) -> list[float]:
    """Add jobs at an even pace while somebody waits. Return after how many milliseconds each was answered."""
    added_s: dict[str, float] = {}
    waited_ms: list[float] = []
    await _add(desk, "polled", 1)
    await _take(desk, "polled", 1)

    async def poll() -> None:
        while len(waited_ms) < POLLS:
            for job in await desk.reserve("polled", wait_ms=30_000):
                waited_ms.append((monotonic_s() - added_s[job.id]) * 1000)
                await desk.finish([job.receipt])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(poll)
        for job in _jobs("polled", 1, POLLS):
            await anyio.sleep(PACE_S)
            added_s[job.id] = monotonic_s()
            _check_added(await desk.add([job]))
    return waited_ms


async def _served(bench: Bench) -> dict[str, int]:
    """Return the same through the service of a node, in lists: jobs a second."""
    await bench.node("desk1", "--roles", "desk")
    async with connect_client(bench.url) as client:
        added = await _median(lambda number: _client_add(client, f"served{number}"))
        taken = await _median(lambda number: _client_take(client, f"served{number}"))
    return {"service_added": round(added), "service_reserved_and_finished": round(taken)}


async def _client_add(client: Client, topic: str) -> int:
    _check_added(await client.jobs.add_many(_jobs(topic, 0, SERVED)))
    return SERVED


async def _client_take(client: Client, topic: str) -> int:
    taken = 0

    async def call() -> None:
        nonlocal taken
        while taken < SERVED:
            answers = await client.jobs.finish_many(await client.jobs.reserve_many(topic, most=PAGE))
            taken += sum(answer.code == "ok" for answer in answers)

    async with anyio.create_task_group() as tasks:
        for _ in range(AT_ONCE):
            tasks.start_soon(call)
    return taken


async def _is_sound(desk: JobDesk) -> bool:
    """What was measured has also happened: all that was added is there, and nothing of what was finished is."""
    last = {"add": ROUNDS, "single": FEW_ROUNDS, "delayed": FEW_ROUNDS, "take": FEW_ROUNDS, "served": FEW_ROUNDS}
    counts = [await desk.count(f"{name}{number}") for name, number in last.items()]
    return [(each.delayed, each.ready, each.reserved, each.done) for each in counts] == [
        (0, ADDED, 0, 0),
        (0, SINGLES, 0, 0),
        (DELAYED, 0, 0, 0),
        (0, 0, 0, 0),
        (0, 0, 0, 0),
    ]


def _memory_mb() -> int:
    """Return what this process holds in memory."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) // 1024
