"""Gateways for tests: one in the test's own loop, and one in a thread, for a whole session of clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio
import anyio.abc
import anyio.from_thread

from actors.batch.desk import BatchDesk
from actors.batch.instances import Instances
from actors.batch.items import BatchItems
from actors.batch.tasks import Tasks
from actors.fetch.budget import Budgets
from actors.fetch.learning import LearnedLimits
from actors.fetch.ledgers import Ledgers
from actors.fetch.look_desk import LookDesk
from actors.fetch.settings.watch import LiveSettings
from actors.fetch.sources import Sources
from actors.flow.desk import FlowDesk
from actors.flow.flows import Flows
from actors.jobs.desk import JobDesk
from actors.jobs.schedule_desk import ScheduleDesk
from actors.jobs.store import JobStore
from actors.jobs.topics import Topics
from actors.runtime.bounds import Anywhere
from actors.runtime.rates.shares import Shares
from actors.runtime.supervisor import ActorSpec, Supervisor
from actors.zone.desk import ZoneDesk
from actors.zone.offsets import Offsets
from actors.zone.routing import Routing
from penstock.api.http.calls import GatewayState
from penstock.api.http.live_tokens import LiveTokens
from penstock.api.http.tokens import TokenWish, create_token
from penstock.node.config import Config
from penstock.node.fetch.source_doors import open_source_desk
from penstock.node.flow.jobs import FlowJobs
from penstock.node.gateway import Gateway
from penstock.node.jobs.doors import open_desk
from penstock.node.rate_doors import open_rates_desk
from penstock.node.session import Session
from penstock.rows.first_look import look_at_file
from penstock.rows.sheet_stream import sheet_parts
from streams.buckets.bucket import Bucket
from streams.buckets.files import Files
from streams.clock import SYSTEM, now_ms
from streams.link.connection import Connection
from streams.link.server_clock import ServerClock
from streams.publish.publisher import Publisher
from tests.support.server import Reachable, connected, make_topology, topology_for


class RunningGateway:
    """A gateway that listens, the desk behind it, and its stop."""

    def __init__(
        self, gateway: Gateway, desk: JobDesk, tokens: Bucket[bytes], live: LiveTokens, stop: anyio.Event
    ) -> None:
        self.gateway = gateway
        self.desk = desk
        self.tokens = tokens
        self.live = live
        self.stop = stop
        self.ahead_ms = 0
        """How far tokens' clock is set on."""
        self.has_ended = anyio.Event()

    @property
    def port(self) -> int:
        return self.gateway.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}"

    async def token(self, name: str, **wish: object) -> str:
        """Make a token and return it once the gateway knows it."""
        text, _ = await create_token(self.tokens, TokenWish(name=name, **wish), now_ms=now_ms())  # type: ignore[arg-type]
        with anyio.fail_after(30):
            while self.live.find(text) is None:
                await self.live.changed()
        return text


