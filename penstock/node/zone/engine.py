"""Wires the zones of one node: the shard map, the jobs of its app in its own zone, and the desk."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from anyio.abc import TaskStatus

from actors.jobs.rules.schedule_record import Schedule
from actors.jobs.worker.handler import Handler
from actors.jobs.worker.job import Job
from actors.runtime.logs import fields
from actors.runtime.supervisor import ActorSpec
from actors.zone.bindings import Bindings
from actors.zone.desk import ZoneDesk
from actors.zone.life import MemberLife
from actors.zone.offsets import Offsets
from actors.zone.routing import Routing
from actors.zone.rules.hub import EPOCHS
from actors.zone.runner import ZoneHandler, ZoneLife, ZoneRunner
from actors.zone.takeover import Takeover
from penstock.api.service.service import DeskService
from penstock.node.config import Config
from penstock.node.jobs.engine import JobsEngine
from penstock.node.node import AT_ONCE, Node
from penstock.node.zone.hub import ZoneHub, zone_hub
from penstock.sdk.zones import zone_handlers

__all__ = ["ZoneEngine", "ZoneGround", "ZoneHandlers", "open_zone_engine", "zone_ground"]

log = logging.getLogger(__name__)

TICK = "every"
"""The name of the schedule that fires a job's ticks in a zone."""
TICK_TTR_MS = 60_000


def ticks_topic(zone: str, job: str) -> str:
    """Return the topic whose jobs are a zone's ticks of a zoned job. Neither name has two underscores in a row."""
    return f"zone__{zone}__{job}"


class ZoneHandlers:
    """The zoned jobs of a node's app. The job handlers of their ticks are made before the engine, which they use once
    they run."""

    def __init__(self, config: Config) -> None:
        found = dict(zone_handlers())
        self.zone = config.zone
        self.codes = found if config.has_role("worker") and config.zone else {}
        self.runners: dict[str, ZoneRunner] = {}
        if found and not config.zone:
            do = "start the node with --zone"
            log.warning("zone.none", extra=fields(jobs=sorted(found), do=do))

    def job_handlers(self) -> list[Handler]:
        """Return one for the ticks of each job that has a schedule."""
        return [self._of_ticks(code) for code in self.codes.values() if not code.is_loop]

    def _of_ticks(self, code: ZoneHandler) -> Handler:
        async def take(_job: Job) -> None:
            await self.runners[code.job].tick()

        topic = ticks_topic(self.zone, code.job)
        return Handler(topic=topic, name="ticks", take=take, is_async=True, concurrency=2, ttr_ms=TICK_TTR_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneGround:
    """What a node knows of the zones, and of who lives. Every engine asks `bounds`."""

    routing: Routing
    hub: ZoneHub | None
    life: ZoneLife
    bounds: Bindings

    def actors(self) -> tuple[ActorSpec, ...]:
        """Return the actors in start order. They start before those that ask `bounds`."""
        return (
            ActorSpec(name="routing", role="", run=self.routing.run, policy=AT_ONCE),
            *(self.hub.actors() if self.hub is not None else ()),
            ActorSpec(name="bounds", role="", run=self.bounds.run),
        )


def zone_ground(node: Node) -> ZoneGround:
    """Return a node's view, and have its engines ask it."""
    routing, hub = Routing(node.bucket("ROUTING")), zone_hub(node)
    life: ZoneLife = hub.life if hub is not None else MemberLife(node.members, routing.current)
    if hub is not None:
        node.measures.follow_hub(partial(hub.figures, routing))
    bounds = node.bounds = Bindings(
        zone=node.config.zone, members=node.members, routing=routing, life=life, is_alone=hub is not None
    )
    return ZoneGround(routing=routing, hub=hub, life=life, bounds=bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneEngine:
    """One node's part of the zones."""

    handlers: ZoneHandlers
    jobs: JobsEngine
    takeover: Takeover
    desk: ZoneDesk
    service: DeskService

    def actors(self) -> tuple[ActorSpec, ...]:
        """Return the actors in start order. The runners start after the job engine's actors."""
        return (
            *(
                ActorSpec(name=f"zoned {job}", role="worker", run=partial(self._serve, runner), drains=True)
                for job, runner in self.handlers.runners.items()
            ),
            ActorSpec(name="takeover of zones", role="conductor", run=self.takeover.run),
            ActorSpec(name="zone service", role="desk", run=self.service.run, drains=True),
        )

    async def _serve(self, runner: ZoneRunner, *, task_status: TaskStatus[None]) -> None:
        code = runner.handler
        if not code.is_loop:
            topic = ticks_topic(runner.zone, code.job)
            await self.jobs.topics.enlist(topic, "normal")
            wanted = Schedule(every_ms=code.every_ms, cron=code.cron, tz=code.tz, overlap="skip", misfire="once")
            await self.jobs.schedules.add(topic, TICK, wanted, is_replaced=True)
        await runner.run(task_status=task_status)


@asynccontextmanager
async def open_zone_engine(
    node: Node, ground: ZoneGround, handlers: ZoneHandlers, jobs: JobsEngine
) -> AsyncIterator[ZoneEngine]:
    """Open what the zones of a node share."""
    routing, hub, life = ground.routing, ground.hub, ground.life
    bucket, leases, offsets = node.bucket("ROUTING"), node.bucket("LEASES"), Offsets(node.bucket("OFFSETS"))
    known, changes, step = (hub.routing, hub.changes, EPOCHS) if hub is not None else (routing, bucket, 1)

    def nodes() -> Mapping[str, Sequence[str]]:
        found: dict[str, list[str]] = {}
        for name, record in node.members.live().items():
            if record.zone:
                found.setdefault(record.zone, []).append(name)
        return found if hub is None else hub.life.nodes() | found

    handlers.runners = {
        job: ZoneRunner(
            code,
            zone=handlers.zone,
            node=node.members.name,
            routing=routing,
            offsets=offsets,
            leases=leases,
            life=life,
            clock=jobs.clock,
            stop=node.stop,
        )
        for job, code in handlers.codes.items()
    }
    desk = ZoneDesk(
        routing=known,
        offsets=offsets if hub is None else hub.offsets,
        changes=changes,
        hub=None if hub is None else hub.keeper,
        connection=node.connection,
        nodes=nodes,
        dead=life.dead,
        clock=jobs.clock,
    )
    takeover = Takeover(
        node=node.members.name,
        routing=known,
        bucket=changes,
        leases=leases,
        life=life,
        clock=jobs.clock,
        step=step,
    )
    yield ZoneEngine(
        handlers=handlers,
        jobs=jobs,
        takeover=takeover,
        desk=desk,
        service=DeskService("zones", desk, node.connection, node.stop),
    )
