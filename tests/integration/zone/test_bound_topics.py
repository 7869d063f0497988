"""A topic that is bound to a zone, on one node: what the node hears late, or for a while not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest

from actors.jobs.worker.job import Job
from actors.runtime.membership import Members, NodeRecord
from actors.zone.bindings import Bindings
from actors.zone.routing import MAP, Routing
from actors.zone.rules.routing import ShardMap, made, moved, next_map
from streams.buckets.bucket import Bucket
from streams.clock import SYSTEM
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from streams.topology.specs import Topology
from streams.topology.topology import apply
from tests.support.job_workers import WITHIN_S, Log, Working, handler, working
from tests.support.jobs import TOPIC, Jobs, open_jobs
from tests.support.moments import a_moment
from tests.support.server import topology_for

SOON_S = 10.0
"""Far less than the drain of zones: who waits for a node that has left already waits for nothing."""

TTL_S = 600
"""Of a node's record. No heartbeat comes by itself while a test runs."""


class Life:
    """Whether the node may act for its zone, as a test says it."""

    def __init__(self) -> None:
        self.is_heard = True
        self.lapses = 0

    def may_run(self) -> bool:
        return self.is_heard

    def dead(self) -> frozenset[str]:
        return frozenset()


class Ground:
    """A node of zone a in this process, and the records of one of zone b."""

    def __init__(
        self, jobs: Jobs, nodes: Bucket[bytes], life: Life, members: Members, maps: Bucket[bytes], bounds: Bindings
    ) -> None:
        self.jobs = jobs
        self.maps = maps
        self.bounds = bounds
        self.nodes = nodes
        self.life = life
        self.members = members
        self.log = Log()
        self.routing: Routing
        self.work: Working

    async def handle(self, job: Job) -> None:
        self.log(job.id)

    async def other_says(self, settled: int) -> None:
        """Have the node of zone b say up to which revision of the topics it has left what is not its own."""
        record = NodeRecord(node="b1", run="b1", zone="b", topics=(TOPIC,), settled={"topics": settled})
        await self.nodes.put("b1", msgspec.json.encode(record))
        with anyio.fail_after(WITHIN_S):
            while (known := self.members.live().get("b1")) is None or known.settled != record.settled:
                await a_moment()

    async def put_map(self, shards: ShardMap) -> None:
        """Store a map. The node does not follow the bucket, as if its watch were behind."""
        await self.maps.put(MAP, msgspec.json.encode(shards))

    async def until_may_run(self, bound: str) -> None:
        with anyio.fail_after(WITHIN_S):
            while not self.bounds.may_run(bound):
                await a_moment()

    async def until_quiet(self) -> None:
        """Wait until the topic is not looked after: no job is there, and none is asked for."""
        topic = self.work.worker.topic(TOPIC)
        with anyio.fail_after(WITHIN_S):
            while topic.is_stirred or any(puller.capacity for puller in topic.pullers):
                await a_moment()


@asynccontextmanager
async def opened(connection: Connection, publisher: Publisher) -> AsyncIterator[Ground]:
    full, names = topology_for(connection), {connection.namespace.bucket(of) for of in ("NODES", "ROUTING")}
    await apply(
        connection, Topology(buckets=tuple(spec for spec in full.buckets if spec.name in names), profile="fast")
    )
    namespace = connection.namespace
    nodes, maps = (Bucket(connection, publisher, namespace.bucket(of), bytes) for of in ("NODES", "ROUTING"))
    own, life = NodeRecord(node="a1", run="a1", zone="a"), Life()
    members = Members(
        nodes,
        own,
        clock=SYSTEM,
        is_connected=lambda: True,
        ttl_s=TTL_S,
    )
    routing = Routing(maps)
    bounds = Bindings(zone="a", members=members, routing=routing, life=life)

    async with open_jobs(connection) as jobs, anyio.create_task_group() as tasks:
        ground = Ground(jobs, nodes, life, members, maps, bounds)
        ground.routing = routing
        await tasks.start(members.run)
        await tasks.start(bounds.run)
        async with working(jobs, handler(ground.handle), bounds=bounds) as ground.work:
            yield ground
        tasks.cancel_scope.cancel()


async def test_a_topic_begins_when_the_other_zone_says_late_that_it_has_left(
    connection: Connection, publisher: Publisher
) -> None:
    async with opened(connection, publisher) as ground:
        await ground.other_says(settled=1)
        await ground.work.topics.change(TOPIC, {"zone": "a"})
        await ground.until_quiet()
        await ground.jobs.add("1")
        await ground.other_says(settled=1_000)
        await ground.log.has("1", within_s=SOON_S)


@pytest.mark.parametrize("is_ours", [True, False])
async def test_a_topic_goes_on_when_the_node_is_heard_again(
    connection: Connection, publisher: Publisher, is_ours: bool
) -> None:
    """`is_ours`: it was this node's when the others ceased to hear it. Otherwise it becomes this node's meanwhile."""
    async with opened(connection, publisher) as ground:
        if is_ours:
            await ground.work.topics.change(TOPIC, {"zone": "a"})
            await ground.jobs.add("0")
            await ground.log.has("0")
        ground.life.is_heard = False
        await ground.work.topics.change(TOPIC, {"zone": "a", "rate": 50.0})
        await ground.until_quiet()
        await ground.jobs.add("1")
        ground.life.is_heard = True
        await ground.log.has("1", within_s=SOON_S)


async def test_a_node_that_was_unheard_acts_by_no_map_of_before(connection: Connection, publisher: Publisher) -> None:
    """It stood still, say, and its watch has not reported the map yet by which its shard went to another zone."""
    first = next_map(None, made({"a": "0-4", "b": "5-9"}, count=10), at_ms=1, by="", why="")
    second = next_map(first, moved(first, {"3": "b"}), at_ms=2, by="", why="")
    async with opened(connection, publisher) as ground:
        await ground.put_map(first)
        await ground.routing.fresh()
        await ground.until_may_run("shard:3")
        await ground.put_map(second)
        ground.life.is_heard = False
        assert not ground.bounds.may_run("shard:3")
        ground.life.lapses, ground.life.is_heard = 1, True
        assert not ground.bounds.may_run("shard:3")
        await ground.until_may_run("shard:4")
        assert not ground.bounds.may_run("shard:3")
        assert (ground.routing.current() or first).epoch == 2
