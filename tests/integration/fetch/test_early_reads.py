"""Windows of a platform whose clock is behind ours: they are read when they have settled by its time."""

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from streams.clock import now_ms
from streams.link.connection import Connection
from streams.messages.fetch import SliceCompleted, SourceThrottled
from streams.publish.publisher import Publisher
from tests.support.engine import a_mall, adapter_table, hearing, put_setting, running_node, stored_versions, truth_of
from tests.support.shops import SHOP, add_shop, read_up


async def test_a_window_is_read_when_it_has_settled_by_the_platforms_clock(
    connection: Connection, publisher: Publisher
) -> None:
    """The platform is 2.5 s behind, and lists orders while we read; by our clock windows would be empty."""
    behind_ms, settle_ms = 2_500, 200
    async with (
        a_mall(
            orders=200,
            history_ms=1_000,
            live_ms=1_500,
            live_share=0.7,
            late_ms=0,
            clock_offset_ms=-behind_ms,
            paging="link",
        ) as mall,
        running_node(connection, publisher) as node,
        hearing(connection) as heard,
    ):
        await put_setting(connection, publisher, "adapter.own", adapter_table(settle="200ms", again=[]))
        own: Mapping[str, Any] = {"slice": "1s", "settle": "200ms", "overlap_before": "0s", "overlap_after": "0s"}
        await add_shop(connection, publisher, mall, adapter="own", **own)
        ledger = await read_up(node, mall)
    for event in heard.of(SliceCompleted):
        assert event.finished_ms - behind_ms >= event.end_ms + settle_ms - 1_000 - 50
    assert ({event.attempt for event in heard.of(SliceCompleted)}, ledger.holes) == ({1}, ())
    assert heard.of(SourceThrottled) == []
    assert await stored_versions(connection, SHOP) == truth_of(mall, SHOP.source)


async def test_a_platform_whose_clock_is_behind_is_asked_too_early_once(
    connection: Connection, publisher: Publisher
) -> None:
    """Its first answer tells its time. From then on each window waits for it, and nothing is asked in vain."""
    behind_ms, settle_ms, early = 4_000, 200, list[int]()

    async def note(request: web.Request) -> web.Response | None:
        left_ms = int(request.query["to"]) + settle_ms - (now_ms() - behind_ms)
        early.extend([left_ms] if left_ms > 50 else [])
        return None

    shop: Mapping[str, Any] = {"orders": 20, "history_ms": 500, "live_ms": 2_500, "late_ms": 0, "paging": "link"}
    async with (
        a_mall(**shop, live_share=0.7, clock_offset_ms=-behind_ms, gate=note) as mall,
        running_node(connection, publisher) as node,
    ):
        await put_setting(connection, publisher, "adapter.own", adapter_table(settle="200ms", again=[]))
        own: Mapping[str, Any] = {"slice": "1s", "settle": "200ms", "overlap_before": "0s", "overlap_after": "0s"}
        await add_shop(connection, publisher, mall, adapter="own", concurrency=1, **own)
        await read_up(node, mall)
    assert len(early) <= 1
