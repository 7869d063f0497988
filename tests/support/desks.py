"""A job desk on streams of its own, as tests use it: with topics followed live, and the service beside it if wanted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import msgspec

from actors.jobs.desk import JobDesk
from actors.jobs.rules.job_answers import Added, NotAdded, Reserved
from actors.jobs.store import JobStore
from actors.jobs.topics import Topics
from actors.runtime.bounds import Anywhere
from actors.runtime.rates.shares import Shares
from penstock.api.service.service import DeskService
from penstock.node.jobs.doors import open_desk
from streams.buckets.bucket import Bucket
from streams.clock import now_ms
from streams.errors import OutcomeUnknown, StreamError
from streams.link.connection import Connection
from streams.link.frames import Message
from streams.messages.jobs import NewJob, body_of
from streams.publish.publisher import Publisher
from streams.topology.specs import Topology
from tests.support.letters import letter_payloads
from tests.support.moments import a_moment
from tests.support.server import make_topology, topology_for

TOPIC = "mail"


class Hand:
    """The system's clock, set on by hand."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return now_ms() + self.ahead_ms


class Started(asyncio.Event):
    """A task status for an actor that runs in a plain task."""

    def started(self, value: object = None) -> None:
        self.set()


class Office:
    """A desk, and what a test wants to know beside it."""

    def __init__(
        self, desk: JobDesk, store: JobStore, topics: Topics, connection: Connection, publisher: Publisher, clock: Hand
    ) -> None:
        self.desk = desk
        self.store = store
        self.topics = topics
        self.connection = connection
        self.publisher = publisher
        self.namespace = connection.namespace
        self.clock = clock
        self.handling: set[str] = set()
        """Names of nodes that are said to handle the topic."""
        self.nodes = 1
        """How many nodes are said to share the topic's rate."""

    async def add(self, job_id: str = "1", *, topic: str = TOPIC, body: object = None, **asked: Any) -> Added:
        """Add one job, which must be taken."""
        (answer,) = await self.try_add(job_id, topic=topic, body=body, **asked)
        assert isinstance(answer, Added), answer
        return answer

    async def try_add(self, *ids: str, topic: str = TOPIC, body: object = None, **asked: Any) -> list[Added | NotAdded]:
        return await self.desk.add([NewJob(topic=topic, id=one, body=body_of(body), **asked) for one in ids])

    async def reserve(self, topic: str = TOPIC, *, wait_ms: int = 60_000, **asked: Any) -> Reserved:
        """Reserve one job, which must come."""
        (job,) = await self.desk.reserve(topic, most=1, wait_ms=wait_ms, **asked)
        return job

    async def state(self, job_id: str = "1", topic: str = TOPIC) -> str | None:
        found = await self.store.find(topic, job_id)
        return found.state if found else None

    async def set(self, topic: str = TOPIC, **values: object) -> None:
        """Change a topic, and wait until the desk has heard of it."""
        view = await self.desk.change_topic(topic, values)
        with anyio.fail_after(20):
            while (await self.desk.change_topic(topic, {})).settings != view.settings:
                await a_moment()

    async def dead(self) -> list[Any]:
        """Return the dead letters, as plain values."""
        return [msgspec.json.decode(payload) for payload in await letter_payloads(self.connection)]


def topology_of_desk(connection: Connection, *more: str) -> Topology:
    """Return what a desk needs, alone: making all of it takes a test longer than its own work."""
    full, namespace = topology_for(connection), connection.namespace
    streams = {*namespace.jobs_streams(), *(namespace.stream(short) for short in ("JOBS", "DEAD", *more))}
    return Topology(
        streams=tuple(spec for spec in full.streams if spec.name in streams),
        buckets=tuple(spec for spec in full.buckets if spec.name in map(namespace.bucket, ("TOPICS", "LEASES"))),
        profile="fast",
    )


@asynccontextmanager
async def open_office(connection: Connection, *more: str) -> AsyncIterator[Office]:
    """Make the streams, and `more` of them, and open a desk on them."""
    await make_topology(connection, topology_of_desk(connection, *more))
    async with open_second_office(connection) as office:
        yield office


async def _follow(topics: Topics, started: Started) -> None:
    """Follow the topics, and begin again as a supervisor does: three servers that elect may refuse the first try."""
    while True:
        with suppress(StreamError):
            await topics.run(task_status=started)
        await asyncio.sleep(0.1)  # its wait between two tries


@asynccontextmanager
async def open_second_office(connection: Connection, *, again_after_s: float = 2.0) -> AsyncIterator[Office]:
    """Open a desk on streams that are there. `again_after_s`: the silence after which it repeats a publish."""
    namespace, clock = connection.namespace, Hand()
    async with Publisher(connection, attempt_timeout_s=again_after_s) as publisher:
        topics = Topics(Bucket(connection, publisher, namespace.bucket("TOPICS"), bytes), connection, namespace)
        started = Started()
        following = asyncio.create_task(_follow(topics, started))  # no group: fixtures end in another task
        await started.wait()
        store = JobStore(connection, publisher, namespace, clock)
        rates = Shares(lambda topic: topics.current(topic).rate / office.nodes or None)
        opened = open_desk(
            connection,
            store=store,
            topics=topics,
            rates=rates,
            clock=clock,
            leases=Bucket(connection, publisher, namespace.bucket("LEASES"), bytes),
            handling=lambda _topic: office.handling,
            bounds=Anywhere(),
            unmade=lambda _topic, _consumer: "",
        )
        async with opened as desk:
            office = Office(desk, store, topics, connection, publisher, clock)
            try:
                yield office
            finally:
                following.cancel()
                with suppress(asyncio.CancelledError):
                    await following


@asynccontextmanager
async def open_service(office: Office) -> AsyncIterator[anyio.Event]:
    """Run the desk's service; the event stops it."""
    stop, started = anyio.Event(), Started()
    service = DeskService("jobs", office.desk, office.connection, stop, office.desk.end_waits)
    serving = asyncio.create_task(service.run(task_status=started))
    await started.wait()
    try:
        yield stop
    finally:
        stop.set()
        await serving


def lost_after(answer: "asyncio.Future[Message]", subject: str) -> "asyncio.Future[Message]":
    """Return the future of an answer that is lost on its way, once it was given."""
    lost: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def lose(_: object) -> None:
        if not lost.done():
            lost.set_exception(OutcomeUnknown("the answer was lost", subject=subject))

    answer.add_done_callback(lose)
    return lost


def codes_of(answers: object) -> list[str]:
    """Return the code of each answer of one call."""
    assert isinstance(answers, list)
    return [answer.code for answer in answers]
