"""A node's part of each topic's rate: never above it over any span, and nothing lost by giving back."""

from hypothesis import given
from hypothesis import strategies as st

from actors.jobs.release import BURST_S, ReleaseRates
from actors.runtime.rules.pacing import Pace, Rate, acquire, conforming

RATES = st.builds(Rate, st.floats(0.1, 10_000), st.integers(1, 50))


class Hand:
    """A clock moved by hand, in milliseconds."""

    def __init__(self) -> None:
        self.ms = 1000.0

    def __call__(self) -> float:
        return self.ms


@given(RATES, st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_what_conforms_waits_for_nothing_and_one_more_would_wait(rate: Rate, spent_ms: float, now_ms: float) -> None:
    pace = Pace(spent_ms)
    most = conforming(pace, rate, now_ms)
    assert 0 <= most <= rate.burst
    if most:
        assert acquire(pace, rate, now_ms, most)[1] < 1e-3
    assert acquire(pace, rate, now_ms, most + 1)[1] > 0


@given(st.floats(0.5, 2_000), st.integers(1, 5), st.lists(st.tuples(st.floats(0, 500), st.integers(1, 50)), min_size=1))
def test_no_span_lets_out_more_than_the_share_and_a_burst(
    per_s: float, nodes: int, takes: list[tuple[float, int]]
) -> None:
    clock = Hand()
    rates = ReleaseRates(lambda _topic: per_s, lambda _topic: nodes, now_ms=clock)
    began_ms, out, share = clock.ms, 0, per_s / nodes
    for gap_ms, most in takes:
        clock.ms += gap_ms
        granted, wait_ms = rates.take("t", most)
        out += granted
        assert (granted > 0) != (wait_ms > 0)
        assert out <= max(1, int(share * BURST_S)) + share * (clock.ms - began_ms) / 1000 + 1e-6


def test_after_the_wait_that_was_told_one_is_granted() -> None:
    clock = Hand()
    rates = ReleaseRates(lambda _topic: 3.0, lambda _topic: 1, now_ms=clock)
    assert rates.take("t", 10) == (1, 0)
    granted, wait_ms = rates.take("t", 10)
    assert (granted, wait_ms) == (0, 333)
    clock.ms += wait_ms + 1
    assert rates.take("t", 10) == (1, 0)


def test_what_was_not_used_can_be_given_back() -> None:
    rates = ReleaseRates(lambda _topic: 100.0, lambda _topic: 1, now_ms=Hand())
    assert rates.take("t", 10) == (10, 0)
    rates.give_back("t", 4)
    assert rates.take("t", 10) == (4, 0)


def test_topics_without_a_rate_are_let_out_at_once_and_topics_do_not_share() -> None:
    rates = ReleaseRates({"a": 0.0, "b": 10.0, "c": 10.0}.__getitem__, lambda _topic: 1, now_ms=Hand())
    assert rates.take("a", 1000) == (1000, 0)
    rates.give_back("a", 5)
    assert rates.take("b", 1) == (1, 0)
    assert rates.take("c", 1) == (1, 0)
    assert rates.take("b", 1)[0] == 0


def test_a_thousand_topics_are_forgotten_once_they_say_nothing() -> None:
    clock = Hand()
    rates = ReleaseRates(lambda _topic: 10.0, lambda _topic: 1, now_ms=clock)
    for number in range(1000):
        rates.take(f"t{number}", 1)
        clock.ms += 200
    assert len(rates._paces) < 300
