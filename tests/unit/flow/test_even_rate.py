"""Nodes with endless work spend a rate evenly: near to it in each second, whoever joins and dies, and never above it.

The rules and the spending are the real ones. Time and messages are simulated: timers fire late, sometimes by 20 ms, and
a message takes a millisecond or more.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest

from actors.flow.rules.governing import Governing
from actors.runtime.rates import client as rate_client
from actors.runtime.rates.client import LeasedRates
from actors.runtime.rates.governor_link import RETRY_S
from actors.runtime.rates.shares import LATE_S
from actors.runtime.rules.leased import LeasedShares

NO_CONNECTION: Any = None
LOOK_S = 0.005
STALLED = 0.002
"""The part of all waits that end up to 40 ms late."""


class EvenTown:
    """Nodes and a governor, from one event to the next."""

    def __init__(self, rate: float, seed: int) -> None:
        self.rate = rate
        self.now_s = 1_000.0
        self.governing: Governing | None = Governing(1, 0.0)
        self.nodes: dict[str, EvenNode] = {}
        self.asked = 0
        self.call_s = 0.0
        """How long it takes until a node looks again, at least."""
        self._chance = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._began_s: list[float] = []
        self._sums: list[int] = [0]

    def at(self, moment_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment_s, next(self._numbers), event))

    def late_s(self) -> float:
        stalled_s = self._chance.random() * 0.04 if self._chance.random() < STALLED else 0.0
        return self._chance.expovariate(1_000) + stalled_s

    def number(self) -> int:
        return self._chance.getrandbits(64)

    def run(self, lasts_s: float) -> None:
        until_s = self.now_s + lasts_s
        while self._events and self._events[0][0] <= until_s:
            moment_s, _, event = heapq.heappop(self._events)
            self.now_s = max(self.now_s, moment_s)
            event()
        self.now_s = until_s

    def join(self, *names: str) -> None:
        for name in names:
            self.nodes[name] = EvenNode(self, name)

    def kill(self, name: str) -> None:
        self.nodes.pop(name).is_dead = True

    def follow(self, dead_s: float) -> None:
        """Have the governor die, and another one elected after so long."""
        self.governing = None
        self.at(self.now_s + dead_s, self._elect)

    def _elect(self) -> None:
        self.governing = Governing(2, self.now_s)

    def began(self, count: int) -> None:
        self._began_s.append(self.now_s)
        self._sums.append(self._sums[-1] + count)

    def between(self, from_s: float, to_s: float) -> int:
        return (
            self._sums[bisect.bisect_left(self._began_s, to_s)] - self._sums[bisect.bisect_left(self._began_s, from_s)]
        )

    def fullest(self) -> int:
        return max(self.between(at_s, at_s + 1 - 1e-9) for at_s in self._began_s)

    def seconds(self, lasts_s: int) -> list[int]:
        """Go on for so long. Return what began in each second."""
        began_s = self.now_s
        self.run(lasts_s)
        return [self.between(began_s + second, began_s + second + 1) for second in range(lasts_s)]

    def tenths(self, lasts_s: int) -> list[int]:
        """Go on for so long. Return what began in each tenth of a second."""
        began_s = self.now_s
        self.run(lasts_s)
        return [self.between(began_s + at / 10, began_s + (at + 1) / 10) for at in range(10 * lasts_s)]

    def pause(self, lasts_s: float, *names: str) -> None:
        """Have nodes stand still."""
        for name in names:
            self.nodes[name].paused_until_s = self.now_s + lasts_s

    def back_s(self, upto_s: float) -> float:
        """Go on for so long. Return after which time all seconds are within 5 % of the rate, or one below."""
        began_s, low_s = self.now_s, 0.0
        self.run(upto_s)
        for tenth in range(int((upto_s - 1) * 10)):
            if self.between(began_s + tenth / 10, began_s + tenth / 10 + 1) < min(0.95 * self.rate, self.rate - 1):
                low_s = tenth / 10 + 0.1
        return low_s


class EvenNode:
    """One node's rates. It begins whatever it may."""

    def __init__(self, town: EvenTown, name: str) -> None:
        self.is_dead = False
        self.paused_until_s = 0.0
        self._town = town
        self._rates = LeasedRates(NO_CONNECTION, name)
        # the same in each run
        self._rates._leased = LeasedShares(name, f"{town.number():x}", self._rates._shares.spent)
        self._topics = self._rates.of("topic", lambda _topic: town.rate)
        town.at(town.now_s, self._work)
        town.at(town.now_s, self._ask)

    @property
    def share(self) -> float:
        return self._rates._leased.share("topic.t", self._town.now_s)

    def _work(self) -> None:
        if self.is_dead:
            return
        if self._town.now_s < self.paused_until_s:
            self._town.at(self.paused_until_s, self._work)
            return
        granted, wait_ms = self._topics.take("t", 1_000_000)
        if granted:
            self._town.began(granted)
        wait_s = max(self._town.call_s, wait_ms / 1000)
        self._town.at(self._town.now_s + wait_s + self._town.late_s() * (1 if wait_ms else 0.1), self._work)

    def _ask(self) -> None:
        """Do as LeasedRates.run does."""
        town, rates, governor = self._town, self._rates, self._rates._governor
        if self.is_dead:
            return
        if governor.next_s > town.now_s:
            town.at(min(governor.next_s, town.now_s + LOOK_S), self._ask)
            return
        governor.begin(town.now_s)
        rates._is_asking = True
        (ask,) = rates._leased.asks(rates._take_now())
        sent_s = town.now_s
        town.asked += 1

        def arrives() -> None:
            governing = town.governing
            reply = governing.answer(ask, lambda _key: town.rate, town.now_s) if governing is not None else None
            town.at(town.now_s + 0.001 + town.late_s(), lambda: answered(reply))

        def answered(reply: Any) -> None:
            heard_s = None if reply is None else rates._leased.hear(reply, sent_s, rates._take_now())
            rates._is_asking = False
            governor.ask_at(governor.asked_s + (RETRY_S if heard_s is None else heard_s))
            self._ask()

        town.at(town.now_s + 0.001 + town.late_s(), arrives)


