"""What tests of jobs share: the streams, a store with a clock that can be set on, and short ways to add and take."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from anyio import fail_after

from actors.jobs.adds import Stored
from actors.jobs.reserves import Handed, JobReservation
from actors.jobs.rules.job_rules import make_job
from actors.jobs.rules.topic_settings import TopicSettings
from actors.jobs.store import JobStore
from streams.clock import now_ms
from streams.link.connection import Connection
from streams.messages.jobs import JobRecord, NewJob, OnSame, Priority, body_of
from streams.messages.nonces import fresh_nonce
from streams.publish.publisher import Publisher
from streams.pull.delivery import Delivery
from streams.pull.once import PullOnce
from streams.subjects import Namespace
from streams.topology.specs import Topology, job_consumer, wanted
from streams.topology.topology import ensure_consumer
from tests.support.letters import letter_payloads
from tests.support.moments import a_moment
from tests.support.server import copies, make_topology

TOPIC = "mail"


class SetClock:
    """The system's clock, set on by hand."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return now_ms() + self.ahead_ms


class Jobs:
    """A store on streams of its own, and how a test uses it."""

    def __init__(self, connection: Connection, publisher: Publisher, pulls: PullOnce) -> None:
        self.connection = connection
        self.publisher = publisher
        self.pulls = pulls
        self.namespace = connection.namespace
        self.clock = SetClock()
        self.store = JobStore(connection, publisher, connection.namespace, self.clock)

    def make(self, job_id: str = "1", *, body: object = None, delay_ms: int = 0, **asked: Any) -> JobRecord:
        new = NewJob(**{"topic": TOPIC, "id": job_id, "body": body_of(body), "delay_ms": delay_ms, **asked})
        now_ms = self.clock.now_ms()
        return make_job(new, TopicSettings(), now_ms=now_ms, fresh_id="fresh", fresh_nonce=fresh_nonce())

    async def add(self, job_id: str = "1", *, policy: OnSame = "keep", **asked: Any) -> Any:
        """Add one job; return what became of it."""
        (answer,) = await self.store.add_many([(self.make(job_id, **asked), policy)])
        return answer

    async def added(self, count: int, **asked: Any) -> list[Stored]:
        """Add jobs `0` to `count - 1`, all of which must be new."""
        answers = await self.store.add_many([(self.make(str(n), **asked), "keep") for n in range(count)])
        stored = [answer for answer in answers if isinstance(answer, Stored) and answer.is_new]
        assert len(stored) == count
        return stored

    async def pull(self, most: int = 10, *, wait_s: float = 10.0, priority: Priority = "normal") -> list[Delivery]:
        """Return ready jobs as they are delivered."""
        spec = job_consumer(self.namespace, TOPIC, priority)
        return await self.pulls.pull(spec.stream, spec.name, most=most, wait_s=wait_s)

    async def hand_out(self, most: int = 10, *, wait_s: float = 10.0, **reserved: Any) -> Handed:
        """Reserve what is ready, or will be within `wait_s`."""
        return await self.store.reserve_many(await self.pull(most, wait_s=wait_s), **reserved)

    async def reserve(self, **reserved: Any) -> JobReservation:
        """Reserve one job, which must come."""
        (reservation,) = (await self.hand_out(1, wait_s=60.0, **reserved)).reservations
        return reservation

    async def state(self, job_id: str = "1") -> str | None:
        found = await self.store.find(TOPIC, job_id)
        return found.state if found else None

    async def settled(self, how: str, receipts: Any) -> Any:
        """Settle reservations as `how` says."""
        match how:
            case "finish":
                return await self.store.finish_many(receipts, remember_s=0)
            case "touch":
                return await self.store.touch_many(receipts, ttr_ms=600_000)
            case "release":
                return await self.store.release_many(receipts, delay_ms=600_000)
            case _:
                return await self.store.bury_many(receipts, reason="late")

    async def dead(self) -> list[Any]:
        """Return the dead letters, as plain values."""
        return [msgspec.json.decode(payload) for payload in await letter_payloads(self.connection)]


def topology_of_jobs(namespace: Namespace, *, replicas: int = 1) -> Topology:
    """Return the streams that jobs need, alone: making all of them takes a test longer than its own work."""
    full = wanted(namespace, profile="fast", replicas=replicas)
    names = (*namespace.jobs_streams(), namespace.stream("DEAD"))
    return Topology(streams=tuple(spec for spec in full.streams if spec.name in names), profile="fast")


@asynccontextmanager
async def open_jobs(connection: Connection, *, ack_wait_s: float | None = None) -> AsyncIterator[Jobs]:
    """Make the streams, with a copy on each server, and a topic's consumers."""
    namespace = connection.namespace
    await make_topology(connection, topology_of_jobs(namespace, replicas=copies(connection)))
    for priority in ("normal", "high", "low"):
        spec = job_consumer(namespace, TOPIC, priority, is_clustered=connection.is_clustered)
        await ensure_consumer(connection, msgspec.structs.replace(spec, ack_wait_s=ack_wait_s or spec.ack_wait_s))
    async with Publisher(connection) as publisher, PullOnce(connection) as pulls:
        yield Jobs(connection, publisher, pulls)


async def counts(jobs: Jobs, *expected: int) -> None:
    """Return once so many are delayed, ready, reserved and done: the server takes an ack a moment after it came."""
    with fail_after(20):
        while await jobs.store.count(TOPIC) != expected:
            await a_moment()


async def nothing_is_ready(jobs: Jobs) -> bool:
    return await jobs.pull(wait_s=0) == []
