"""`penstock verify`: coverage from ledger and events, and the audit against a mall that answers over real HTTP."""

from collections.abc import Sequence

import msgspec
import pytest
from aiohttp import web
from msgspec.structs import replace

from actors.fetch.rules.ledger import Hole, Ledger, OpenSlice, revised
from actors.fetch.sources import SourceKey
from penstock.admin.source_moves import remove, rewind
from penstock.admin.sources import Wanted, add
from penstock.times import time_text
from platforms.mall.server import Mall
from streams.link.connection import Connection
from streams.messages.fetch import ListedOrder, OrderPage, SliceCompleted, decode_orders, encode
from streams.publish.publisher import Publisher
from streams.reads.log import delete_entry, read_log
from tests.support.cli import CommandLine
from tests.support.engine import (
    a_mall,
    adapter_table,
    add_source,
    history_start_ms,
    ledger_when,
    put_setting,
    running_engine,
)

SHOP = SourceKey("mall", "s1")
RAW = msgspec.Raw(b"{}")
M = 60_000


def completed(
    slice_id: str, *, rows: int = 0, at_ms: int = 9, is_proven: bool = True, fence: int = 1
) -> SliceCompleted:
    _, start, end = slice_id.split("-")
    return SliceCompleted(
        platform="mall",
        source="s1",
        slice_id=slice_id,
        start_ms=int(start),
        end_ms=int(end),
        attempt=1,
        fence=fence,
        node="n1",
        started_ms=at_ms,
        finished_ms=at_ms,
        rows=rows,
        new_rows=rows,
        requests=1,
        is_proven=is_proven,
    )


def span(start_ms: int, end_ms: int) -> tuple[str, str]:
    return time_text(start_ms), time_text(end_ms)


async def test_a_range_is_told_second_by_second_with_who_read_it(cli: CommandLine) -> None:
    ledger = Ledger(
        M,
        5 * M,
        0,
        open=(OpenSlice("t", 1, 3 * M, 4 * M, fence=2, holder="n2"),),
        holes=(Hole("t", 1, 4 * M, 5 * M, since_ms=5, attempts=6, reason="HTTP 500"),),
    )
    await cli.records.create_ledger(SHOP, revised(ledger))
    await cli.records.tell(completed(f"t1-{M}-{2 * M}", rows=7), completed(f"t1-{9 * M}-{10 * M}"))
    told = await cli("verify", "mall/s1", *span(0, 6 * M), "--json")
    assert told.code == 1
    document = told.json()
    assert [(each["state"], each["start_ms"] // M, each["end_ms"] // M) for each in document["stretches"]] == [
        ("gap", 0, 1),
        ("read", 1, 2),
        ("read", 2, 3),
        ("open", 3, 4),
        ("hole", 4, 5),
        ("ahead", 5, 6),
    ]
    assert [each["is_attested"] for each in document["stretches"]][1:3] == [True, False]
    assert [(each["node"], each["rows"]) for each in document["readings"]] == [("n1", 7)]
    for_people = (await cli("verify", "mall/s1", *span(0, 6 * M))).out
    for said in ("HTTP 500", "n2", "2m read", "1m given up on", "never read"):
        assert said in for_people


async def test_a_range_that_was_wholly_read_ends_with_exit_code_0(cli: CommandLine) -> None:
    await cli.records.create_ledger(SHOP, Ledger(0, 2 * M, 2 * M))
    await cli.records.tell(completed(f"t1-0-{M}"), completed(f"t1-{M}-{2 * M}", is_proven=False))
    until_now = (await cli("verify", "mall/s1", span(0, M)[0], "--json")).json()
    assert abs(until_now["end_ms"] - cli.records.now_ms()) < 10 * M
    document = (await cli("verify", "mall/s1", *span(0, 2 * M), "--json")).ok().json()
    assert (document["is_whole"], document["read_ms"], document["unproven_ms"]) == (True, 2 * M, M)
    assert document["audit"] is None


async def test_readings_of_a_removed_source_do_not_count_for_one_of_its_name(cli: CommandLine) -> None:
    """Those of a ledger that is only lost do."""
    account, now_ms = {"base_url": "http://127.0.0.1:9", "shop": "s1"}, cli.records.now_ms() // 1000 * 1000
    wanted = Wanted(SHOP, "mall", account, start=time_text(now_ms), is_tried=False)
    made = (await add(cli.records, wanted)).ledger
    await cli.records.tell(completed(f"t{made.epoch}-0-{M}", rows=7, fence=made.fence + 1))
    (await cli("verify", "mall/s1", *span(0, M))).ok()
    await cli.records.ledgers.delete(SHOP.key)
    await rewind(cli.records, SHOP, now_ms)
    (await cli("verify", "mall/s1", *span(0, M))).ok()
    await remove(cli.records, SHOP, keeps_ledger=True)
    await add(cli.records, replace(wanted, start=""))
    (await cli("verify", "mall/s1", *span(0, M))).ok()
    await remove(cli.records, SHOP, keeps_ledger=False)
    await add(cli.records, wanted)
    told = await cli("verify", "mall/s1", *span(0, M), "--json")
    assert [(each["state"], each["rows"]) for each in told.json()["stretches"]] == [("gap", 0)]
    assert told.json()["readings"] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("mall/s1",), "FROM"),
        (("mall/s1", "-1h", "2026-01-31"), "no zone"),
        (("mall/s1", "now", "-1h"), "before the second"),
        (("mall/s9", "-2h", "-1h"), "did you mean mall/s1"),
        (("mall", "-2h", "-1h"), "PLATFORM/SOURCE"),
    ],
)
async def test_a_wrong_question_is_refused(cli: CommandLine, arguments: tuple[str, ...], said: str) -> None:
    await cli.records.create_ledger(SHOP, Ledger(0, M, M))
    told = await cli("verify", *arguments)
    assert told.code == 2
    assert said in told.err


