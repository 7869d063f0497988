"""A source that is changed while it is read, or removed and added again under its name: nothing of the earlier one
counts for the later one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from aiohttp import web

from actors.fetch.source_import import SourceRow
from actors.fetch.sources import SourceKey
from penstock.admin.source_moves import remove, rewind
from penstock.admin.sources import Edit, Wanted, add, change
from penstock.node.fetch.engine import FetchEngine
from penstock.times import time_text
from platforms.mall.server import Mall
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.support.cli import CommandLine
from tests.support.engine import (
    QUICK,
    a_mall,
    adapter_table,
    history_start_ms,
    ledger_when,
    put_setting,
    running_engine,
    stored_orders,
    stored_versions,
    truth_of,
)
from tests.support.moments import a_moment

SHOP = SourceKey("mall", "mine")
PAGES: dict[str, Any] = {"ago_ms": 40_000, "shops": 2, "paging": "link", "page_size": 20}


class Gate:
    """Lets one request for the first shop pass. Its other requests wait until the gate is open."""

    def __init__(self) -> None:
        self._asked = 0
        self.is_waited_for = anyio.Event()
        self.is_open = anyio.Event()

    async def __call__(self, request: web.Request) -> web.StreamResponse | None:
        if request.query.get("shop") == "s1":
            self._asked += 1
            if self._asked > 1:
                self.is_waited_for.set()
                await self.is_open.wait()
        return None


async def add_shop(cli: CommandLine, mall: Mall, shop: str, *, adapter: str = "mall_link") -> None:
    """Add the source, with all orders of the mall in its first window."""
    account, start_ms = {"base_url": mall.url, "shop": shop}, history_start_ms(mall) // 1000 * 1000
    await add(cli.records, Wanted(SHOP, adapter, account, settings={"slice": "90s"}, start=time_text(start_ms)))


async def first_page_stored(connection: Connection, gate: Gate) -> None:
    with anyio.fail_after(30):
        await gate.is_waited_for.wait()
        while not await stored_versions(connection, SHOP):
            await a_moment()


@asynccontextmanager
async def read_in_part(
    cli: CommandLine, connection: Connection, publisher: Publisher
) -> AsyncIterator[tuple[Mall, FetchEngine, Gate]]:
    """Run a mall and a node that has stored the first page of the first shop, and reads the next one."""
    gate = Gate()
    async with a_mall(gate=gate, **PAGES) as mall, running_engine(connection, publisher) as engine:
        await put_setting(connection, publisher, "fetch.mall", QUICK)
        await add_shop(cli, mall, "s1")
        await first_page_stored(connection, gate)
        yield mall, engine, gate


async def record_known(engine: FetchEngine, shop: str) -> None:
    """Wait until the node knows the source with an account of `shop`. Empty: until it knows that there is none."""
    with anyio.fail_after(30):
        while ((record := engine.sources.find(SHOP)) and record.account["shop"]) != (shop or None):
            await a_moment()


async def all_read(engine: FetchEngine, connection: Connection, mall: Mall, shop: str) -> None:
    """Wait until the first window is read, and see that each order of the shop is there."""
    await ledger_when(engine, SHOP, lambda ledger: ledger.watermark_ms > mall.start_ms)
    stored, truth = await stored_versions(connection, SHOP), truth_of(mall, shop)
    assert {key: stored.get(key) for key in truth} == truth


async def test_pages_of_a_removed_source_do_not_stand_for_those_of_the_new_one(
    cli: CommandLine, connection: Connection, publisher: Publisher
) -> None:
    """The account was wrong: the source is removed while its first window is read, and added with the right one."""
    async with read_in_part(cli, connection, publisher) as (mall, engine, _):
        await remove(cli.records, SHOP, keeps_ledger=False)
        await add_shop(cli, mall, "s2")
        await all_read(engine, connection, mall, "s2")


async def test_a_removed_source_writes_no_more(cli: CommandLine, connection: Connection, publisher: Publisher) -> None:
    async with read_in_part(cli, connection, publisher) as (mall, engine, gate):
        await remove(cli.records, SHOP, keeps_ledger=False)
        await record_known(engine, "")
        written = await stored_versions(connection, SHOP)
        gate.is_open.set()
        await add_shop(cli, mall, "s2")
        await all_read(engine, connection, mall, "s2")
        stored = await stored_versions(connection, SHOP)
        assert {key for key in stored if key.startswith("s1-")} == set(written)


async def test_a_window_is_not_read_half_with_one_account_and_half_with_another(
    cli: CommandLine, connection: Connection, publisher: Publisher
) -> None:
    async with read_in_part(cli, connection, publisher) as (mall, engine, gate):
        await change(cli.records, SHOP, Edit(account={"shop": "s2"}))
        await record_known(engine, "s2")
        gate.is_open.set()
        await all_read(engine, connection, mall, "s2")


async def test_what_is_removed_or_rewound_is_published_again_also_without_versions(
    cli: CommandLine, connection: Connection, publisher: Publisher
) -> None:
    """A user has lost the tables, and wants all orders once more."""
    async with a_mall(**PAGES) as mall, running_engine(connection, publisher) as engine:
        table = adapter_table(record={"rows": "orders", "key": "id"}, name="unversioned")
        await put_setting(connection, publisher, "adapter.unversioned", table)
        await put_setting(connection, publisher, "fetch.mall", QUICK)
        await add_shop(cli, mall, "s1", adapter="unversioned")
        await ledger_when(engine, SHOP, lambda ledger: ledger.watermark_ms > mall.start_ms)
        first = await stored_orders(connection)
        assert {order.order_key for order in first} == set(truth_of(mall, "s1"))

        await rewind(cli.records, SHOP, history_start_ms(mall))
        await ledger_when(engine, SHOP, lambda ledger: ledger.epoch > 1 and ledger.watermark_ms > mall.start_ms)
        second = (await stored_orders(connection))[len(first) :]
        assert {order.order_key for order in second} == set(truth_of(mall, "s1"))

        await remove(cli.records, SHOP, keeps_ledger=False)
        assert await cli.records.session.bucket("DIGESTS").entries(f"{SHOP.key}.>") == []
        await record_known(engine, "")
        await add_shop(cli, mall, "s1", adapter="unversioned")
        await ledger_when(engine, SHOP, lambda ledger: ledger.watermark_ms > mall.start_ms)
        third = (await stored_orders(connection))[len(first) + len(second) :]
        assert {order.order_key for order in third} == set(truth_of(mall, "s1"))


@pytest.mark.parametrize("by_import", [False, True])
async def test_a_source_that_is_added_while_it_is_removed_is_there_whole_or_not_at_all(
    cli: CommandLine, *, by_import: bool
) -> None:
    account = {"base_url": "http://127.0.0.1:9", "shop": "s1"}
    row = SourceRow(source=str(SHOP), adapter="mall", account=account, settings={"retries": 7}, start="-2d")
    wanted = Wanted(SHOP, "mall", account, settings={"retries": 7}, start="-2d")

    async def add_again(passed: int) -> None:
        for _ in range(passed):
            await cli.records.source(SHOP)
        await (cli.records.importer.run([row]) if by_import else add(cli.records, wanted))

    for passed in range(12):
        await add(cli.records, wanted)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(remove, cli.records, SHOP, keeps_ledger=False))
            tasks.start_soon(add_again, passed)
        if await cli.records.source(SHOP) is not None:
            assert await cli.records.ledger(SHOP) is not None
            assert (await cli.records.settings_of(SHOP)).retries == 7
