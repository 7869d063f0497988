"""Adds the jobs of rows that a loader read from a database: each once, however often it is read.

A row is a job under its id. It is not added while there is a job of that id, and not if one ended since the row was
read: the reader may have seen it as it was before. The server's memory of message ids, and the trace that a late end
leaves, tell the second (adds.py). Both hold for a minute or two, and within one epoch of the shard map: what was read
under another epoch was read after all that the earlier one did.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
from msgspec import Raw
from msgspec.structs import replace

from actors.jobs.adds import LATE_S
from actors.jobs.rules.job_rules import make_job
from actors.jobs.store import JobStore
from actors.jobs.topics import Topics
from actors.runtime.tracing import traces
from streams.clock import Clock, monotonic_s
from streams.errors import StreamError
from streams.link.connection import Connection
from streams.messages.jobs import MACHINE_MADE, FirstTry, NewJob

ADD_S = 10.0
"""Seconds for the rows of one part."""
PART = 128
"""Rows that are added together. To make their jobs takes a turn of the event loop of some milliseconds."""
PLACES, PLACE = 64, 8
"""Parts of one row that a node adds at the same time, and rows that need a place: 512 rows are on their way at most. A
loader's ten thousands would fill the window of all that the node publishes, and its leases would end behind them."""
NONCE = f"{MACHINE_MADE}row"


Since = tuple[float, str]
"""The moment before a read, on the monotonic clock, and the server's memory of message ids then."""


class RowAdds:
    """Adds rows. `clock` is the server's."""

    def __init__(self, *, connection: Connection, store: JobStore, topics: Topics, clock: Clock) -> None:
        self._connection = connection
        self._store = store
        self._topics = topics
        self._clock = clock
        self._line = anyio.Lock()
        self._places = anyio.Semaphore(PLACES, fast_acquire=True)

    def since(self) -> Since:
        """Return the present moment."""
        return monotonic_s(), self._connection.memory

    async def add(
        self, topic: str, rows: Sequence[tuple[str, Raw]], since: Since, *, epoch: int = 0
    ) -> list[bool | StreamError]:
        """Add rows, each an id and a body, that were read after `since`, under `epoch`. Return for each whether it is
        new. False: it has a job, or had one of this epoch that ended since. Raises StoreFull."""
        self._connection.store.admit("jobs")
        await self._topics.enlist(topic, "normal")
        answers: list[bool | StreamError] = []
        for start in range(0, len(rows), PART):
            part = rows[start : start + PART]
            async with self._room(len(part)):
                answers += await self._add_part(topic, part, since, epoch)
        return answers

    async def _add_part(
        self, topic: str, rows: Sequence[tuple[str, Raw]], since: Since, epoch: int
    ) -> list[bool | StreamError]:
        settings, now_ms = self._topics.current(topic), self._clock.now_ms()
        nonce, parent = f"{NONCE}{epoch or ''}", traces.current()
        jobs = [
            replace(
                make_job(
                    NewJob(topic=topic, id=job_id, body=body, nonce=nonce, traceparent=parent),
                    settings,
                    now_ms=now_ms,
                    fresh_id="",
                ),
                late_s=LATE_S,
            )
            for job_id, body in rows
        ]
        first = FirstTry(monotonic_s() - since[0], since[1])
        return list(await self._store.add_absent(jobs, until_s=monotonic_s() + ADD_S, first=first))

    @asynccontextmanager
    async def _room(self, count: int) -> AsyncIterator[None]:
        """Wait until so many rows may be on their way, first come first served."""
        taken = 0
        try:
            async with self._line:
                for _ in range(-(-count // PLACE)):
                    await self._places.acquire()
                    taken += 1
            yield
        finally:
            for _ in range(taken):
                self._places.release()
