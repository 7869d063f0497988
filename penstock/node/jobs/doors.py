"""The doors to a node's jobs: the desk that all doors call, the service on NATS, and the intake of publishes."""

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

import anyio

from actors.jobs.adding import Adding
from actors.jobs.copies import Copies
from actors.jobs.desk import JobDesk
from actors.jobs.handout import Handout
from actors.jobs.obstacles import Obstacles
from actors.jobs.replay import JobReplay
from actors.jobs.returns import Returns
from actors.jobs.schedule_desk import ScheduleDesk
from actors.jobs.store import JobStore
from actors.jobs.submissions import job_submissions
from actors.jobs.topics import Topics
from actors.runtime.bounds import WorkBounds
from actors.runtime.broker.unmade import unmade_by_all
from actors.runtime.membership import Members, NodeRecord
from actors.runtime.rates.shares import SharedRates
from actors.runtime.supervisor import ActorSpec
from penstock.api.service.service import DeskService
from penstock.node.node import Node
from streams.buckets.bucket import Bucket
from streams.clock import Clock
from streams.link.connection import Connection
from streams.pull.once import PullOnce

__all__ = ["handling_nodes", "job_door_actors", "open_desk", "open_job_desk"]

ROLE = "desk"


@asynccontextmanager
async def open_job_desk(
    node: Node, *, store: JobStore, topics: Topics, rates: SharedRates, clock: Clock
) -> AsyncIterator[JobDesk]:
    """Open the node's desk. `clock` is the server's."""
    opened = open_desk(
        node.connection,
        store=store,
        topics=topics,
        rates=rates,
        clock=clock,
        leases=node.bucket("LEASES"),
        handling=handling_nodes(node.members),
        bounds=node.bounds,
        unmade=lambda topic, consumer: unmade_by_all(_handling(node.members, topic), consumer),
    )
    async with opened as desk:
        yield desk


@asynccontextmanager
async def open_desk(
    connection: Connection,
    *,
    store: JobStore,
    topics: Topics,
    rates: SharedRates,
    clock: Clock,
    leases: Bucket[bytes],
    handling: Callable[[str], Collection[str]],
    bounds: WorkBounds,
    unmade: Callable[[str, str], str],
) -> AsyncIterator[JobDesk]:
    """Open a desk. `handling(topic)`: the nodes that may have fetched jobs ahead. `unmade`: as in `Obstacles`."""
    returns = Returns(store)
    async with PullOnce(connection, returned=returns.give_back) as pulls:
        handout = Handout(
            store=store,
            topics=topics,
            pulls=pulls,
            rates=rates,
            namespace=connection.namespace,
            returns=returns,
        )
        with connection.standstill.watching() as standstill:
            copies = Copies(connection, handling)
            adding = Adding(
                store=store,
                topics=topics,
                copies=copies,
                clock=clock,
                admit=connection.store.admit,
                stood_still_s=standstill.lasted_s,
                bounds=bounds,
            )
            try:
                yield JobDesk(
                    adding=adding,
                    store=store,
                    topics=topics,
                    handout=handout,
                    copies=copies,
                    replay=JobReplay(connection, store, clock, leases),
                    obstacles=Obstacles(connection, topics, handling, clock, bounds, unmade),
                    clock=clock,
                )
            finally:
                with anyio.CancelScope(shield=True):
                    await adding.close()
                    await returns.close()


def job_door_actors(node: Node, desk: JobDesk, schedules: ScheduleDesk) -> tuple[ActorSpec, ...]:
    """Return the actors of the role `desk`. All finish work in hand when the node stops."""
    service = DeskService("jobs", desk, node.connection, node.stop, desk.end_waits)
    schedule_service = DeskService("schedules", schedules, node.connection, node.stop)
    submissions = job_submissions(desk, node.connection, node.publisher, node.stop)
    return (
        ActorSpec(name="job service", role=ROLE, run=service.run, drains=True),
        ActorSpec(name="schedule service", role=ROLE, run=schedule_service.run, drains=True),
        ActorSpec(name="submissions", role=ROLE, run=submissions.run, drains=True),
    )


def handling_nodes(members: Members) -> Callable[[str], Collection[str]]:
    """Return the live nodes with handlers of a topic, as a function of the topic."""
    return lambda topic: [node.node for node in _handling(members, topic)]


def _handling(members: Members, topic: str) -> list[NodeRecord]:
    return [node for node in members.live().values() if topic in node.topics]
