"""A limit that nobody declared: it is met once, and then kept, by all nodes. A limit that is told is kept as it is."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
from aiohttp import web

from actors.fetch.rules.ledger import Limit
from actors.fetch.sources import SourceKey
from penstock.sdk.calls import ServiceClient
from penstock.sdk.client_rates import RateCalls
from platforms.mall.dialects.amazon import AMAZON
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.support.command import node as node_process
from tests.support.engine import a_mall, adapter_table, ledger_bucket, ledger_when, running_node, stored_orders
from tests.support.manners import SHOP, add_manner, judge, read_to_end, references, store_all
from tests.support.moments import a_moment
from tests.support.server import make_topology, topology_for

SPAN_S = 3.0
MOST = 30
PAGES: dict[str, Any] = {"style": "one", "size": 20, "total": "total"}


class CountingGate:
    """So many requests in each span of time, as most platforms count. `is_named`: refusals name their wait."""

    def __init__(self, *, is_named: bool, most: int = MOST) -> None:
        self.is_named = is_named
        self.most = most
        self.answers: list[tuple[float, int]] = []
        self._began_s = 0.0
        self._count = 0

    async def __call__(self, request: web.Request) -> web.StreamResponse | None:
        now_s = anyio.current_time()
        if now_s >= self._began_s + SPAN_S:
            self._began_s, self._count = now_s, 0
        self._count += 1
        if self._count <= self.most:
            self.answers.append((now_s, 200))
            return None
        self.answers.append((now_s, 429))
        left_s = max(1, round(self._began_s + SPAN_S - now_s + 0.5))
        return web.Response(status=429, headers={"Retry-After": str(left_s)} if self.is_named else {})

    def is_kept(self, *, meeting_s: float) -> bool:
        """Return whether it is kept once it was met: never refused twice in a row, and hardly ever at all."""
        first_s = next(at_s for at_s, status in self.answers if status == 429)
        later = [status for at_s, status in self.answers if at_s > first_s + meeting_s]
        in_a_row = any(one == other == 429 for one, other in pairwise(later))
        return not in_a_row and later.count(429) <= len(later) * 0.05


async def test_an_undeclared_limit_is_met_and_then_kept(connection: Connection, publisher: Publisher) -> None:
    gate = CountingGate(is_named=True)
    mall: dict[str, Any] = {"orders": 2_000, "page_size": 20, "ago_ms": 70_000, "history_ms": 3_600_000}
    own: dict[str, Any] = {"slice": "auto", "rate": 40, "burst": 10, "throttle_wait": "500ms", "concurrency": 2}
    async with a_mall(gate=gate, change_share=0.0, **mall) as running, running_node(connection, publisher) as node:
        await add_manner(connection, publisher, running, adapter_table(pages=PAGES), **own)
        await read_to_end(node, running, within_s=90)
        ledger = await ledger_when(node.engine, SHOP, lambda _: True)
        stored = {order.order_key for order in await stored_orders(connection)}
    assert len(stored) == 2_000
    assert ledger.limit is not None
    assert gate.is_kept(meeting_s=1.0)
    assert 0 < ledger.limit.per_s < 40


async def test_a_limit_by_application_is_learned_once_for_all_shops_and_nodes(
    server: EmbeddedServer, connection: Connection, publisher: Publisher
) -> None:
    """Two nodes read two shops of one application. `penstock rates` has the learned limit as the platform's."""
    gate = CountingGate(is_named=False, most=60)
    await make_topology(connection, topology_for(connection))
    reached = {"PENSTOCK_NATS": server.url, "PENSTOCK_NAMESPACE": connection.namespace.name, "PENSTOCK_HTTP": "off"}
    own: dict[str, Any] = {"slice": "10s", "rate": 40, "burst": 1, "throttle_wait": "500ms", "concurrency": 4}
    table = adapter_table(pages=PAGES, rate=[{"scope": "app"}])  # without a number
    shops = [SourceKey("manner", "s1"), SourceKey("manner", "s2")]
    async with (
        a_mall(gate=gate, shops=2, ago_ms=70_000, history_ms=7_200_000) as running,
        node_process("--name", "n1", environment=reached) as one,
        node_process("--name", "n2", environment=reached) as other,
    ):
        for each in (one, other):
            await each.logged("node.ready")
        for shop in shops:
            await add_manner(connection, publisher, running, table, source=shop, **own)
        with anyio.fail_after(60):
            while not any(status == 429 for _, status in gate.answers):
                await a_moment()
        met, later = len(gate.answers), 200
        with anyio.fail_after(60):
            while len(gate.answers) < met + later:
                await a_moment()
        assert gate.is_kept(meeting_s=2 * SPAN_S)
        rates = RateCalls(ServiceClient(connection, "rates", 10.0))
        listed: dict[tuple[str, str], Any] = {}
        with anyio.fail_after(60):
            while ("source", "manner/s1") not in listed:  # it is there while a node has requests to it
                listed = {(each.kind, each.name): each for each in (await rates.list(5)).rates}
                await a_moment()
        platform = listed["platform", "manner"]
        assert 1 <= platform.rate < 25  # of what a slow machine asks for, less is learned
        assert 0 < platform.mean <= 1.1 * platform.rate
        assert listed["source", "manner/s1"].rate == 40
        kept = await ledger_bucket(connection, publisher).get(shops[0].key)
        assert kept is not None
        assert b'"limit"' not in kept.value


async def test_a_budget_of_one_a_minute_is_spent_at_once_and_slows_nobody(
    connection: Connection, publisher: Publisher, tmp_path: Path
) -> None:
    """Amazon declares and tells 0.0167 a second, with a burst of 20. Nothing is refused, and the other shop is read."""
    table = tomllib.loads((files("platforms") / "amazon.toml").read_text())
    dialect: dict[str, Any] = {**AMAZON.manners, "platform": "amazon", "tells_limits": True}
    limit = {"rate_per_s": 0.0167, "rate_burst": 20}
    past: dict[str, Any] = {"ago_ms": 1_800_000, "history_ms": 3_600_000, "change_share": 0.0, "tie_share": 0.0}
    seller = SourceKey("seller", "s1")
    account = references(tmp_path, {"access_token": "token-7-1", **AMAZON.account})
    async with (
        a_mall(orders=400, faults=limit, **dialect, **past) as amazon,
        a_mall(orders=1_000, **past) as other,
        running_node(connection, publisher) as node,
    ):
        once: dict[str, Any] = {"slice": "10m", "settle": "1s"}
        await add_manner(connection, publisher, amazon, table, source=seller, account=account, **once)
        await add_manner(connection, publisher, other, adapter_table(), **{**once, "slice": "60s"})
        await read_to_end(node, other, within_s=30)
        ledger = await read_to_end(node, amazon, source=seller, within_s=30)
        await store_all(connection, publisher, tmp_path / "orders.db")
        assert (judge(amazon, tmp_path / "orders.db", seller), amazon.kinds["throttled"]) == ((400, 0, 0), 0)
        assert ledger.limit == Limit(0.0, 0, told=0.0167)
