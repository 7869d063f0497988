"""Shops with manners that real ones have: all their orders arrive, each state once, or `verify` says which do not."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from platforms.mall.server import Mall
from streams.connection import Connection
from streams.publisher import Publisher
from tests.support.engine import Node, a_mall, adapter_table, running_node
from tests.support.manners import Judged, add_manner, judge, read_to_end, store_all

PAGES: dict[str, Any] = {"style": "one", "size": 20, "total": "total"}
PARAMS = {"shop": "{account.shop}", "from": "{window.start}", "to": "{window.end}", "limit": "{page.size}"}
WITHIN_S = 240.0


@pytest.fixture
def orders(request: pytest.FixtureRequest) -> int:
    return 100_000 if request.config.getoption("--long") else 10_000


@asynccontextmanager
async def shop(
    connection: Connection, publisher: Publisher, table: dict[str, Any], *, mall: dict[str, Any], **own: Any
) -> AsyncIterator[tuple[Mall, Node]]:
    """Run a node on a shop with an hour of history."""
    config = {"history_ms": 3_600_000, "change_share": 0.0, "page_size": 20, **mall}
    async with a_mall(ago_ms=70_000, **config) as running, running_node(connection, publisher) as node:
        await add_manner(connection, publisher, running, table, **{"slice": "60s", "settle": "1s", **own})
        yield running, node


@pytest.mark.parametrize(
    ("name", "manner"),
    [
        ("number", {"paging": "number", "past_end": "last"}),
        ("offset", {"paging": "offset", "ties": "shuffled"}),
    ],
)
async def test_groups_of_one_moment_larger_than_a_page_arrive_whole(
    connection: Connection, publisher: Publisher, tmp_path: Path, orders: int, name: str, manner: dict[str, Any]
) -> None:
    param = {"page": "{page.number}"} if name == "number" else {"offset": "{page.offset}"}
    table = adapter_table(pages=PAGES, request={"path": "/orders", "params": PARAMS | param})
    mall = {"orders": orders, "crowd": 60, "crowds": orders // 600, **manner}
    async with shop(connection, publisher, table, mall=mall) as (running, node):
        ledger = await read_to_end(node, running, within_s=WITHIN_S)
        await store_all(connection, publisher, tmp_path / "orders.db")
        assert (ledger.holes, judge(running, tmp_path / "orders.db")) == ((), Judged(orders, 0, 0))
