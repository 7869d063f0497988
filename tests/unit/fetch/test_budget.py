"""What a node may spend, by a clock that is moved by hand. How nodes share it is the governor's (tests/unit/flow)."""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Sequence

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.fetch.budget import Budgets, Spending, TooSlow, limits_of
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.sources import SourceKey
from platforms.adapter import RateBucket
from platforms.registry import adapter_named

SHOP, OTHER = SourceKey("mall", "s1"), SourceKey("mall", "s2")
FOREVER = float("inf")
EARLY_MS = 20
"""A request may be so much early, since timers fire late."""


class Hand:
    """The budgets of a process that has the whole rates, and its clock."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.budgets = Budgets(None, now_ms=lambda: self.now_ms)

    def ask(
        self,
        *sources: SourceKey,
        settings: FetchSettings,
        declared: Sequence[RateBucket] = (),
        is_detail: bool = False,
    ) -> list[float]:
        """Have requests to the sources wait from now on, and return when each was sent, from now."""
        return self.sent([self.budgets.request(source, settings, declared, is_detail=is_detail) for source in sources])

    def sent(self, spending: Sequence[Spending]) -> list[float]:
        began_ms, numbers, sent = self.now_ms, itertools.count(), [0.0] * len(spending)
        due = [(self.now_ms, next(numbers), place) for place in range(len(spending))]
        for each in spending:
            each.__enter__()
        while due:
            self.now_ms, _, place = heapq.heappop(due)
            wait_ms = spending[place].take(most_ms=FOREVER)
            if wait_ms > 0:
                heapq.heappush(due, (self.now_ms + wait_ms, next(numbers), place))
            else:
                sent[place] = self.now_ms - began_ms
                spending[place].__exit__()
        return sent


def about(found: Sequence[float], wanted: Sequence[float]) -> bool:
    """Return whether the moments are those that the rate gives, or up to EARLY_MS before or after."""
    return len(found) == len(wanted) and all(
        abs(one - other) <= EARLY_MS for one, other in zip(found, wanted, strict=True)
    )


def test_a_burst_goes_at_once_and_then_the_rate_holds() -> None:
    hand = Hand()
    settings = FetchSettings(rate=10, burst=3)
    assert about(hand.ask(*[SHOP] * 5, settings=settings), [0, 0, 0, 100, 200])
    hand.now_ms = 10_000
    assert about(hand.ask(*[SHOP] * 4, settings=settings), [0, 0, 0, 100])


def test_sources_have_rates_of_their_own_and_one_of_their_platform() -> None:
    hand = Hand()
    settings = FetchSettings(rate=10, burst=1)
    assert about(hand.ask(SHOP, OTHER, SHOP, OTHER, settings=settings), [0, 0, 100, 100])
    shared = FetchSettings(rate=1000, platform_rate=10, burst=1)
    hand.now_ms = 10_000
    assert about(hand.ask(SHOP, OTHER, SHOP, OTHER, settings=shared), [0, 100, 200, 300])


@given(st.floats(0.5, 200), st.integers(1, 50), st.lists(st.floats(0, 500), min_size=1, max_size=100))
def test_no_second_has_more_than_the_rate_or_the_burst(rate: float, burst: int, gaps: list[float]) -> None:
    hand, settings = Hand(), FetchSettings(rate=rate, burst=burst)
    sent_ms: list[float] = []
    for gap_ms in gaps:
        hand.now_ms += gap_ms
        hand.ask(SHOP, settings=settings)
        sent_ms.append(hand.now_ms)
    assert max(sum(at_ms <= ms < at_ms + 1000 for ms in sent_ms) for at_ms in sent_ms) <= max(1, rate, burst)


def test_what_the_platform_allows_holds_beside_our_own_rate() -> None:
    """As on a platform that counts a shop's requests, the application's, and those of an address."""
    hand = Hand()
    generous = FetchSettings(rate=1_000, burst=1_000)
    four = (SHOP, OTHER, SHOP, OTHER)
    by_shop, by_app = RateBucket(5, 1, "app_shop"), RateBucket(10, 2, "app")
    assert about(hand.ask(*four, settings=generous, declared=[by_shop]), [0, 0, 200, 200])
    hand.now_ms = 60_000
    assert about(hand.ask(*four, settings=generous, declared=[by_app]), [0, 0, 100, 200])
    hand.now_ms = 120_000
    assert about(hand.ask(SHOP, SHOP, SHOP, settings=generous, declared=[RateBucket(10, 1, "address")]), [0, 100, 200])


def test_a_request_takes_of_a_limit_what_it_costs() -> None:
    """As on a platform that counts points: 50 for a list, 10 for details, 100 a second, 200 at once."""
    hand, generous = Hand(), FetchSettings(rate=1_000, burst=1_000)
    points = RateBucket(100, 200, "app_shop", 50, 10)
    sent = hand.ask(*[SHOP] * 6, settings=generous, declared=[points])
    assert sum(at_ms < 500 for at_ms in sent) <= 4  # 200 points at once
    assert about([max(sent)], [1_000])  # 300 points in all
    hand.now_ms = 60_000
    sent = hand.ask(*[SHOP] * 22, settings=generous, declared=[points], is_detail=True)
    assert about(sent, [0] * 20 + [1_000] * 2)  # no second has more than the burst
    hand.now_ms = 120_000
    lists, details = (
        [hand.budgets.request(SHOP, generous, [points], is_detail=is_detail) for _ in range(10)]
        for is_detail in (False, True)
    )
    assert about([max(hand.sent([*lists, *details]))], [4_000])


def test_a_limit_of_lists_alone_holds_no_details_back() -> None:
    """As on a platform that has a limit for each endpoint."""
    hand, generous = Hand(), FetchSettings(rate=1_000, burst=1_000)
    declared = [RateBucket(1, 1, "endpoint", 1, 0), RateBucket(5, 1, "endpoint", 0, 1)]
    assert about(hand.ask(SHOP, SHOP, SHOP, settings=generous, declared=declared), [0, 1_000, 2_000])
    hand.now_ms = 60_000
    assert about(hand.ask(SHOP, SHOP, settings=generous, declared=declared, is_detail=True), [0, 200])


def test_a_request_that_costs_more_than_a_burst_waits_until_it_is_made_up() -> None:
    hand = Hand()
    sent = hand.ask(SHOP, SHOP, settings=FetchSettings(), declared=[RateBucket(10, 1, "shop", 30)])
    assert about([sent[1] - sent[0]], [3_000])


def test_a_source_that_has_much_to_do_leaves_the_others_their_parts_by_weight() -> None:
    """One shop has a backlog. Another has weight 3 and a backlog too. A third has one request now and then."""
    hand = Hand()
    light, live = FetchSettings(rate=1e5, platform_rate=20, burst=1), SourceKey("mall", "live")
    heavy = FetchSettings(rate=1e5, platform_rate=20, burst=1, weight=3)
    waiting = [hand.budgets.request(SHOP, light) for _ in range(80)]
    waiting += [hand.budgets.request(OTHER, heavy) for _ in range(80)]
    waiting += [hand.budgets.request(live, light)]
    sent = hand.sent(waiting)
    in_2_s = [sum(ms < 2_000 for ms in part) for part in (sent[:80], sent[80:160])]
    assert sum(in_2_s) in (39, 40)
    assert abs(in_2_s[1] - 30) <= 2
    assert sent[160] <= 250


def test_a_source_whose_own_rate_is_spent_keeps_no_other_from_the_platforms() -> None:
    hand = Hand()
    slow, fast = FetchSettings(rate=1, platform_rate=20, burst=1), FetchSettings(rate=1e5, platform_rate=20, burst=1)
    waiting = [hand.budgets.request(SHOP, slow) for _ in range(3)]
    waiting += [hand.budgets.request(OTHER, fast) for _ in range(40)]
    sent = hand.sent(waiting)
    assert about(sent[:3], [0, 1000, 2000]) or max(sent[:3]) < 2_200
    assert sorted(sent)[38] <= 2_100


def test_one_that_cannot_wait_spends_nothing() -> None:
    hand = Hand()
    settings = FetchSettings(rate=10, platform_rate=5, burst=1)
    assert hand.ask(SHOP, settings=settings) == [0]
    for _ in range(3):
        with hand.budgets.request(SHOP, settings) as spending, pytest.raises(TooSlow) as told:
            spending.take(most_ms=150)
        assert about([told.value.wait_ms], [200])
        assert told.value.is_known
    assert about(hand.ask(SHOP, settings=settings), [200])


def test_one_behind_many_hears_at_once_that_it_takes_long() -> None:
    hand = Hand()
    settings = FetchSettings(rate=10, burst=1)
    waiting = [hand.budgets.request(SHOP, settings) for _ in range(50)]
    for each in waiting:
        each.__enter__()
    with pytest.raises(TooSlow) as told:
        waiting[-1].take(most_ms=4_000)
    assert about([told.value.wait_ms], [4_900])
    for each in waiting:
        each.__exit__()


def test_a_throttled_source_sends_nothing_for_as_long_as_asked() -> None:
    hand = Hand()
    settings = FetchSettings(rate=10, burst=5)
    hand.ask(SHOP, settings=settings)
    hand.budgets.hold(SHOP, 2_000)
    assert about(hand.ask(SHOP, SHOP, OTHER, settings=settings), [2_000, 2_100, 0])


def test_orders_enter_at_their_own_rate() -> None:
    hand = Hand()
    settings = FetchSettings(inflow=100)
    sent = hand.sent([hand.budgets.orders(SHOP, settings, 100) for _ in range(3)])
    assert about(sent, [0, 1010, 2020])
    with hand.budgets.orders(SHOP, settings, 1_000) as spending, pytest.raises(TooSlow) as told:
        spending.take(most_ms=5_000)
    assert 9_000 <= told.value.wait_ms <= 11_100
    assert re.fullmatch(r"our own rate for it is spent for \d+(\.\d)?s", str(told.value))
    with hand.budgets.orders(SHOP, FetchSettings(inflow=0), 10**9) as spending:
        assert spending.take(most_ms=0) == 0


async def under_way(budgets: Budgets, most: int, wanted: int) -> int:
    """Return how many of so many requests are under way at once."""
    running = highest = 0
    filled = anyio.Event()

    async def one() -> None:
        nonlocal running, highest
        await budgets.free_place("mall", most)
        budgets.enter("mall")
        try:
            running += 1
            highest = max(highest, running)
            filled.set()
            await anyio.lowlevel.checkpoint()
            running -= 1
        finally:
            budgets.leave("mall")

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


def test_a_burst_above_the_rate_may_be_spent_within_a_second() -> None:
    """0.0167 a second with a burst of 20: after them, one a minute."""
    hand, declared = Hand(), [RateBucket(per_second=0.0167, burst=20, scope="app_shop")]
    sent = hand.ask(*[SHOP] * 22, settings=FetchSettings(rate=100, burst=100), declared=declared)
    assert max(sent[:20]) <= EARLY_MS
    assert [round(each / 1000 * 0.0167, 1) for each in sent[20:]] == [1.0, 2.0]


def test_a_limit_without_a_number_costs_nothing_and_says_who_shares_what_is_learned() -> None:
    named = [bucket for name in ("taobao", "mercadolibre") for bucket in adapter_named(name).declaration.rate]
    assert [(bucket.scope, bucket.per_second) for bucket in named] == [("app", 0), ("app", 0)]
    settings = FetchSettings(rate=10, burst=1)
    assert limits_of(SHOP, settings, named) == limits_of(SHOP, settings, [])


def test_other_settings_and_another_declaration_are_in_force_with_the_next_request() -> None:
    hand = Hand()
    slow, fast = FetchSettings(rate=1.0, burst=1), FetchSettings(rate=10.0, burst=1)
    assert about(hand.ask(SHOP, SHOP, settings=slow), [0, 1_000])
    hand.now_ms += 10_000
    assert about(hand.ask(SHOP, SHOP, settings=fast), [0, 100])
    hand.now_ms += 10_000
    declared = (RateBucket(per_second=2.0, burst=1, scope="shop"),)
    assert about(hand.ask(SHOP, SHOP, settings=fast, declared=declared), [0, 500])
    hand.now_ms += 10_000
    assert about(hand.ask(SHOP, SHOP, settings=fast), [0, 100])
