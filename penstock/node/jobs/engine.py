"""Wires the delay queue of one node: what its parts share, and the actors with their roles."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from actors.jobs.delay_timer.timer import DelayTimer
from actors.jobs.desk import JobDesk
from actors.jobs.overdue import OverdueJobs
from actors.jobs.rules.schedule_record import Schedule
from actors.jobs.schedule_desk import IsShown, ScheduleDesk
from actors.jobs.scheduler import Scheduler
from actors.jobs.store import JobStore
from actors.jobs.topics import Topics
from actors.jobs.worker.handler import Handler
from actors.runtime.broker.resurrected import ResurrectedMessages
from actors.runtime.supervisor import ActorSpec
from actors.runtime.tending import tended_by
from penstock.node.jobs.doors import job_door_actors, open_job_desk
from penstock.node.jobs.handlers import JobHandlers, open_job_workers
from penstock.node.node import AT_ONCE, Node
from penstock.sdk.jobs import handlers as registered
from streams.link.server_clock import ServerClock

__all__ = ["JobsEngine", "open_jobs_engine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsEngine:
    """One node's delay queue."""

    node: Node
    clock: ServerClock
    topics: Topics
    store: JobStore
    desk: JobDesk
    handlers: JobHandlers
    timer: DelayTimer
    scheduler: Scheduler
    schedules: ScheduleDesk
    overdue: OverdueJobs
    resurrected: ResurrectedMessages

    def actors(self) -> tuple[ActorSpec, ...]:
        """Return the engine's actors in start order. The handlers are apart (`handlers.actors`): they start late."""
        return (
            ActorSpec(name="server clock", role="", run=self.clock.run),
            ActorSpec(name="topics", role="", run=self.topics.run, policy=AT_ONCE),
            ActorSpec(name="delay timer", role="timer", run=self.timer.run),
            ActorSpec(name="schedules", role="timer", run=self.scheduler.run),
            ActorSpec(name="overdue jobs", role="timer", run=self.overdue.run),
            ActorSpec(name="resurrected jobs", role="timer", run=self.resurrected.run),
            *job_door_actors(self.node, self.desk, self.schedules),
        )


@asynccontextmanager
async def open_jobs_engine(
    node: Node,
    built_in: Sequence[Handler],
    accept: Callable[[Schedule, IsShown], None] | None = None,
    expand: Callable[[Mapping[str, Handler]], Iterable[Handler]] = lambda known: known.values(),
) -> AsyncIterator[JobsEngine]:
    """Open what the engine's parts share, one of each for the node. `built_in`: handlers beside the app's own. `accept`
    checks the target of a schedule. `expand`: returns what this node handles for the app's own handlers."""
    namespace = node.connection.namespace
    clock = node.rates.clock = ServerClock(node.connection, namespace.jobs_streams())
    topics = Topics(node.bucket("TOPICS"), node.connection, namespace)
    store = JobStore(node.connection, node.publisher, namespace, clock)
    rates = node.rates.of("jobs", lambda topic: topics.current(topic).rate)
    handlers = open_job_workers(
        node,
        store=store,
        topics=topics,
        rates=rates,
        clock=clock,
        registered={handler.topic: handler for handler in (*expand(registered()), *built_in)},
    )
    timer = DelayTimer(
        connection=node.connection,
        namespace=namespace,
        leases=node.bucket("LEASES"),
        members=node.members,
        clock=clock,
        measures=node.measures,
    )
    async with open_job_desk(node, store=store, topics=topics, rates=rates, clock=clock) as desk:
        scheduler = Scheduler(
            node=node.members.name,
            connection=node.connection,
            records=node.bucket("RECURRING"),
            leases=node.bucket("LEASES"),
            desk=desk,
            store=store,
            clock=clock,
            stop=node.stop,
        )
        yield JobsEngine(
            node=node,
            clock=clock,
            topics=topics,
            store=store,
            desk=desk,
            handlers=handlers,
            timer=timer,
            scheduler=scheduler,
            schedules=ScheduleDesk(node.bucket("RECURRING"), clock, *([accept] if accept else [])),
            overdue=OverdueJobs(node.connection, store),
            resurrected=ResurrectedMessages(
                node.connection,
                [*namespace.jobs_streams(), namespace.stream("SUBMIT")],
                node.memory,
                tended_by(node.members, "timer"),
            ),
        )
