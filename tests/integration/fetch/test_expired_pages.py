"""The name of a next page may die while a window is read, and platforms say so in many ways."""

from typing import Any

import pytest
from aiohttp import web

from actors.fetch.rules.ledger import Ledger
from streams.clock import SYSTEM
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.support.engine import a_mall, adapter_table, ledger_when, running_node, stored_orders
from tests.support.manners import SHOP, add_manner

PAGE = 10
REFUSALS: dict[str, tuple[int, dict[str, Any]]] = {
    "a bad request": (400, {"message": "page_token has expired"}),
    "a server error": (500, {"message": "search context is missing"}),
    "a code and no data": (200, {"code": 36009004, "message": "Invalid page_token", "data": None}),
    "a code and no orders": (200, {"code": 36009004, "message": "Invalid page_token", "orders": []}),
    "an error": (200, {"error": "expired", "orders": []}),
    "not JSON": (200, {}),
}


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_page_whose_name_has_died_is_read_under_another_one(
    connection: Connection, publisher: Publisher, refusal: str
) -> None:
    """The names of the first reading of each window die at once. Those that come later live."""
    status, said = REFUSALS[refusal]
    now_ms = SYSTEM.now_ms()
    rows = [{"id": f"t{n}", "version": 1, "modified_ms": now_ms - 20_000 + n} for n in range(35)]
    dead: set[str] = set()
    readings = 0

    async def answer(request: web.Request) -> web.StreamResponse | None:
        nonlocal readings
        from_ms, to_ms = int(request.query["from"]), int(request.query["to"])
        listed = [row for row in rows if from_ms <= int(str(row["modified_ms"])) < to_ms]
        token = request.query.get("page_token", "")
        if token in dead:
            return web.Response(text="<html>") if refusal == "not JSON" else web.json_response(said, status=status)
        begin = int(token.partition("-")[0]) if token else 0
        readings += not token and len(listed) > PAGE
        following = f"{begin + PAGE}-{readings}" if begin + PAGE < len(listed) else None
        if readings == 1 and following:
            dead.add(following)
        shown = listed[begin : begin + PAGE]
        return web.json_response({"orders": shown, "next": following, "server_time_ms": SYSTEM.now_ms()})

    table = adapter_table(
        pages={"style": "token", "size": PAGE, "next": "next"},
        request={
            "path": "/orders",
            "params": {"from": "{window.start}", "to": "{window.end}", "page_token": "{page.token}"},
        },
    )

    def is_over(ledger: Ledger) -> bool:
        return ledger.watermark_ms > now_ms - 19_000 or bool(ledger.holes) or ledger.state == "parked"

    async with a_mall(history_ms=30_000, gate=answer) as mall, running_node(connection, publisher) as node:
        await add_manner(connection, publisher, mall, table, slice="15s")
        ledger = await ledger_when(node.engine, SHOP, is_over, within_s=60)
        found = {order.order_key for order in await stored_orders(connection)}
    assert (ledger.state, ledger.holes) == ("running", ())
    assert found == {row["id"] for row in rows}
