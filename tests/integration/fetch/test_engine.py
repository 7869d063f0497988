"""Orders from a mall into the stream, through allocator, queue and fetcher."""

import pytest

from actors.fetch.sources import SourceKey
from streams.connection import Connection
from streams.publisher import Publisher
from tests.support.engine import a_mall, add_source, ledger_when, running_engine, stored_orders

SHOP = SourceKey("mall", "s1")


@pytest.mark.three_servers
async def test_every_order_of_a_closed_window_reaches_the_stream(connection: Connection, publisher: Publisher) -> None:
    async with a_mall(ago_ms=10_000) as mall, running_engine(connection, publisher) as engine:
        start_ms = int(str(mall.state()["history_start_ms"]))
        await add_source(connection, publisher, SHOP, adapter="mall", url=mall.url, start_ms=start_ms)
        last_ms = max(event.modified_ms for event in mall.shops["s1"].events)
        ledger = await ledger_when(engine, SHOP, lambda ledger: ledger.watermark_ms > last_ms)
        assert ledger.holes == ()
        stored = {order.order_key: order.version for order in await stored_orders(connection)}
        assert stored == {row[0]: row[1] for row in mall.shops["s1"].truth()}
