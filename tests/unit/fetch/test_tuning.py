"""Slices without a set length: they cover time without a gap, follow the orders, and stay within their bounds."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.fetch.rules.cutting import cut, next_due_ms
from actors.fetch.rules.holding import Taken, advance, complete, take
from actors.fetch.rules.ledger import Ledger, OpenSlice, Pass, Tuning, faults, first_ledger
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.rules.tuning import (
    WHOLE_LIVE_MS,
    Lengths,
    due_ms_of,
    end_ms_of,
    judged,
    live_ms,
    most_open,
    pages_of,
    read,
    settled_length_ms,
)
from actors.fetch.slice_allocator import lengths_of
from platforms.adapter import Declaration, PageRules

DAY = 86_400_000
HOUR = 3_600_000
AUTO = FetchSettings(slice_ms=0, settle_ms=30_000, again_ms=())
START_MS = 1_700_000_000_123
BY_NUMBER = PageRules(has_total=True, numbered="number")


def batched_pairs(edges: list[int]) -> list[tuple[int, int]]:
    return [(one, other) for one, other in zip(edges[::2], edges[1::2], strict=False) if one < other]


stretches = st.lists(st.integers(START_MS - DAY, START_MS + 3 * DAY), max_size=6, unique=True).map(
    lambda edges: tuple(batched_pairs(sorted(edge // 1_000 * 1_000 for edge in edges)))
)
lengths = st.builds(
    Lengths,
    longest_ms=st.integers(30_000, 30 * DAY),
    rows=st.integers(1, 3_000),
    pages=st.integers(1, 10),
    longer=st.floats(1, 4),
    overlap_ms=st.integers(0, 10_000),
    per_s=st.floats(0.001, 1_000),
    is_one_walk=st.booleans(),
    whole=stretches,
)
tunings = st.builds(
    Tuning,
    length_ms=st.integers(1_000, 30 * DAY),
    span_ms=st.integers(0, 60 * DAY),
    rows=st.integers(0, 10**7),
    is_sure=st.booleans(),
)


def read_history(rows_a_ms: float, bounds: Lengths, span_ms: int) -> tuple[Ledger, list[OpenSlice]]:
    """Read a history in which orders lie evenly, and return the slices that were read."""
    ledger, done, now_ms = first_ledger(START_MS), list[OpenSlice](), START_MS + span_ms
    while True:
        ledger = cut(ledger, AUTO, now_ms, bounds)
        if not ledger.open:
            return ledger, done
        held = ledger.open[0]
        ledger, taken = take(ledger, held.slice_id, "n", now_ms)
        assert isinstance(taken, Taken)
        rows = round(held.length_ms * rows_a_ms)
        ledger, _ = complete(ledger, held.slice_id, taken.slice.fence, now_ms, rows=rows)
        assert faults(ledger) == []
        done.append(held)


@given(st.floats(1e-9, 0.02), lengths, st.integers(0, 3 * DAY))
def test_slices_cover_the_past_without_a_gap_or_an_overlap(rows_a_ms: float, bounds: Lengths, span_ms: int) -> None:
    bounds = bounds._replace(longest_ms=max(bounds.longest_ms, span_ms // 300))
    rows_a_ms = min(rows_a_ms, 300 * bounds.rows / max(span_ms, 1))
    ledger, done = read_history(rows_a_ms, bounds, span_ms)
    done = sorted(done, key=lambda held: held.start_ms)
    assert all(first.end_ms == second.start_ms for first, second in pairwise(done))
    assert ledger.watermark_ms == ledger.frontier_ms == (done[-1].end_ms if done else START_MS)
    left_ms = START_MS + span_ms - AUTO.settle_ms - ledger.frontier_ms
    step_ms = live_ms(judged(ledger.tuning, bounds), bounds)
    in_whole = any(start_ms <= ledger.frontier_ms < stop_ms for start_ms, stop_ms in bounds.whole)
    assert left_ms < (max(step_ms, WHOLE_LIVE_MS) if in_whole else step_ms)


@given(st.floats(1e-9, 0.02), lengths, st.integers(0, 3 * DAY))
def test_a_stretch_of_the_past_that_repeats_is_one_slice(rows_a_ms: float, bounds: Lengths, span_ms: int) -> None:
    bounds = bounds._replace(longest_ms=max(bounds.longest_ms, span_ms // 300), is_one_walk=False)
    rows_a_ms = min(rows_a_ms, 300 * bounds.rows / max(span_ms, 1))
    _, done = read_history(rows_a_ms, bounds, span_ms)
    ends = {held.end_ms for held in done}
    settled_ms = START_MS + span_ms - AUTO.settle_ms
    over = [each for each in bounds.whole if each[1] <= settled_ms]
    assert not [end_ms for end_ms in ends for start_ms, stop_ms in over if start_ms < end_ms < stop_ms]


def test_an_hour_that_repeats_is_read_each_ten_minutes_while_it_lasts() -> None:
    bounds, settings = Lengths(whole=((HOUR, 3 * HOUR),)), replace(AUTO, slice_ms=60_000, max_open=1_000)
    for own in (AUTO, settings):
        ledger, ends = first_ledger(HOUR - 20_000), list[int]()
        for now_ms in range(HOUR, 3 * HOUR + 120_000, 5_000):
            ledger = cut(ledger, own, now_ms + own.settle_ms, bounds)
            ends += [held.end_ms for held in ledger.open]
            ledger = replace(ledger, open=())
        inside = [end_ms for end_ms in ends if HOUR < end_ms < 3 * HOUR]
        assert inside == list(range(HOUR + 600_000, 3 * HOUR, 600_000))
        assert {HOUR, 3 * HOUR} <= set(ends)
        after = cut(first_ledger(0), own, 9 * HOUR, bounds)
        assert not [held for held in after.open if HOUR < held.end_ms < 3 * HOUR]


def test_second_looks_and_backfills_do_not_cut_an_hour_that_repeats() -> None:
    bounds = Lengths(whole=((HOUR, 3 * HOUR),))
    settings = replace(AUTO, again_ms=(600_000,), back_open=1_000, slice_ms=60_000)
    ledger = first_ledger(0)
    ledger = replace(
        ledger,
        frontier_ms=5 * HOUR,
        watermark_ms=5 * HOUR,
        passes=(Pass("again-600000", "a", 0, 0, None, 600_000), Pass("old", "b", 0, 0, 5 * HOUR)),
    )
    fresh = cut(ledger, settings, 6 * HOUR, bounds).open
    assert {held.kind for held in fresh} == {"t", "a", "b"}
    for kind in ("a", "b"):
        ends = sorted(held.end_ms for held in fresh if held.kind == kind)
        assert {HOUR, 3 * HOUR} <= set(ends)
        assert not [end_ms for end_ms in ends if HOUR < end_ms < 3 * HOUR]


def looks_of_a_day(tuning: Tuning) -> list[OpenSlice]:
    """Return the second looks at the third day of a shop whose tail has been read up to its end."""
    settings = FetchSettings(slice_ms=0, settle_ms=30_000)
    delays = settings.looks_ms()
    passes = tuple(Pass(f"again-{delay}", "a", 2 * DAY, 2 * DAY, None, delay) for delay in delays)
    ledger = replace(
        first_ledger(0), frontier_ms=3 * DAY, watermark_ms=3 * DAY, passes=passes, tuning=tuning, trust=1, answers=1
    )
    looks = list[OpenSlice]()
    while True:
        fresh = [held for held in cut(ledger, settings, 5 * DAY, Lengths()).open if held.kind == "a"]
        if not fresh:
            return looks
        looks += fresh
        ends = {
            name: max(held.end_ms for held in fresh if held.pass_name == name) for name in {f.pass_name for f in fresh}
        }
        moved = tuple(replace(each, cursor_ms=ends.get(each.name, each.cursor_ms)) for each in ledger.passes)
        ledger = replace(ledger, passes=moved)


def test_second_looks_at_a_quiet_shop_are_few_and_cover_all_of_its_time() -> None:
    looks = looks_of_a_day(Tuning(DAY, is_sure=True))
    for delay_ms, count in ((600_000, 144), (7_200_000, 48), (86_400_000, 4)):
        own = [held for held in looks if held.pass_name == f"again-{delay_ms}"]
        assert len(own) == count
        assert own[0].start_ms == 2 * DAY
        assert all(one.end_ms == other.start_ms for one, other in pairwise(own))


def test_second_looks_at_a_busy_shop_hold_no_more_than_its_slices_do() -> None:
    looks = looks_of_a_day(Tuning(100_000, is_sure=True))
    assert {held.length_ms for held in looks} == {100_000}
    assert len(looks) == 3 * 864


@given(st.floats(1e-7, 1), lengths)
def test_the_length_converges_to_the_wanted_rows(rows_a_ms: float, bounds: Lengths) -> None:
    tuning = judged(None, bounds)
    for _ in range(40):
        tuning = judged(read(tuning, tuning.length_ms, round(tuning.length_ms * rows_a_ms)), bounds)
    wanted_ms = bounds.rows / rows_a_ms
    wanted_ms = max(wanted_ms, min(40 * bounds.overlap_ms, bounds.longer * wanted_ms))
    least_ms = min(bounds.longest_ms, max(1_000, 5 * bounds.overlap_ms))
    if least_ms * 2 < wanted_ms < bounds.longest_ms / 2 and bounds.rows >= 100:
        assert 0.9 * wanted_ms <= tuning.length_ms <= 1.1 * wanted_ms
    assert tuning.is_sure
    assert least_ms <= tuning.length_ms <= bounds.longest_ms


@given(tunings, lengths)
def test_a_length_is_bounded_and_grows_by_steps(tuning: Tuning, bounds: Lengths) -> None:
    after = judged(tuning, bounds)
    least_ms = min(bounds.longest_ms, max(1_000, 5 * bounds.overlap_ms))
    assert least_ms <= after.length_ms <= bounds.longest_ms
    assert after.length_ms <= max(least_ms, 8 * tuning.length_ms)
    assert 1 <= most_open(after, 64) <= 64


@given(st.integers(START_MS, START_MS + DAY), st.integers(0, 3 * DAY), tunings, lengths)
def test_the_moment_at_which_a_slice_is_due_is_the_first_at_which_it_is_cut(
    at_ms: int, waited_ms: int, tuning: Tuning, bounds: Lengths
) -> None:
    due_ms = due_ms_of(at_ms, tuning, bounds)
    assert end_ms_of(at_ms, due_ms - 1, tuning, bounds) is None
    end_ms = end_ms_of(at_ms, due_ms + waited_ms, tuning, bounds)
    assert end_ms is not None
    assert at_ms < end_ms <= due_ms + waited_ms


@given(tunings, lengths)
def test_a_shop_is_looked_at_as_often_as_its_rate_allows(tuning: Tuning, bounds: Lengths) -> None:
    wait_ms = live_ms(tuning, bounds)
    assert wait_ms >= min(60_000, 5 * bounds.overlap_ms)
    assert wait_ms / 1_000 * bounds.per_s >= 3.9
    assert wait_ms <= max(2 * 4_000 / bounds.per_s, bounds.least_live_ms) + 60_000


def test_a_quiet_shop_of_three_years_is_read_in_days() -> None:
    _, done = read_history(10 / DAY, Lengths(longest_ms=DAY), 1_095 * DAY)
    assert len(done) < 1_110


def test_a_shop_of_ten_orders_a_second_is_read_in_slices_of_some_pages() -> None:
    _, done = read_history(0.01, Lengths(longest_ms=DAY), DAY)
    assert 840 <= len(done) < 900


@pytest.mark.parametrize(("pages", "longer"), [(PageRules(has_total=True), 4), (BY_NUMBER, 1.75)])
def test_a_busy_shop_has_longer_slices_so_that_overlaps_cost_little(pages: PageRules, longer: float) -> None:
    settings = FetchSettings()
    bounds = lengths_of(Declaration(name="busy", pages=replace(pages, size=50)), settings)
    for rows_a_ms in (0.01, 0.1):
        fitting_ms = 500 / rows_a_ms
        wanted_ms = max(5 * bounds.overlap_ms, min(40 * bounds.overlap_ms, longer * fitting_ms))
        length_ms = settled_length_ms(bounds, round(rows_a_ms * DAY), DAY)
        assert length_ms == pytest.approx(wanted_ms, rel=0.01)
    slow = lengths_of(Declaration(name="slow", pages=replace(pages, size=50)), replace(settings, rate=0.2))
    assert settled_length_ms(slow, round(0.002 * DAY), DAY) == pytest.approx(75_000, rel=0.01)


def test_a_shop_that_becomes_busy_has_short_slices_soon() -> None:
    tuning, bounds = Tuning(DAY, is_sure=True), Lengths()
    for _ in range(5):
        tuning = judged(read(tuning, 60_000, 600), bounds)
    assert tuning.length_ms == 100_000
    assert live_ms(tuning, bounds) == 20_000


def test_a_list_without_an_end_has_one_slice_for_all_of_its_past() -> None:
    ledger = cut(first_ledger(START_MS), AUTO, START_MS + 90 * DAY, Lengths(is_one_walk=True))
    (held,) = ledger.open
    assert held.start_ms == START_MS
    assert START_MS + 90 * DAY - held.end_ms <= 30_000 + 60_000
    due_ms = next_due_ms(ledger, AUTO, START_MS + 90 * DAY, {}, Lengths(is_one_walk=True))
    assert due_ms is not None
    assert due_ms <= START_MS + 90 * DAY + 60_000


def test_a_slow_shop_has_few_pages_in_a_slice() -> None:
    assert [pages_of(per_s, 60_000) for per_s in (0.0167, 0.2, 10, 1_000)] == [1, 3, 10, 10]


def test_a_set_length_is_kept() -> None:
    settings = replace(AUTO, slice_ms=60_000, max_open=1_000)
    ledger = cut(first_ledger(0), settings, 90 * 60_000)
    assert {held.length_ms for held in ledger.open} == {60_000}
    assert ledger.tuning is None


def test_of_a_slice_that_was_read_in_part_only_the_rest_stays_open() -> None:
    ledger = cut(first_ledger(0), AUTO, DAY)
    held = ledger.open[0]
    ledger, taken = take(ledger, held.slice_id, "n", DAY)
    assert isinstance(taken, Taken)
    ledger, rest = advance(ledger, held.slice_id, taken.slice.fence, 200_000, DAY, rows=77)
    assert isinstance(rest, OpenSlice)
    assert (rest.start_ms, rest.end_ms, rest.fence) == (200_000, held.end_ms, taken.slice.fence)
    assert ledger.watermark_ms == 200_000
    assert ledger.tuning is not None
    assert (ledger.tuning.span_ms, ledger.tuning.rows) == (200_000, 77)
    assert faults(ledger) == []
    assert advance(ledger, rest.slice_id, taken.slice.fence + 1, 300_000, DAY)[0] is ledger
