"""A window that is known to be short of what the platform lists: a hole that says by how much, no completed slice."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
from aiohttp import web

from actors.fetch import hole_notices
from actors.fetch.rules.ledger import Ledger, Pass, Shortfall
from actors.fetch.sources import SourceKey
from penstock.times import time_text
from platforms.mall.server import Mall
from streams.link.connection import Connection
from streams.messages.fetch import HoleMade, SliceCompleted
from streams.publish.publisher import Publisher
from tests.support.cli import CommandLine
from tests.support.engine import (
    Node,
    a_mall,
    adapter_table,
    add_source,
    hearing,
    history_start_ms,
    ledger_when,
    logging_of,
    put_setting,
    running_node,
    stored_versions,
)

SHOP = SourceKey("crowd", "s1")
Way = Literal["one", "link"]
PAGE = 40


@pytest.fixture(autouse=True)
def _told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hole_notices, "TOGETHER_MS", 0)


class Crowd:
    """A shop with 52 orders of one moment, and answers of 40: by style `one` there is no way on, and by link the next
    page begins with the first rows once more, since a time that many share is no order. The count is right."""

    def __init__(self) -> None:
        self.at_ms = 0
        self.page = PAGE
        self.has_total = True
        self.is_total_only_first = False

    async def answer(self, request: web.Request) -> web.StreamResponse | None:
        if request.path != "/orders":
            return None
        from_ms, to_ms = int(request.query["from"]), int(request.query["to"])
        count = 52 if from_ms <= self.at_ms < to_ms else 0
        rows = [{"id": f"o{number}", "version": 1, "modified_ms": self.at_ms} for number in range(count)]
        is_second = "page" in request.query
        said: dict[str, Any] = {"orders": rows[: len(rows) - self.page] if is_second else rows[: self.page]}
        if self.has_total and not (is_second and self.is_total_only_first):
            said["total"] = count
        if not is_second and count > self.page:
            said["next"] = str(request.url.update_query(page="2"))
        return web.json_response(said)


async def declare_crowd(connection: Connection, publisher: Publisher, mall: Mall, crowd: Crowd, way: Way) -> int:
    """Store the adapter, set the crowd's moment, and return where the source starts."""
    pages = {"style": way, "size": PAGE, "total": "total"} | ({"next": "next"} if way == "link" else {})
    table = adapter_table(name="crowd", pages=pages, overlap="0s")
    await put_setting(connection, publisher, "adapter.crowd", table)
    crowd.at_ms = history_start_ms(mall) + 12_500
    return history_start_ms(mall)


async def add_crowd(connection: Connection, publisher: Publisher, mall: Mall, start_ms: int, **own: Any) -> None:
    own = {"slice": "5s", "overlap_before": "0s", "overlap_after": "0s", **own}
    await add_source(connection, publisher, SHOP, adapter="crowd", url=mall.url, start_ms=start_ms, **own)


@asynccontextmanager
async def reading(
    connection: Connection, publisher: Publisher, crowd: Crowd, way: Way = "one"
) -> AsyncIterator[tuple[Node, int]]:
    """Run a node on the crowd's shop, whose moment lies in the middle of its third slice of five seconds; give the
    source's start too."""
    async with a_mall(ago_ms=20_000, gate=crowd.answer) as mall, running_node(connection, publisher) as node:
        start_ms = await declare_crowd(connection, publisher, mall, crowd, way)
        await add_crowd(connection, publisher, mall, start_ms)
        yield node, start_ms


async def hole_found(node: Node, start_ms: int) -> Ledger:
    """Wait for the hole, and for the slices around it to be read."""
    return await ledger_when(
        node.engine,
        SHOP,
        lambda ledger: (
            bool(ledger.holes)
            and ledger.holes[0].is_told
            and ledger.frontier_ms > start_ms + 40_000
            and all(held.start_ms > start_ms + 30_000 for held in ledger.open)
        ),
    )