@asynccontextmanager
async def running_gateway(
    connection: Connection, publisher: Publisher, config: Config | None = None
) -> AsyncIterator[RunningGateway]:
    """Run a gateway and all that it stands on, supervised as in production, until the block ends. The topology is
    made first, and no actor may have failed by the end."""
    namespace = connection.namespace
    await make_topology(connection, topology_for(connection))

    def bucket(short: str) -> Bucket[bytes]:
        return Bucket(connection, publisher, namespace.bucket(short), bytes)

    stop = anyio.Event()
    clock = ServerClock(connection, namespace.jobs_streams())
    topics = Topics(bucket("TOPICS"), connection, namespace)
    store = JobStore(connection, publisher, namespace, clock)
    rates = Shares(lambda topic: topics.current(topic).rate or None)
    opened = open_desk(
        connection,
        store=store,
        topics=topics,
        rates=rates,
        clock=clock,
        leases=bucket("LEASES"),
        handling=lambda _topic: (),
        bounds=Anywhere(),
        unmade=lambda _topic, _consumer: "",
    )
    async with opened as desk, anyio.create_task_group() as group:
        live = LiveTokens(bucket("TOKENS"), lambda: now_ms() + running.ahead_ms)
        tasks, instances = Tasks(bucket("TASKS")), Instances(bucket("INSTANCES"))
        batches = BatchDesk(
            tasks=tasks,
            instances=instances,
            items=BatchItems(connection, publisher),
            files=Files(connection, publisher, namespace.bucket("FILES")),
            beats=bucket("BEATS"),
            clock=SYSTEM,
        )
        flows = Flows(bucket("FLOWS"))
        schedules = ScheduleDesk(bucket("RECURRING"), clock)
        flow_jobs = FlowJobs(connection, store=store, schedules=schedules, topics=topics, clock=clock, desk=desk)
        flow_desk = FlowDesk(flows, flow_jobs, clock=clock)
        session = Session(connection, publisher)
        settings_desk = session.settings_desk()
        sources = Sources(bucket("SETTINGS"))
        settings = LiveSettings(bucket("SETTINGS"), clock=SYSTEM, history=settings_desk.history)
        ledgers = Ledgers(bucket("LEDGERS"), group)
        looks = LookDesk(ledgers, sources, settings, SYSTEM)
        rates_desk = open_rates_desk(
            connection,
            topics=topics,
            flows=flows,
            tasks=tasks,
            sources=sources,
            settings=settings,
            settings_desk=settings_desk,
            flow_desk=flow_desk,
            batch_desk=batches,
            leases=bucket("LEASES"),
            members=None,
            clock=clock,
            learned=LearnedLimits(ledgers, bucket("DIGESTS"), Budgets(None), SYSTEM),
        )
        routing = Routing(bucket("ROUTING"))
        zones_desk = ZoneDesk(
            routing=routing,
            offsets=Offsets(bucket("OFFSETS")),
            changes=bucket("ROUTING"),
            connection=connection,
            nodes=lambda: {"a": ["n1"], "b": ["n2"]},
            dead=frozenset,
            clock=clock,
        )
        shared = GatewayState(
            desk=desk,
            batches=batches,
            schedules=schedules,
            flows=flow_desk,
            rates=rates_desk,
            zones=zones_desk,
            sources=open_source_desk(session, looks=looks),
            sheet_parts=sheet_parts,
            look_at_file=look_at_file,
            is_connected=lambda: connection.is_connected,
        )
        gateway = Gateway(config or Config(http="127.0.0.1:0"), shared, live, stop)
        specs = [
            ActorSpec(name="clock", role="", run=clock.run),
            ActorSpec(name="topics", role="", run=topics.run),
            ActorSpec(name="tasks", role="", run=tasks.run),
            ActorSpec(name="flows", role="", run=flows.run),
            ActorSpec(name="routing", role="", run=routing.run),
            ActorSpec(name="instances", role="", run=instances.run),
            ActorSpec(name="gateway", role="gateway", run=gateway.run, drains=True),
        ]
        supervisor = Supervisor(specs, stop=stop, drain_s=10, chance=lambda: 0.0)
        running = RunningGateway(gateway, desk, bucket("TOKENS"), live, stop)

        async def supervise(*, task_status: anyio.abc.TaskStatus[None]) -> None:
            await supervisor.run(task_status=task_status)
            running.has_ended.set()

        await group.start(supervise)
        assert supervisor.is_ready(), supervisor.states()
        try:
            yield running
            stop.set()
            with anyio.fail_after(30):
                await running.has_ended.wait()
        finally:
            group.cancel_scope.cancel()
    assert {state.name: state.last_error for state in supervisor.states() if state.failures} == {}


class SharedGateway:
    """A gateway in a thread of its own, as clients see it: an address, and tokens."""

    def __init__(self, portal: anyio.from_thread.BlockingPortal, running: RunningGateway) -> None:
        self._portal = portal
        self._running = running
        self.url = running.url
        self.port = running.port

    def token(self, name: str, **wish: object) -> str:
        """Make a token and return it once the gateway knows it."""

        async def make() -> str:
            return await self._running.token(name, **wish)

        return self._portal.call(make)


@contextmanager
def gateway_thread(server: Reachable, config: Config | None = None) -> Iterator[SharedGateway]:
    """Run a gateway outside of any test's loop, so that tests share it; each uses topics of its own."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[RunningGateway]:
        async with connected(server) as connection, Publisher(connection) as publisher:
            async with running_gateway(connection, publisher, config) as running:
                yield running

    with anyio.from_thread.start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(opened()) as running:
            yield SharedGateway(portal, running)
