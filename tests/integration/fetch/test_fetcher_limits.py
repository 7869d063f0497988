"""What a fetcher waits for: our own limits, clocks, and news that come late."""

from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from msgspec import Raw

from actors.fetch.fetcher import session, window
from actors.fetch.ledgers import open_ledgers
from actors.fetch.rules.cutting import cut
from actors.fetch.rules.ledger import first_ledger
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.sources import SourceKey
from streams.link.connection import Connection
from streams.messages.fetch import (
    SliceCompleted,
    SliceFailed,
    SliceOffer,
    encode,
)
from streams.publish.publisher import Publisher
from tests.integration.fetch.fetched import ONE_BY_ONE, PAST_MS, all_is_stored, attempts
from tests.support.engine import (
    a_mall,
    faults,
    hearing,
    history_start_ms,
    ledger_bucket,
    ledger_when,
    put_setting,
    running_node,
)
from tests.support.moments import a_moment
from tests.support.shops import SHOP, add_shop, last_ms, read_up


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give slices back, and try a full server again, sooner than production does."""
    monkeypatch.setattr(session, "IN_PLACE_MS", 500)
    monkeypatch.setattr(window, "STORE_AGAIN_MS", 200)


# ---- our own limits


async def test_waiting_for_our_own_rates_is_no_timeout(connection: Connection, publisher: Publisher) -> None:
    async with (
        a_mall(ago_ms=PAST_MS, orders=300, history_ms=4_000) as mall,
        running_node(connection, publisher) as node,
        hearing(connection) as heard,
    ):
        own: Mapping[str, Any] = {
            "slice": "10s",
            "timeout": "1s",
            "request_timeout": "1s",
            "rate": 2,
            "burst": 1,
            "inflow": 400,
        }
        await add_shop(connection, publisher, mall, **own)
        await read_up(node, mall)
    took_ms = [event.finished_ms - event.started_ms for event in heard.of(SliceCompleted) if event.rows]
    assert max(took_ms) > 1_100  # longer than the timeout, and yet
    assert (set(attempts(heard)), heard.of(SliceFailed)) == ({1}, [])
    assert await all_is_stored(connection, mall)


async def test_a_slow_source_leaves_the_places_to_others(connection: Connection, publisher: Publisher) -> None:
    """Two shops of one platform; one may ask every ten seconds only."""
    slow, quick = SourceKey("mall", "s2"), SHOP
    async with (
        a_mall(ago_ms=PAST_MS, shops=2, orders=200) as mall,
        running_node(connection, publisher) as node,
        hearing(connection) as heard,
    ):
        rate = {"rate": 0.1, "burst": 1}
        await add_shop(connection, publisher, mall, slow, concurrency=1, source_settings=rate)
        await heard.first(SliceCompleted, source="s2")
        await add_shop(connection, publisher, mall, quick, concurrency=1)
        await read_up(node, mall, quick, within_s=8)
        waiting = node.engine.ledgers.peek(slow)
    assert waiting is not None
    assert {piece.attempt for piece in waiting.open} == {1}
    assert await all_is_stored(connection, mall, quick)


async def test_a_full_server_spends_no_attempt(connection: Connection, publisher: Publisher) -> None:
    async with (
        a_mall(ago_ms=PAST_MS) as mall,
        running_node(connection, publisher) as node,
        hearing(connection) as heard,
    ):
        stream = connection.namespace.stream("ORDERS")
        config = (await connection.api(f"STREAM.INFO.{stream}"))["config"]
        await connection.api(f"STREAM.UPDATE.{stream}", {**config, "max_msgs": 1, "discard": "new"})
        await add_shop(connection, publisher, mall, concurrency=8)
        full = await ledger_when(
            node.engine, SHOP, lambda ledger: any("takes nothing" in piece.reason for piece in ledger.open)
        )
        await connection.api(f"STREAM.UPDATE.{stream}", config)
        ledger = await read_up(node, mall)
    assert {(piece.attempt, piece.losses) for piece in full.open} == {(1, 0)}
    assert (set(attempts(heard)), ledger.holes) == ({1}, ())
    assert await all_is_stored(connection, mall)


# ---- late news


async def test_an_offer_that_comes_before_its_source_waits_for_it(connection: Connection, publisher: Publisher) -> None:
    """As on a node that hears of the source's record a moment after another has offered its first slice."""
    late = SourceKey("mall", "s2")
    async with (
        a_mall(ago_ms=PAST_MS, shops=2) as mall,
        running_node(connection, publisher) as node,
        hearing(connection) as heard,
    ):
        await add_shop(connection, publisher, mall)
        await read_up(node, mall)
        started = first_ledger(history_start_ms(mall))
        ledger = cut(started, FetchSettings(slice_ms=20_000, max_open=1), last_ms(mall) + 10**6)
        async with open_ledgers(ledger_bucket(connection, publisher)) as ledgers:
            await ledgers.create(late, ledger)
        slice_id = ledger.open[0].slice_id
        subject = connection.namespace.slice_offer("mall", "tail", "s2", slice_id)
        offer = SliceOffer(platform="mall", source="s2", slice_id=slice_id)
        await publisher.publish(subject, encode(offer))
        given_back = await delivered_twice(connection, "fetch_mall_tail")
        assert given_back
        untouched = node.engine.ledgers.peek(late)
        assert untouched == ledger  # nobody took it, nobody parked it
        account = {"base_url": mall.url, "shop": "s2"}
        await put_setting(connection, publisher, "source.mall.s2", {"adapter": "mall", "account": account})
        end_ms = last_ms(mall)
        after = await ledger_when(node.engine, late, lambda ledger: ledger.watermark_ms > end_ms)
    assert (after.state, {event.attempt for event in heard.of(SliceCompleted, source="s2")}) == ("running", {1})
    assert await all_is_stored(connection, mall, late)


