"""What a node may spend, by a clock that is moved by hand."""

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.fetch.budget import Budgets, TooSlow
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.sources import SourceKey
from actors.runtime.shares import FEW, LOOK_MS
from platforms.adapter import RateBucket

SHOP, OTHER = SourceKey("mall", "s1"), SourceKey("mall", "s2")
FOREVER = float("inf")


class Hand:
    """A node's budgets, its clock, and how many nodes there are."""

    def __init__(self, nodes: int = 1) -> None:
        self.now_ms = 0.0
        self.nodes = nodes
        self.budgets = Budgets(lambda per_s: per_s / self.nodes, now_ms=lambda: self.now_ms)

    def ask(self, source: SourceKey, settings: FetchSettings, most_ms: float = FOREVER) -> float:
        return self.budgets.reserve_request(source, settings, most_ms=most_ms)


def test_a_burst_goes_at_once_and_then_the_rate_holds() -> None:
    hand = Hand()
    settings = FetchSettings(rate=10, burst=3)
    assert [hand.ask(SHOP, settings) for _ in range(5)] == [0, 0, 0, 100, 200]
    hand.now_ms = 10_000
    assert [hand.ask(SHOP, settings) for _ in range(4)] == [0, 0, 0, 100]


def test_sources_have_rates_of_their_own_and_one_of_their_platform() -> None:
    hand = Hand()
    settings = FetchSettings(rate=10, burst=1)
    assert [hand.ask(source, settings) for source in (SHOP, OTHER, SHOP, OTHER)] == [0, 0, 100, 100]
    shared = FetchSettings(rate=1000, platform_rate=10, burst=1)
    hand.now_ms = 10_000
    assert [hand.ask(source, shared) for source in (SHOP, OTHER, SHOP, OTHER)] == [0, 100, 200, 300]


@given(st.integers(1, 20), st.floats(0.5, 1000), st.integers(1, 50), st.integers(1, 60))
def test_all_nodes_together_keep_the_rate(nodes: int, rate: float, burst: int, asked: int) -> None:
    hands = [Hand(nodes) for _ in range(nodes)]
    settings = FetchSettings(rate=rate, burst=burst)
    sent_ms = sorted(hand.ask(SHOP, settings) for hand in hands for _ in range(asked))
    for at, ms in enumerate(sent_ms, start=1):
        assert at <= rate * ms / 1000 + max(burst, nodes) + nodes


@given(st.floats(0.5, 200), st.integers(1, 50), st.lists(st.floats(0, 500), min_size=1, max_size=200))
def test_no_second_has_more_than_the_rate_or_the_burst(rate: float, burst: int, gaps: list[float]) -> None:
    hand, settings = Hand(), FetchSettings(rate=rate, burst=burst)
    sent_ms: list[float] = []
    for gap_ms in gaps:
        hand.now_ms += gap_ms
        sent_ms.append(hand.now_ms + hand.ask(SHOP, settings))
    assert max(sum(at_ms <= ms < at_ms + 1000 for ms in sent_ms) for at_ms in sent_ms) <= max(1, rate, burst)


def test_a_node_that_goes_leaves_its_part_to_the_others() -> None:
    hand = Hand(nodes=4)
    settings = FetchSettings(rate=10, burst=1)
    assert [hand.ask(SHOP, settings) for _ in range(2)] == [0, 400]
    hand.nodes, hand.now_ms = 1, 10_000
    assert [hand.ask(SHOP, settings) for _ in range(2)] == [0, 100]


