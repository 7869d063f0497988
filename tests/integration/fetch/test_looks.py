"""A hint has the engine look at a source at once. A storm of hints costs no more than a look in some seconds."""

from __future__ import annotations

import anyio
import pytest
from aiohttp import web

from actors.fetch.look_desk import LookDesk, LookView
from actors.fetch.rules.ledger import Ledger
from actors.fetch.rules.looks import EVERY_MS
from actors.fetch.stores.batches import fold
from streams.clock import SYSTEM
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.support.engine import Node, a_mall, adapter_table, ledger_when, running_node, stored_orders
from tests.support.manners import SHOP, add_manner
from tests.support.moments import a_moment

STORM = 1_000
FEW = 50
"""Requests: more than two looks of four slices take, and far fewer than a look for each hint would."""


async def look_begun(node: Node, after_ms: int = 0) -> int:
    """Return when the first look after `after_ms` began, once it has begun."""

    def is_begun(ledger: Ledger) -> bool:
        return ledger.hints is not None and ledger.hints.began_ms > after_ms

    ledger = await ledger_when(node.engine, SHOP, is_begun, within_s=60)
    assert ledger.hints is not None
    return ledger.hints.began_ms


def is_at_rest(ledger: Ledger) -> bool:
    """Return whether no look is open, and none waits."""
    hints = ledger.hints
    is_idle = hints is not None and not hints.reading and not hints.waiting
    return is_idle and not any(held.is_look for held in ledger.open)


async def test_a_storm_of_hints_is_two_looks_and_each_brings_what_is_new(
    connection: Connection, publisher: Publisher
) -> None:
    """The source settles for ten minutes. So without a hint nothing is read here. The storm comes while the first look
    waits for the platform, so it may take its time. Slices of one look may both list an order at their seam, and a
    slice may be read twice. So one look may publish an order twice. The next look does not publish it again."""
    shown: list[dict[str, object]] = []
    requests, was_asked, is_over = 0, anyio.Event(), anyio.Event()

    async def answer(request: web.Request) -> web.StreamResponse | None:
        nonlocal requests
        requests += 1
        from_ms, to_ms = int(request.query["from"]), int(request.query["to"])
        rows = [row for row in shown if from_ms <= int(str(row["modified_ms"])) < to_ms]
        was_asked.set()
        await is_over.wait()
        return web.json_response({"orders": rows, "total": len(rows), "server_time_ms": SYSTEM.now_ms()})

    async with a_mall(ago_ms=120_000, gate=answer) as mall, running_node(connection, publisher) as node:
        await add_manner(
            connection,
            publisher,
            mall,
            adapter_table(),
            slice="60s",
            settle="10m",
            request_timeout="2m",
            timeout="4m",
            stale_after="10m",
        )
        desk = LookDesk(node.engine.ledgers, node.engine.sources, node.settings, SYSTEM)
        with anyio.fail_after(30):
            while SHOP not in node.engine.sources:
                await a_moment()
        first = await ledger_when(node.engine, SHOP, lambda ledger: True)
        shown.append({"id": "tea1", "version": 1, "modified_ms": SYSTEM.now_ms() - 100})
        view = await desk.look(SHOP)
        assert (view.is_new, view.end_ms) == (True, None)
        await was_asked.wait()
        looked_ms, views = await look_begun(node), list[LookView]()

        async def hint() -> None:
            views.append(await desk.look(SHOP))

        async with anyio.create_task_group() as tasks:
            for _ in range(STORM):
                tasks.start_soon(hint)
        assert sum(view.is_new for view in views) == 1
        assert all(view.due_ms >= looked_ms + EVERY_MS for view in views)
        shown.append({"id": "tea2", "version": 1, "modified_ms": looked_ms + 1_000})
        is_over.set()
        again_ms = await look_begun(node, looked_ms)
        assert again_ms >= looked_ms + EVERY_MS
        last = await ledger_when(node.engine, SHOP, is_at_rest, within_s=60)
        assert last.hints is not None
        assert last.hints.began_ms == again_ms
        stored = await stored_orders(connection)
    assert requests < FEW
    assert {order.order_key for order in stored if order.fetched_ms < again_ms} == {"tea1"}
    assert {order.order_key for order in stored if order.fetched_ms >= again_ms} == {"tea2"}
    assert (last.frontier_ms, last.watermark_ms, last.holes) == (first.frontier_ms, first.watermark_ms, ())


