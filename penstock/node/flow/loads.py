"""Wires the flows of one node: their loads, their rounds, and the job handlers of their rows."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

from anyio.abc import TaskStatus

from actors.flow.desk import FlowDesk
from actors.flow.flows import LONGEST_EVERY_MS, FlowRecord, Flows, interval_ms, rounds_topic, rows_topic
from actors.flow.handler import FlowContext, FlowHandler
from actors.flow.loader import Loader
from actors.flow.rounds import Rounds
from actors.jobs.worker.handler import Handler
from actors.jobs.worker.job import Job, Retry
from actors.runtime.crowd import for_each
from actors.runtime.logs import fields
from actors.runtime.rates.counts import Gathered, gather_begun, last_second
from actors.runtime.rules.bounds import check_own_queue
from actors.runtime.supervisor import ActorSpec
from actors.zone.bindings import Bindings
from actors.zone.scope import FlowScope
from penstock.api.service.service import DeskService
from penstock.errors import UsageError
from penstock.node.flow.jobs import FlowJobs
from penstock.node.jobs.engine import JobsEngine
from penstock.node.node import AT_ONCE, Node
from penstock.sdk.flows import FlowCode, flow_handlers

__all__ = ["FlowHandlers", "FlowLoads", "open_flow_loads"]

log = logging.getLogger(__name__)

ROUND_TTR_MS = LONGEST_EVERY_MS + 60_000
"""A round lasts as long as its interval at most, and a person may set any interval while it runs."""
SECONDS = 5
"""Over how many seconds the rows that were begun are counted, to say whether a flow reaches its rate."""


class FlowHandlers:
    """The job handlers of a node's flows. They are made before the engine, which they use once they run."""

    def __init__(self, bounds: Bindings | None = None) -> None:
        self.codes = {name: code for key, each in flow_handlers().items() for name, code in _in_zone(key, each, bounds)}
        self.rounds: Rounds | None = None

    def job_handlers(self) -> list[Handler]:
        """Return two for each flow: of its rows, and of its rounds."""
        return [handler for code in self.codes.values() for handler in (code.rows, self._of_rounds(code.flow))]

    def _of_rounds(self, flow: FlowHandler) -> Handler:
        async def take(job: Job) -> None:
            assert self.rounds is not None
            report = await self.rounds.run(flow, job.due_ms)
            if report is not None and self.rounds.is_left(report):
                raise Retry(0, "its node stops, and another one goes on with it")

        topic = rounds_topic(flow.flow)
        return Handler(topic=topic, name="rounds", take=take, is_async=True, concurrency=2, ttr_ms=ROUND_TTR_MS)


def _in_zone(key: str, code: FlowCode, bounds: Bindings | None) -> Iterator[tuple[str, FlowCode]]:
    """Yield the flow of this node, with its key: of one in each zone that of the node's zone."""
    if code.in_zone is None:
        yield key, code
    elif bounds is not None and bounds.zone:
        name = f"{key}__{bounds.zone}"
        yield name, code.in_zone(name, FlowScope(bounds, FlowContext))
    else:
        log.warning("zone.none", extra=fields(flow=key, do="start the node with --zone"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowLoads:
    """One node's part of the cluster's flows."""

    flows: Flows
    jobs: FlowJobs
    codes: Sequence[FlowCode]
    loader: Loader
    desk: FlowDesk
    service: DeskService

    def actors(self) -> tuple[ActorSpec, ...]:
        """Return the actors in start order. The loader starts after the job engine's actors."""
        loader = ActorSpec(name="loader", role="worker", run=self._load, drains=True)
        return (
            ActorSpec(name="flows", role="", run=self.flows.run, policy=AT_ONCE),
            *((loader,) if self.codes else ()),
            ActorSpec(name="flow service", role="desk", run=self.service.run, drains=True),
        )

    async def _load(self, *, task_status: TaskStatus[None]) -> None:
        await for_each(self.codes, self._declare)
        await self.loader.run(task_status=task_status)

    async def _declare(self, code: FlowCode) -> None:
        handler, flow = code.flow, code.flow.flow
        record = FlowRecord(
            flow=flow,
            app=code.app,
            limits=handler.limits,
            declared_rate=handler.rate,
            declared_attempts=handler.attempts,
        )
        before = await self.flows.declare(record)
        if before is None or before.declared_rate != handler.rate:
            told = fields(flow=flow, before=self.jobs.rate(flow), rate=handler.rate)
            log.info("flow.rate", extra=told)
            await self.jobs.change(flow, rate=handler.rate)
        limits = self.flows.current(flow).limits
        await self.jobs.bind(flow, limits.zone, limits.region_key)
        await self.jobs.follow(flow, interval_ms(limits, self.flows.progress(flow).every_ms))


@asynccontextmanager
async def open_flow_loads(node: Node, handlers: FlowHandlers, engine: JobsEngine) -> AsyncIterator[FlowLoads]:
    """Open what the flows of a node share."""
    flows = Flows(node.bucket("FLOWS"))
    jobs = FlowJobs(
        node.connection,
        store=engine.store,
        schedules=engine.schedules,
        topics=engine.topics,
        clock=engine.clock,
        desk=engine.desk,
    )

    def serving(flow: str) -> dict[str, tuple[str, ...]]:
        topic = rows_topic(flow)
        serving = {name: one.labels for name, one in node.members.live().items() if topic in one.topics}
        return {name: serving[name] for name in node.bounds.among(flows.current(flow).limits.zone, serving)}

    def living(flow: str) -> frozenset[str]:
        return frozenset(label for labels in serving(flow).values() for label in labels)

    node.measures.follow_flows(flows.in_flight)
    handlers.rounds = Rounds(
        connection=node.connection,
        flows=flows,
        rows=jobs,
        tempo=jobs,
        living=living,
        clock=engine.clock,
        measures=node.measures,
        bounds=node.bounds,
        stop=node.stop,
    )
    codes = tuple(handlers.codes.values()) if node.config.has_role("worker") else ()
    check_bound = check_own_queue if node.config.hub else lambda _flow, _bound: None
    try:
        for code in codes:
            check_bound(code.flow.flow, code.flow.limits.zone)
    except ValueError as error:
        raise UsageError(str(error)) from error
    loader = Loader(
        [code.flow for code in codes],
        connection=node.connection,
        door=jobs,
        limits=lambda flow: flows.current(flow).limits,
        late=flows.loaded_late,
        labels=node.config.labels,
        version=version("penstock"),
        stop=node.stop,
        zone=node.config.zone,
        bounds=node.bounds,
    )
    begun = partial(_begun, node)
    desk = FlowDesk(flows, jobs, clock=engine.clock, serving=serving, check_bound=check_bound, begun=begun)
    yield FlowLoads(
        flows=flows,
        jobs=jobs,
        codes=codes,
        loader=loader,
        desk=desk,
        service=DeskService("flow", desk, node.connection, node.stop),
    )


async def _begun(node: Node, keys: Sequence[str]) -> Gathered:
    """Ask all live nodes what they began lately under these keys of rates."""
    until_s = last_second(node.rates.clock.now_ms())
    return await gather_begun(node.connection, node.members.live, keys, until_s=until_s, seconds=SECONDS)