def test_what_the_platform_allows_holds_beside_our_own_rate() -> None:
    """As on a platform that counts a shop's requests, the application's, and those of an address."""
    hand = Hand(nodes=2)
    generous = FetchSettings(rate=1_000, burst=1_000)

    def ask(source: SourceKey, *declared: RateBucket) -> float:
        return hand.budgets.reserve_request(source, generous, most_ms=FOREVER, declared=declared)

    by_shop, by_app = RateBucket(10, 2, "app_shop"), RateBucket(20, 4, "app")
    assert [ask(source, by_shop) for source in (SHOP, OTHER, SHOP, OTHER)] == [0, 0, 200, 200]
    hand.now_ms = 60_000
    assert [ask(source, by_app) for source in (SHOP, OTHER, SHOP, OTHER)] == [0, 0, 100, 200]
    hand.now_ms = 120_000
    assert [ask(SHOP, RateBucket(10, 1, "address")) for _ in range(3)] == [0, 100, 200]  # not shared with other nodes


def test_one_that_cannot_wait_reserves_nothing() -> None:
    hand = Hand()
    settings = FetchSettings(rate=10, platform_rate=5, burst=1)
    assert hand.ask(SHOP, settings) == 0
    for _ in range(3):
        with pytest.raises(TooSlow) as told:
            hand.ask(SHOP, settings, most_ms=199)
        assert told.value.wait_ms == 200
    assert hand.ask(SHOP, settings, most_ms=200) == 200


def test_a_throttled_source_sends_nothing_for_as_long_as_asked() -> None:
    hand = Hand()
    settings = FetchSettings(rate=10, burst=5)
    hand.budgets.hold(SHOP, settings, 2_000)
    assert [hand.ask(source, settings) for source in (SHOP, SHOP, OTHER)] == [2_000, 2_100, 0]


def test_orders_enter_at_their_own_rate() -> None:
    hand = Hand()
    settings = FetchSettings(inflow=100)
    waits = [hand.budgets.reserve_orders(SHOP, settings, 100, most_ms=FOREVER) for _ in range(3)]
    assert waits == [0, 1010, 2020]
    assert hand.budgets.reserve_orders(SHOP, FetchSettings(inflow=0), 10**9, most_ms=0) == 0


def test_what_says_nothing_any_more_is_forgotten() -> None:
    hand = Hand()
    settings = FetchSettings(rate=10, burst=1)
    for number in range(10 * FEW):
        hand.ask(SourceKey("mall", f"s{number}"), settings)
        hand.now_ms += 100
    assert len(hand.budgets._spent) <= FEW


async def test_whom_nobody_hears_sends_nothing() -> None:
    heard, waits = [False, False, True], list[float]()
    budgets = Budgets(lambda per_s: per_s, is_heard=lambda: heard.pop(0))

    async def wait(wait_ms: float) -> None:
        waits.append(wait_ms)

    await budgets.until_heard(wait)
    assert waits == [LOOK_MS] * 2


async def under_way(budgets: Budgets, most: int, wanted: int) -> int:
    """Return how many of so many requests are under way at once."""
    running = highest = 0
    filled = anyio.Event()

    async def one() -> None:
        nonlocal running, highest
        async with budgets.one_of("mall", most):
            running += 1
            highest = max(highest, running)
            filled.set()
            await anyio.lowlevel.checkpoint()
            running -= 1

    async with anyio.create_task_group() as tasks:
        for _ in range(wanted):
            tasks.start_soon(one)
    assert filled.is_set()
    return highest


async def test_no_more_requests_are_under_way_than_the_platform_bears() -> None:
    hand = Hand()
    assert await under_way(hand.budgets, 8, 30) == 8
    hand.budgets.was_throttled("mall")
    assert await under_way(hand.budgets, 8, 30) == 4
    hand.budgets.was_throttled("mall")  # the same trouble, told by another request
    assert await under_way(hand.budgets, 8, 30) == 4
    hand.now_ms += 2_000
    hand.budgets.timed_out("mall")
    assert await under_way(hand.budgets, 8, 30) == 3
    for _ in range(40):
        hand.budgets.went_well("mall")
    assert await under_way(hand.budgets, 8, 30) == 8


async def test_a_request_that_is_given_up_frees_its_place() -> None:
    hand = Hand()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(under_way, hand.budgets, 1, 5)
        await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert await under_way(hand.budgets, 1, 3) == 1
