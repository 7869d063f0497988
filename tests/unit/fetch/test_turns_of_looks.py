"""When the allocator looks at a source again."""

from hypothesis import given
from hypothesis import strategies as st

from actors.fetch.slice_allocator import FAR_MS, TURN_MS, at_a_turn
from streams.clock import turn_from_ms

MOMENTS = st.integers(1_700_000_000_000, 1_900_000_000_000)


@given(MOMENTS, st.integers(FAR_MS, 10**9))
def test_what_is_far_is_looked_at_in_a_turn_at_most_a_second_later(now_ms: int, after_ms: int) -> None:
    turn_ms = at_a_turn(now_ms + after_ms, now_ms)
    assert turn_ms is not None
    assert turn_ms == turn_from_ms(turn_ms, TURN_MS)
    assert 0 <= turn_ms - (now_ms + after_ms) < TURN_MS


@given(MOMENTS, st.integers(-(10**9), FAR_MS - 1))
def test_what_is_near_is_looked_at_in_its_moment(now_ms: int, after_ms: int) -> None:
    assert at_a_turn(now_ms + after_ms, now_ms) == now_ms + after_ms


def test_what_is_never_due_stays_so() -> None:
    assert at_a_turn(None, 1_700_000_000_000) is None
