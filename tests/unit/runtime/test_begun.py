"""What a node began, second by second: whatever order it came in, the seconds add up."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from actors.runtime.rules.begun import FEW, SPAN, BegunCounts
from streams.messages.begun import MOST_SECONDS

T = 1_790_000_000
steps = st.lists(st.tuples(st.integers(0, 3 * SPAN), st.integers(1, 50)), max_size=40)


@given(steps)
def test_each_second_has_what_was_counted_in_it_and_older_ones_are_gone(gaps: list[tuple[int, int]]) -> None:
    counts, naive, now_s = BegunCounts(), Counter[int](), T
    for gap_s, count in gaps:
        now_s += gap_s
        counts.add("k", count, now_s)
        naive[now_s] += count
    for until_s in (now_s, now_s + 1, now_s + 5):
        told = counts.begun("k", until_s, MOST_SECONDS)
        wanted = tuple(naive[second] for second in range(until_s - MOST_SECONDS + 1, until_s + 1))
        assert told == (wanted if gaps else ())


@given(steps, st.lists(st.integers(-3, 3), min_size=40, max_size=40))
def test_totals_are_all_that_began_in_ended_seconds_though_the_clock_wavers(
    gaps: list[tuple[int, int]], waver: list[int]
) -> None:
    counts, now_s, sum_of_all, before = BegunCounts(), T, 0, 0
    for (gap_s, count), off_s in zip(gaps, waver, strict=False):
        now_s += gap_s
        counts.add("k", count, now_s + off_s)
        sum_of_all += count
        for _, total in counts.totals(now_s):
            assert before <= total <= sum_of_all
            before = total
    assert dict(counts.totals(now_s + 10)) == ({"k": sum_of_all} if gaps else {})


@given(steps, st.integers(0, 200))
def test_what_is_taken_back_is_the_latest(gaps: list[tuple[int, int]], back: int) -> None:
    counts, naive, now_s = BegunCounts(), Counter[int](), T
    for gap_s, count in gaps:
        now_s += gap_s
        counts.add("k", count, now_s)
        naive[now_s] += count
    counts.take_back("k", back)
    left = back
    for second in range(now_s, now_s - SPAN, -1):
        taken = min(left, naive[second])
        naive[second] -= taken
        left -= taken
    wanted = tuple(naive[second] for second in range(now_s - MOST_SECONDS + 1, now_s + 1))
    assert counts.begun("k", now_s, MOST_SECONDS) == (wanted if gaps else ())


def test_a_total_that_was_told_does_not_fall_when_something_is_taken_back() -> None:
    counts = BegunCounts()
    counts.add("k", 10, T)
    assert counts.totals(T) == [("k", 0)]
    assert counts.totals(T + 1) == [("k", 10)]
    counts.take_back("k", 4)
    assert counts.totals(T + 1) == [("k", 10)]
    assert counts.begun("k", T, 1) == (6,)


def test_a_clock_that_is_set_far_back_begins_anew() -> None:
    counts = BegunCounts()
    counts.add("k", 7, T)
    counts.add("k", 1, T - 3 * SPAN)
    assert counts.begun("k", T, 5) == (0, 0, 0, 0, 0)
    assert counts.begun("k", T - 3 * SPAN, 2) == (0, 1)


def test_idle_keys_are_forgotten_once_there_are_many() -> None:
    counts = BegunCounts()
    for number in range(FEW):
        counts.add(f"old-{number}", 1, T)
    counts.add("young", 1, T + SPAN - 1)
    assert counts.begun("old-1", T, 1) == (1,)
    for number in range(FEW):
        counts.add(f"new-{number}", 1, T + SPAN)
    assert counts.begun("old-1", T, 1) == ()
    assert len(counts.totals(T)) == 1 + FEW
