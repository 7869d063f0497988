"""Firing mark: up to when the server has surely fired, so that what it fires once more after a crash is known.

A single nats-server that is killed may forget that it has removed messages (ADR 35). Schedules that it fired before
are there again then. It fires some of them a second time, and the others lie there for ever.

In: the time. Out: once a second a schedule that is due at once, and carries the mark. The server fires schedules
in turns, and in each turn in the order in which they were stored. So when this one is fired, all that were due before
it and stored before it have been fired, too. After a restart of the server the mark of its last life is kept with
the time of the restart, and schedules that are below it are removed. `Refirings` tells every reader of a fired job
whether it is below.

State: the one message. One node leads. Under redelivery: each write has the last one's sequence as its condition. When
it cannot go on: the mark stays behind, and what was fired after it may run once more. A cluster needs none of it:
its servers tell each other what was removed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from actors.jobs.reads import AT_ONCE, JobReads, found_of
from actors.jobs.refirings import Mark, Restart, decode_mark, marks
from actors.jobs.stream import JobStream
from actors.runtime.actor import FATAL
from actors.runtime.logs import fields
from streams.bucket import Bucket
from streams.clock import Clock, monotonic_s
from streams.connection import Connection
from streams.errors import StreamError
from streams.job_messages import DELAYED_TOKENS, RESERVED_TOKENS
from streams.lease import Lease, lead
from streams.log import LogEntry, delete_entry, last_entry, read_log
from streams.moves import Move, Mover
from streams.publisher import Publisher

log = logging.getLogger(__name__)

__all__ = ["FiringMark"]

LEASE = "jobs.mark"
LEASE_TTL_S = 3
EVERY_S = 1.0
LOOK_S = 0.05
LONGEST_LOOK_S = 5.0
"""A server that fires this much later has a great deal to fire."""
MARGIN_MS = 1_000
"""A schedule that is stored so long after its own time is not told as stored before it is fired (stream.py)."""
MOST_RESTARTS = 8


class FiringMark:
    """A node's part in it; it writes only while it leads. `clock` is the server's."""

    def __init__(
        self, *, node: str, connection: Connection, publisher: Publisher, leases: Bucket[bytes], clock: Clock
    ) -> None:
        self._node = node
        self._connection = connection
        self._leases = leases
        self._clock = clock
        self._jobs = JobStream(connection, publisher, connection.namespace, clock)
        self._mover = Mover(connection, publisher, self._jobs.name)
        self._next, self._fired, self._both = marks(connection.namespace)
        self._cut_ms = 0
        self._seen = Mark(server="", due_ms=0)

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Stand for election for ever. Raises FATAL errors."""
        remove = self._connection.on_disconnect(self._cut)
        try:
            task_status.started()
            await lead(self._leases, LEASE, self._node, ttl_s=LEASE_TTL_S, body=self._lead)
        finally:
            remove()

    def _cut(self) -> None:
        self._cut_ms = self._clock.now_ms()

    async def _lead(self, _lease: Lease) -> None:
        async with anyio.create_task_group() as tasks:
            while True:
                if not self._connection.is_clustered:
                    try:
                        await self._raise(tasks)
                    except FATAL:
                        raise
                    except StreamError as error:
                        log.info("firing_mark.not_raised", extra=fields(error=str(error)))
                await anyio.sleep(EVERY_S)

    async def _raise(self, tasks: TaskGroup) -> None:
        """Write the next mark, and wait until the server has fired it."""
        last = await last_entry(self._connection, self._jobs.name, self._both)
        if last is not None and last.subject == self._next and (last := await self._until_fired(last.seq)) is None:
            return
        server, now_ms = self._connection.memory, self._clock.now_ms()
        before = decode_mark(last.payload) if last else None
        mark = next_mark(before, server=server, now_ms=now_ms, cut_ms=self._cut_ms, seen=self._seen)
        payload, expected = msgspec.json.encode(mark), last.seq if last else 0
        move = Move(self._next, payload, self._both, expected, due_ms=now_ms, target=self._fired)
        seq = await self._mover.move(move)
        if await self._until_fired(seq) and self._connection.memory == server:
            self._seen = mark
            if before is not None and mark.restarts[-1:] != before.restarts[-1:]:
                tasks.start_soon(self._clear, mark.restarts[-1])

    async def _until_fired(self, seq: int) -> LogEntry | None:
        """Return the mark that waits at this sequence when it is fired; None if that takes long."""
        until_s = monotonic_s() + LONGEST_LOOK_S
        while monotonic_s() < until_s:
            last = await last_entry(self._connection, self._jobs.name, self._both)
            if last is not None and last.seq > seq and last.subject == self._fired:
                return last
            await anyio.sleep(LOOK_S)
        return None

    # ---- after a restart

    async def _clear(self, restart: Restart) -> None:
        """Remove the schedules that are there again. What the server had to fire it has fired by now."""
        removed = 0
        try:
            for token in (*DELAYED_TOKENS, *RESERVED_TOKENS):
                pattern = self._connection.namespace.pattern("jobs", token, ">")
                some: list[LogEntry] = []
                async for entry in read_log(self._connection, self._jobs.name, pattern):
                    if entry.stored_ms < restart.from_ms:
                        some.append(entry)
                    if len(some) == AT_ONCE:
                        removed += await self._remove(some, restart)
                        some = []
                removed += await self._remove(some, restart)
        except FATAL:
            raise
        except StreamError as error:
            log.warning("firing_mark.not_cleared", extra=fields(error=str(error)))
        log.log(
            logging.WARNING if removed else logging.INFO,
            "firing_mark.cleared",
            extra=fields(removed=removed, fired_until_ms=restart.fired_ms),
        )

    async def _remove(self, schedules: Sequence[LogEntry], restart: Restart) -> int:
        """Remove what was fired in the server's last life, and what is not its job's last message."""
        jobs = [found_of(entry) for entry in schedules]
        latest = await JobReads(self._jobs).find_many([(job.topic, job.key) for job in jobs])
        removed = 0
        for job in jobs:
            last = latest.get((job.topic, job.key))
            was_fired = job.job is not None and job.fires_ms <= restart.fired_ms
            if was_fired or (last is not None and last.seq > job.seq):
                removed += await delete_entry(self._connection, self._jobs.name, job.seq, erase=True)
        return removed


def next_mark(before: Mark | None, *, server: str, now_ms: int, cut_ms: int, seen: Mark) -> Mark:
    """Return the mark that follows `before`, which has been fired. `cut_ms`: when our link broke last. `seen`: the last
    one that we saw fired in the server's present or last life.

    Where the server's clock was set back nothing is known any more."""
    if before is None or before.due_ms > now_ms:
        return Mark(server=server, due_ms=now_ms)
    if before.server == server:
        return Mark(server=server, due_ms=now_ms, fired_ms=before.due_ms - MARGIN_MS, restarts=before.restarts)
    fired_ms = max(before.fired_ms, seen.due_ms - MARGIN_MS if seen.server == before.server else 0)
    restart = Restart(max(before.due_ms, cut_ms), fired_ms)
    return Mark(server=server, due_ms=now_ms, restarts=(*before.restarts, restart)[-MOST_RESTARTS:])
