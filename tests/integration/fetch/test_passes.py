"""Readings beside the live tail: backfills, second looks for late orders, and a rewind."""

from typing import Any

import anyio
import pytest
from aiohttp import web
from msgspec.structs import replace

from actors.fetch.ledgers import Ledgers, open_ledgers
from actors.fetch.rules import holding, steering
from actors.fetch.rules.ledger import Ledger
from actors.fetch.rules.ledger import faults as broken_rules
from platforms.mall.server import Mall
from streams.link.connection import Connection
from streams.messages.fetch import LateOrders, SliceCompleted
from streams.publish.publisher import Publisher
from tests.support.engine import (
    Heard,
    Node,
    a_mall,
    adapter_table,
    add_source,
    hearing,
    history_start_ms,
    ledger_bucket,
    ledger_when,
    put_setting,
    running_node,
    stored_orders,
    stored_versions,
    truth_of,
)
from tests.support.moments import a_moment
from tests.support.shops import SHOP, last_ms, read_up

PAST_MS = 10_000
SHARP: dict[str, Any] = {"overlap_before": "0s", "overlap_after": "0s"}
"""No overlap of ours; the adapter's own is a second."""


async def add_shop(connection: Connection, publisher: Publisher, mall: Mall, **own: Any) -> None:
    own = {"adapter": "mall", "start_ms": history_start_ms(mall), "slice": "10s", **own}
    await add_source(connection, publisher, SHOP, url=mall.url, **own)


def revision_of(ledgers: Ledgers) -> int:
    stored = ledgers._live.get(SHOP.key)
    assert stored is not None
    return stored.revision


async def change(node: Node, connection: Connection, publisher: Publisher, move: Any) -> None:
    """Change the ledger as a person does, from elsewhere, and wait until the node has seen it."""
    async with open_ledgers(ledger_bucket(connection, publisher)) as ledgers:
        await ledgers.move(SHOP, lambda ledger: (move(ledger), None))
        with anyio.fail_after(20):
            while revision_of(node.engine.ledgers) < revision_of(ledgers):
                await a_moment()


def kinds(heard: Heard) -> list[str]:
    return [event.slice_id[0] for event in heard.of(SliceCompleted)]


# ---- backfills


async def test_a_backfill_reads_the_past_beside_the_tail(connection: Connection, publisher: Publisher) -> None:
    async with (
        a_mall(ago_ms=PAST_MS) as mall,
        running_node(connection, publisher) as node,
        hearing(connection) as heard,
    ):
        middle_ms = mall.start_ms - 30_000
        await add_shop(connection, publisher, mall, start_ms=middle_ms)
        before = await read_up(node, mall)
        start_ms = history_start_ms(mall)
        await change(
            node, connection, publisher, lambda ledger: steering.add_backfill(ledger, "old", start_ms, middle_ms)
        )
        ledger = await ledger_when(node.engine, SHOP, lambda ledger: not ledger.passes)
        assert broken_rules(ledger) == []
    read = sorted((event.start_ms, event.end_ms) for event in heard.of(SliceCompleted) if event.slice_id[0] == "b")
    assert (read[0][0], read[-1][1]) == (start_ms, middle_ms)
    assert [end for _, end in read[:-1]] == [start for start, _ in read[1:]]
    assert ledger.start_ms == before.start_ms == middle_ms
    assert ledger.frontier_ms >= before.frontier_ms
    assert await stored_versions(connection, SHOP) == truth_of(mall, "s1")


async def test_the_tail_goes_first_while_a_backfill_runs(connection: Connection, publisher: Publisher) -> None:
    """The back lane has places of its own, fewer of them."""
    async with (
        a_mall(ago_ms=PAST_MS, faults={"late": 1.0, "late_ms": 20}) as mall,
        running_node(connection, publisher) as node,
        hearing(connection) as heard,
    ):
        start_ms, end_ms = history_start_ms(mall), mall.start_ms
        await add_shop(connection, publisher, mall, slice="2s", concurrency=8, back_open=64, max_open=64)
        await change(node, connection, publisher, lambda ledger: steering.add_backfill(ledger, "old", start_ms, end_ms))
        await read_up(node, mall)
        first = kinds(heard)
        await ledger_when(node.engine, SHOP, lambda ledger: not ledger.passes)
    assert first.count("b") < first.count("t") / 2
    assert kinds(heard).count("b") == 30


