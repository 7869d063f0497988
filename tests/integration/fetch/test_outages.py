"""Platforms that are away, on a real server and over real HTTP: what it costs, and who is told."""

from collections.abc import Callable
from typing import Any

import anyio
import msgspec
import pytest

from actors.fetch.fetcher import session
from actors.fetch.rules import outages
from actors.fetch.rules.ledger import Ledger
from actors.fetch.rules.outages import is_down
from actors.fetch.sources import SourceKey
from platforms.mall.faults import FaultName
from platforms.mall.server import Mall
from streams.backoff import Backoff
from streams.link.connection import Connection
from streams.messages.fetch import HoleMade, SliceCompleted, SliceFailed, SliceSplit, SourceDown, SourceUp
from streams.publish.publisher import Publisher
from tests.support.engine import (
    QUICK,
    Node,
    a_mall,
    add_source,
    faults,
    hearing,
    history_start_ms,
    ledger_when,
    put_setting,
    running_node,
    stored_versions,
    truth_of,
)
from tests.support.moments import a_moment
from tests.support.office import an_office
from tests.support.shops import last_ms

SHOPS = [SourceKey("mall", f"s{number}") for number in (1, 2, 3)]
SHOP = SHOPS[0]
PAST_MS = 10_000
NO_TRY_TO_SPARE: dict[str, Any] = {"retries": 0, "slice": "5s", "retry_base": "50ms"}