@pytest.mark.parametrize(("way", "is_total_only_first"), [("one", False), ("link", False), ("link", True)])
async def test_a_moment_with_more_orders_than_can_be_had_is_a_hole_that_says_so(
    cli: CommandLine, connection: Connection, publisher: Publisher, way: Way, is_total_only_first: bool
) -> None:
    crowd = Crowd()
    crowd.is_total_only_first = is_total_only_first
    async with (
        hearing(connection) as heard,
        logging_of() as logged,
        reading(connection, publisher, crowd, way) as (node, start_ms),
    ):
        ledger = await hole_found(node, start_ms)
        window = (start_ms + 10_000, start_ms + 15_000)
        verified = await cli("verify", str(SHOP), *map(time_text, (start_ms, start_ms + 30_000)))
        listed = (await cli("holes", "list", str(SHOP))).ok().out
        (as_json,) = (await cli("holes", "list", str(SHOP), "--json")).ok().json()
    (hole,) = ledger.holes
    assert (hole.start_ms, hole.end_ms, hole.short) == (*window, Shortfall(12, 52))
    assert ledger.watermark_ms == window[0]
    assert verified.code == 1
    assert "short by 12 of 52" in verified.out
    assert "short by 12 of 52" in listed
    assert as_json["short"] == {"missing": 12, "listed": 52}
    assert [event.missing for event in heard.of(HoleMade)] == [12]
    (notice,) = logged.of("notice")
    assert "short by 12 of 52" in notice["notice"]["text"]
    assert len(await stored_versions(connection, SHOP)) == PAGE
    assert window not in {(event.start_ms, event.end_ms) for event in heard.of(SliceCompleted)}


async def test_read_again_it_is_whole_or_a_hole_as_before_and_no_answer_without_a_count_clears_it(
    cli: CommandLine, connection: Connection, publisher: Publisher
) -> None:
    crowd = Crowd()
    async with reading(connection, publisher, crowd, "link") as (node, start_ms):
        (first,) = (await hole_found(node, start_ms)).holes
        crowd.has_total = False
        (await cli("holes", "redrive", str(SHOP), first.slice_id)).ok()
        ledger = await ledger_when(
            node.engine, SHOP, lambda ledger: any(h.since_ms > first.since_ms for h in ledger.holes)
        )
        assert [hole.short for hole in ledger.holes] == [Shortfall(12, 52)]
        crowd.has_total, crowd.page = True, 100
        (await cli("holes", "redrive", str(SHOP), "--all")).ok()
        ledger = await ledger_when(node.engine, SHOP, lambda ledger: ledger.watermark_ms > start_ms + 30_000)
        assert ledger.holes == ()
        (await cli("verify", str(SHOP), *map(time_text, (start_ms, start_ms + 30_000)))).ok()
    assert len(await stored_versions(connection, SHOP)) == 52


async def test_a_second_look_that_is_short_unreads_what_was_read(
    cli: CommandLine, connection: Connection, publisher: Publisher
) -> None:
    """The crowd comes late: the first look found the window empty and whole."""
    crowd = Crowd()
    async with a_mall(ago_ms=20_000, gate=crowd.answer) as mall, running_node(connection, publisher) as node:
        start_ms = await declare_crowd(connection, publisher, mall, crowd, "one")
        verify = ("verify", str(SHOP), *map(time_text, (start_ms, start_ms + 20_000)))
        look = Pass("again-60000", "a", start_ms, start_ms, None, 60_000)
        read = Ledger(start_ms, start_ms + 30_000, start_ms + 30_000, passes=(look,))
        await add_crowd(connection, publisher, mall, start_ms, ledger=read, again=["60s"], again_slice="5s")
        ledger = await ledger_when(node.engine, SHOP, lambda ledger: bool(ledger.holes))
        assert [(hole.kind, hole.short) for hole in ledger.holes] == [("a", Shortfall(12, 52))]
        told = await cli(*verify)
    assert (told.code, "short by 12 of 52" in told.out) == (1, True)