async def test_a_slice_whose_offer_carries_the_ledger_is_read_without_reading_the_ledger(
    connection: Connection, publisher: Publisher
) -> None:
    async with (
        a_mall(ago_ms=PAST_MS) as mall,
        running_node(connection, publisher, roles=("fetcher",), sees_ledgers=False),
        hearing(connection) as heard,
        open_ledgers(ledger_bucket(connection, publisher)) as ledgers,
    ):
        await add_shop(connection, publisher, mall)
        settings = FetchSettings(slice_ms=20_000, max_open=1)
        ledger = await ledgers.move(SHOP, lambda before: (cut(before, settings, last_ms(mall) + 10**6),) * 2)
        revision, raw = ledgers.to_tell(SHOP, ledger)
        reads = list[bytes]()
        stream = f"KV_{connection.namespace.bucket('LEDGERS')}"
        pattern = f"$JS.API.STREAM.MSG.GET.{stream}"
        listening = await connection.subscribe(pattern, lambda message: reads.append(message.payload))
        await connection.flush()
        slice_id = ledger.open[0].slice_id
        offer = SliceOffer(platform="mall", source="s1", slice_id=slice_id, revision=revision, ledger=Raw(raw))
        await publisher.publish(connection.namespace.slice_offer("mall", "tail", "s1", slice_id), encode(offer))
        with anyio.fail_after(30):
            while not heard.of(SliceCompleted):
                await a_moment()
        await listening.unsubscribe()
    assert reads == []


async def delivered_twice(connection: Connection, consumer: str) -> bool:
    """Wait until the server has a message to give out again."""
    stream = connection.namespace.stream("SLICES")
    with anyio.fail_after(20):
        while True:
            state = await connection.api(f"CONSUMER.INFO.{stream}.{consumer}")
            if state["num_redelivered"] or state["delivered"]["consumer_seq"] > state["delivered"]["stream_seq"]:
                return True
            await a_moment()


@pytest.mark.parametrize(
    "payload",
    [b"", b"garbage", encode(SliceOffer(platform="mall", source="a.b", slice_id="t1-0-1")), b'{"type":"order"}'],
)
async def test_an_offer_that_is_none_blocks_nobody(
    connection: Connection, publisher: Publisher, payload: bytes
) -> None:
    async with a_mall(ago_ms=PAST_MS) as mall, running_node(connection, publisher) as node:
        await publisher.publish(connection.namespace.slice_offer("mall", "tail", "s1", "x"), payload)
        await add_shop(connection, publisher, mall, **ONE_BY_ONE)
        await read_up(node, mall)
    dead = (await connection.api(f"STREAM.INFO.{connection.namespace.stream('DEAD')}"))["state"]["messages"]
    assert dead == 1
    assert await all_is_stored(connection, mall)


async def test_a_broken_ledger_stops_its_source_alone_and_heals_when_mended(
    connection: Connection, publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        a_mall(ago_ms=PAST_MS, shops=2) as mall,
        running_node(connection, publisher) as node,
    ):
        other = SourceKey("mall", "s2")
        bucket = ledger_bucket(connection, publisher)
        mall.dealer.set(faults(late=1.0, late_ms=100))
        await add_shop(connection, publisher, mall, slice="2s", max_open=4, concurrency=4)
        await ledger_when(node.engine, SHOP, lambda ledger: any(piece.is_taken for piece in ledger.open))
        entry = await bucket.get(SHOP.key)
        assert entry is not None
        await bucket.put(SHOP.key, b'{"reason":"\xff"}')
        await add_shop(connection, publisher, mall, other, slice="2s", concurrency=4)
        mall.dealer.set(faults())
        await read_up(node, mall, other)
        broken = await bucket.get(SHOP.key)
        assert broken is not None
        assert broken.value == b'{"reason":"\xff"}'  # nobody wrote over what a person may want to look at
        await bucket.put(SHOP.key, entry.value)
        ledger = await read_up(node, mall)
    assert ledger.holes == ()
    said = [record.__dict__["fields"] for record in caplog.records if record.message == "allocator.look_failed"]
    assert [fact["source"] for fact in said] == ["mall/s1"]
    assert await all_is_stored(connection, mall)
    assert await all_is_stored(connection, mall, other)
