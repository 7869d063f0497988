"""A platform that is away for a time, and one that is there and fails for one window: a source lived through both."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.fetch.rules.cutting import cut, offers_due
from actors.fetch.rules.holding import Taken, complete, miss, take
from actors.fetch.rules.ledger import Ledger, Outage, faults, first_ledger
from actors.fetch.rules.outages import LONGEST_PROBE_MS, MOST_PROBED, answered, is_down, mark_over, mark_reported
from actors.fetch.rules.settings import FetchSettings

SECOND = 1_000
MINUTE = 60 * SECOND
ATTEMPT_MS = 2 * SECOND
SETTINGS = FetchSettings(slice_ms=MINUTE, settle_ms=0, max_open=8, retries=2, again_ms=())
Answers = Callable[[int, int], bool]
"""Whether the platform answers for the window that begins at one moment, when it is asked at another."""


class Lived(NamedTuple):
    """What became of a source: its ledger, how many attempts got no answer, and the attempt of each that did."""

    ledger: Ledger
    misses: list[int]
    read_by: dict[int, int]


def live(answers: Answers, *, until_ms: int, at_once: int, settings: FetchSettings = SETTINGS) -> Lived:
    """Run one source for a time, as allocator and fetchers do, second by second."""
    ledger, under_way = first_ledger(0), list[tuple[int, str, int, int, int]]()
    misses, read_by = list[int](), dict[int, int]()
    for now_ms in range(0, until_ms, SECOND):
        for work in [work for work in under_way if work[0] <= now_ms]:
            under_way.remove(work)
            _, slice_id, fence, start_ms, attempt = work
            if answers(start_ms, now_ms):
                ledger, _ = complete(ledger, slice_id, fence, now_ms)
                read_by[start_ms] = attempt
            else:
                misses.append(now_ms)
                ledger, _ = miss(ledger, slice_id, fence, "503", settings.retry_policy, now_ms, chance=0.5)
        ledger = cut(ledger, settings, now_ms)
        for held in offers_due(ledger, now_ms)[: at_once - len(under_way)]:
            ledger, taken = take(ledger, held.slice_id, "n1", now_ms)
            if isinstance(taken, Taken):
                mine = taken.slice
                under_way.append((now_ms + ATTEMPT_MS, mine.slice_id, mine.fence, mine.start_ms, mine.attempt))
        assert faults(ledger) == []
    return Lived(ledger, misses, read_by)


@given(st.integers(1, 20), st.integers(1, 90), st.integers(1, 8), st.sampled_from([1, 8]))
@hypothesis_settings(max_examples=60, deadline=None)
def test_a_platform_that_is_away_costs_no_attempt_no_hole_and_few_requests(
    gone_min: int, away_min: int, at_once: int, max_open: int
) -> None:
    gone_ms, back_ms = gone_min * MINUTE, (gone_min + away_min) * MINUTE
    until_ms = back_ms + LONGEST_PROBE_MS + 2 * (away_min + 2) * ATTEMPT_MS
    lived = live(
        lambda _start_ms, now_ms: not gone_ms <= now_ms < back_ms,
        until_ms=until_ms,
        at_once=at_once,
        settings=replace(SETTINGS, max_open=max_open),
    )
    assert (lived.ledger.holes, lived.ledger.outage, set(lived.read_by.values())) == ((), None, {1})
    assert lived.ledger.watermark_ms > until_ms - 2 * MINUTE
    assert len(lived.misses) < 20 + 2 * away_min


@given(st.integers(1, 20), st.integers(1, 8))
@hypothesis_settings(max_examples=30, deadline=None)
def test_a_window_that_fails_while_others_are_read_uses_its_attempts_and_is_given_up(at_min: int, at_once: int) -> None:
    poison_ms = at_min * MINUTE
    lived = live(lambda start_ms, _now_ms: start_ms != poison_ms, until_ms=poison_ms + 20 * MINUTE, at_once=at_once)
    (hole,) = lived.ledger.holes
    assert (hole.start_ms, hole.attempts) == (poison_ms, SETTINGS.retries + 1)
    assert set(lived.read_by) >= set(range(0, poison_ms + 15 * MINUTE, MINUTE)) - {poison_ms}
    assert lived.ledger.outage is None


def test_one_bad_window_does_not_keep_a_source_down() -> None:
    """The probe goes to whichever slice missed least, and not to the first one again and again."""
    lived = live(
        lambda start_ms, now_ms: start_ms != 0 and not 2 * MINUTE <= now_ms < 60 * MINUTE,
        until_ms=75 * MINUTE,
        at_once=2,
    )
    assert [hole.start_ms for hole in lived.ledger.holes] == [0]
    assert len(lived.read_by) > 70


@given(st.integers(1, 5), st.integers(1, 3))
@hypothesis_settings(max_examples=15, deadline=None)
def test_bad_windows_do_not_keep_a_source_down_if_they_are_all_that_is_open(bad: int, max_open: int) -> None:
    """Another window is cut beside them, so that one can answer."""
    lived = live(
        lambda start_ms, _now_ms: start_ms >= bad * MINUTE,
        until_ms=60 * MINUTE,
        at_once=8,
        settings=replace(SETTINGS, max_open=max_open),
    )
    assert [hole.start_ms for hole in lived.ledger.holes] == [at * MINUTE for at in range(bad)]
    assert lived.ledger.watermark_ms == 0  # of the first hole
    assert set(lived.read_by) >= set(range(bad * MINUTE, 55 * MINUTE, MINUTE))


def test_a_long_outage_does_not_fill_the_ledger() -> None:
    lived = live(
        lambda _start_ms, _now_ms: False, until_ms=300 * MINUTE, at_once=8, settings=replace(SETTINGS, max_open=2)
    )
    assert len(lived.ledger.open) == MOST_PROBED


# ---- what is told of it


def down(**changes: object) -> Ledger:
    return replace(first_ledger(0), outage=replace(Outage(1_000, reason="503"), **changes))


def test_what_nobody_was_told_of_is_over_without_a_trace() -> None:
    ledger = answered(down(), 9_000)
    assert (ledger.outage, ledger.hold_until_ms) == (None, 9_001)  # whatever was offered before is offered again
    assert answered(ledger, 9_500) is ledger


def test_what_somebody_was_told_of_stays_until_he_is_told_that_it_is_over() -> None:
    told = mark_reported(down(), 1_000, 5_000)
    assert mark_reported(told, 1_000, 6_000) is told
    over = answered(told, 9_000)
    assert over.outage == Outage(1_000, reason="503", is_told=True, over_ms=9_000)
    assert not is_down(over)
    assert mark_over(over, 9_000, 9_500).outage is None
    assert mark_over(over, 8_000, 9_500) is over  # another end than the one that was told


def test_whoever_was_told_just_when_it_ended_is_told_of_its_end() -> None:
    ledger = mark_reported(answered(down(), 9_000), 1_000, 9_100)
    assert ledger.outage == Outage(1_000, is_told=True, over_ms=9_100)


def test_what_is_down_again_as_its_end_is_told_is_told_anew() -> None:
    again = down(is_told=True)
    assert mark_over(again, 9_000, 9_500).outage == Outage(9_500, reason="503")


@pytest.mark.parametrize("ledger", [first_ledger(0), down()])
def test_an_end_of_nothing_changes_nothing(ledger: Ledger) -> None:
    assert mark_over(ledger, 9_000, 9_500) is ledger
