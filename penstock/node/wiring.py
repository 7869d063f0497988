"""Which engines a node runs: the one list to extend when there is another."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from actors.runtime.alerts import Alerts
from actors.runtime.membership import Status
from actors.runtime.store_notices import StoreNotices, turn_of
from actors.runtime.supervisor import ActorSpec
from penstock.node.node import Node

__all__ = ["open_engines"]


@asynccontextmanager
async def open_engines(node: Node) -> AsyncIterator[tuple[ActorSpec, ...]]:
    """Open every engine, and give their actors in start order: whoever consumes before whoever produces for it."""
    from actors.fetch.look_desk import LookDesk
    from actors.fetch.settings_watch import SourceBounds
    from penstock.api.service.service import DeskService
    from penstock.node.batch_callbacks import open_callbacks
    from penstock.node.batch_engine import open_batch_engine
    from penstock.node.each_zone import EachZone
    from penstock.node.fetch_engine import open_fetch_engine
    from penstock.node.flow_engine import open_flow_engine
    from penstock.node.flow_loads import FlowHandlers, open_flow_loads
    from penstock.node.gateway import gateway_spec
    from penstock.node.jobs_engine import open_jobs_engine
    from penstock.node.key_owners import owned_keys
    from penstock.node.metrics import serve_metrics
    from penstock.node.rate_doors import open_rates_desk
    from penstock.node.schedule_targets import accepts, target_handler
    from penstock.node.session import Session
    from penstock.node.sinks import open_sink_actors
    from penstock.node.source_doors import open_source_desk
    from penstock.node.waiting import WaitingCount
    from penstock.node.zone_engine import ZoneHandlers, open_zone_engine, zone_ground

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
            accepts(batches.desk, fetch.sources),
            each_zone.handlers,
        ) as jobs,
        open_flow_engine(node) as flow,
        open_flow_loads(node, flow_handlers, jobs) as loads,
        open_zone_engine(node, ground, zone_handlers, jobs) as zones,
    ):
        each_zone.engine = jobs
        node.status = lambda: Status(
            platforms=fetch.fetcher.platforms,
            topics=jobs.handlers.topics(),
            tasks=batches.served,
            versions=batches.versions,
            taken=ground.bounds.taken,
            settled=ground.bounds.settled,
        )
        node.bounds.follow("topics", jobs.topics)
        node.bounds.follow("tasks", batches.tasks)
        node.bounds.follow("flows", loads.flows)
        node.bounds.follow("sources", SourceBounds(node.settings))
        notices = StoreNotices(
            Alerts(fetch.notifier),
            node.bucket("LEASES"),
            turn=partial(turn_of, node.members),
            webhook=lambda: node.settings.current("", "").webhook,
        )
        node.store.tell = notices.tell
        session = Session(node.connection, node.publisher)
        sources = open_source_desk(
            session, node.clock, LookDesk(fetch.ledgers, fetch.sources, node.settings, node.clock)
        )
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
        owned = owned_keys(
            node,
            flows={code.flow.flow: code.app for code in loads.codes},
            tasks={record.task: record.app for record in batches.declared},
        )
        count = WaitingCount(node, topics=jobs.topics, jobs=jobs.store, instances=batches.instances)
        node.measures.follow_waiting(lambda: count.latest)
        async with owned:
            with serve_metrics(node.config.metrics, node.measures.registry):
                yield (
                    *ground.actors(),
                    *([ActorSpec(name="figures", role="", run=count.run)] if node.config.metrics else []),
                    ActorSpec(name="notices of stores", role="", run=notices.run),
                    *await open_sink_actors(node),
                    *flow.actors(),
                    *fetch.actors(),
                    *jobs.actors(),
                    *batches.actors(),
                    *loads.actors(),
                    *zones.actors(),
                    ActorSpec(name="rate service", role="desk", run=rate_service.run, drains=True),
                    ActorSpec(name="source service", role="desk", run=source_service.run, drains=True),
                    gateway_spec(node, jobs.desk, batches.desk, jobs.schedules, loads.desk, rates, zones.desk, sources),
                )
