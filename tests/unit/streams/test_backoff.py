"""Pauses grow as they should and stay below their cap, spread included."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.backoff import Backoff, Growth, next_delay_ms

GROWTHS: st.SearchStrategy[Growth] = st.sampled_from(["linear", "exponential"])
POLICIES = st.builds(
    Backoff,
    growth=GROWTHS,
    base_ms=st.integers(1, 3_600_000),
    cap_ms=st.integers(1, 86_400_000),
    spread=st.floats(0, 1),
)
CHANCES = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize(
    ("growth", "expected"),
    [("linear", [100, 200, 300, 400]), ("exponential", [100, 200, 400, 800])],
)
def test_the_pause_grows_with_the_attempt(growth: Growth, expected: list[int]) -> None:
    policy = Backoff(growth=growth, base_ms=100, cap_ms=10_000, spread=0)
    assert [next_delay_ms(attempt, policy, chance=0.5) for attempt in (2, 3, 4, 5)] == expected


@given(POLICIES, st.integers(2, 10**6), CHANCES)
def test_the_cap_holds_with_the_spread_included(policy: Backoff, attempt: int, chance: float) -> None:
    assert 1 <= next_delay_ms(attempt, policy, chance=chance) <= policy.cap_ms


@given(POLICIES, st.integers(2, 200), CHANCES)
def test_a_later_attempt_never_waits_less(policy: Backoff, attempt: int, chance: float) -> None:
    assert next_delay_ms(attempt, policy, chance=chance) <= next_delay_ms(attempt + 1, policy, chance=chance)


@given(POLICIES, st.integers(2, 200), CHANCES, CHANCES)
def test_chance_only_lengthens(policy: Backoff, attempt: int, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert next_delay_ms(attempt, policy, chance=low) <= next_delay_ms(attempt, policy, chance=high)


def test_pauses_are_spread_at_the_cap_too() -> None:
    policy = Backoff(base_ms=1000, cap_ms=10_000, spread=0.5)
    pauses = {next_delay_ms(1000, policy, chance=i / 10) for i in range(10)}
    assert len(pauses) == 10


def test_retries_are_tries_after_the_first() -> None:
    assert Backoff(retries=0).is_last(1)
    assert [Backoff(retries=2).is_last(attempt) for attempt in (1, 2, 3)] == [False, False, True]
