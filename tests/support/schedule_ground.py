"""The scheduler on a real server: its streams, its records, and a desk that refuses when it is told to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio
import msgspec

from actors.jobs.adds import Stored
from actors.jobs.replies import added_of
from actors.jobs.rules.job_answers import Added, NotAdded
from actors.jobs.rules.job_rules import make_job
from actors.jobs.rules.schedule_record import Schedule, decode_schedule
from actors.jobs.rules.schedule_times import occurrence_id
from actors.jobs.rules.topic_settings import TopicSettings
from actors.jobs.schedule_desk import ScheduleDesk
from actors.jobs.scheduler import JobFinder, Scheduler
from actors.jobs.store import JobStore
from streams.buckets.bucket import Bucket
from streams.clock import SYSTEM, Clock, now_ms
from streams.link.connection import Connection
from streams.messages.jobs import NewJob
from streams.publish.publisher import Publisher
from streams.topology.specs import wanted
from tests.support.server import make_topology

KEY = "mail.nightly"
HOUR = 3_600_000
FAR = Schedule(cron="0 0 1 1 *", overlap="allow")


class StoreDesk:
    """Adds by the store, as the desk does; refuses as long as it is told to."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self.refuses = False
        self.asked = 0
        self.deleted: list[str] = []

    async def add(self, jobs: Sequence[NewJob], *, trace_s: int) -> list[Added | NotAdded]:
        self.asked += 1
        if self.refuses:
            return [NotAdded(code="quota", reason="full") for _ in jobs]
        made = [make_job(job, TopicSettings(), now_ms=now_ms(), fresh_id="") for job in jobs]
        answers: list[Added | NotAdded] = []
        adds = [(job, new.on_same) for job, new in zip(made, jobs, strict=True)]
        for job, stored in zip(made, await self._store.add_many(adds), strict=True):
            assert isinstance(stored, Stored)
            answers.append(added_of(job, stored))
        return answers

    async def delete(self, topic: str, job_id: str) -> object:
        self.deleted.append(job_id)
        return await self._store.delete(topic, job_id)


class Ground(NamedTuple):
    """Streams and buckets, and what works on them."""

    connection: Connection
    store: JobStore
    desk: StoreDesk
    records: Bucket[bytes]
    leases: Bucket[bytes]

    def actor(self, node: str = "n1", *, store: JobFinder | None = None, clock: Clock = SYSTEM) -> Scheduler:
        return Scheduler(
            node=node,
            connection=self.connection,
            records=self.records,
            leases=self.leases,
            desk=self.desk,
            store=store or self.store,
            clock=clock,
            stop=anyio.Event(),
        )

    @property
    def schedules(self) -> ScheduleDesk:
        return ScheduleDesk(self.records, SYSTEM)

    async def put(self, record: Schedule, key: str = KEY) -> None:
        await self.records.put(key, msgspec.json.encode(record))

    async def record_when(self, holds: Callable[[Schedule], bool], key: str = KEY) -> Schedule:
        """Return the record as soon as `holds` is true of it."""
        with anyio.fail_after(20):
            async with self.records.watch(key) as changes:
                async for change in changes:
                    entry = getattr(change, "entry", None)
                    if entry is not None and holds(record := decode_schedule(entry.raw)):
                        return record
        raise AssertionError("a watch does not end")

    async def state(self, due_ms: int, name: str = "nightly") -> str:
        found = await self.store.find("mail", occurrence_id(name, due_ms))
        return "" if found is None else found.state


async def open_ground(connection: Connection, publisher: Publisher) -> Ground:
    """Make the streams, and a desk without schedules."""
    await make_topology(connection, wanted(connection.namespace, profile="fast"))
    store = JobStore(connection, publisher, connection.namespace, SYSTEM)

    def bucket(short: str) -> Bucket[bytes]:
        return Bucket(connection, publisher, connection.namespace.bucket(short), bytes)

    return Ground(connection, store, StoreDesk(store), bucket("RECURRING"), bucket("LEASES"))


@asynccontextmanager
async def running(actor: Scheduler) -> AsyncIterator[Scheduler]:
    """Run the actor until the block ends, as a node that dies: its lease is all that it gives back."""
    async with anyio.create_task_group() as tasks:
        await tasks.start(actor.run)
        yield actor
        tasks.cancel_scope.cancel()


def is_added(record: Schedule) -> bool:
    return record.added_ms > 0 and not record.adding
