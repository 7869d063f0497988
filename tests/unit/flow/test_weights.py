"""Members of one rate have their weights' parts over all nodes, on however many of them their work lies.

The rules and the spending are the real ones. Time and messages are simulated, as in test_even_rate.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.runtime.rates import client as rate_client
from actors.runtime.rates.requests import RateRequest, WantedRate
from actors.runtime.rules.pacing import Rate
from tests.unit.flow.test_even_rate import EvenNode, EvenTown

MANY = 30


class ShopNode(EvenNode):
    """A node with requests of several shops to one platform. `shops`: how many of each wait at any time."""

    def __init__(self, town: ShopTown, name: str, shops: Mapping[str, int]) -> None:
        self._shops_town = town
        super().__init__(town, name)
        for shop, count in shops.items():
            for _ in range(count):
                self.wait(shop)

    def _work(self) -> None:
        """There is no work of another kind."""

    def wait(self, shop: str) -> None:
        """Have one more request of the shop wait. When it is sent, the next one waits."""
        town = self._shops_town
        wanted = WantedRate("platform.mall", Rate(town.rate, town.burst), shop, town.weights.get(shop, 1.0))
        request = RateRequest([(self._rates, wanted)])
        request.__enter__()

        def look() -> None:
            if self.is_dead or shop in town.without_work:
                request.__exit__()
                return
            wait_ms = request.take()
            if wait_ms > 0:
                town.at(town.now_s + wait_ms / 1000 + town.late_s(), look)
                return
            request.__exit__()
            town.began(1)
            town.sent[shop] += 1
            self.wait(shop)

        town.at(town.now_s + 0.001, look)


class ShopTown(EvenTown):
    """Nodes that send requests of shops to one platform."""

    def __init__(self, rate: float, burst: int, seed: int, **weights: float) -> None:
        super().__init__(rate, seed)
        self.burst = burst
        self.weights = weights
        self.sent: Counter[str] = Counter()
        self.without_work: set[str] = set()

    def node(self, name: str, **shops: int) -> None:
        self.nodes[name] = ShopNode(self, name, shops)

    def parts(self, lasts_s: float) -> dict[str, float]:
        """Go on for so long. Return what each shop sent a second."""
        self.sent.clear()
        self.run(lasts_s)
        return {shop: count / lasts_s for shop, count in self.sent.items()}


Towns = Callable[..., ShopTown]


@pytest.fixture(params=range(2))
def town_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Towns:
    def make(rate: float, burst: int = 1, **weights: float) -> ShopTown:
        town = ShopTown(rate, burst, request.param, **weights)
        monkeypatch.setattr(rate_client, "monotonic_s", lambda: town.now_s)
        return town

    return make


@pytest.mark.parametrize("rate", [8.0, 40.0, 400.0])
def test_two_shops_have_their_weights_wherever_their_work_lies(town_of: Towns, rate: float) -> None:
    for placed in (
        {"n1": {"a": MANY, "b": MANY}, "n2": {"a": MANY, "b": MANY}},
        {"n1": {"a": MANY}, "n2": {"b": MANY}},
        {"n1": {"a": MANY, "b": MANY}, "n2": {"a": MANY}},
        {"n1": {"a": MANY, "b": MANY}, "n2": {"b": MANY}, "n3": {}},
    ):
        town = town_of(rate, a=3.0)
        for name, shops in placed.items():
            town.node(name, **shops)
        town.run(8)
        parts = town.parts(30 if rate < 400 else 6)  # a second of many requests tells as much as many of a few
        assert sum(parts.values()) >= 0.95 * rate, placed
        assert abs(parts["a"] / sum(parts.values()) - 0.75) <= 0.05, (placed, parts)
        assert town.fullest() <= rate


PLACED = st.dictionaries(
    st.sampled_from(["n1", "n2", "n3"]),
    st.dictionaries(st.sampled_from("abcd"), st.just(12), min_size=1),
    min_size=1,
)


@settings(max_examples=6)
@given(
    placed=PLACED,
    weights=st.fixed_dictionaries({shop: st.sampled_from([0.5, 1.0, 2.0, 4.0]) for shop in "abcd"}),
    rate=st.sampled_from([0.9, 3.0, 7.5, 20.0]),
    burst=st.sampled_from([1, 5, 30]),
    seed=st.integers(0, 9),
)
def test_wherever_work_lies_no_second_is_above_no_shop_starves_and_weights_hold(
    placed: dict[str, dict[str, int]], weights: dict[str, float], rate: float, burst: int, seed: int
) -> None:
    town = ShopTown(rate, burst, seed, **weights)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rate_client, "monotonic_s", lambda: town.now_s)
        for name, shops in placed.items():
            town.node(name, **shops)
        town.run(10 + burst / rate)  # until the burst is used up
        parts = town.parts(40)
    everyone = {shop for each in placed.values() for shop in each}
    of_all = sum(weights[shop] for shop in everyone)
    assert town.fullest() <= max(math.ceil(rate), burst) + (len(placed) if rate > 1 else 0)
    assert sum(parts.values()) <= rate + 0.05
    assert sum(parts.values()) >= 0.9 * rate
    for shop in everyone:
        fair = rate * weights[shop] / of_all
        assert parts.get(shop, 0.0) > 0.5 * fair - 0.05, (shop, parts)
        assert abs(parts.get(shop, 0.0) - fair) <= 0.25 * fair + 1.0, (shop, fair, parts)


def test_a_shop_has_all_while_the_other_has_nothing_to_do(town_of: Towns) -> None:
    town = town_of(40, a=9.0)
    town.node("n1", a=MANY, b=MANY)
    town.node("n2", a=MANY, b=MANY)
    town.run(8)
    assert abs(town.parts(10)["b"] - 4) <= 1
    town.without_work.add("a")
    town.run(4)
    assert town.parts(10)["b"] >= 38
    assert town.fullest() <= 40


def test_one_with_a_backlog_on_all_nodes_does_not_starve_the_many_others(town_of: Towns) -> None:
    """Each of ten shops waits for one request at a time. Together they have ten of eleven parts."""
    town = town_of(44)
    for number in range(3):
        live = {f"s{shop}": 1 for shop in range(10) if shop % 3 == number}
        town.node(f"n{number}", old=MANY, **live)
    town.run(8)
    parts = town.parts(20)
    assert sum(parts.values()) >= 41
    assert parts["old"] <= 6
    assert min(part for shop, part in parts.items() if shop != "old") >= 3


@pytest.mark.parametrize("rate", [0.5, 2.0])
def test_single_turns_go_by_weight_too(town_of: Towns, rate: float) -> None:
    town = town_of(rate, a=3.0)
    town.node("n1", a=3)
    town.node("n2", b=3)
    town.node("n3", b=3)
    town.run(10)
    parts = town.parts(80)
    assert sum(parts.values()) >= 0.95 * rate
    assert abs(parts["a"] / sum(parts.values()) - 0.75) <= 0.06, parts


def test_a_burst_is_the_clusters_and_comes_back_with_the_rate(town_of: Towns) -> None:
    """A bucket of 20 that fills with 2 a second, as a platform counts it."""
    town = town_of(2, burst=20)
    town.run(5)
    for number in range(3):
        town.node(f"n{number}", a=5, b=5)
    town.run(20)
    began = town._began_s
    assert sum(at_s < began[0] + 1 for at_s in began) >= 18
    for first in range(len(began)):
        for last in range(first, len(began)):
            assert last - first + 1 <= 2 * (began[last] - began[first]) + 20 + 1
    assert len(began) >= 20 + 2 * (began[-1] - began[0]) - 2
    assert town.fullest() <= 20
