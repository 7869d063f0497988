"""How long to wait for a platform, and what it comes to when that does not help."""

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.fetch.fetcher.calling import called
from actors.fetch.fetcher.clocks import ODD_MS, PlatformClocks
from actors.fetch.fetcher.decisions import Failed, Missed, Throttled
from actors.fetch.fetcher.rows import pages_of
from actors.fetch.fetcher.session import AGAIN, IN_PLACE_MS, AttemptTime, ending, longest_wait_ms, wait_of
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.rules.slices import Slice
from actors.fetch.sources import SourceKey
from actors.runtime.transport import PlatformDown
from platforms.adapter import Later, Row, SlowDown
from platforms.errors import BadDeclaration, BrokenContract

SHOP = SourceKey("mall", "s1")
SETTINGS = FetchSettings(throttle_wait_ms=10_000, throttle_cap_ms=60_000)


def test_what_the_platform_says_counts_up_to_the_cap() -> None:
    assert wait_of(SlowDown(30_000), SETTINGS, 0) == 30_000
    assert wait_of(SlowDown(10**9), SETTINGS, 0) == 60_000
    assert wait_of(SlowDown(None), SETTINGS, 0) == 10_000
    assert wait_of(Later(2_000), SETTINGS, 0) == 2_000


def test_without_a_word_the_wait_doubles() -> None:
    for trouble in (Later(None), PlatformDown("x"), Later(0), SlowDown(0)):
        assert [wait_of(trouble, SETTINGS, tried) for tried in range(3)] == [200, 400, 800]


def test_a_platform_that_throttles_for_no_time_at_all_is_left_alone_all_the_same() -> None:
    reason = "the platform asks us to slow down (HTTP 429)"
    for says_ms, wait_ms in ((0, 10_000), (30_000, 30_000), (10**9, 60_000)):
        assert ending(SlowDown(says_ms), SETTINGS, 429, was_answered=False) == Throttled(reason, wait_ms)


def test_coming_back_later_respects_the_wait_and_spends_an_attempt_only_of_a_platform_that_is_there() -> None:
    reason = "the platform could not answer and may later (HTTP 503)"
    assert ending(Later(20_000), SETTINGS, 503, was_answered=True) == Failed(reason, 20_000)
    assert ending(PlatformDown("reset"), SETTINGS, 0, was_answered=True) == Failed("reset")
    assert ending(Later(20_000), SETTINGS, 503, was_answered=False) == Missed(reason, 20_000)
    assert ending(PlatformDown("reset"), SETTINGS, 0, was_answered=False) == Missed("reset")


async def test_a_wait_of_our_own_moves_the_deadline() -> None:
    with anyio.fail_after(60) as scope:
        before_s = scope.deadline
        time = AttemptTime(FetchSettings(timeout_ms=60_000, stale_after_ms=180_000), scope)
        left_ms = time.left_ms
        await time.wait(1)
        assert scope.deadline == pytest.approx(before_s + 0.001)
        assert time.left_ms == left_ms - 1
        await time.wait(0)
        assert time.left_ms == left_ms - 1


@given(st.integers(1_000, 3_600_000), st.integers(0, 3_600_000))
def test_an_attempt_ends_before_the_monitor_takes_the_slice_away(timeout_ms: int, more_ms: int) -> None:
    settings = FetchSettings(timeout_ms=timeout_ms, stale_after_ms=timeout_ms + more_ms)
    left_ms = longest_wait_ms(settings)
    assert left_ms == IN_PLACE_MS or timeout_ms + left_ms < settings.stale_after_ms


def broken(kind: type[Exception]) -> None:
    raise kind("order 4711 of a customer", "x")


def test_an_adapters_own_mistake_is_told_by_its_place_alone() -> None:
    with pytest.raises(BrokenContract) as told:
        called(broken, KeyError)
    assert "KeyError at test_session.py:" in told.value.reason
    assert "4711" not in told.value.reason
    with pytest.raises(BadDeclaration):
        called(broken, BadDeclaration)


PIECE = Slice("t", 1, 0, 60_000)


def missing(clocks: PlatformClocks, said_ms: int | None, asked_ms: int) -> int:
    return clocks.missing_ms(SHOP, PIECE, 30_000, said_ms=said_ms, asked_ms=asked_ms)


def test_an_answer_counts_once_it_was_made_after_the_slice_had_settled() -> None:
    clocks = PlatformClocks()
    assert missing(clocks, 89_999, 89_990) == 1
    assert missing(clocks, 90_000, 90_000) == 0
    assert missing(clocks, None, 0) == 0


def test_a_request_waits_by_what_was_heard_of_the_clock() -> None:
    clocks = PlatformClocks()
    assert clocks.early_ms(SHOP, PIECE, 30_000, 0) == 0  # nobody knows
    assert missing(clocks, 50_000, 100_000) == 40_000  # 50 s behind ours
    assert clocks.early_ms(SHOP, PIECE, 30_000, 100_000) == 40_000
    assert clocks.early_ms(SHOP, PIECE, 30_000, 140_000) == 0
    assert missing(clocks, None, 139_000) == 0
    assert clocks.early_ms(SHOP, PIECE, 30_000, 139_000) == 1_000
    assert missing(clocks, 139_000, 139_000) == 0  # it was set right
    assert clocks.early_ms(SHOP, PIECE, 30_000, 100_000) == 0
    assert clocks.early_ms(SourceKey("mall", "s2"), PIECE, 30_000, 0) == 0


@given(st.integers(-ODD_MS, ODD_MS), st.integers(0, 10_000), st.integers(0, 10**6))
def test_a_request_that_has_waited_is_not_too_early(ahead_ms: int, latency_ms: int, now_ms: int) -> None:
    clocks = PlatformClocks()
    missing(clocks, now_ms + ahead_ms, now_ms)
    asked_ms = now_ms + clocks.early_ms(SHOP, PIECE, 30_000, now_ms)
    assert missing(clocks, asked_ms + latency_ms + ahead_ms, asked_ms) == 0


def test_a_time_that_can_be_no_clock_is_not_believed() -> None:
    clocks = PlatformClocks()
    assert missing(clocks, 0, ODD_MS + 1) == 0
    assert clocks.early_ms(SHOP, PIECE, 30_000, 0) == 0


@given(st.lists(st.integers(0, 700), min_size=1, max_size=40), st.integers(1, 1_000))
def test_pages_hold_every_row_in_order_and_fit(sizes: list[int], most: int) -> None:
    rows = [Row(str(at), 1, None, b"x" * size) for at, size in enumerate(sizes)]
    pages = pages_of(rows, most)
    assert [row for page in pages for row in page] == rows
    assert all(len(page) == 1 or sum(len(row.body) for row in page) <= most for page in pages)
    assert all(pages)


def test_the_first_wait_in_place_is_short() -> None:
    assert AGAIN.wait_s(4) < IN_PLACE_MS / 1000
