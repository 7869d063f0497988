"""One node's fetch engine in the test's own process, malls to read from, and conditions to wait for."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec
from aiohttp import web

import platforms
from actors.fetch.ledgers import BrokenLedger, open_ledgers
from actors.fetch.rules.ledger import Ledger, first_ledger
from actors.fetch.settings.history import kept_values
from actors.fetch.settings.watch import LiveSettings
from actors.fetch.sources import SourceKey, SourceRecord
from actors.flow.governor import Governor
from actors.runtime.broker.store_watch import StoreWatch
from actors.runtime.events import Events
from actors.runtime.membership import Members, NodeRecord, Status
from actors.runtime.rates.requests import OwnRates
from actors.runtime.supervisor import ActorSpec, Supervisor
from penstock.node.config import Config
from penstock.node.fetch.engine import FetchEngine, open_fetch_engine
from penstock.node.node import Node as Shared
from penstock.node.session import health_of
from platforms.mall.config import MallConfig
from platforms.mall.faults import FaultName, Faults
from platforms.mall.server import Mall, wall_clock_ms
from streams.buckets.bucket import Bucket
from streams.clock import SYSTEM
from streams.link.connection import Connection
from streams.messages.fetch import FetchEvent, Order, decode_event, decode_orders
from streams.publish.publisher import Publisher
from streams.reads.log import read_log
from streams.store_memory import StoreMemory
from tests.support.server import make_topology, topology_for

QUICK: Mapping[str, object] = {
    "slice": "2s",
    "settle": "500ms",
    "overlap_before": "1s",
    "overlap_after": "500ms",
    "rate": 10_000,
    "burst": 1_000,
    "again": [],
    "retry_base": "100ms",
    "throttle_wait": "200ms",
}
"""Settings for a mall on this machine that is read as fast as it goes."""

E = TypeVar("E")


# ---- nodes


class Node:
    """One running node: its engine, what the engine stands on, and its stop."""

    def __init__(self, engine: FetchEngine, shared: Shared, supervisor: Supervisor) -> None:
        self.engine = engine
        self.members = shared.members
        self.settings = shared.settings
        self.measures = shared.measures
        self.supervisor = supervisor
        self.stop = shared.stop
        self.has_ended = anyio.Event()
        """Everything in hand is finished after a stop, and every actor has ended."""

    def failures(self) -> dict[str, str]:
        """Return the last error of each actor that failed."""
        return {state.name: state.last_error for state in self.supervisor.states() if state.failures}


@asynccontextmanager
async def running_node(
    connection: Connection,
    publisher: Publisher,
    *,
    node: str = "n1",
    labels: tuple[str, ...] = (),
    roles: tuple[str, ...] = (),
    drain_s: float = 10.0,
    sees_ledgers: bool = True,
) -> AsyncIterator[Node]:
    """Run a node's actors, supervised as in production, until the block ends; the topology is made first. No actor may
    have failed by then. The node itself has the whole rates. It is the governor of others, such as commands.
    `sees_ledgers`: it follows the ledgers, also if none of its actors needs that."""
    await make_topology(connection, topology_for(connection))
    events = Events(publisher, connection.namespace)
    buckets = {short: connection.namespace.bucket(short) for short in ("SETTINGS", "NODES")}
    settings = LiveSettings(
        Bucket(connection, publisher, buckets["SETTINGS"], bytes),
        clock=SYSTEM,
        history=kept_values(connection, buckets["SETTINGS"]),
        tell=events.tell,
    )
    members = Members(
        Bucket(connection, publisher, buckets["NODES"], bytes),
        NodeRecord(node=node, run=node, labels=labels, roles=roles),
        clock=SYSTEM,
        is_connected=lambda: connection.is_connected,
        status=lambda: Status(crowd=engines[0].crowd, leads=engines[0].leads) if engines else Status(),
    )
    stop, engines = anyio.Event(), list[FetchEngine]()
    config = Config(nats="nats://given", roles=roles, labels=labels, namespace=connection.namespace.name)
    memory = StoreMemory(connection, ())
    store = StoreWatch(connection, memory, health=partial(health_of, config, connection))
    shared = Shared(config, connection, publisher, members, settings, events, memory, store, stop)
    governor = Governor(node=node, connection=connection, leases=shared.bucket("LEASES"), rate_of=shared.rates.rate_of)
    async with open_fetch_engine(shared, rates=OwnRates()) as engine, anyio.create_task_group() as tasks:
        engines.append(engine)
        specs = [
            ActorSpec(name="events", role="", run=events.run),
            ActorSpec(name="settings", role="", run=settings.run),
            ActorSpec(name="members", role="", run=members.run),
            ActorSpec(name="governor", role="", run=governor.run),
            *(spec for spec in engine.actors() if not roles or spec.role in ("", *roles)),
        ]
        supervisor = Supervisor(specs, stop=stop, drain_s=drain_s, chance=lambda: 0.0)
        running = Node(engine, shared, supervisor)

        async def supervise(*, task_status: anyio.abc.TaskStatus[None]) -> None:
            await supervisor.run(task_status=task_status)
            running.has_ended.set()

        await tasks.start(supervise)
        async with engine.ledgers.followed() if sees_ledgers else nullcontext():
            yield running
        tasks.cancel_scope.cancel()
    assert running.failures() == {}


@asynccontextmanager
async def running_engine(
    connection: Connection, publisher: Publisher, *, node: str = "n1", labels: tuple[str, ...] = ()
) -> AsyncIterator[FetchEngine]:
    """Run a node and give its engine."""
    async with running_node(connection, publisher, node=node, labels=labels) as running:
        yield running.engine


# ---- sources


async def put_setting(connection: Connection, publisher: Publisher, key: str, value: object) -> int:
    """Put a value into SETTINGS by hand; bytes as they are, anything else as JSON."""
    bucket = Bucket(connection, publisher, connection.namespace.bucket("SETTINGS"), bytes)
    return await bucket.put(key, value if isinstance(value, bytes) else msgspec.json.encode(value))


def ledger_bucket(connection: Connection, publisher: Publisher) -> Bucket[bytes]:
    """Return the ledgers as bytes, to be broken by hand."""
    return Bucket(connection, publisher, connection.namespace.bucket("LEDGERS"), bytes)


async def add_source(
    connection: Connection,
    publisher: Publisher,
    source: SourceKey,
    *,
    adapter: str,
    url: str,
    start_ms: int,
    ledger: Ledger | None = None,
    default: Mapping[str, object] | None = None,
    account: Mapping[str, str] | None = None,
    source_settings: Mapping[str, object] | None = None,
    **own: object,
) -> None:
    """Add a source the way `penstock sources add` does: the default settings, its platform's (QUICK, and `own`), its
    own and its ledger first, its record last."""
    await put_setting(connection, publisher, "fetch.default", {"scan_every": "1s", **(default or {})})
    await put_setting(connection, publisher, f"fetch.{source.platform}", {**QUICK, **own})
    revision = await put_setting(connection, publisher, f"fetch.{source.key}", source_settings or {})
    async with open_ledgers(ledger_bucket(connection, publisher)) as ledgers:
        await ledgers.create(source, ledger or first_ledger(start_ms))
    values = {"base_url": url, "shop": source.source, **(account or {})}
    record = SourceRecord(adapter=adapter, account=values, settings_revision=revision)
    await put_setting(connection, publisher, f"source.{source.key}", record)


# ---- malls

Gate = Callable[[web.Request], Awaitable[web.StreamResponse | None]]
"""Called before the mall's own answer; what it returns, if anything, is answered instead."""