async def add_shop(cli: CommandLine, mall: Mall, *more: str) -> tuple[int, int]:
    """Add the mall's shop, its orders all past; return the range in which they lie."""
    account = ("--account", f"base_url={mall.url}", "--account", "shop=s1")
    (await cli("sources", "add", "mall/s1", "--adapter", "mall", *account, "--set", "rate=1000", *more)).ok()
    start_ms = mall.start_ms - mall.config.history_ms
    return start_ms - start_ms % 1000, mall.start_ms


async def read_all(cli: CommandLine, mall: Mall, start_ms: int, end_ms: int) -> int:
    """Store what the shop lists, as a fetcher would have; return how many orders."""
    rows = list(mall.shops["s1"].truth())
    orders = [_listed(row) for row in rows]
    for at in range(0, len(orders), 50):
        await cli.records.publisher.publish(cli.records.namespace.orders("mall", "s1"), _page(orders[at : at + 50]))
    await cli.records.tell(completed(f"t1-{start_ms}-{end_ms}", rows=len(rows), at_ms=cli.records.now_ms()))
    await cli.records.move(SHOP, lambda _ledger: (Ledger(start_ms, end_ms, end_ms), None))
    return len(rows)


def _listed(row: Sequence[object]) -> ListedOrder:
    key, version, modified_ms = row[:3]
    return ListedOrder(order_key=str(key), version=int(str(version)), modified_ms=int(str(modified_ms)), body=RAW)


def _page(orders: Sequence[ListedOrder]) -> bytes:
    return encode(OrderPage(platform="mall", source="s1", fetched_ms=1, orders=tuple(orders)))


async def test_an_audit_finds_all_orders_stored(cli: CommandLine) -> None:
    async with a_mall(
        orders=400, paging="one", faults={"next": ["throttle", "error", "html"], "retry_after_s": 0}
    ) as mall:
        start_ms, end_ms = await add_shop(cli, mall)
        count = await read_all(cli, mall, start_ms, end_ms)
        told = (await cli("verify", "mall/s1", *span(start_ms, end_ms), "--audit", "--json")).ok().json()["audit"]
    assert (told["listed"], told["stored"], told["findings"]) == (count, count, [])
    assert told["is_proven"]


async def test_an_audit_names_what_is_listed_and_was_never_stored(cli: CommandLine) -> None:
    async with a_mall(orders=200) as mall:
        start_ms, end_ms = await add_shop(cli, mall, "--set", "again=")
        count = await read_all(cli, mall, start_ms, end_ms)
        gone = await _lose_second_page(cli)
        told = await cli("verify", "mall/s1", *span(start_ms, end_ms), "--audit", "--json")
        for_people = await cli("verify", "mall/s1", *span(start_ms, end_ms), "--audit")
    assert told.code == 1
    audit = told.json()["audit"]
    assert (audit["listed"], audit["stored"], audit["missed"]) == (count, count - len(gone), len(gone))
    assert {each["key"] for each in audit["findings"]} == gone
    assert sorted(gone)[0] in for_people.out


