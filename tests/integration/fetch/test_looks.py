"""A hint has the engine look at a source at once. A storm of hints costs no more than a look in some seconds."""

from __future__ import annotations

import json

import anyio
from aiohttp import web

from actors.fetch.look_desk import LookDesk, LookView
from actors.fetch.rules.ledger import Ledger
from actors.fetch.rules.looks import EVERY_MS
from streams.clock import SYSTEM
from streams.connection import Connection
from streams.publisher import Publisher
from tests.support.engine import Node, a_mall, adapter_table, ledger_when, running_node, stored_orders
from tests.support.manners import SHOP, add_manner

STORM = 1_000


async def after_look(node: Node, before_ms: int) -> int:
    """Return when the look after `before_ms` began, once it is over."""

    def is_over(ledger: Ledger) -> bool:
        is_begun = ledger.hints is not None and ledger.hints.began_ms > before_ms and not ledger.hints.reading
        return is_begun and not any(held.is_look for held in ledger.open)

    ledger = await ledger_when(node.engine, SHOP, is_over)
    assert ledger.hints is not None
    return ledger.hints.began_ms


async def test_a_storm_of_hints_is_two_looks_and_each_brings_what_is_new(
    connection: Connection, publisher: Publisher
) -> None:
    """The source settles for ten minutes. So without a hint nothing is read here."""
    shown: list[dict[str, object]] = []
    requests = 0

    async def answer(request: web.Request) -> web.StreamResponse | None:
        nonlocal requests
        requests += 1
        from_ms, to_ms = int(request.query["from"]), int(request.query["to"])
        rows = [row for row in shown if from_ms <= int(str(row["modified_ms"])) < to_ms]
        return web.json_response({"orders": rows, "total": len(rows), "server_time_ms": SYSTEM.now_ms()})

    async with a_mall(ago_ms=120_000, gate=answer) as mall, running_node(connection, publisher) as node:
        await add_manner(connection, publisher, mall, adapter_table(), slice="60s", settle="10m")
        desk = LookDesk(node.engine.ledgers, node.engine.sources, node.settings, SYSTEM)
        with anyio.fail_after(30):
            while SHOP not in node.engine.sources:
                await connection.flush()
        first = await ledger_when(node.engine, SHOP, lambda ledger: True)
        shown.append({"id": "tea1", "version": 1, "modified_ms": SYSTEM.now_ms() - 100})
        view = await desk.look(SHOP)
        assert (view.is_new, view.end_ms) == (True, None)
        looked_ms = await after_look(node, 0)
        assert [order.order_key for order in await stored_orders(connection)] == ["tea1"]
        of_one_look = requests
        shown.append({"id": "tea2", "version": 1, "modified_ms": SYSTEM.now_ms() - 100})
        began_ms, views = SYSTEM.now_ms(), list[LookView]()

        async def hint() -> None:
            views.append(await desk.look(SHOP))

        async with anyio.create_task_group() as tasks:
            for _ in range(STORM):
                tasks.start_soon(hint)
        assert sum(view.is_new for view in views) == 1
        assert {view.due_ms for view in views} == {looked_ms + EVERY_MS}
        assert SYSTEM.now_ms() - began_ms < EVERY_MS
        assert requests == of_one_look
        assert await after_look(node, looked_ms) >= looked_ms + EVERY_MS
        assert requests <= 2 * of_one_look
        stored = [json.loads(bytes(order.body))["id"] for order in await stored_orders(connection)]
        last = node.engine.ledgers.peek(SHOP)
    assert stored == ["tea1", "tea2"]
    assert last is not None
    assert (last.frontier_ms, last.watermark_ms, last.holes) == (first.frontier_ms, first.watermark_ms, ())
