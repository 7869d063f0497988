"""Shops with manners that real ones have: all their orders arrive, each state once, or `verify` says which do not."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import pytest
from aiohttp import web

from actors.fetch.ledgers import open_ledgers
from actors.fetch.rules import steering
from actors.fetch.rules.ledger import Ledger
from platforms.adapter import Response
from platforms.bounds import Window
from platforms.declared import declare
from platforms.mall.listing import list_orders
from platforms.mall.server import Mall
from platforms.reading import Reading
from streams.buckets.bucket import Bucket
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.support.engine import (
    Node,
    a_mall,
    adapter_table,
    history_start_ms,
    ledger_bucket,
    ledger_when,
    running_node,
    stored_orders,
)
from tests.support.manners import SHOP, Judged, add_manner, judge, read_to_end, store_all
from tests.support.moments import a_moment

PAGES: dict[str, Any] = {"style": "one", "size": 20, "total": "total"}
PARAMS = {"shop": "{account.shop}", "from": "{window.start}", "to": "{window.end}", "limit": "{page.size}"}
WITHIN_S = 240.0
SPARE = 10
"""Requests of live windows, which are read while the past is."""


@pytest.fixture
def orders(request: pytest.FixtureRequest) -> int:
    return 100_000 if request.config.getoption("--long") else 10_000


@asynccontextmanager
async def shop(
    connection: Connection, publisher: Publisher, table: dict[str, Any], *, mall: dict[str, Any], **own: Any
) -> AsyncIterator[tuple[Mall, Node]]:
    """Run a node on a shop with an hour of history."""
    config = {"ago_ms": 70_000, "history_ms": 3_600_000, "change_share": 0.0, "page_size": 20, **mall}
    async with a_mall(**config) as running, running_node(connection, publisher) as node:
        await add_manner(connection, publisher, running, table, **{"slice": "60s", "settle": "1s", **own})
        yield running, node


async def backfill(connection: Connection, publisher: Publisher, node: Node, mall: Mall) -> None:
    """Read the whole history once more, as `penstock sources backfill` does."""
    start_ms, end_ms = history_start_ms(mall), mall.start_ms
    async with open_ledgers(ledger_bucket(connection, publisher)) as ledgers:
        await ledgers.move(SHOP, lambda ledger: (steering.add_backfill(ledger, "old", start_ms, end_ms), None))

    def is_running(ledger: Ledger) -> bool:
        return any(each.kind == "b" for each in ledger.passes)

    await ledger_when(node.engine, SHOP, is_running)
    await ledger_when(node.engine, SHOP, lambda ledger: not is_running(ledger), within_s=WITHIN_S)


HASHED: dict[str, Any] = {
    "rows": "orders",
    "key": "id",
    "version": {"kind": "hash"},
    "modified": {"path": "modified_ms", "format": "unix_ms"},
}


@pytest.mark.parametrize("paging", ["one", "link"])
async def test_of_a_platform_without_versions_each_state_is_stored_once_whatever_is_read_again(
    connection: Connection, publisher: Publisher, tmp_path: Path, orders: int, paging: str
) -> None:
    """Overlaps of half a slice, 429s and errors in the middle, second looks, and a backfill of everything."""
    pages = {**PAGES, "style": paging} | ({"next": "next"} if paging == "link" else {})
    table = adapter_table(pages=pages, record=HASHED)
    faults = {"throttle": 0.05, "error": 0.05, "html": 0.02, "half": 0.02, "retry_after_s": 0}
    mall = {"orders": orders, "change_share": 0.35, "tie_share": 0.0, "paging": paging, "faults": faults}
    again: dict[str, Any] = {"again": ["1s"], "again_slice": "600s", "settle": "500ms"}
    wide: dict[str, Any] = {"overlap_before": "15s", "overlap_after": "15s", "retries": 20, **again}
    async with shop(connection, publisher, table, mall=mall, **wide) as (running, node):
        first = await read_to_end(node, running, within_s=WITHIN_S)
        published = len(await stored_orders(connection))
        await backfill(connection, publisher, node, running)
        again_published = len(await stored_orders(connection)) - published
        await store_all(connection, publisher, tmp_path / "orders.db")
        assert (first.holes, judge(running, tmp_path / "orders.db")) == ((), Judged(orders, 0, 0))
    assert again_published == 0
    assert published < orders * 1.2  # neighbours that are read at the same moment both list what lies between them


async def test_a_state_that_comes_back_is_stored_again(
    connection: Connection, publisher: Publisher, tmp_path: Path
) -> None:
    """The first state, another, and the first one once more: the latest reading is the latest state."""
    state, at_ms = "open", 0

    async def answer(request: web.Request) -> web.StreamResponse | None:
        from_ms, to_ms = int(request.query["from"]), int(request.query["to"])
        rows = [{"id": "tea", "state": state, "modified_ms": at_ms}] if from_ms <= at_ms < to_ms else []
        return web.json_response({"orders": rows, "total": len(rows)})

    async with a_mall(ago_ms=70_000, gate=answer) as mall, running_node(connection, publisher) as node:
        at_ms = mall.start_ms - 30_000
        await add_manner(connection, publisher, mall, adapter_table(record=HASHED), slice="20s")
        await read_to_end(node, mall, within_s=WITHIN_S)
        for following in ("held", "open", "open"):
            state = following
            await backfill(connection, publisher, node, mall)
        states = [json.loads(bytes(order.body))["state"] for order in await stored_orders(connection)]
    assert states == ["open", "held", "open"]


async def test_an_answer_that_was_asked_for_first_and_comes_last_is_the_earlier_state(
    connection: Connection, publisher: Publisher
) -> None:
    """As on a link that stalls, or on a node that stands still while the answer is on its way. No look comes later."""
    at_ms, is_first = 0, True

    async def answer(request: web.Request) -> web.StreamResponse | None:
        nonlocal is_first
        if not int(request.query["from"]) <= at_ms < int(request.query["to"]):
            return web.json_response({"orders": [], "total": 0})
        state, is_first = "open" if is_first else "held", False
        while state == "open" and not await stored_orders(connection):
            await a_moment()
        return web.json_response({"orders": [{"id": "tea", "state": state, "modified_ms": at_ms}], "total": 1})

    async with a_mall(ago_ms=70_000, gate=answer) as mall, running_node(connection, publisher) as node:
        at_ms = history_start_ms(mall) + 20_000  # on a seam, so that both windows list it
        wide: dict[str, Any] = {"slice": "20s", "overlap_before": "5s", "overlap_after": "5s", "again": []}
        await add_manner(connection, publisher, mall, adapter_table(record=HASHED), **wide)
        await read_to_end(node, mall, within_s=WITHIN_S)
        found = {order.version: json.loads(bytes(order.body))["state"] for order in await stored_orders(connection)}
    assert (sorted(found.values()), found[max(found)]) == (["held", "open"], "held")


@pytest.mark.parametrize("paging", ["one", "link"])
@pytest.mark.parametrize(
    "own",
    [{"timeout": "1s", "request_timeout": "1s"}, {"rate": 10, "burst": 1, "stale_after": "70s"}],
    ids=["a slow platform", "a low rate"],
)
async def test_what_was_read_before_the_time_was_over_is_not_read_again(
    connection: Connection, publisher: Publisher, tmp_path: Path, paging: str, own: dict[str, Any]
) -> None:
    """Two windows of many pages take several attempts. Each one costs the answer that it did not wait for."""
    pages = {**PAGES, "style": paging} | ({"next": "next"} if paging == "link" else {})
    orders, faults = (1_200, {"late": 1.0, "late_ms": 40}) if "timeout" in own else (900, {})
    mall = {"orders": orders, "paging": paging, "tie_share": 0.0, "ago_ms": 650_000, "history_ms": 600_000}
    once: dict[str, Any] = {"slice": "600s", "overlap_before": "0s", "overlap_after": "0s", "max_open": 1}
    table = adapter_table(pages=pages, overlap="0s")
    async with shop(connection, publisher, table, mall={**mall, "faults": faults}, **once, **own) as (running, node):
        ledger = await read_to_end(node, running, within_s=WITHIN_S)
        await store_all(connection, publisher, tmp_path / "orders.db")
        assert (ledger.holes, judge(running, tmp_path / "orders.db")) == ((), Judged(orders, 0, 0))
        attempts = sum(
            sample.value
            for metric in node.measures.registry.collect()
            for sample in metric.samples
            if sample.name == "penstock_slices_total" and sample.labels["outcome"] != "stored"
        )
        assert running.requests <= undisturbed(table, running) + attempts + SPARE


async def test_of_a_reading_of_many_attempts_the_contents_are_kept_once(
    connection: Connection, publisher: Publisher
) -> None:
    table = adapter_table(pages={**PAGES, "style": "link", "next": "next"}, record=HASHED, overlap="0s")
    faults = {"late": 1.0, "late_ms": 40}
    mall = {"orders": 1_200, "paging": "link", "ago_ms": 650_000, "history_ms": 600_000, "faults": faults}
    own: dict[str, Any] = {"slice": "600s", "overlap_before": "0s", "overlap_after": "0s", "max_open": 1}
    slow = {"timeout": "1s", "request_timeout": "1s"}
    async with shop(connection, publisher, table, mall=mall, **own, **slow) as (running, node):
        await read_to_end(node, running, within_s=WITHIN_S)
        digests = Bucket(connection, publisher, connection.namespace.bucket("DIGESTS"), bytes)
        slices = [entry.key.rpartition("_f")[0] for entry in await digests.entries(f"{SHOP.key}.*.*")]
    assert slices
    assert len(slices) == len(set(slices))


async def test_a_page_that_may_not_enter_at_once_splits_its_window_and_does_not_enter_unpaced(
    connection: Connection, publisher: Publisher, tmp_path: Path
) -> None:
    """300 orders at 20 a second, on one page, where an attempt may wait for 5 s."""
    table = adapter_table(pages={**PAGES, "size": 500}, overlap="0s")
    mall = {"orders": 300, "tie_share": 0.0, "page_size": 500, "ago_ms": 650_000, "history_ms": 600_000}
    own: dict[str, Any] = {"slice": "600s", "overlap_before": "0s", "overlap_after": "0s", "max_open": 1}
    began_s = anyio.current_time()
    async with shop(connection, publisher, table, mall=mall, inflow=20, stale_after="70s", **own) as (running, node):
        ledger = await read_to_end(node, running, within_s=WITHIN_S)
        took_s = anyio.current_time() - began_s
        await store_all(connection, publisher, tmp_path / "orders.db")
        assert (ledger.holes, judge(running, tmp_path / "orders.db")) == ((), Judged(300, 0, 0))
    assert took_s > 10


def undisturbed(table: dict[str, Any], mall: Mall) -> int:
    """Return how many requests one reading of each window takes."""
    adapter, requests = declare(table), 0
    shop, start_ms = mall.shops["s1"], history_start_ms(mall)
    grid_ms = 600_000
    for at_ms in range(start_ms // grid_ms * grid_ms, mall.start_ms, grid_ms):
        reading = Reading(adapter.declaration, Window(max(start_ms, at_ms), at_ms + grid_ms))
        while (ask := reading.next()) is not None:
            query = parse_qs(urlsplit(ask.page).query) if isinstance(ask.page, str) else {}
            asked = {"from": [str(ask.window.start_ms)], "to": [str(ask.window.end_ms)], "limit": ["20"], **query}
            flat = {name: values[0] for name, values in asked.items()}
            body = list_orders(shop, flat, mall.config, mall.now_ms(), "http://mall/orders", drift=False)
            reading.feed(adapter.page(Response(200, {}, body)))
        requests += reading.requests
    return requests