async def test_a_backfill_removed_in_the_middle_leaves_nothing_open(
    connection: Connection, publisher: Publisher
) -> None:
    async with (
        a_mall(ago_ms=PAST_MS, faults={"late": 1.0, "late_ms": 30}) as mall,
        running_node(connection, publisher) as node,
        hearing(connection) as heard,
    ):
        await add_shop(connection, publisher, mall, slice="2s", concurrency=8, back_open=4)
        await read_up(node, mall)
        start_ms, end_ms = history_start_ms(mall), mall.start_ms
        await change(node, connection, publisher, lambda ledger: steering.add_backfill(ledger, "old", start_ms, end_ms))
        await ledger_when(node.engine, SHOP, lambda ledger: sum(piece.is_taken for piece in ledger.open) == 2)
        await change(node, connection, publisher, lambda ledger: steering.remove_backfill(ledger, "old"))
        ledger = await ledger_when(node.engine, SHOP, lambda ledger: not ledger.passes)
        assert [piece for piece in ledger.open if piece.kind == "b"] == []
        assert broken_rules(ledger) == []
        await queue_is_empty(connection)
        ended = node.engine.ledgers.peek(SHOP)
    assert ended is not None
    assert ended.holes == ()
    assert kinds(heard).count("b") < 10


async def queue_is_empty(connection: Connection) -> None:
    """Wait until no offer is left, also of those that mean nothing any more."""
    stream = connection.namespace.stream("SLICES")
    with anyio.fail_after(30):
        while (await connection.api(f"STREAM.INFO.{stream}"))["state"]["messages"]:
            await a_moment()


# ---- second looks


async def test_second_looks_find_late_orders_once_and_count_them(connection: Connection, publisher: Publisher) -> None:
    """A fifth of the orders is listed only when the tail has read their time. The second look is put back by hand, so
    it comes after that, however busy the machine is."""
    rows: list[dict[str, int | str]] = []
    is_late = anyio.Event()

    async def answer(request: web.Request) -> web.StreamResponse | None:
        from_ms, to_ms = int(request.query["from"]), int(request.query["to"])
        listed = [row for row in rows if from_ms <= int(row["modified_ms"]) < to_ms]
        listed = [row for row in listed if is_late.is_set() or int(row["id"]) % 5]
        return web.json_response({"orders": listed, "total": len(listed), "next": None})

    async with (
        a_mall(ago_ms=500, history_ms=3_000, gate=answer) as mall,
        running_node(connection, publisher) as node,
        hearing(connection) as heard,
    ):
        start_ms, end_ms = history_start_ms(mall), mall.start_ms
        rows += [{"id": number, "version": 1, "modified_ms": start_ms + 10 * number} for number in range(300)]
        await put_setting(connection, publisher, "adapter.own", quick_adapter())
        own = {"slice": "1s", "again": ["3s"], "again_slice": "2s", **SHARP}
        await add_shop(connection, publisher, mall, adapter="own", **own)
        await ledger_when(node.engine, SHOP, lambda ledger: ledger.watermark_ms > end_ms, within_s=60)
        await ledger_when(node.engine, SHOP, lambda ledger: has_looked_again(ledger, end_ms), within_s=60)
        is_late.set()
        await look_again(node, connection, publisher, start_ms, end_ms)
    stored = [order.order_key for order in await stored_orders(connection)]
    late = heard.of(LateOrders)
    assert sorted(stored) == sorted(str(number) for number in range(300))  # each once, the late ones too
    assert sum(event.count for event in late) == 60
    assert all(event.count > 0 and event.latest_by_ms >= 3_000 for event in late)


async def look_again(node: Node, connection: Connection, publisher: Publisher, start_ms: int, end_ms: int) -> None:
    """Have the second look begin at `start_ms` once more, and wait until it has read all up to `end_ms`."""

    def begin_anew(ledger: Ledger) -> Ledger:
        return replace(ledger, passes=tuple(replace(each, cursor_ms=start_ms) for each in ledger.passes))

    await ledger_when(node.engine, SHOP, lambda ledger: any(each.kind == "a" for each in ledger.passes))
    await change(node, connection, publisher, begin_anew)
    await ledger_when(node.engine, SHOP, lambda ledger: has_looked_again(ledger, end_ms), within_s=60)


