"""Which engines a node runs: the one list to extend when there is another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from actors.runtime.broker.store_notices import StoreNotices, turn_of
from actors.runtime.membership import Status
from actors.runtime.notices.alerts import Alerts
from actors.runtime.supervisor import ActorSpec
from penstock.node.node import Node

if TYPE_CHECKING:
    from penstock.node.batch.engine import BatchEngine
    from penstock.node.fetch.engine import FetchEngine
    from penstock.node.flow.engine import FlowEngine
    from penstock.node.flow.loads import FlowLoads
    from penstock.node.jobs.engine import JobsEngine
    from penstock.node.zone.engine import ZoneEngine, ZoneGround

__all__ = ["open_engines"]


class _Engines(NamedTuple):
    """A node's engines, opened."""

    ground: ZoneGround
    flow: FlowEngine
    fetch: FetchEngine
    jobs: JobsEngine
    batches: BatchEngine
    loads: FlowLoads
    zones: ZoneEngine


@asynccontextmanager
async def open_engines(node: Node) -> AsyncIterator[tuple[ActorSpec, ...]]:
    """Open every engine, and give their actors in start order: whoever consumes before whoever produces for it."""
    from penstock.node.fetch.sinks import open_sink_actors
    from penstock.node.key_owners import owned_keys
    from penstock.node.metrics import serve_metrics

    async with _opened(node) as engines:
        _report(node, engines)
        owned = owned_keys(
            node,
            flows={code.flow.flow: code.app for code in engines.loads.codes},
            tasks={record.task: record.app for record in engines.batches.declared},
        )
        figures, notices = _figures(node, engines), _notices(node, engines.fetch)
        async with owned:
            with serve_metrics(node.config.metrics, node.measures.registry):
                yield (
                    *engines.ground.actors(),
                    *figures,
                    notices,
                    *await open_sink_actors(node),
                    *(spec for engine in engines[1:] for spec in engine.actors()),
                    *engines.jobs.handlers.actors,  # a process that still starts would let the jobs wait that it takes
                    *_doors(node, engines),
                )


@asynccontextmanager
async def _opened(node: Node) -> AsyncIterator[_Engines]:
    from penstock.node.batch.callbacks import open_callbacks
    from penstock.node.batch.engine import open_batch_engine
    from penstock.node.fetch.engine import open_fetch_engine
    from penstock.node.flow.engine import open_flow_engine
    from penstock.node.flow.loads import FlowHandlers, open_flow_loads
    from penstock.node.jobs.engine import open_jobs_engine
    from penstock.node.jobs.schedule_targets import accepts, target_handler
    from penstock.node.zone.each_zone import EachZone
    from penstock.node.zone.engine import ZoneHandlers, open_zone_engine, zone_ground

    ground, zone_handlers = zone_ground(node), ZoneHandlers(node.config)
    flow_handlers, each_zone = FlowHandlers(bounds=ground.bounds), EachZone(node, ground.bounds)
    async with (
        open_fetch_engine(node) as fetch,
        open_callbacks(node) as callbacks,
        open_batch_engine(node) as batches,
        open_jobs_engine(
            node,
            (
                *callbacks,
                *flow_handlers.job_handlers(),
                *zone_handlers.job_handlers(),
                target_handler(batches.desk, fetch.ledgers),
            ),
            accepts(batches.desk, batches.tasks, fetch.sources),
            each_zone.handlers,
        ) as jobs,
        open_flow_engine(node) as flow,
        open_flow_loads(node, flow_handlers, jobs) as loads,
        open_zone_engine(node, ground, zone_handlers, jobs) as zones,
    ):
        each_zone.engine = jobs
        yield _Engines(ground, flow, fetch, jobs, batches, loads, zones)


def _report(node: Node, engines: _Engines) -> None:
    """Have the node's record say what its engines serve, and its bounds follow what is bound to zones."""
    from actors.fetch.settings.watch import SourceBounds

    bounds = engines.ground.bounds
    node.status = lambda: Status(
        platforms=engines.fetch.fetcher.platforms,
        topics=engines.jobs.handlers.topics(),
        tasks=engines.batches.served,
        versions=engines.batches.versions,
        unmade=engines.fetch.fetcher.unmade | engines.jobs.handlers.unmade() | engines.batches.unmade,
        page_orders=engines.fetch.fetcher.page_orders,
        taken=bounds.taken,
        crowd=engines.fetch.crowd,
        leads=engines.fetch.leads,
        settled=bounds.settled,
    )
    node.bounds.follow("topics", engines.jobs.topics)
    node.bounds.follow("tasks", engines.batches.tasks)
    node.bounds.follow("flows", engines.loads.flows)
    node.bounds.follow("sources", SourceBounds(node.settings))


def _notices(node: Node, fetch: FetchEngine) -> ActorSpec:
    """Return the actor that reports how the server's store and those of sinks fare."""
    notices = StoreNotices(
        Alerts(fetch.notifier),
        node.bucket("LEASES"),
        turn=partial(turn_of, node.members),
        webhook=lambda: node.settings.current("", "").webhook,
    )
    node.store.tell = notices.tell
    return ActorSpec(name="notices of stores", role="", run=notices.run)


def _figures(node: Node, engines: _Engines) -> tuple[ActorSpec, ...]:
    """Return the actor that counts what waits, on a node that serves figures."""
    from penstock.node.waiting import WaitingCount

    jobs = engines.jobs
    count = WaitingCount(
        node, topics=jobs.topics, jobs=jobs.store, instances=engines.batches.instances, server_clock=jobs.clock
    )
    node.measures.follow_waiting(lambda: count.latest)
    return (ActorSpec(name="figures", role="", run=count.run),) if node.config.metrics else ()


def _doors(node: Node, engines: _Engines) -> tuple[ActorSpec, ...]:
    """Return the doors to several engines: the services of rates and of sources, and the gateway."""
    from actors.fetch.look_desk import LookDesk
    from penstock.api.service.service import DeskService
    from penstock.node.fetch.source_doors import open_source_desk
    from penstock.node.gateway import gateway_spec
    from penstock.node.rate_doors import open_rates_desk
    from penstock.node.session import Session

    fetch, jobs, batches, loads = engines.fetch, engines.jobs, engines.batches, engines.loads
    session = Session(node.connection, node.publisher)
    looks = LookDesk(fetch.ledgers, fetch.sources, node.settings, node.clock)
    sources = open_source_desk(session, node.clock, looks, node.settings)
    rates = open_rates_desk(
        node.connection,
        topics=jobs.topics,
        flows=loads.flows,
        tasks=batches.tasks,
        sources=fetch.sources,
        settings=node.settings,
        settings_desk=session.settings_desk(),
        flow_desk=loads.desk,
        batch_desk=batches.desk,
        leases=node.bucket("LEASES"),
        members=node.members,
        clock=jobs.clock,
        learned=fetch.learned,
    )
    rate_service = DeskService("rates", rates, node.connection, node.stop)
    source_service = DeskService("sources", sources, node.connection, node.stop)
    zones = engines.zones.desk
    return (
        ActorSpec(name="rate service", role="desk", run=rate_service.run, drains=True),
        ActorSpec(name="source service", role="desk", run=source_service.run, drains=True),
        gateway_spec(node, jobs.desk, batches.desk, jobs.schedules, loads.desk, rates, zones, sources),
    )
