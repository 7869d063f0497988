"""Jobs that a client takes by itself, without a desk: `penstock.connect(…, direct=True)`.

It pulls, reserves and finishes by the code of the desk, and hands out by the delivery alone what may be
(actors/jobs/unwritten.py). A topic with a rate, slots or a zone is served by a desk all the same, as are touches,
releases and burials: by then the reservation is written down.
"""

import math
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

import anyio
import msgspec

from actors.jobs.desk import MOST_BYTES, is_holder
from actors.jobs.handout import Handout
from actors.jobs.replies import reserved_of
from actors.jobs.returns import Returns
from actors.jobs.rules.job_answers import JobReply, Reserved
from actors.jobs.store import JobStore
from actors.jobs.topics import Topics
from actors.jobs.unwritten import Unwritten
from streams.clock import Clock
from streams.errors import StreamError
from streams.link.connection import Connection
from streams.messages.jobs import LONGEST_TTR_MS, SHORTEST_TTR_MS
from streams.micro import ANYBODY, WHO, Has
from streams.pull.once import PullOnce

__all__ = ["DirectTakes"]

ANSWER_S = 0.3


class _HasARate(Exception):
    """The topic got a rate while a caller waited here."""


class _NoRates:
    """A topic that gets a rate hands out nothing here: a desk does, from the caller's next turn on."""

    def take(self, _key: str, _most: int) -> tuple[int, int]:
        raise _HasARate

    def give_back(self, _key: str, _count: int) -> None: ...

    def share(self, _key: str) -> float:
        return math.inf


class DirectTakes:
    """Takes and finishes jobs by the store."""

    def __init__(
        self, connection: Connection, store: JobStore, topics: Topics, handout: Handout, unwritten: Unwritten
    ) -> None:
        self._connection = connection
        self._store = store
        self._topics = topics
        self._handout = handout
        self._unwritten = unwritten
        self.holds = unwritten.holds
        self.write_down = unwritten.write_down

    def serves(self, topic: str, ttr_ms: int | None, holder: str) -> bool:
        """Return whether jobs can be taken from here. Else a desk hands them out, or says why not."""
        if topic not in self._topics or not (ttr_ms is None or SHORTEST_TTR_MS <= ttr_ms <= LONGEST_TTR_MS):
            return False
        settings = self._topics.current(topic)
        is_plain = not (settings.rate or settings.slots or settings.zone)
        return is_plain and is_holder(holder)

    async def reserve(self, topic: str, *, most: int, wait_ms: int, ttr_ms: int | None, holder: str) -> list[Reserved]:
        """Hand out up to `most` jobs, as a desk does. Raises StreamError."""
        self._store.check(topic)
        try:
            reservations = await self._handout.take(
                topic, most=most, wait_s=wait_ms / 1000, ttr_ms=ttr_ms, holder=holder, most_bytes=MOST_BYTES
            )
        except _HasARate:
            return []
        return [reserved_of(reservation) for reservation in reservations]

    async def finish(self, receipts: Sequence[str]) -> list[JobReply]:
        """Finish jobs that this client took. Return the answer to each."""
        self._store.check(*{receipt.partition(".")[0] for receipt in receipts})
        return await self._unwritten.finish(receipts)

    async def give_back(self, jobs: Iterable[Reserved]) -> list[Reserved]:
        """Give back what no caller got. Return those that a desk has to release."""
        held = {reserved.receipt: reserved for reserved in jobs}
        given_back = await self._unwritten.give_back(held)
        return [reserved for receipt, reserved in held.items() if receipt not in given_back]

    async def learn(self) -> None:
        """Have a node tell for how long the server has been running. If none does, this client finds out itself."""
        connection = self._connection
        subject = connection.namespace.api("jobs", WHO)
        try:
            answer = await connection.request(subject, ANYBODY.encode(), timeout_s=ANSWER_S)
            has = msgspec.json.decode(answer.payload, type=Has)
        except (StreamError, msgspec.MsgspecError):
            return
        self._unwritten.knows(has.memory, has.memory_age_s)


@asynccontextmanager
async def open_takes(
    connection: Connection, *, store: JobStore, topics: Topics, clock: Clock
) -> AsyncIterator[DirectTakes]:
    """Open it. At the end, what is held is written down."""
    with connection.standstill.watching() as standstill:
        unwritten = Unwritten(connection, store=store, topics=topics, clock=clock, stood_still_s=standstill.lasted_s)
        returns = Returns(store)
        async with anyio.create_task_group() as tasks:
            async with PullOnce(connection, returned=returns.give_back) as pulls:
                handout = Handout(
                    store=store,
                    topics=topics,
                    pulls=pulls,
                    rates=_NoRates(),
                    namespace=connection.namespace,
                    returns=returns,
                    unwritten=unwritten,
                )
                takes = DirectTakes(connection, store, topics, handout, unwritten)
                tasks.start_soon(unwritten.run)
                await takes.learn()
                try:
                    yield takes
                finally:
                    with anyio.CancelScope(shield=True):
                        await returns.close()
            tasks.cancel_scope.cancel()
