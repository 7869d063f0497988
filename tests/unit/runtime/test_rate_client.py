"""What a call for a key costs, and what a node without demand does: nothing."""

import timeit

import pytest

from actors.runtime.rates.client import FEW, LeasedRates
from actors.runtime.rates.shares import Shares
from actors.runtime.rules.waiting_line import WaitingLine
from streams.clock import monotonic_s

ROUNDS = 200


def test_a_key_without_a_rate_never_goes_through_the_governor() -> None:
    rates = LeasedRates(None, "n")  # type: ignore[arg-type] # nothing is sent
    free = rates.of("jobs", lambda _topic: 0.0)
    assert free.take("t", 1_000) == (1_000, 0)
    free.give_back("t", 5)
    assert len(rates._leased) == 0
    assert (rates.rate_of("jobs.t"), rates.rate_of("other.t")) == (None, None)


def test_without_a_share_nothing_may_begin() -> None:
    paced = LeasedRates(None, "n").of("jobs", lambda _topic: 5.0)  # type: ignore[arg-type] # nothing is sent
    granted, wait_ms = paced.take("t", 10)
    assert granted == 0
    assert 0 < wait_ms <= 250


def test_a_rate_holds_back_who_has_no_turn_and_not_who_waits_for_the_first_reply() -> None:
    rates = LeasedRates(None, "n")  # type: ignore[arg-type] # nothing is sent
    paced = rates.of("jobs", lambda _topic: 0.1)
    paced.take("t", 10)
    assert rates.standing("jobs.t") == (0.0, False)
    lease, _ = rates._leased.lease("jobs.t", monotonic_s())
    lease.until_s = monotonic_s() + 60
    paced.take("t", 10)
    assert rates.standing("jobs.t") == (0.0, True)


def test_a_rate_holds_back_who_waits_while_no_governor_replies() -> None:
    rates = LeasedRates(None, "n")  # type: ignore[arg-type] # nothing is sent
    rates._governor.is_silent = True
    rates.of("jobs", lambda _topic: 0.1).take("t", 10)
    assert rates.standing("jobs.t") == (0.0, True)
    assert rates.free_ms("jobs.t") > 0


def test_a_turn_is_used_once_and_can_be_given_back() -> None:
    rates = LeasedRates(None, "n")  # type: ignore[arg-type] # nothing is sent
    paced = rates.of("jobs", lambda _topic: 0.1)
    lease, _ = rates._leased.lease("jobs.t", monotonic_s())
    lease.has_turn, lease.until_s = True, monotonic_s() + 60
    assert paced.take("t", 10) == (1, 0)
    assert paced.take("t", 10)[0] == 0
    paced.give_back("t", 1)
    paced.give_back("t", 1)
    assert [paced.take("t", 10)[0] for _ in range(2)] == [1, 0]
    now_s = rates.clock.now_ms() // 1000
    assert sum(rates.begun.begun("jobs.t", now_s, 10)) == 1


def test_what_is_given_back_did_not_begin() -> None:
    rates = LeasedRates(None, "n")  # type: ignore[arg-type] # nothing is sent
    paced = rates.of("jobs", lambda _topic: 5e6)
    lease, _ = rates._leased.lease("jobs.t", monotonic_s())
    lease.share = lease.most = lease.bound = 5e6
    lease.until_s = monotonic_s() + 60
    granted = [paced.take("t", 8)[0] for _ in range(2_000)]
    assert sum(granted) > 0
    assert sum(rates.begun.begun("jobs.t", rates.clock.now_ms() // 1000, 10)) == sum(granted)
    paced.give_back("t", 3)
    assert sum(rates.begun.begun("jobs.t", rates.clock.now_ms() // 1000, 10)) == sum(granted) - 3
    assert rates.standing("jobs.t") == (5e6, True)
    assert rates.standing("jobs.other") == (0.0, False)


def rated(share: float = 5e6) -> LeasedRates:
    """Return rates with a share of the key `jobs.t`, of which nothing has begun."""
    rates = LeasedRates(None, "n")  # type: ignore[arg-type] # nothing is sent
    rates.of("jobs", lambda _topic: 5e6)
    lease, _ = rates._leased.lease("jobs.t", monotonic_s())
    lease.share = lease.most = lease.bound = share
    lease.until_s = monotonic_s() + 60
    return rates


def begin(rates: LeasedRates, count: int) -> None:
    """Begin so many, each as soon as it may."""
    while count:
        count -= rates.take("jobs.t", 1)[0]


def is_wanted(rates: LeasedRates) -> bool:
    """Return whether the next request wants the key's share on."""
    [ask] = rates._leased.asks(monotonic_s())
    return ask.keys[0].is_wanted


def test_the_share_of_a_quiet_key_goes_back_with_the_next_request() -> None:
    rates = rated()
    begin(rates, 1)
    rates.rest("jobs.t")
    assert not is_wanted(rates)
    rates.rest("jobs.none")


def test_the_share_of_a_key_stays_that_is_used_again_or_much_or_waited_for_or_has_turns() -> None:
    again, much, waited, turns = rated(), rated(), rated(), rated(0.0)
    for rates, count in ((again, 1), (much, FEW + 1), (waited, 1)):
        begin(rates, count)
    waited.lines["jobs.t"] = WaitingLine()
    for rates in (again, much, waited, turns):
        rates.rest("jobs.t")
    again.take("jobs.t", 1)
    assert all(map(is_wanted, (again, much, waited, turns)))


@pytest.mark.parametrize("most", [1, 50])
def test_a_call_costs_little_more_than_the_pace_alone(most: int) -> None:
    """Five millionths of a second in all on an idle machine, half of one more than the pace alone."""
    rates = LeasedRates(None, "n")  # type: ignore[arg-type] # nothing is sent
    leased, plain = rates.of("jobs", lambda _topic: 5e6), Shares(lambda _key: 5e6)
    lease, _ = rates._leased.lease("jobs.t", monotonic_s())
    lease.share = lease.most = lease.bound = 5e6
    lease.until_s = monotonic_s() + 3_600
    ways = (lambda: leased.take("t", most), lambda: plain.take("t", most))
    turns = [[timeit.timeit(way, number=ROUNDS) for way in ways] for _ in range(150)]  # short: some are undisturbed
    best = [min(took) for took in zip(*turns, strict=True)]
    assert best[0] <= 2 * best[1]
