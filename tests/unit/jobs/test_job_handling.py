"""Attempts never exceed what a job may have, and what a node holds follows what it ends."""

import math

from hypothesis import given
from hypothesis import strategies as st

from actors.jobs.rules.job_handling import (
    MOST_AHEAD,
    GiveUp,
    RetryAfter,
    Suspicion,
    UnfitReason,
    after_failure,
    ahead_of,
    capacity_of,
    excess_of,
    lane_capacities,
    lost_before,
    places_of,
    suspicion_of,
    unfit,
)
from streams.backoff import Backoff

COUNTS = st.integers(1, 1_000)
SUSPICIONS: st.SearchStrategy[Suspicion] = st.sampled_from(("none", "some", "grave"))
POLICY = Backoff(growth="exponential", base_ms=1_000, cap_ms=60_000)


def test_first_delivery_of_a_new_job_is_its_first_attempt() -> None:
    assert lost_before(1, age_ms=60_000, ack_wait_ms=3_000) == 0
    assert lost_before(2, age_ms=3_000, ack_wait_ms=3_000) == 1
    assert lost_before(2, age_ms=2_600, ack_wait_ms=3_000) == 1  # the clock is not known exactly
    assert lost_before(2, age_ms=50, ack_wait_ms=3_000) == 0  # its caller left as it came
    assert lost_before(5, age_ms=7_000, ack_wait_ms=3_000) == 2
    assert lost_before(2, age_ms=-400, ack_wait_ms=3_000) == 0


@given(COUNTS, COUNTS)
def test_a_job_runs_exactly_as_often_as_it_may(attempt: int, most: int) -> None:
    is_run = unfit(attempt, most, expires_ms=0, now_ms=10**12) is None
    assert is_run == (attempt <= most)


def test_expired_job_is_not_run_even_with_attempts_left() -> None:
    assert unfit(1, 10, expires_ms=1_000, now_ms=999) is None
    found = unfit(1, 10, expires_ms=1_000, now_ms=1_000)
    assert isinstance(found, UnfitReason)
    assert found.outcome == "expired"
    used_up = unfit(11, 10, expires_ms=0, now_ms=1_000)
    assert used_up is not None
    assert (used_up.outcome, "10 attempts" in used_up.reason) == ("used_up", True)


@given(COUNTS, COUNTS, st.none() | st.integers(0, 10**9), st.floats(0, 0.999))
def test_a_failed_attempt_is_followed_by_another_until_the_last(
    attempt: int, most: int, delay_ms: int | None, chance: float
) -> None:
    step = after_failure(attempt, most, POLICY, "it broke", delay_ms=delay_ms, chance=chance)
    if attempt >= most:
        assert isinstance(step, GiveUp)
        assert "it broke" in step.reason
        return
    assert isinstance(step, RetryAfter)
    if delay_ms is not None:
        assert step.delay_ms == delay_ms
    else:
        assert 0 < step.delay_ms <= POLICY.cap_ms


@given(st.integers(1, 50), COUNTS, COUNTS, st.integers(3_000, 15_000))
def test_poison_that_kills_its_holder_is_used_up_in_the_end(
    delivered: int, attempts: int, most: int, ack_wait_ms: int
) -> None:
    """Each delivery that comes after an ack wait raises the attempt, so that at last it is not run."""
    lost = lost_before(delivered, (delivered - 1) * ack_wait_ms, ack_wait_ms)
    assert lost == delivered - 1
    assert suspicion_of(0, attempts, most) == "none"
    assert suspicion_of(lost + 1, attempts + lost + 1, most) != "none"


def test_suspicion_is_grave_from_half_of_the_attempts_on() -> None:
    assert [suspicion_of(used, used, 10) for used in range(7)] == ["none", *["some"] * 4, *["grave"] * 2]
    assert suspicion_of(1, 1, 2) == "grave"


@given(st.floats(0, 10**6))
def test_fetched_ahead_is_what_a_moment_needs(ended_per_s: float) -> None:
    ahead = ahead_of(ended_per_s)
    assert 0 <= ahead <= MOST_AHEAD
    assert ahead >= min(MOST_AHEAD, int(ended_per_s / 20))
    assert ahead <= max(1, ended_per_s / 10)


def test_slow_handlers_keep_nothing_from_others() -> None:
    assert capacity_of(16, running=16, ahead=ahead_of(0.5), suspicion="none") == 16


def test_under_a_rate_lists_that_cannot_begin_soon_are_left_to_the_other_nodes() -> None:
    assert places_of(2, 500, running=0, free=2, share=math.inf) == 1_000
    assert places_of(2, 500, running=0, free=2, share=67.0) == 34
    assert places_of(2, 500, running=300, free=1, share=67.0) == 334
    assert places_of(2, 500, running=0, free=2, share=8_000.0) == 1_000
    assert places_of(16, 1, running=0, free=16, share=2.0) == 16


@given(COUNTS, COUNTS, COUNTS, st.floats(0, 10**6))
def test_a_free_place_always_has_room_for_a_job(places: int, most: int, busy: int, share: float) -> None:
    busy = min(busy, places)
    running = busy * min(most, 3)
    found = places_of(places, most, running, places - busy, share)
    assert running + (places - busy) <= found <= places * most


@given(st.integers(0, 5_000), st.integers(0, 5_000), st.integers(0, MOST_AHEAD), SUSPICIONS)
def test_capacity_lets_each_place_have_a_job_unless_one_may_be_poison(
    places: int, running: int, ahead: int, suspicion: Suspicion
) -> None:
    running = min(running, places)
    capacity = capacity_of(places, running, ahead, suspicion)
    assert capacity <= places + ahead
    assert (capacity > running) == (places > running or (suspicion == "none" and ahead > 0 and places > 0))
    if suspicion != "none":
        assert capacity <= places
    if suspicion == "grave":
        assert capacity <= running + 1


@given(st.integers(0, 5_000), st.integers(0, 5_000), st.integers(0, 5_000), st.floats(0, 10**6), SUSPICIONS)
def test_only_what_waits_and_is_too_much_is_given_back(
    waiting: int, running: int, capacity: int, ended_per_s: float, suspicion: Suspicion
) -> None:
    held = waiting + running
    excess = excess_of(waiting, held, capacity, ended_per_s, suspicion)
    assert 0 <= excess <= waiting
    assert not excess or held - excess >= capacity
    if suspicion == "none" and waiting <= ended_per_s:
        assert excess == 0


@given(st.integers(0, 5_000), st.lists(st.integers(0, 2_000), min_size=1, max_size=3))
def test_lanes_together_hold_no_more_than_the_topic_may(capacity: int, held: list[int]) -> None:
    lanes = lane_capacities(capacity, tuple(held))
    assert all(own >= 0 for own in lanes)
    room = [max(0, own - has) for own, has in zip(lanes, held, strict=True)]
    assert all(one <= max(0, capacity - sum(held)) for one in room)  # each lane may ask for all the room there is
    if len(held) == 1:
        assert lanes == (capacity,)
