"""What a desk of flows answers while the views of its node are behind what another one has stored."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import anyio
import pytest

from actors.flow.desk import FlowDesk
from actors.flow.flows import BadFlow, FlowLimits, FlowRecord, Flows, rounds_topic
from actors.flow.handler import FlowContext, FlowHandler
from actors.flow.rounds import Rounds
from actors.jobs.rules.schedule_changes import MOST_TRIGGERED
from actors.jobs.schedule_desk import ScheduleDesk, ScheduleRefused
from actors.jobs.store import JobStore
from actors.jobs.topics import Topics
from actors.runtime.bounds import Anywhere
from actors.runtime.rates.shares import Shares
from penstock.node.flow.jobs import ROUND, FlowJobs
from penstock.node.jobs.doors import open_desk
from streams.buckets.bucket import Bucket
from streams.clock import SYSTEM
from streams.link.connection import Connection
from streams.link.server_clock import ServerClock
from streams.publish.publisher import Publisher
from tests.support.server import make_topology, topology_for

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

FLOW = "answers"


class Node(NamedTuple):
    """What two nodes have one each of. Its views follow nothing, as if its process stood still since it was made."""

    desk: FlowDesk
    flows: Flows
    jobs: FlowJobs
    topics: Topics
    schedules: ScheduleDesk


@asynccontextmanager
async def a_node(connection: Connection, publisher: Publisher) -> AsyncIterator[Node]:
    namespace = connection.namespace

    def bucket(short: str) -> Bucket[bytes]:
        return Bucket(connection, publisher, namespace.bucket(short), bytes)

    clock = ServerClock(connection, namespace.jobs_streams())
    topics = Topics(bucket("TOPICS"), connection, namespace)
    store = JobStore(connection, publisher, namespace, clock)
    opened = open_desk(
        connection,
        store=store,
        topics=topics,
        rates=Shares(lambda topic: topics.current(topic).rate or None),
        clock=clock,
        leases=bucket("LEASES"),
        handling=lambda _topic: (),
        bounds=Anywhere(),
        unmade=lambda _topic, _consumer: "",
    )
    async with opened as desk, anyio.create_task_group() as tasks:
        await tasks.start(lambda *, task_status: clock.run(task_status=task_status))
        flows, schedules = Flows(bucket("FLOWS")), ScheduleDesk(bucket("RECURRING"), clock)
        jobs = FlowJobs(connection, store=store, schedules=schedules, topics=topics, clock=clock, desk=desk)
        living = {"n1": ("n1",)}
        yield Node(FlowDesk(flows, jobs, clock=clock, serving=lambda _flow: living), flows, jobs, topics, schedules)
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def two_nodes(connection: Connection, publisher: Publisher) -> AsyncIterator[tuple[Node, Node]]:
    await make_topology(connection, topology_for(connection))
    async with a_node(connection, publisher) as first, a_node(connection, publisher) as second:
        with anyio.fail_after(60):
            await first.flows.declare(FlowRecord(flow=FLOW, limits=FlowLimits()))
            await first.jobs.follow(FLOW, 3_600_000)
            yield first, second


async def test_a_flow_that_another_desk_has_just_paused_has_no_round(
    connection: Connection, publisher: Publisher
) -> None:
    async with two_nodes(connection, publisher) as (first, second):
        await second.desk.run(FLOW)
        assert (await first.desk.pause(FLOW)).is_paused
        with pytest.raises(BadFlow, match="is paused; resume it first"):
            await second.desk.run(FLOW)
        assert (await second.desk.why(FLOW, "a", "1")).code == "paused"
        await first.desk.resume(FLOW)
        assert not (await second.desk.run(FLOW)).is_paused
        assert (await second.desk.why(FLOW, "a", "1")).code == "begin"


async def test_a_round_that_cannot_come_is_refused_with_what_to_do(
    connection: Connection, publisher: Publisher
) -> None:
    topic = rounds_topic(FLOW)
    async with two_nodes(connection, publisher) as (first, second):
        await first.topics.change(topic, {"is_paused": True})
        with pytest.raises(BadFlow, match=f"go on with `penstock jobs topic {topic} --resume`"):
            await second.desk.run(FLOW)
        assert (await second.desk.why(FLOW, "a", "1")).code == "stopped"
        await first.topics.change(topic, {"is_paused": False})
        for _ in range(MOST_TRIGGERED):
            await first.schedules.trigger(topic, ROUND)
        with pytest.raises(BadFlow, match="no node adds them; start a node with the role `timer`"):
            await second.desk.run(FLOW)
        await first.schedules.remove(topic, ROUND)
        with pytest.raises(BadFlow, match=f"the schedule {topic}/{ROUND} of the flow's rounds was removed"):
            await second.desk.run(FLOW)


async def test_a_round_that_ends_does_not_add_the_schedule_that_somebody_has_removed(
    connection: Connection, publisher: Publisher
) -> None:
    topic = rounds_topic(FLOW)
    async with two_nodes(connection, publisher) as (first, second):

        async def split(context: FlowContext) -> Any:
            await second.schedules.remove(topic, ROUND)
            return []

        async def load(context: FlowContext, shard: str, limit: int) -> Any:
            return []

        rounds = Rounds(
            connection=connection,
            flows=first.flows,
            rows=first.jobs,
            tempo=first.jobs,
            living=lambda _flow: frozenset(),
            clock=SYSTEM,
        )
        handler = FlowHandler(flow=FLOW, key=FLOW, limits=FlowLimits(), rate=0.0, attempts=1, split=split, load=load)
        assert await rounds.run(handler, SYSTEM.now_ms()) is not None
        with pytest.raises(ScheduleRefused, match="no schedule"):
            await second.schedules.show(topic, ROUND)
        await first.jobs.follow(FLOW, 1_000)
        assert (await second.schedules.show(topic, ROUND)).every_ms == 1_000