@pytest.fixture(params=range(3))
def town_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], EvenTown]:
    """Returns a function that makes a town in whose time the rates go."""

    def make(rate: float) -> EvenTown:
        town = EvenTown(rate, seed=request.param)
        monkeypatch.setattr(rate_client, "monotonic_s", lambda: town.now_s)
        return town

    return make


RATES = pytest.mark.parametrize("rate", [5, 10, 100, 500, 8_000])


@RATES
def test_three_nodes_keep_the_rate_in_each_second(town_of: Callable[[float], EvenTown], rate: int) -> None:
    town = town_of(rate)
    town.join("a", "b", "c")
    town.run(8)
    asked = town.asked
    seconds = town.seconds(20)
    assert sum(seconds) >= 0.99 * 20 * rate
    assert min(seconds) >= min(0.97 * rate, rate - 1)
    assert town.fullest() <= rate
    assert town.asked - asked <= 3 * 20 + 3  # with replies two messages a second and node
    shares = sorted(node.share for node in town.nodes.values())
    assert sum(shares) == rate
    assert shares[-1] - shares[0] <= 1


def test_a_pause_of_all_nodes_does_not_stay_in_the_tenths_of_the_seconds_after(
    town_of: Callable[[float], EvenTown], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "STALLED", 0.0)
    town = town_of(8_000)
    town.join("a", "b", "c", "d")
    town.run(10)
    town.pause(0.06, "a", "b", "c", "d")
    town.run(4)
    tenths = town.tenths(10)
    assert sum(abs(count - 800) > 80 for count in tenths) <= 6
    assert sum(tenths) >= 0.99 * 80_000
    assert town.fullest() <= 8_000


@pytest.mark.parametrize("rate", [500, 8_000])
def test_after_a_pause_of_one_node_the_tenths_are_even_within_three_seconds(
    town_of: Callable[[float], EvenTown], monkeypatch: pytest.MonkeyPatch, rate: int
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "STALLED", 0.0)
    town = town_of(rate)
    town.join("a", "b", "c", "d")
    town.run(10)
    for name in town.nodes:
        town.pause(0.06, name)
        assert sum(town.tenths(3)) >= 0.99 * 3 * rate
        assert max(abs(count / (rate / 10) - 1) for count in town.tenths(5)) <= 0.1
    assert town.fullest() <= rate


@pytest.mark.parametrize("rate", [40, 100, 130])
def test_after_a_pause_rows_of_a_low_rate_do_not_go_together_for_ever(
    town_of: Callable[[float], EvenTown], monkeypatch: pytest.MonkeyPatch, rate: int
) -> None:
    """A quarter of a second's worth went in one moment of each second, and a few milliseconds put two into one."""
    monkeypatch.setattr(sys.modules[__name__], "STALLED", 0.0)
    town = town_of(rate)
    town.join("a", "b")
    town.run(10)
    town.pause(0.4, "a")
    assert sum(town.seconds(20)) >= 0.98 * 20 * rate
    assert max(town.tenths(10)) <= rate / 10 + 4
    assert town.fullest() <= rate


@pytest.mark.parametrize("rate", [100, 50_000])
def test_nodes_whose_calls_take_long_begin_a_quarter_of_a_seconds_worth_with_each(
    town_of: Callable[[float], EvenTown], rate: int
) -> None:
    town = town_of(rate)
    town.call_s = 0.6
    town.join("a", "b")
    town.run(4)
    assert sum(town.seconds(12)) >= 0.75 * 12 * rate * LATE_S / town.call_s
    assert town.fullest() <= rate


@RATES
def test_the_rate_is_back_three_seconds_after_a_join_and_a_death(
    town_of: Callable[[float], EvenTown], rate: int
) -> None:
    town = town_of(rate)
    town.join("a", "b")
    town.run(8)
    town.join("c")
    assert town.back_s(8) <= 3
    town.kill("a")
    assert town.back_s(8) <= 3
    assert town.fullest() <= rate


@RATES
def test_while_one_joins_no_second_is_far_below_the_rate(town_of: Callable[[float], EvenTown], rate: int) -> None:
    town = town_of(rate)
    town.join("a", "b")
    town.run(8)
    town.join("c")
    assert min(town.seconds(6)) >= min(0.8 * rate, rate - 2)


@RATES
def test_after_the_death_of_the_governor_its_successor_confirms_what_nodes_had(
    town_of: Callable[[float], EvenTown], rate: int
) -> None:
    town = town_of(rate)
    town.join("a", "b", "c")
    town.run(8)
    town.follow(1.4)
    assert town.back_s(10) <= 2
    assert town.fullest() <= rate