PATIENT: dict[str, Any] = {"request_timeout": "30s", "timeout": "60s"}
"""For a platform that is well, on a busy machine."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "AGAIN", Backoff(growth="exponential", base_ms=1))
    monkeypatch.setattr(outages, "LONGEST_PROBE_MS", 200)


async def add_shop(connection: Connection, publisher: Publisher, mall: Mall, source: SourceKey, **own: Any) -> None:
    own = {"adapter": "mall", "start_ms": history_start_ms(mall), **NO_TRY_TO_SPARE, **own}
    await add_source(connection, publisher, source, url=mall.url, **own)


async def each_when(node: Node, sources: list[SourceKey], holds: Callable[[Ledger], bool]) -> list[Ledger]:
    return [await ledger_when(node.engine, source, holds, within_s=60) for source in sources]


def probed(times: int) -> Callable[[Ledger], bool]:
    return lambda ledger: ledger.outage is not None and is_down(ledger) and ledger.outage.probes >= times


def is_read(mall: Mall) -> Callable[[Ledger], bool]:
    end_ms = last_ms(mall)
    return lambda ledger: ledger.watermark_ms > end_ms


@pytest.mark.parametrize("fault", ["error", "cut", "hang", "html", "half"])
async def test_a_platform_that_is_away_costs_no_attempt_and_is_read_on_by_itself(
    connection: Connection, publisher: Publisher, fault: FaultName
) -> None:
    async with (
        a_mall(ago_ms=PAST_MS) as mall,
        running_node(connection, publisher) as node,
        hearing(connection) as heard,
    ):
        mall.dealer.set(faults(**{fault: 1.0, "hang_s": 30.0}))
        own = {"request_timeout": "100ms", "timeout": "5s", "split_after": 0}
        await add_shop(connection, publisher, mall, SHOP, **own)
        (ledger,) = await each_when(node, [SHOP], probed(5))
        assert sum(piece.is_taken for piece in ledger.open) == 0  # the others wait for the probe
        mall.dealer.set(faults())
        await put_setting(connection, publisher, "fetch.mall", {**QUICK, **NO_TRY_TO_SPARE, **own, **PATIENT})
        (ledger,) = await each_when(node, [SHOP], is_read(mall))
    assert (ledger.holes, ledger.outage, heard.of(HoleMade)) == ((), None, [])
    assert {event.attempt for event in heard.of(SliceCompleted)} == {1}
    assert all(event.reason for event in heard.of(SliceFailed))
    assert await stored_versions(connection, SHOP) == truth_of(mall, "s1")


async def test_a_first_error_at_a_slow_rate_is_told_as_it_is_and_halves_no_window(
    connection: Connection, publisher: Publisher
) -> None:
    """The next request has to wait for our own rate, for longer than the attempt may."""
    async with (
        a_mall(ago_ms=PAST_MS) as mall,
        running_node(connection, publisher) as node,
        hearing(connection) as heard,
    ):
        mall.dealer.set(faults("error"))
        await add_shop(connection, publisher, mall, SHOP, rate=0.001, burst=1, concurrency=1)
        (ledger,) = await each_when(node, [SHOP], lambda ledger: ledger.outage is not None)
    assert ledger.outage is not None
    assert "could not answer and may later (HTTP 500)" in ledger.outage.reason
    assert heard.of(SliceSplit) == []


async def test_one_notice_says_that_the_shops_of_a_platform_are_down_and_one_that_it_is_over_whoever_leads(
    connection: Connection, publisher: Publisher
) -> None:
    """Who is told for the first time has died when it is over; the other one does not begin anew."""
    async with a_mall(ago_ms=PAST_MS, shops=3) as mall, an_office() as office, hearing(connection) as heard:
        mall.dealer.set(faults(error=1.0))
        patient = {**QUICK, **NO_TRY_TO_SPARE, "webhook": office.url, "down_after": "1h"}
        async with running_node(connection, publisher, node="n1") as first:
            for source in SHOPS:
                await add_shop(connection, publisher, mall, source, **patient)
            await each_when(first, SHOPS, probed(3))
            await put_setting(connection, publisher, "fetch.mall", {**patient, "down_after": "0s"})
            await each_when(first, SHOPS, lambda ledger: ledger.outage is not None and ledger.outage.is_told)
            await put_setting(connection, publisher, "fetch.mall", patient)
        async with running_node(connection, publisher, node="n2") as heir:
            await each_when(heir, SHOPS, probed(6))
            with anyio.fail_after(60):
                await heir.engine.monitor.elected.wait()
            assert heir.settings.current("mall", "s1").down_after_ms == 3_600_000
            mall.dealer.set(faults())
            ledgers = await each_when(heir, SHOPS, is_read(mall))
            await each_when(heir, SHOPS, lambda ledger: ledger.outage is None)
    assert [(notice.kind, notice.source, notice.facts["sources"]) for notice in office.taken] == [
        ("source_down", "mall", 3),
        ("source_up", "mall", 3),
    ]
    assert "HTTP 500" in office.taken[0].text
    assert [ledger.holes for ledger in ledgers] == [(), (), ()]
    assert {(event.platform, event.source) for event in heard.of(SourceDown)} == {("mall", f"s{n}") for n in (1, 2, 3)}
    assert {(event.platform, event.source) for event in heard.of(SourceUp)} == {("mall", f"s{n}") for n in (1, 2, 3)}


async def test_a_short_break_is_told_to_nobody(connection: Connection, publisher: Publisher) -> None:
    async with a_mall(ago_ms=PAST_MS) as mall, an_office() as office, running_node(connection, publisher) as node:
        mall.dealer.set(faults(error=1.0))
        await add_shop(connection, publisher, mall, SHOP, webhook=office.url)
        await each_when(node, [SHOP], probed(3))
        mall.dealer.set(faults())
        await each_when(node, [SHOP], is_read(mall))
    assert office.taken == []


async def test_a_window_that_fails_while_others_are_read_is_a_hole_after_its_attempts(
    connection: Connection, publisher: Publisher
) -> None:
    async with (
        a_mall(ago_ms=PAST_MS) as mall,
        running_node(connection, publisher) as node,
        hearing(connection) as heard,
    ):
        bad_ms = history_start_ms(mall) + 12_500
        mall.dealer.set(faults(bad_at_ms=bad_ms))
        await add_shop(connection, publisher, mall, SHOP, retries=2)
        (ledger,) = await each_when(node, [SHOP], lambda ledger: bool(ledger.holes) and not ledger.open)
    (hole,) = ledger.holes
    assert (hole.start_ms <= bad_ms < hole.end_ms, hole.attempts) == (True, 3)
    assert {event.attempt for event in heard.of(SliceCompleted)} == {1}


async def test_figures_and_ledger_say_since_when_a_source_is_down(connection: Connection, publisher: Publisher) -> None:
    async with a_mall(ago_ms=PAST_MS) as mall, running_node(connection, publisher) as node:
        mall.dealer.set(faults(error=1.0))
        await add_shop(connection, publisher, mall, SHOP)
        (ledger,) = await each_when(node, [SHOP], probed(3))
        labels = msgspec.structs.asdict(SHOP)

        def down_s() -> float:
            return node.measures.registry.get_sample_value("penstock_source_down_seconds", labels) or 0.0

        with anyio.fail_after(30):
            while not down_s():
                await node.engine.monitor.scan()
                await a_moment()
        mall.dealer.set(faults())
        await each_when(node, [SHOP], is_read(mall))
        await node.engine.monitor.scan()
        assert down_s() == 0
    assert ledger.outage is not None
