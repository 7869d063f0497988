"""A limit that nobody declared: it is met once, and then kept, by all nodes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import anyio
import pytest
from aiohttp import web

from streams.connection import Connection
from streams.publisher import Publisher
from tests.support.engine import a_mall, adapter_table, ledger_when, running_node, stored_orders
from tests.support.manners import SHOP, add_manner, read_to_end

SPAN_S = 3.0
MOST = 30
PAGES: dict[str, Any] = {"style": "one", "size": 20, "total": "total"}


class CountingGate:
    """So many requests in each span of time, as most platforms count. `is_named`: refusals name their wait."""

    def __init__(self, *, is_named: bool) -> None:
        self.is_named = is_named
        self.answers: list[tuple[float, int]] = []
        self._began_s = 0.0
        self._count = 0

    async def __call__(self, request: web.Request) -> web.StreamResponse | None:
        now_s = anyio.current_time()
        if now_s >= self._began_s + SPAN_S:
            self._began_s, self._count = now_s, 0
        self._count += 1
        if self._count <= MOST:
            self.answers.append((now_s, 200))
            return None
        self.answers.append((now_s, 429))
        left_s = max(1, round(self._began_s + SPAN_S - now_s + 0.5))
        return web.Response(status=429, headers={"Retry-After": str(left_s)} if self.is_named else {})


@pytest.mark.parametrize("is_named", [True, False], ids=["with Retry-After", "without"])
async def test_an_undeclared_limit_is_met_and_then_kept(
    connection: Connection, publisher: Publisher, is_named: bool
) -> None:
    gate = CountingGate(is_named=is_named)
    mall: dict[str, Any] = {
        "orders": 2_400,
        "page_size": 20,
        "ago_ms": 70_000,
        "history_ms": 3_600_000,
        "change_share": 0.0,
    }
    own: dict[str, Any] = {"slice": "auto", "rate": 40, "burst": 10, "throttle_wait": "500ms", "concurrency": 2}
    async with a_mall(gate=gate, **mall) as running, running_node(connection, publisher) as node:
        await add_manner(connection, publisher, running, adapter_table(pages=PAGES), **own)
        await read_to_end(node, running, within_s=90)
        ledger = await ledger_when(node.engine, SHOP, lambda _: True)
        stored = {order.order_key for order in await stored_orders(connection)}
    assert len(stored) == 2_400
    assert ledger.limit is not None
    first_s = next(at_s for at_s, status in gate.answers if status == 429)
    later = [status for at_s, status in gate.answers if at_s > first_s + 1.0]
    assert not any(one == other == 429 for one, other in pairwise(later))
    assert later.count(429) <= len(later) * 0.05
    assert ledger.limit.per_s < 40
