"""A hint has a window read at once, beside the tail: rarely enough, and without a trace where it fails."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.fetch.fetcher.decisions import (
    Ended,
    Failed,
    Hopeless,
    Misread,
    Missed,
    Outcome,
    PlatformRefused,
    Short,
    Throttled,
    TimedOut,
    WindowStored,
    decide,
)
from actors.fetch.rules.cutting import cut, next_due_ms
from actors.fetch.rules.holding import StaleFence, Taken, complete, expire, take
from actors.fetch.rules.ledger import Ledger, LookWindow, OpenSlice, Outage, Shortfall, faults, first_ledger
from actors.fetch.rules.looks import (
    EVERY_MS,
    GRAIN_MS,
    MOST_OPEN,
    MOST_WINDOWS,
    BadLook,
    ask_look,
    covers,
    look_every_ms,
    look_window,
)
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.rules.steering import add_backfill, pause, resume, rewind
from actors.fetch.rules.tuning import Lengths
from actors.fetch.sources import SourceKey
from actors.runtime.actor import Ack

HOUR = 3_600_000
NOW = 1_000 * HOUR
SHOP = SourceKey("mall", "s1")
SETTINGS = FetchSettings(again_ms=())
LENGTHS = Lengths()
LIVE = replace(first_ledger(NOW - 10 * HOUR), frontier_ms=NOW - 60_000, watermark_ms=NOW - 60_000)
"""A source that is read up to a minute ago."""


def asked(ledger: Ledger, start_ms: int | None = None, end_ms: int | None = None, now_ms: int = NOW) -> Ledger:
    return ask_look(ledger, look_window(ledger, start_ms, end_ms, now_ms))


def looks(ledger: Ledger) -> list[OpenSlice]:
    return [held for held in ledger.open if held.is_look]


def without_tail(ledger: Ledger, now_ms: int = NOW) -> Ledger:
    """Cut all that is due, and forget what is no look."""
    after = cut(ledger, SETTINGS, now_ms, LENGTHS)
    return replace(after, open=tuple(looks(after)), frontier_ms=ledger.frontier_ms, watermark_ms=ledger.watermark_ms)


def test_a_hint_has_the_time_since_the_tail_read_at_once_in_its_lane() -> None:
    ledger = asked(LIVE)
    assert next_due_ms(ledger, SETTINGS, NOW, lengths=LENGTHS) == NOW
    (look,) = looks(cut(ledger, SETTINGS, NOW, LENGTHS))
    assert (look.kind, look.lane, look.is_look) == ("b", "tail", True)
    assert (look.start_ms, look.end_ms) == ((NOW - 60_000) // GRAIN_MS * GRAIN_MS, NOW)


def test_a_look_moves_neither_frontier_nor_watermark() -> None:
    ledger = without_tail(asked(LIVE))
    (look,) = looks(ledger)
    ledger, taken = take(ledger, look.slice_id, "n", NOW)
    assert isinstance(taken, Taken)
    ledger, _ = complete(ledger, look.slice_id, taken.slice.fence, NOW)
    assert (ledger.frontier_ms, ledger.watermark_ms, ledger.open) == (LIVE.frontier_ms, LIVE.watermark_ms, ())


def test_hints_of_one_moment_are_one_and_a_thousand_change_nothing() -> None:
    ledger = asked(LIVE)
    for later_ms in range(1_000):
        assert asked(ledger, now_ms=NOW + later_ms) is ledger
    assert covers(ledger, look_window(ledger, NOW - 5_000, NOW - 1_000, NOW))


def test_the_next_look_waits_until_the_last_one_is_over_and_its_time_has_passed() -> None:
    ledger = without_tail(asked(LIVE))
    ledger = asked(ledger, now_ms=NOW + 1)
    assert len(looks(cut(ledger, SETTINGS, NOW + 10 * EVERY_MS, LENGTHS))) == 1  # the first one is still open
    over = replace(ledger, open=())
    assert looks(cut(over, SETTINGS, NOW + EVERY_MS - 1, LENGTHS)) == []
    (second,) = looks(cut(over, SETTINGS, NOW + EVERY_MS, LENGTHS))
    assert second.end_ms == NOW + EVERY_MS


def test_looks_take_a_quarter_of_the_rate_at_most() -> None:
    assert look_every_ms(Lengths(per_s=10)) == EVERY_MS
    assert look_every_ms(Lengths(per_s=0.0167)) == int(4_000 / 0.0167)


@given(st.lists(st.tuples(st.integers(0, 86_000), st.integers(1, 300)), min_size=1, max_size=60))
def test_every_hint_of_a_day_is_in_the_look_however_many_there_are(hints: list[tuple[int, int]]) -> None:
    ledger = LIVE = replace(first_ledger(0), frontier_ms=NOW, watermark_ms=NOW)
    windows = []
    for ago_s, length_s in hints:
        start_ms = NOW - ago_s * 1_000
        windows.append(look_window(LIVE, start_ms, min(NOW, start_ms + length_s * 1_000) + 1, NOW))
        ledger = ask_look(ledger, windows[-1])
    assert ledger.hints is not None
    assert len(ledger.hints.waiting) <= MOST_WINDOWS
    assert all(covers(ledger, window) for window in windows)
    pairs = list(zip(ledger.hints.waiting, ledger.hints.waiting[1:], strict=False))
    assert all(one.until_ms < other.start_ms for one, other in pairs)


def test_a_long_window_is_cut_into_slices_a_few_at_a_time() -> None:
    ledger, read = asked(LIVE, NOW - 5 * HOUR), list[tuple[int, int]]()
    for number in range(100):
        ledger = without_tail(ledger, NOW + number)
        if not looks(ledger):
            break
        assert len(looks(ledger)) <= MOST_OPEN
        read += [(each.start_ms, each.end_ms) for each in looks(ledger)]
        ledger = replace(ledger, open=())
    assert (read[0][0], read[-1][1]) == (NOW - 5 * HOUR, NOW)
    assert all(one[1] == other[0] for one, other in itertools.pairwise(read))


@pytest.mark.parametrize(
    ("start_ms", "end_ms", "field", "says"),
    [
        (NOW + 1, None, "start_ms", "begins in the future"),
        (None, NOW + 10 * 60_000, "end_ms", "ends in the future; leave the end out"),
        (NOW - 25 * HOUR, None, "start_ms", "more than a day ago; `sources backfill`"),
        (NOW - 11 * HOUR, None, "start_ms", "begins before the source does"),
        (NOW - 2_000, NOW - 2_000, "end_ms", "is empty"),
        (NOW - 1_000, NOW - 2_000, "end_ms", "is empty"),
    ],
)
def test_a_window_that_makes_no_sense_is_refused(start_ms: Any, end_ms: Any, field: str, says: str) -> None:
    with pytest.raises(BadLook, match=says) as caught:
        look_window(LIVE, start_ms, end_ms, NOW)
    assert caught.value.field == field


def test_a_callers_clock_may_be_a_little_ahead() -> None:
    assert look_window(LIVE, NOW - 5_000, NOW + 30_000, NOW).end_ms == 0


def test_a_source_that_stands_is_not_looked_at_and_a_resume_forgets_the_hints() -> None:
    with pytest.raises(BadLook, match="the source is paused: stocktaking; it reads nothing before `sources resume`"):
        asked(pause(LIVE, "stocktaking"))
    assert resume(pause(asked(LIVE), ""), NOW).hints is None


def test_a_source_that_is_down_or_held_is_looked_at_afterwards() -> None:
    ledger = asked(LIVE)
    down = replace(ledger, outage=Outage(NOW))
    assert looks(cut(down, SETTINGS, NOW, LENGTHS)) == []
    held = replace(ledger, hold_until_ms=NOW + 60_000)
    assert looks(cut(held, SETTINGS, NOW + 59_999, LENGTHS)) == []
    assert len(looks(cut(held, SETTINGS, NOW + 60_000, LENGTHS))) == 1


def taken_look() -> tuple[Ledger, OpenSlice]:
    ledger = without_tail(asked(LIVE))
    ledger, taken = take(ledger, looks(ledger)[0].slice_id, "n", NOW)
    assert isinstance(taken, Taken)
    return ledger, taken.slice


@pytest.mark.parametrize(
    "outcome",
    [
        Failed("x"),
        Missed("x"),
        Hopeless("x"),
        Misread("x", "y"),
        PlatformRefused("x"),
        Short("x", Shortfall(1, 2)),
        TimedOut("x"),
    ],
    ids=lambda outcome: type(outcome).__name__,
)
def test_a_look_that_fails_is_over_and_leaves_nothing(outcome: Outcome) -> None:
    ledger, held = taken_look()
    after, following = decide(ledger, Ended(SHOP, held, outcome, SETTINGS, 0.0), NOW)
    assert (after.open, after.holes, after.state, after.outage) == ((), (), "running", None)
    assert (following.then, following.events) == (Ack(), ())
    assert faults(after) == []


def test_a_look_that_was_read_is_over_and_one_that_is_throttled_holds_its_source() -> None:
    ledger, held = taken_look()
    after, _ = decide(ledger, Ended(SHOP, held, WindowStored(rows=3), SETTINGS, 0.0), NOW)
    assert after.open == ()
    after, _ = decide(ledger, Ended(SHOP, held, Throttled("slow", 30_000), SETTINGS, 0.0), NOW)
    assert (after.hold_until_ms, len(looks(after))) == (NOW + 30_000, 1)


def test_a_look_whose_holders_vanish_is_dropped() -> None:
    ledger, _ = taken_look()
    after, results = expire(ledger, SETTINGS, NOW + SETTINGS.stale_after_ms, chance=0.0)
    assert (after.open, after.holes, results) == ((), (), ())
    after, result = take(ledger, ledger.open[0].slice_id, "m", NOW, most_losses=0)
    assert (after.open, after.holes, type(result)) == ((), (), StaleFence)


def test_a_rewind_forgets_open_looks() -> None:
    ledger, _ = taken_look()
    after = rewind(ledger, NOW - HOUR)
    assert (after.open, after.holes) == ((), ())


def test_looks_take_no_place_of_backfills() -> None:
    ledger = add_backfill(asked(LIVE), "old", NOW - 9 * HOUR, NOW - 8 * HOUR)
    after = cut(ledger, replace(SETTINGS, back_open=1, slice_ms=60_000), NOW, LENGTHS)
    backs = [held for held in after.open if held.kind == "b" and not held.is_look]
    assert (len(backs), len(looks(after))) == (1, 1)


def test_a_window_that_a_backfill_reads_is_not_read_twice() -> None:
    ledger = replace(LIVE, hints=None)
    window = LookWindow(NOW - 7_200_000, NOW - 7_140_000)
    open_back = OpenSlice("b", 1, window.start_ms, window.end_ms, pass_name="old")
    ledger = ask_look(replace(ledger, open=(open_back,)), window)
    after = cut(ledger, SETTINGS, NOW, LENGTHS)
    assert looks(after) == []
    assert faults(after) == []
