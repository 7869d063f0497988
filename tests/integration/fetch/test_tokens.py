"""Access tokens that become void again and again, as where each node that is granted one ends the others'."""

import pytest
from aiohttp import web

from actors.fetch.rules.ledger import Ledger
from actors.fetch.sources import SourceKey
from platforms.mall.faults import FaultName, Faults
from platforms.mall.server import Mall
from streams.clock import SYSTEM
from streams.link.connection import Connection
from streams.messages.fetch import SliceFailed
from streams.publish.publisher import Publisher
from tests.support.engine import a_mall, add_source, hearing, ledger_when, running_engine, stored_orders

SHOP = SourceKey("mall", "s1")


async def add_shop(connection: Connection, publisher: Publisher, mall: Mall, *, concurrency: int = 1) -> None:
    start_ms = mall.start_ms - mall.config.history_ms
    await add_source(
        connection,
        publisher,
        SHOP,
        adapter="mall",
        url=mall.url,
        start_ms=start_ms,
        concurrency=concurrency,
        retries=10,
        slice="20s",
    )


async def test_a_token_that_is_void_again_at_once_is_renewed_again(
    connection: Connection, publisher: Publisher
) -> None:
    async with (
        a_mall(needs_token=True, faults={"next": ["expire"] * 3}) as mall,
        running_engine(connection, publisher) as engine,
    ):
        await add_shop(connection, publisher, mall)
        last_ms = max(event.modified_ms for event in mall.shops["s1"].events)
        ledger = await ledger_when(engine, SHOP, lambda ledger: ledger.watermark_ms > last_ms)
        assert mall._logins == 3
        assert (ledger.state, ledger.holes) == ("running", ())
        assert {order.order_key for order in await stored_orders(connection)} == {
            str(row[0]) for row in mall.shops["s1"].truth()
        }


async def test_a_token_that_is_always_void_parks_the_source(connection: Connection, publisher: Publisher) -> None:
    async with (
        a_mall(needs_token=True, faults={"expire": 1.0}) as mall,
        running_engine(connection, publisher) as engine,
    ):
        await add_shop(connection, publisher, mall)
        ledger = await ledger_when(engine, SHOP, lambda ledger: ledger.state == "parked")
        assert "also after they were renewed" in ledger.reason
        assert ledger.holes == ()
        assert max(piece.attempt for piece in ledger.open) == 3


@pytest.mark.parametrize("concurrency", [1, 6], ids=["one at a time", "six at once"])
async def test_a_login_that_is_throttled_waits_as_told_and_costs_no_attempt(
    connection: Connection, publisher: Publisher, concurrency: int
) -> None:
    """The token ends in the middle of the windows, and all of them need the next one."""
    logins = 0

    async def busy(request: web.Request) -> web.StreamResponse | None:
        nonlocal logins
        logins += request.path.endswith("/login")
        is_busy = logins > 1 and request.path.endswith("/login")
        return web.Response(status=429, headers={"retry-after": "60"}) if is_busy else None

    async with (
        a_mall(needs_token=True, gate=busy) as mall,
        running_engine(connection, publisher) as engine,
        hearing(connection) as heard,
    ):
        expired: list[FaultName] = ["expire"] * concurrency
        mall.dealer.set(Faults(next=("expire", "late", "late", *expired)))
        await add_shop(connection, publisher, mall, concurrency=concurrency)
        now_ms = SYSTEM.now_ms()

        def is_held(ledger: Ledger) -> bool:
            return ledger.hold_until_ms > now_ms + 50_000 and not any(piece.is_taken for piece in ledger.open)

        ledger = await ledger_when(engine, SHOP, is_held)
    assert (ledger.state, ledger.holes, heard.of(SliceFailed), logins) == ("running", (), [], 2)
