"""Within any second no more is let through than the rate says, whatever was asked for and when."""

import math

from hypothesis import given
from hypothesis import strategies as st

from actors.runtime.rules.second_cap import MARGIN, SecondCap

ASKS = st.lists(st.tuples(st.floats(0, 900), st.integers(1, 40)), min_size=1, max_size=60)


@given(st.floats(0.2, 200), ASKS)
def test_no_span_of_a_second_lets_more_through(per_s: float, asks: list[tuple[float, int]]) -> None:
    cap, now_ms = SecondCap(), 0.0
    let: list[tuple[float, int]] = []
    for gap_ms, most in asks:
        now_ms += gap_ms
        count = min(most, cap.room(per_s, now_ms))
        if count:
            cap.add(count, now_ms)
            let.append((now_ms, count))
    assert fullest(let, 1000) <= max(1, math.ceil(per_s))
    assert fullest(let, 10_000) <= max(1, math.ceil(per_s * 10) + math.ceil(per_s))


def fullest(let: list[tuple[float, int]], span_ms: float) -> int:
    """Return how many were let through in the fullest span."""
    return max(
        (sum(count for other_ms, count in let if at_ms <= other_ms < at_ms + span_ms) for at_ms, _ in let), default=0
    )


def test_a_rate_that_is_no_whole_number_is_kept_over_time_and_rounded_up_in_a_second() -> None:
    cap, now_ms = SecondCap(margin=1.0), 0.0
    let: list[tuple[float, int]] = []
    while now_ms < 100_000:
        if count := cap.room(2.9, now_ms):
            cap.add(count, now_ms)
            let.append((now_ms, count))
        now_ms += cap.wait_ms(2.9, now_ms) + 1e-6
    assert fullest(let, 1000) == 3
    assert sum(count for _, count in let) == 291  # 290, and what the first moment began ahead


@given(st.floats(0.2, 200), ASKS)
def test_after_the_wait_that_is_told_there_is_room(per_s: float, asks: list[tuple[float, int]]) -> None:
    cap, now_ms = SecondCap(), 0.0
    for gap_ms, most in asks:
        now_ms += gap_ms
        if count := min(most, cap.room(per_s, now_ms)):
            cap.add(count, now_ms)
        wait_ms = cap.wait_ms(per_s, now_ms)
        assert (wait_ms == 0) == (cap.room(per_s, now_ms) > 0)
        now_ms += wait_ms + 1e-6
        assert cap.room(per_s, now_ms) > 0


def test_a_rate_that_falls_waits_for_what_was_let_through() -> None:
    cap = SecondCap()
    for at_ms in (0.0, 100.0, 200.0):
        cap.add(10, at_ms)
    assert cap.room(40, 300) == 10
    assert cap.room(15, 300) == 0
    assert cap.wait_ms(15, 300) == 100 + 1000 * MARGIN - 300
