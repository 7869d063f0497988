"""A job worker of this process, with handlers that tests can watch."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import msgspec

from actors.jobs.topics import Topics
from actors.jobs.worker.handler import Handler
from actors.jobs.worker.worker import JobWorker
from actors.runtime.bounds import Anywhere, WorkBounds
from actors.runtime.measures import Measures
from actors.runtime.rates.shares import Shares
from actors.runtime.rates.slot_client import NodeSlots
from streams.buckets.bucket import Bucket
from streams.errors import OutcomeUnknown
from streams.link.connection import Connection
from streams.topology.specs import Topology
from streams.topology.topology import apply
from tests.support.jobs import TOPIC, Jobs
from tests.support.moments import a_moment
from tests.support.server import topology_for

WITHIN_S = 90.0


class Log:
    """What handlers did, in order, and a way to wait for it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._changed = anyio.Event()

    def __call__(self, *words: object) -> None:
        self.lines.append(" ".join(str(word) for word in words))
        self._changed.set()
        self._changed = anyio.Event()

    def count(self, start: str) -> int:
        return sum(line.startswith(start) for line in self.lines)

    async def until(self, is_enough: Callable[["Log"], object], within_s: float = WITHIN_S) -> None:
        with anyio.move_on_after(within_s):
            while not is_enough(self):
                await self._changed.wait()
        assert is_enough(self), f"after {within_s} s: {self.lines}"

    async def has(self, line: str, within_s: float = WITHIN_S) -> None:
        """Wait for a line."""
        await self.until(lambda log: line in log.lines, within_s)


def handler(take: Callable[[Any], Any], *, is_async: bool = True, **more: Any) -> Handler:
    """Return a handler of the tests' topic."""
    return Handler(**{"topic": TOPIC, "name": "test", "take": take, "is_async": is_async, **more})


def topics_bucket(connection: Connection) -> Topology:
    """Return the bucket of topics alone."""
    full, namespace = topology_for(connection), connection.namespace
    return Topology(
        buckets=tuple(spec for spec in full.buckets if spec.name == namespace.bucket("TOPICS")), profile="fast"
    )


class Working:
    """A worker at work. `end` stops it in order; leaving the block cancels it."""

    def __init__(self, worker: JobWorker, topics: Topics, measures: Measures, stop: anyio.Event) -> None:
        self.worker = worker
        self.topics = topics
        self.measures = measures
        self._stop = stop
        self.has_ended = anyio.Event()

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        await self.worker.run(task_status=task_status)
        self.has_ended.set()

    def stop(self) -> None:
        self._stop.set()

    async def end(self) -> None:
        """Stop, and wait until what was begun has ended."""
        self._stop.set()
        with anyio.fail_after(WITHIN_S):
            await self.has_ended.wait()


ANYWHERE = Anywhere()


@asynccontextmanager
async def working(
    jobs: Jobs,
    *handlers: Handler,
    settings: Mapping[str, object] | None = None,
    node: str = "node1",
    bounds: WorkBounds = ANYWHERE,
) -> AsyncIterator[Working]:
    """Run handlers in a worker of this process, on the connection of `jobs`. `bounds` follows the topics."""
    async with opened_topics(jobs.connection, jobs, settings or {}) as topics, anyio.create_task_group() as tasks:
        stop = anyio.Event()
        measures = Measures()
        rates = Shares(lambda topic: topics.current(topic).rate or None)
        slots = NodeSlots(jobs.connection, node)
        bounds.follow("topics", topics)
        worker = JobWorker(
            handlers,
            node=node,
            connection=jobs.connection,
            store=jobs.store,
            topics=topics,
            rates=rates,
            slots=slots,
            clock=jobs.clock,
            chance=lambda: 0.5,
            measures=measures,
            stop=stop,
            bounds=bounds,
        )
        work = Working(worker, topics, measures, stop)
        await tasks.start(slots.run)
        await tasks.start(work.run)
        yield work
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def opened_topics(connection: Connection, jobs: Jobs, settings: Mapping[str, object]) -> AsyncIterator[Topics]:
    namespace = connection.namespace
    await apply(connection, topics_bucket(connection))
    bucket = Bucket(connection, jobs.publisher, namespace.bucket("TOPICS"), bytes)
    if settings:
        await bucket.put(TOPIC, msgspec.json.encode(settings))
    topics = Topics(bucket, connection, namespace)
    async with anyio.create_task_group() as following:
        await following.start(topics.run)
        yield topics
        following.cancel_scope.cancel()


async def until_gone(jobs: Jobs, job_id: str = "1", within_s: float = WITHIN_S) -> None:
    """Wait until there is no such job any more: it was acknowledged. Without a leader that is not known yet."""
    with anyio.fail_after(within_s):
        while True:
            with suppress(OutcomeUnknown):
                if await jobs.state(job_id) is None:
                    return
            await a_moment()