@pytest.mark.parametrize("unit", [1, 1_000], ids=["milliseconds", "seconds"])
async def test_a_change_within_the_second_of_the_look_counts_as_later(
    connection: Connection, publisher: Publisher, unit: int
) -> None:
    """The platform's versions are times in whole seconds, or numbers of them. An order is created, a look reads it, and
    it is paid for in the same second. The tail reads that under the same version."""
    second_ms, state = SYSTEM.now_ms() // 1000 * 1000, "created"

    async def answer(request: web.Request) -> web.StreamResponse | None:
        from_ms, to_ms = int(request.query["from"]), int(request.query["to"])
        row = {"id": "tea1", "version": second_ms // unit, "modified_ms": second_ms, "state": state}
        rows = [row] if from_ms <= second_ms < to_ms else []
        return web.json_response({"orders": rows, "total": len(rows), "server_time_ms": SYSTEM.now_ms()})

    async with a_mall(history_ms=5_000, gate=answer) as mall, running_node(connection, publisher) as node:
        await add_manner(connection, publisher, mall, adapter_table(), slice="2s", settle="5s")
        desk = LookDesk(node.engine.ledgers, node.engine.sources, node.settings, SYSTEM)
        with anyio.fail_after(30):
            while SHOP not in node.engine.sources:
                await a_moment()
        await desk.look(SHOP)
        await look_begun(node)
        await ledger_when(node.engine, SHOP, is_at_rest, within_s=60)
        looked = await stored_orders(connection)
        state = "paid"
        await ledger_when(node.engine, SHOP, lambda ledger: ledger.watermark_ms > second_ms, within_s=60)
        stored = fold(await stored_orders(connection))
    assert {b"created" in bytes(order.body) for order in looked} == {True}, "a look may list an order at its seam twice"
    assert [b"paid" in bytes(order.body) for order in stored] == [True]
    assert [order.version for order in stored] == [second_ms // unit]


async def test_a_change_within_the_second_in_which_a_list_by_creation_was_read_counts_as_later(
    connection: Connection, publisher: Publisher
) -> None:
    """An older order is changed, the list of new orders is read, and it is changed again in the same second. The list
    of changes names that later, under the same version."""
    second_ms, state = 0, "paid"
    table = adapter_table(
        list=[
            {"name": name, "request": {"params": {"by": name}}, "record": {"modified": {"path": name}}}
            for name in ("created_ms", "modified_ms")
        ]
    )

    async def answer(request: web.Request) -> web.StreamResponse | None:
        nonlocal second_ms, state
        now_ms = SYSTEM.now_ms()
        from_ms, to_ms, by = int(request.query["from"]), int(request.query["to"]), request.query["by"]
        second_ms = second_ms or now_ms // 1000 * 1000
        times = {"modified_ms": second_ms, "created_ms": second_ms - 10_000}
        row = {"id": "tea1", "version": second_ms, "state": state, **times}
        rows = [row] if from_ms <= times[by] < to_ms else []
        if rows and by == "created_ms":
            state = "sent"
        return web.json_response({"orders": rows, "total": len(rows), "server_time_ms": now_ms})

    async with a_mall(history_ms=20_000, gate=answer) as mall, running_node(connection, publisher) as node:
        await add_manner(connection, publisher, mall, table)
        await ledger_when(node.engine, SHOP, lambda ledger: ledger.watermark_ms > second_ms > 0, within_s=60)
        stored = fold(await stored_orders(connection))
    assert [(b"sent" in bytes(order.body), order.version) for order in stored] == [(True, second_ms)]
