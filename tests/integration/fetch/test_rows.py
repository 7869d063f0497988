"""What becomes of rows that are no ordinary ones: unreadable ones, and versions that say no order."""

import json
from typing import Any

import pytest
from aiohttp import web

from actors.fetch.ledgers import open_ledgers
from actors.fetch.rules import steering
from actors.fetch.sources import SourceKey
from penstock.admin.dead_letters import Cannot, plan
from penstock.times import time_text
from streams.clock import now_ms
from streams.link.connection import Connection
from streams.messages.fetch import SliceCompleted, SourceParked, dead_payload
from streams.publish.publisher import Publisher
from tests.support.engine import (
    a_mall,
    adapter_table,
    add_source,
    hearing,
    history_start_ms,
    ledger_bucket,
    ledger_when,
    logging_of,
    put_setting,
    running_engine,
    stored_orders,
    stored_versions,
    truth_of,
)
from tests.support.letters import dead_letters
from tests.support.server import full, stream_state

SHOP = SourceKey("odd", "s1")
RECORD = {"rows": "orders", "key": "id", "modified": {"path": "modified_ms", "format": "unix_ms"}}


def listing(*rows: dict[str, object]) -> web.Response:
    return web.json_response({"orders": rows, "total": len(rows), "next": None})


async def test_unreadable_row_is_a_dead_letter_and_its_neighbours_are_stored(
    connection: Connection, publisher: Publisher
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse | None:
        at_ms = int(request.query["to"]) - 1_000
        good = {"id": "good", "version": 1, "modified_ms": at_ms}
        return listing(good, {"id": "bad", "version": "none", "modified_ms": at_ms})

    async with a_mall(gate=answer) as mall, running_engine(connection, publisher) as engine:
        await put_setting(connection, publisher, "adapter.odd", adapter_table(name="odd"))
        start_ms = history_start_ms(mall)
        await add_source(connection, publisher, SHOP, adapter="odd", url=mall.url, start_ms=start_ms, slice="20s")
        ledger = await ledger_when(engine, SHOP, lambda ledger: ledger.watermark_ms > start_ms)
        assert ledger.holes == ()
        assert {order.order_key for order in await stored_orders(connection)} == {"good"}
        letters = await dead_letters(connection, "fetch", "odd")
    assert letters
    assert {json.loads(dead_payload(letter))["id"] for letter in letters} == {"bad"}
    assert all("version" in letter.reason for letter in letters)


async def test_unreadable_row_whose_letter_is_refused_holds_its_slice_until_it_is_taken(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would know of the row otherwise: its window would be over, and say that all was read."""
    monkeypatch.setattr("actors.fetch.fetcher.window.STORE_AGAIN_MS", 50)

    async def answer(request: web.Request) -> web.StreamResponse | None:
        at_ms = int(request.query["to"]) - 1_000
        good = {"id": "good", "version": 1, "modified_ms": at_ms}
        return listing(good, {"id": "bad", "version": "none", "modified_ms": at_ms})

    dead = connection.namespace.stream("DEAD")
    async with (
        a_mall(ago_ms=10_000, gate=answer) as mall,
        logging_of() as logged,
        running_engine(connection, publisher) as engine,
    ):
        start_ms = history_start_ms(mall)
        async with full(connection, dead):
            await put_setting(connection, publisher, "adapter.odd", adapter_table(name="odd"))
            await add_source(connection, publisher, SHOP, adapter="odd", url=mall.url, start_ms=start_ms, slice="5s")
            await logged.first("fetcher.not_stored")
            kept = await ledger_when(engine, SHOP, lambda ledger: any(held.not_before_ms for held in ledger.open))
            assert (kept.watermark_ms, kept.holes) == (start_ms, ())
        await ledger_when(engine, SHOP, lambda ledger: ledger.watermark_ms > start_ms)
    assert (await stream_state(connection, dead))["messages"]


async def test_unreadable_row_has_one_letter_however_often_it_is_listed(
    connection: Connection, publisher: Publisher
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse | None:
        from_ms, to_ms = int(request.query["from"]), int(request.query["to"])
        good = {"id": "good", "version": 1, "modified_ms": at_ms}
        bad = {"id": "bad", "version": "none", "modified_ms": at_ms}
        return listing(*([good, bad] if from_ms <= at_ms < to_ms else []))

    async with a_mall(ago_ms=10_000, gate=answer) as mall, running_engine(connection, publisher) as engine:
        start_ms = history_start_ms(mall)
        at_ms = start_ms + 5_000  # where two slices meet, whose overlaps both hold it
        await put_setting(connection, publisher, "adapter.odd", adapter_table(name="odd"))
        await add_source(connection, publisher, SHOP, adapter="odd", url=mall.url, start_ms=start_ms, slice="5s")
        await ledger_when(engine, SHOP, lambda ledger: ledger.watermark_ms > start_ms + 20_000)
        async with open_ledgers(ledger_bucket(connection, publisher)) as ledgers:
            await ledgers.move(SHOP, lambda ledger: (steering.rewind(ledger, start_ms), None))
        again = await ledger_when(
            engine, SHOP, lambda ledger: ledger.epoch == 2 and ledger.watermark_ms > start_ms + 20_000
        )
        letters = await dead_letters(connection, "fetch", "odd")
    assert again.holes == ()
    assert len(letters) == 1


async def test_version_that_is_a_hash_rises_with_each_reading(connection: Connection, publisher: Publisher) -> None:
    async def answer(request: web.Request) -> web.StreamResponse | None:
        return listing({"id": "tea", "state": request.query["to"], "modified_ms": int(request.query["to"]) - 1_000})

    async with a_mall(gate=answer) as mall, running_engine(connection, publisher) as engine:
        table = adapter_table(name="odd", record={**RECORD, "version": {"kind": "hash"}})
        await put_setting(connection, publisher, "adapter.odd", table)
        start_ms = history_start_ms(mall)
        own: dict[str, Any] = {"slice": "5s", "max_open": 1, "concurrency": 1}
        await add_source(connection, publisher, SHOP, adapter="odd", url=mall.url, start_ms=start_ms, **own)
        await ledger_when(engine, SHOP, lambda ledger: ledger.watermark_ms >= start_ms + 30_000)
        read = await stored_orders(connection)
    states = [json.loads(bytes(order.body))["state"] for order in read]
    assert len(states) >= 6
    assert states == sorted(states)
    versions = [order.version for order in read]
    assert versions == sorted(set(versions))


PARAMS = {"shop": "{account.shop}", "from": "{window.start}", "to": "{window.end}", "limit": "{page.size}"}
WRONG: dict[str, dict[str, object]] = {
    "key": {"key": "number"},
    "version": {"version": {"kind": "number", "path": "revision"}},
    "modified": {"modified": {"path": "changed_at", "format": "unix_ms"}},
    "rows": {"rows": "items"},
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_wrong_declaration_parks_the_source_with_what_the_platform_said_and_makes_no_letters(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """Mended and resumed by a person, it reads all that there was."""
    monkeypatch.setenv("TEASHOP_TOKEN", "s3cret-s3cret")

    async def answer(request: web.Request) -> web.StreamResponse | None:
        at_ms = int(request.query["to"]) - 1_000
        said = {"modified_ms": at_ms, "echo": "s3cret-s3cret", "access_token": "granted", "name": "Ann"}
        return listing(*({"id": f"{at_ms}-{number}", "version": 1, **said} for number in range(3)))

    async with (
        a_mall(gate=answer) as mall,
        running_engine(connection, publisher) as engine,
        hearing(connection) as heard,
        logging_of() as logged,
    ):
        good = {**RECORD, "version": {"kind": "number", "path": "version"}}
        await put_setting(
            connection, publisher, "adapter.odd", adapter_table(name="odd", record={**good, **WRONG[wrong]})
        )
        start_ms = history_start_ms(mall)
        account = {"token": "env:TEASHOP_TOKEN"}
        own: dict[str, Any] = {"slice": "5s", "account": account}
        await add_source(connection, publisher, SHOP, adapter="odd", url=mall.url, start_ms=start_ms, **own)
        parked = await ledger_when(engine, SHOP, lambda ledger: ledger.state == "parked")
        assert parked.holes == ()
        assert (wrong == "rows") == ("orders[0]" not in parked.reason)
        assert "the platform said: {" in parked.reason
        assert '"name":"Ann"' in parked.reason.replace(" ", "")
        assert "s3cret" not in parked.reason
        assert "granted" not in parked.reason
        assert (await logged.first("notice"))["notice"]["kind"] == "parked"
        assert await dead_letters(connection, "fetch", "odd") == []
        await put_setting(connection, publisher, "adapter.odd", adapter_table(name="odd", record=good))
        async with open_ledgers(ledger_bucket(connection, publisher)) as ledgers:
            await ledgers.move(SHOP, lambda ledger: (steering.resume(ledger, now_ms()), None))
        ledger = await ledger_when(engine, SHOP, lambda ledger: ledger.watermark_ms > start_ms + 30_000)
    assert (ledger.holes, await dead_letters(connection, "fetch", "odd")) == ((), [])
    parked_notices = [each for each in logged.of("notice") if each["notice"]["kind"] == "parked"]
    assert len(heard.of(SourceParked)) == len(parked_notices) == 1
    assert await stored_orders(connection)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"request": {"path": "/ordres", "params": PARAMS}}, "404"),
        ({"request": {"path": "/orders", "params": {**PARAMS, "limit": "x"}}}, "is no count"),
        ({"pages": {"style": "link", "next": "next", "total": "orders"}}, "orders"),
    ],
)
async def test_a_file_that_never_worked_parks_the_source_and_makes_no_hole(
    connection: Connection, publisher: Publisher, wrong: dict[str, object], told: str
) -> None:
    """The history has thirty windows, which would all fail in the same way."""
    async with (
        a_mall(ago_ms=10_000) as mall,
        running_engine(connection, publisher) as engine,
        hearing(connection) as heard,
        logging_of() as logged,
    ):
        await put_setting(connection, publisher, "adapter.odd", adapter_table(name="odd", **wrong))
        await add_source(connection, publisher, SHOP, adapter="odd", url=mall.url, start_ms=history_start_ms(mall))
        ledger = await ledger_when(engine, SHOP, lambda ledger: ledger.state == "parked")
        assert (await logged.first("notice"))["notice"]["kind"] == "parked"
        assert (ledger.holes, await dead_letters(connection, "fetch", "odd")) == ((), [])
    assert told in ledger.reason
    assert "the platform said: " in ledger.reason
    assert len(heard.of(SourceParked)) == len(logged.of("notice")) == 1


async def test_a_misspelt_window_parks_the_source_where_no_row_tells_its_time(
    connection: Connection, publisher: Publisher
) -> None:
    """Each window would list the shop's thirty orders, and its count would be right."""
    params = {"shop": "{account.shop}", "since": "{window.start}", "till": "{window.end}", "limit": "{page.size}"}
    record = {"rows": "orders", "key": "id", "version": {"kind": "number", "path": "version"}}
    table = adapter_table(name="odd", request={"path": "/orders", "params": params}, record=record)
    async with (
        a_mall(ago_ms=70_000, orders=30) as mall,
        running_engine(connection, publisher) as engine,
        hearing(connection) as heard,
    ):
        await put_setting(connection, publisher, "adapter.odd", table)
        start_ms = history_start_ms(mall)
        await add_source(connection, publisher, SHOP, adapter="odd", url=mall.url, start_ms=start_ms, slice="30s")
        ledger = await ledger_when(engine, SHOP, lambda ledger: ledger.state == "parked")
    assert "it ignores the window; check the names of its parameters" in ledger.reason
    assert (ledger.holes, heard.of(SliceCompleted)) == ((), [])


async def test_a_window_that_is_obeyed_is_checked_once(connection: Connection, publisher: Publisher) -> None:
    """The first answers that may be cut at a limit, whose numbers are round, cost requests as well."""
    record = {"rows": "orders", "key": "id", "version": {"kind": "number", "path": "version"}}
    table = adapter_table(name="odd", record=record)
    async with a_mall(ago_ms=70_000, orders=300) as mall, running_engine(connection, publisher) as engine:
        await put_setting(connection, publisher, "adapter.odd", table)
        start_ms = history_start_ms(mall)
        own: dict[str, Any] = {"slice": "5s", "concurrency": 1, "max_open": 1}
        await add_source(connection, publisher, SHOP, adapter="odd", url=mall.url, start_ms=start_ms, **own)
        ledger = await ledger_when(engine, SHOP, lambda ledger: ledger.watermark_ms > mall.start_ms)
        stored = await stored_versions(connection, SHOP)
        assert (ledger.holes, stored) == ((), truth_of(mall, "s1"))
        assert mall.requests <= (ledger.frontier_ms - start_ms) // 5_000 + 12


async def test_a_row_with_an_endless_key_costs_itself_alone(connection: Connection, publisher: Publisher) -> None:
    async def answer(request: web.Request) -> web.StreamResponse | None:
        from_ms, to_ms = int(request.query["from"]), int(request.query["to"])
        keys = [f"o{number}" for number in range(99)]
        keys.insert(27, "k" * 600)
        rows = [{"id": key, "version": 1, "modified_ms": at_ms} for key in keys]
        return listing(*(rows if from_ms <= at_ms < to_ms else []))

    async with a_mall(ago_ms=20_000, gate=answer) as mall, running_engine(connection, publisher) as engine:
        start_ms = history_start_ms(mall)
        at_ms = start_ms + 12_000
        await put_setting(connection, publisher, "adapter.odd", adapter_table(name="odd"))
        await add_source(connection, publisher, SHOP, adapter="odd", url=mall.url, start_ms=start_ms, slice="5s")
        ledger = await ledger_when(engine, SHOP, lambda ledger: ledger.watermark_ms > start_ms + 30_000)
        (letter,) = await dead_letters(connection, "fetch", "odd")
        stored = {order.order_key for order in await stored_orders(connection)}
    assert ledger.holes == ()
    assert stored == {f"o{number}" for number in range(99)}
    assert "its key has 600 characters" in letter.reason
    replayed = plan(letter)
    assert isinstance(replayed, Cannot)
    assert f"penstock sources backfill {SHOP} {time_text(start_ms + 10_000)}" in replayed.why
