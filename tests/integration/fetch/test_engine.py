"""Orders from a mall into the stream, through allocator, queue and fetcher."""

import anyio
import pytest

from actors.fetch.sources import SourceKey
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from streams.subjects import Namespace
from streams.topology.specs import fetch_consumer
from tests.support.engine import a_mall, add_source, ledger_when, running_engine, stored_orders
from tests.support.moments import a_moment
from tests.support.server import forbidding

SHOP, OTHER = SourceKey("mall", "s1"), SourceKey("other", "s1")


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


async def test_a_right_that_the_node_does_not_have_stops_its_lane_alone(
    tmp_path_factory: pytest.TempPathFactory, namespace: Namespace
) -> None:
    forbidden = [fetch_consumer(namespace, "mall", lane) for lane in ("tail", "back")]
    async with forbidding(tmp_path_factory.mktemp("own"), namespace, *forbidden) as connection:
        async with Publisher(connection) as publisher, a_mall(ago_ms=10_000) as mall:
            async with running_engine(connection, publisher) as engine:
                start_ms = int(str(mall.state()["history_start_ms"]))
                for source in (SHOP, OTHER):
                    await add_source(connection, publisher, source, adapter="mall", url=mall.url, start_ms=start_ms)
                await ledger_when(engine, OTHER, lambda ledger: ledger.watermark_ms > start_ms)
                with anyio.fail_after(60):
                    while len(engine.fetcher.unmade) < len(forbidden):
                        await a_moment()
                assert all("check this user's permissions" in why for why in engine.fetcher.unmade.values())
                assert (await ledger_when(engine, SHOP, lambda ledger: bool(ledger.open))).watermark_ms == start_ms
