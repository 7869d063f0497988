"""Orders at the seam of two slices: one that is listed a moment after its slice was read comes with the next one, since
what is asked for begins earlier than the slice. Second looks are off: nothing else would find it."""

from typing import Any

import pytest
from aiohttp import web

from actors.fetch.sources import SourceKey
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.support.engine import (
    a_mall,
    adapter_table,
    add_source,
    history_start_ms,
    ledger_when,
    put_setting,
    running_node,
    stored_orders,
)

SHOP = SourceKey("seam", "s1")
ALONE: dict[str, Any] = {"again": [], "concurrency": 1}


@pytest.mark.parametrize(
    ("overlap", "own_overlap"), [("2s", "0s"), ("0s", "2s")], ids=["by the setting", "by the adapter file"]
)
async def test_an_order_that_is_listed_after_its_slice_was_read_comes_with_the_next_one(
    connection: Connection, publisher: Publisher, overlap: str, own_overlap: str
) -> None:
    """The platform's clock has seconds: the order's time is the last second of a slice. Its index lags, so it is listed
    from the second answer on that covers it."""
    asked: list[tuple[int, int]] = []
    at_s = 0

    async def answer(request: web.Request) -> web.StreamResponse | None:
        from_s, to_s = int(request.query["from"]), int(request.query["to"])
        rows = []
        if from_s <= at_s < to_s:
            rows = [{"id": "late", "version": 1, "modified_s": at_s}] if asked else []
            asked.append((from_s, to_s))
        return web.json_response({"orders": rows, "total": len(rows)})

    async with a_mall(ago_ms=20_000, gate=answer) as mall, running_node(connection, publisher) as node:
        start_ms = history_start_ms(mall) // 1000 * 1000
        seam_ms = start_ms + 15_000
        at_s = seam_ms // 1000 - 1
        table = adapter_table(
            name="seam",
            overlap=own_overlap,
            window={"format": "unix_s", "step": "1s", "clock": "1s"},
            pages={"size": 100, "total": "total"},
            record={
                "rows": "orders",
                "key": "id",
                "version": {"kind": "number", "path": "version"},
                "modified": {"path": "modified_s", "format": "unix_s"},
            },
        )
        await put_setting(connection, publisher, "adapter.seam", table)
        own: dict[str, Any] = {
            "slice": "5s",
            "overlap_before": overlap,
            "overlap_after": "0s",
            "again": [],
            "concurrency": 1,
        }
        await add_source(connection, publisher, SHOP, adapter="seam", url=mall.url, start_ms=start_ms, **own)
        await ledger_when(node.engine, SHOP, lambda ledger: ledger.watermark_ms >= seam_ms + 10_000)
        stored = [order.order_key for order in await stored_orders(connection)]
    assert stored == ["late"]
    assert [to_s * 1000 for _, to_s in asked] == [seam_ms, seam_ms + 5_000]


async def test_an_order_whose_time_is_cut_down_to_the_second_before_comes_from_the_slice_after(
    connection: Connection, publisher: Publisher
) -> None:
    """Slices end between two seconds. The platform compares whole seconds, so a change in the second half of a second
    is listed under its first half, which an earlier slice has read before the change."""
    change_ms = 0
    is_before = True

    async def answer(request: web.Request) -> web.StreamResponse | None:
        nonlocal is_before
        from_ms, to_ms = int(request.query["from"]), int(request.query["to"])
        said_ms = change_ms // 1000 * 1000
        rows = (
            [{"id": "o", "version": 1, "modified_ms": said_ms}] if from_ms <= said_ms < to_ms and not is_before else []
        )
        is_before = is_before and not from_ms <= said_ms < to_ms
        return web.json_response({"orders": rows, "total": len(rows)})

    async with a_mall(ago_ms=20_000, gate=answer) as mall, running_node(connection, publisher) as node:
        start_ms = history_start_ms(mall) // 1000 * 1000 + 500
        change_ms = start_ms + 15_200  # in the slice from start + 15 s on, and listed half a second before that
        await put_setting(connection, publisher, "adapter.seam", adapter_table(name="seam", overlap="0s"))
        own: dict[str, Any] = {
            "slice": "5s",
            "overlap_before": "1s",
            "overlap_after": "0s",
            "again": [],
            "concurrency": 1,
        }
        await add_source(connection, publisher, SHOP, adapter="seam", url=mall.url, start_ms=start_ms, **own)
        await ledger_when(node.engine, SHOP, lambda ledger: ledger.watermark_ms >= start_ms + 25_000)
        stored = [order.order_key for order in await stored_orders(connection)]
    assert stored == ["o"]
