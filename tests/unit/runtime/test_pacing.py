"""The pace never lets more through than its rate and never makes anyone wait in vain; the window narrows and widens."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.runtime.rules.pacing import Pace, Rate, RequestWindow, acquire, stop_until, succeeded, throttled, timed_out

RATES = st.builds(Rate, st.floats(0.1, 10_000), st.integers(1, 50))
GAPS = st.lists(st.floats(0, 2_000), min_size=1, max_size=60)


def starts(rate: Rate, arrivals: list[float], pace: Pace | None = None) -> list[float]:
    """When each arrival may act."""
    pace, times = pace or Pace(), []
    for now in arrivals:
        pace, wait = acquire(pace, rate, now)
        times.append(now + wait)
    return times


@given(RATES, GAPS)
def test_no_span_lets_through_more_than_its_rate_and_one_burst(rate: Rate, gaps: list[float]) -> None:
    times = starts(rate, list(accumulate(gaps)))
    for i, first in enumerate(times):
        for j in range(i, len(times)):
            allowed = rate.burst + (times[j] - first) / rate.interval_ms
            assert j - i + 1 <= allowed + 1e-6


@given(RATES, GAPS)
def test_it_is_as_fast_as_a_bucket_that_is_filled_all_the_time(rate: Rate, gaps: list[float]) -> None:
    """The naive model: tokens trickle in one by one; each arrival takes the next token, in order."""
    level, at, expected = float(rate.burst), 0.0, []
    for now in accumulate(gaps):
        moment = max(now, at)
        level = min(rate.burst, level + (moment - at) / rate.interval_ms)
        if level < 1:
            moment += (1 - level) * rate.interval_ms
            level = 1.0
        level, at = level - 1, moment
        expected.append(moment)
    assert starts(rate, list(accumulate(gaps))) == pytest.approx(expected, rel=1e-9, abs=1e-3)


def test_a_full_burst_is_free_at_the_start_and_the_rest_is_even() -> None:
    assert starts(Rate(10, burst=3), [0.0] * 6) == [0, 0, 0, 100, 200, 300]


def test_a_large_cost_waits_until_the_rate_has_made_it_up() -> None:
    pace, wait = acquire(Pace(), Rate(10, burst=2), 0.0, cost=5)
    assert wait == 300
    assert acquire(pace, Rate(10, burst=2), 300.0)[1] == 100


def test_after_a_stop_it_goes_on_evenly_and_without_a_burst() -> None:
    rate = Rate(10, burst=5)
    assert starts(rate, [0.0, 0.0, 0.0], stop_until(Pace(), rate, 1000)) == [1000, 1100, 1200]


@given(RATES, st.floats(0, 10_000), GAPS)
def test_nothing_passes_before_the_end_of_a_stop(rate: Rate, until: float, gaps: list[float]) -> None:
    assert min(starts(rate, list(accumulate(gaps)), stop_until(Pace(), rate, until))) >= until - 1e-6


def test_a_reservation_that_waits_too_long_is_dropped_by_keeping_the_pace() -> None:
    rate = Rate(1)
    pace, _ = acquire(Pace(), rate, 0.0)
    _, wait = acquire(pace, rate, 0.0)
    assert wait == 1000
    assert acquire(pace, rate, 1000.0)[1] == 0


def test_a_round_of_successes_widens_by_about_one() -> None:
    window = RequestWindow(4.0, most=64)
    for _ in range(4):
        window = succeeded(window)
    assert 4.8 < window.size < 5.0


def test_one_trouble_a_round_narrows_however_many_tell_of_it() -> None:
    window = throttled(RequestWindow(16.0, most=64), 0, round_ms=1000)
    assert window.limit == 8
    assert throttled(window, 999, round_ms=1000) is window
    assert throttled(window, 1000, round_ms=1000).limit == 4
    assert timed_out(RequestWindow(16.0, most=64), 0, round_ms=1000).limit == 12


@given(
    st.lists(st.sampled_from(["ok", "throttled", "timed out"]), max_size=200), st.integers(1, 20), st.integers(0, 50)
)
def test_the_window_stays_between_its_bounds(events: list[str], least: int, more: int) -> None:
    window = RequestWindow(float(least), most=least + more, least=least)
    for now, event in enumerate(events):
        if event == "ok":
            window = succeeded(window)
        else:
            window = (throttled if event == "throttled" else timed_out)(window, now * 10, round_ms=50)
        assert least <= window.limit <= least + more
