"""When a process does what it does every so often."""

from hypothesis import given
from hypothesis import strategies as st

from streams.buckets.lease import turn_s
from streams.clock import ASIDE_S, turn_from_ms, until_turn_s

EVERY_S = st.sampled_from([1 / 3, 0.5, 1.0, 1.5, 5.0])


@given(st.floats(0, 1e7), EVERY_S)
def test_what_is_done_as_often_is_done_at_the_same_moments(at_s: float, every_s: float) -> None:
    wait_s = until_turn_s(every_s, at_s)
    assert every_s / 4 < wait_s <= 1.25 * every_s
    turns = (at_s + wait_s - ASIDE_S) / every_s
    assert abs(turns - round(turns)) < 1e-6


@given(st.integers(0, 10**12), st.sampled_from([500, 1_000, 1_500]))
def test_the_turn_after_a_moment_is_one_of_those_at_which_all_else_is_done(moment_ms: int, every_ms: int) -> None:
    turn_ms = turn_from_ms(moment_ms, every_ms)
    assert moment_ms <= turn_ms < moment_ms + every_ms
    assert (turn_ms - round(1000 * ASIDE_S)) % every_ms == 0


@given(st.floats(0, 1e7), st.integers(2, 600))
def test_leases_of_all_lengths_are_renewed_at_the_turns_of_half_a_second(at_s: float, ttl_s: int) -> None:
    every_s = turn_s(ttl_s)
    assert ttl_s / 3 - 0.5 < every_s <= ttl_s / 3
    halves = (at_s + until_turn_s(every_s, at_s) - ASIDE_S) / 0.5
    assert abs(halves - round(halves)) < 1e-6


def test_a_lease_that_is_too_short_for_that_is_renewed_three_times() -> None:
    assert turn_s(1) == 1 / 3