async def test_an_order_that_a_second_look_may_still_find_is_late_not_missed(cli: CommandLine) -> None:
    async with a_mall(orders=200) as mall:
        start_ms, end_ms = await add_shop(cli, mall, "--set", "again=1h")
        await read_all(cli, mall, start_ms, end_ms)
        gone = await _lose_second_page(cli)
        told = await cli("verify", "mall/s1", *span(start_ms, end_ms), "--audit", "--json")
    assert (told.code, told.json()["audit"]["late"], told.json()["audit"]["missed"]) == (1, len(gone), 0)


async def _lose_second_page(cli: CommandLine) -> set[str]:
    """Remove one stored page, and return the orders that are nowhere else."""
    stream, subject = cli.records.namespace.stream("ORDERS"), cli.records.namespace.orders("mall", "s1")
    pages = [entry async for entry in read_log(cli.records.connection, stream, subject)]
    assert await delete_entry(cli.records.connection, stream, pages[1].seq)
    return {order.order_key for order in decode_orders(pages[1].payload)}


@pytest.mark.parametrize(
    ("account", "said"), [("token=env:PENSTOCK_TEST_NOT_SET", "PENSTOCK_TEST_NOT_SET"), ("shop=nobody", "(400)")]
)
async def test_an_audit_says_why_the_platform_gives_no_answer(cli: CommandLine, account: str, said: str) -> None:
    async with a_mall(orders=10) as mall:
        start_ms, end_ms = await add_shop(cli, mall)
        (await cli("sources", "set", "mall/s1", "--account", account)).ok()
        told = await cli("verify", "mall/s1", *span(start_ms, end_ms), "--audit", "--json")
    assert told.code == 1
    assert said in told.json()["error"]


async def test_what_an_engine_has_read_is_verified_and_audited(
    cli: CommandLine, connection: Connection, publisher: Publisher
) -> None:
    async with a_mall(orders=300) as mall, running_engine(connection, publisher) as engine:
        quick = ("slice=2s", "settle=500ms", "overlap_before=1s", "overlap_after=500ms", "burst=1000", "again=")
        (await cli("settings", "set", "default", *quick)).ok()
        start_ms, end_ms = await add_shop(cli, mall, "--start", "-2m")
        await ledger_when(engine, SHOP, lambda ledger: ledger.watermark_ms > end_ms)
        told = (await cli("verify", "mall/s1", *span(start_ms, end_ms), "--audit", "--json")).ok().json()
        assert {each["node"] for each in told["readings"]} == {"n1"}
        assert (told["is_whole"], told["unproven_ms"], told["unattested_ms"]) == (True, 0, 0)
        assert told["audit"]["listed"] == told["audit"]["stored"] > 0


async def test_of_a_platform_without_versions_the_audit_compares_what_the_orders_say(
    cli: CommandLine, connection: Connection, publisher: Publisher
) -> None:
    """Some orders change without a new time, after their windows were read: nothing but an audit can find that."""
    changed: set[str] = set()
    at_ms = 0

    async def answer(request: web.Request) -> web.StreamResponse | None:
        is_asked = int(request.query["from"]) <= at_ms < int(request.query["to"])
        rows = [
            {"id": f"o{n}", "state": "sent" if f"o{n}" in changed else "open", "modified_ms": at_ms} for n in range(20)
        ]
        return web.json_response({"orders": rows if is_asked else [], "total": 20 if is_asked else 0})

    record = {"rows": "orders", "key": "id", "modified": {"path": "modified_ms", "format": "unix_ms"}}
    async with a_mall(ago_ms=20_000, gate=answer) as mall, running_engine(connection, publisher) as engine:
        at_ms, start_ms = mall.start_ms - 10_000, history_start_ms(mall)
        await put_setting(connection, publisher, "adapter.hashed", adapter_table(name="hashed", record=record))
        await add_source(connection, publisher, SHOP, adapter="hashed", url=mall.url, start_ms=start_ms)
        await ledger_when(engine, SHOP, lambda ledger: ledger.watermark_ms > mall.start_ms)
        ask = ("verify", str(SHOP), *span(start_ms, mall.start_ms), "--audit", "--json")
        whole = (await cli(*ask)).ok().json()["audit"]
        changed.update(f"o{n}" for n in range(8))
        stale = await cli(*ask)
    assert (whole["listed"], whole["stored"]) == (20, 20)
    told = stale.json()["audit"]
    assert (stale.code, told["stored"], told["missed"]) == (1, 12, 8)
    assert {each["key"] for each in told["findings"]} == changed
