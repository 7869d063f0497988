"""Delay timers in the test's own process, and what became of the jobs they were to fire."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio

from actors.jobs.delay_timer.timer import DelayTimer
from actors.jobs.rules.due_times import partition_of
from actors.runtime.membership import Members, NodeRecord
from streams.buckets.bucket import Bucket
from streams.clock import SYSTEM, now_ms
from streams.embedded.server import EmbeddedServer
from streams.jobs.delayed import encode_notice
from streams.jobs.moves import Move, Mover
from streams.link.connection import Connection, connect
from streams.link.server_clock import ServerClock
from streams.messages.jobs import JobRecord, decode_job, encode_job
from streams.publish.publisher import Publisher
from streams.reads.log import read_log
from streams.subjects import token_of
from streams.topology.specs import Topology
from tests.support.moments import a_moment
from tests.support.server import make_topology, topology_for


class Heard:
    """What a timer tells of its firing."""

    def __init__(self) -> None:
        self.late_s: list[float] = []
        self.left = 0

    def job_fired(self, topic: str, late_s: float) -> None:
        self.late_s.append(late_s)

    def jobs_left(self, count: int) -> None:
        self.left += count


class Firer(NamedTuple):
    """A running timer. `scope` ends it as a crash would, without releasing what it holds."""

    timer: DelayTimer
    members: Members
    heard: Heard
    scope: anyio.CancelScope


class Ready(NamedTuple):
    """A job that became ready, as the stream has it."""

    id: str
    due_ms: int
    stored_ms: int
    seq: int


def topology_of_timers(connection: Connection) -> Topology:
    """Return the streams and buckets that timers need."""
    full, namespace = topology_for(connection), connection.namespace
    buckets = (namespace.bucket("LEASES"), namespace.bucket("NODES"))
    return Topology(
        streams=tuple(spec for spec in full.streams if spec.name in namespace.jobs_streams()),
        buckets=tuple(spec for spec in full.buckets if spec.name in buckets),
        profile="fast",
    )


@asynccontextmanager
async def running_timer(
    connection: Connection, publisher: Publisher, *, name: str = "one", ttl_s: int = 5
) -> AsyncIterator[Firer]:
    """Run a timer, with a node's membership and clock, until the end of the block."""
    namespace = connection.namespace
    await make_topology(connection, topology_of_timers(connection))
    nodes, leases = (
        Bucket(connection, publisher, namespace.bucket("NODES"), bytes),
        Bucket(connection, publisher, namespace.bucket("LEASES"), bytes),
    )
    own = NodeRecord(node=name, run=name, roles=("timer",), started_ms=now_ms())
    members = Members(nodes, own, clock=SYSTEM, is_connected=lambda: connection.is_connected, ttl_s=ttl_s)
    clock, heard = ServerClock(connection, namespace.jobs_streams()), Heard()
    timer = DelayTimer(
        connection=connection, namespace=namespace, leases=leases, members=members, clock=clock, measures=heard
    )
    async with anyio.create_task_group() as tasks:
        for part in (members.run, clock.run, timer.run):
            await tasks.start(part)
        yield Firer(timer, members, heard, tasks.cancel_scope)
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def timer_beside(server: EmbeddedServer, connection: Connection, name: str) -> AsyncIterator[Firer]:
    """Run another timer in the connection's namespace, over a link of its own."""
    async with (
        connect(server.url, name=name, namespace=connection.namespace) as link,
        Publisher(link) as own,
        running_timer(link, own, name=name) as firer,
    ):
        yield firer


async def until_complete(timer: DelayTimer) -> None:
    """Wait until the timer holds everything and knows every job."""
    while len(timer.held) < 8 or not timer.is_complete:
        await a_moment()


async def ready_jobs(connection: Connection) -> list[Ready]:
    """Return the jobs that are ready now, and nobody has taken."""
    namespace = connection.namespace
    found = []
    for stream, pattern in namespace.jobs_patterns("ready", ">").items():
        async for entry in read_log(connection, stream, pattern):
            job = decode_job(entry.payload)
            found.append(Ready(job.id, job.due_ms, entry.stored_ms, entry.seq))
    return found


async def until_ready(connection: Connection, count: int) -> list[Ready]:
    """Wait until so many jobs are ready, and return them."""
    while len(found := await ready_jobs(connection)) < count:
        await a_moment()
    return found


SERVER_LATER_MS = 120_000
"""The server's own time of jobs that only a timer is to fire within a test."""


async def delay(
    connection: Connection,
    publisher: Publisher,
    job_id: str,
    due_ms: int,
    *,
    topic: str = "mail",
    is_told: bool = True,
    expected: int = 0,
    server_ms: int | None = None,
) -> int:
    """Store a delayed job which the server will not fire for a long while; return its sequence."""
    namespace, key = connection.namespace, token_of(job_id)
    job = JobRecord(topic=topic, id=job_id, due_ms=due_ms, added_ms=now_ms(), ttr_ms=60_000, most_attempts=10)
    move = Move(
        namespace.job("delayed", topic, key),
        encode_job(job),
        namespace.job_in_any_state(topic, key),
        expected,
        due_ms=due_ms + SERVER_LATER_MS if server_ms is None else server_ms,
        target=namespace.job("ready", topic, key),
    )
    seq = await Mover(connection, publisher, namespace.jobs_stream_of).move(move)
    if is_told:
        name = f"{topic}.{key}"
        await connection.publish_core(namespace.due(partition_of(name)), encode_notice([(due_ms, seq, name)]))
    return seq
