"""A platform whose time of change does not move: a sweep finds the changes, and publishes nothing else."""

from typing import Any

import pytest
from aiohttp import web

from actors.fetch.rules.ledger import Ledger
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.support.engine import a_mall, adapter_table, ledger_when, running_node, stored_orders
from tests.support.manners import SHOP, add_manner

RECORD: dict[str, Any] = {"rows": "orders", "key": "id", "modified": {"path": "modified_ms", "format": "unix_ms"}}


@pytest.mark.parametrize("version", [{"kind": "hash"}, {"kind": "number", "path": "version"}], ids=["hash", "number"])
async def test_a_sweep_publishes_only_what_differs(
    connection: Connection, publisher: Publisher, version: dict[str, str]
) -> None:
    changed: dict[str, int] = {}
    at_ms = 0

    async def answer(request: web.Request) -> web.StreamResponse | None:
        from_ms, to_ms = int(request.query["from"]), int(request.query["to"])
        rows = [
            {"id": f"tea{n}", "version": changed.get(f"tea{n}", 1), "modified_ms": at_ms + n}
            for n in range(10)
            if from_ms <= at_ms + n < to_ms
        ]
        return web.json_response({"orders": rows, "total": len(rows)})

    async with a_mall(ago_ms=70_000, gate=answer) as mall, running_node(connection, publisher) as node:
        at_ms = mall.start_ms - 30_000
        table = adapter_table(record={**RECORD, "version": version})
        await add_manner(connection, publisher, mall, table, slice="auto", sweep="2s", again=[])

        async def swept(times: int) -> None:
            for _ in range(times):
                now = await ledger_when(node.engine, SHOP, lambda ledger: True)
                before_ms = now.swept_ms

                def is_over(ledger: Ledger, before_ms: int = before_ms) -> bool:
                    return ledger.swept_ms > before_ms and not any(each.kind == "b" for each in ledger.passes)

                await ledger_when(node.engine, SHOP, is_over)

        await swept(2)
        assert len(await stored_orders(connection)) == 10
        changed["tea3"] = 2
        await swept(3)
        stored = [(order.order_key, order.body) for order in await stored_orders(connection)]
    assert len(stored) == 11
    assert stored[-1][0] == "tea3"