def has_looked_again(ledger: Ledger, end_ms: int) -> bool:
    """Return whether the second look has come past `end_ms`."""
    is_past = any(each.kind == "a" and each.cursor_ms > end_ms for each in ledger.passes)
    return is_past and not any(piece.kind == "a" and piece.start_ms <= end_ms for piece in ledger.open)


def quick_adapter() -> dict[str, object]:
    return adapter_table(settle="200ms", overlap="0s")


async def test_a_second_look_without_digests_repeats_and_loses_nothing(
    connection: Connection, publisher: Publisher
) -> None:
    """Digests spare repeats; a lost one costs a repeat and no order."""
    async with (
        a_mall(ago_ms=1_000, history_ms=3_000, orders=100, late_ms=0, paging="link") as mall,
        running_node(connection, publisher) as node,
        hearing(connection) as heard,
    ):
        await put_setting(connection, publisher, "adapter.own", quick_adapter())
        own = {"slice": "1s", "again": ["3s"], "again_slice": "1s", **SHARP}
        await add_shop(connection, publisher, mall, adapter="own", **own)
        await read_up(node, mall)
        await connection.api(f"STREAM.PURGE.KV_{connection.namespace.bucket('DIGESTS')}")
        end_ms = last_ms(mall)
        await look_again(node, connection, publisher, history_start_ms(mall), end_ms)
    assert "a" in kinds(heard)
    assert await stored_versions(connection, SHOP) == truth_of(mall, "s1")


# ---- rewinds


async def test_a_rewind_reads_everything_again_in_a_new_epoch(connection: Connection, publisher: Publisher) -> None:
    async with (
        a_mall(ago_ms=PAST_MS, faults={"late": 1.0, "late_ms": 50}) as mall,
        running_node(connection, publisher) as node,
        hearing(connection) as heard,
    ):
        await add_shop(connection, publisher, mall, slice="2s", concurrency=4, max_open=8)
        start_ms = history_start_ms(mall)
        in_hand = await ledger_when(
            node.engine,
            SHOP,
            lambda ledger: ledger.watermark_ms > start_ms and any(piece.is_taken for piece in ledger.open),
        )
        await change(node, connection, publisher, lambda ledger: steering.rewind(ledger, start_ms))
        ledger = await read_up(node, mall)
        assert broken_rules(ledger) == []
    old = next(piece for piece in in_hand.open if piece.is_taken)
    again = [event.slice_id for event in heard.of(SliceCompleted) if event.slice_id.startswith("t2-")]
    assert (ledger.epoch, ledger.holes) == (2, ())
    assert f"t2-{old.start_ms}-{old.end_ms}" in again
    assert len(again) == len(set(again))
    assert await stored_versions(connection, SHOP) == truth_of(mall, "s1")


@pytest.mark.parametrize("end", ["complete", "fail", "give up"])
async def test_an_end_of_an_old_epoch_is_refused(connection: Connection, publisher: Publisher, end: str) -> None:
    async with (
        a_mall(ago_ms=PAST_MS, faults={"hang": 1.0, "hang_s": 30}) as mall,
        running_node(connection, publisher) as node,
    ):
        await add_shop(connection, publisher, mall, max_open=1, request_timeout="30s")
        held = (await ledger_when(node.engine, SHOP, lambda ledger: any(piece.is_taken for piece in ledger.open))).open[
            0
        ]
        start_ms = history_start_ms(mall)
        await change(node, connection, publisher, lambda ledger: steering.rewind(ledger, start_ms))

        def late(ledger: Ledger) -> tuple[Ledger, object]:
            if end == "complete":
                return holding.complete(ledger, held.slice_id, held.fence, 0)
            if end == "fail":
                policy = node.settings.current("mall", "s1").retry_policy
                return holding.fail(ledger, held.slice_id, held.fence, "late", policy, 0, chance=0)
            return holding.give_up(ledger, held.slice_id, held.fence, "late", 0)

        async with open_ledgers(ledger_bucket(connection, publisher)) as ledgers:
            result = await ledgers.move(SHOP, late)
            ledger = await ledgers.move(SHOP, lambda ledger: (ledger, ledger))
    assert isinstance(result, holding.StaleFence)
    assert (ledger.watermark_ms, ledger.holes, ledger.epoch) == (start_ms, (), 2)
    assert replace(ledger, open=()).frontier_ms >= start_ms