@asynccontextmanager
async def a_mall(*, ago_ms: int = 0, gate: Gate | None = None, **settings: object) -> AsyncIterator[Mall]:
    """Run a mall; settings are those of MallConfig. Its history ends `ago_ms` ago."""
    config = msgspec.convert({"shops": 1, "orders": 500, "history_ms": 60_000, "late_ms": 300, **settings}, MallConfig)
    mall = Mall(config, wall_clock_ms, wall_clock_ms() + config.clock_offset_ms - ago_ms)
    app = mall.app()
    if gate is not None:
        app.middlewares.append(_gated(gate))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        mall.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield mall
    finally:
        await runner.cleanup()


def _gated(gate: Gate) -> Any:
    @web.middleware
    async def middleware(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        return await gate(request) or await handler(request)

    return middleware


def adapter_table(**changes: object) -> dict[str, object]:
    """Return the file of the mall's adapter by links as a table, with another name and other parts."""
    table = tomllib.loads((Path(platforms.__file__).parent / "mall_link.toml").read_text())
    return {**table, "name": "own", **changes}


def history_start_ms(mall: Mall) -> int:
    """Return where the mall's orders begin."""
    return mall.start_ms - mall.config.history_ms


def faults(*names: FaultName, **more: object) -> Faults:
    """Return what the mall is to deal to the coming requests, one after the other."""
    return msgspec.convert({"next": names, **more}, Faults)


def truth_of(mall: Mall, shop: str, *, before_ms: int | None = None) -> dict[str, int]:
    """Return the last version of each of the shop's orders by its key, of those changed before a time."""
    rows = mall.shops[shop].truth()
    return {
        str(key): int(str(version)) for key, version, at_ms, *_ in rows if not before_ms or int(str(at_ms)) < before_ms
    }


# ---- what happened


async def stored_orders(connection: Connection) -> list[Order]:
    """Return every order in the stream, oldest first."""
    stream, found = connection.namespace.stream("ORDERS"), list[Order]()
    async for entry in read_log(connection, stream, connection.namespace.pattern("orders", ">")):
        found.extend(decode_orders(entry.payload))
    return found


async def stored_versions(connection: Connection, source: SourceKey) -> dict[str, int]:
    """Return the highest stored version of each of the source's orders by its key."""
    found: dict[str, int] = {}
    for order in await stored_orders(connection):
        if (order.platform, order.source) == (source.platform, source.source):
            found[order.order_key] = max(order.version, found.get(order.order_key, 0))
    return found


async def ledger_when(
    engine: FetchEngine, source: SourceKey, holds: Callable[[Ledger], bool], *, within_s: float = 30.0
) -> Ledger:
    """Return the source's ledger as soon as `holds` is true of it."""
    changed = anyio.Event()
    remove = engine.ledgers.on_change(lambda _source: changed.set())
    try:
        with anyio.fail_after(within_s):
            while True:
                with suppress(BrokenLedger):  # a person is at work on it
                    ledger = engine.ledgers.peek(source)
                    if ledger is not None and holds(ledger):
                        return ledger
                await changed.wait()
                changed = anyio.Event()
    finally:
        remove()


async def ledger_moves(engine: FetchEngine, source: SourceKey) -> None:
    """Wait until the source's ledger has changed."""
    before = engine.ledgers.peek(source)
    await ledger_when(engine, source, lambda ledger: ledger is not before)


class Logged(logging.Handler):
    """The log lines since this was opened."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self._news = anyio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.msg, record.__dict__.get("fields", {})))
        self._news.set()
        self._news = anyio.Event()

    def of(self, event: str) -> list[dict[str, Any]]:
        """Return the facts of every line of one event."""
        return [facts for name, facts in self.lines if name == event]

    async def first(self, event: str, *, within_s: float = 30.0) -> dict[str, Any]:
        """Return the facts of the first line of one event, as soon as it is logged."""
        with anyio.fail_after(within_s):
            while not (found := self.of(event)):
                await self._news.wait()
        return found[0]


@asynccontextmanager
async def logging_of(package: str = "actors") -> AsyncIterator[Logged]:
    """Listen to what a package logs."""
    logged, logger = Logged(), logging.getLogger(package)
    logger.addHandler(logged)
    try:
        yield logged
    finally:
        logger.removeHandler(logged)


class Heard:
    """The events that were told since this was opened."""

    def __init__(self) -> None:
        self.all: list[FetchEvent] = []
        self._news = anyio.Event()

    def take(self, event: FetchEvent) -> None:
        self.all.append(event)
        self._news.set()
        self._news = anyio.Event()

    def of(self, kind: type[E], **facts: object) -> list[E]:
        """Return those of one kind with these facts."""
        return [
            one for one in self.all if isinstance(one, kind) and all(getattr(one, k) == v for k, v in facts.items())
        ]

    async def first(self, kind: type[E], *, within_s: float = 30.0, **facts: object) -> E:
        """Return the first of one kind with these facts, as soon as it is told."""
        return (await self.many(kind, 1, within_s=within_s, **facts))[0]

    async def many(self, kind: type[E], count: int, *, within_s: float = 30.0, **facts: object) -> list[E]:
        """Return those of one kind with these facts, as soon as there are so many."""
        with anyio.fail_after(within_s):
            while len(found := self.of(kind, **facts)) < count:
                await self._news.wait()
        return found


@asynccontextmanager
async def hearing(connection: Connection) -> AsyncIterator[Heard]:
    """Listen to the events as they are published."""
    heard = Heard()
    pattern = connection.namespace.pattern("events", ">")
    subscription = await connection.subscribe(pattern, lambda message: heard.take(decode_event(message.payload)))
    await connection.flush()
    yield heard
    await subscription.unsubscribe()
