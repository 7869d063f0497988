"""The manners of the mall: what it lists, counts and names when it is told to behave oddly."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from platforms.mall.__main__ import config_of, parser
from platforms.mall.config import MallConfig
from platforms.mall.dialects.registry import mall_as
from platforms.mall.faults import Dealer, Faults
from platforms.mall.generator import Plan, make_events
from platforms.mall.listing import Shop, ideal_requests, list_orders, middle_ms
from platforms.mall.shelf import Shelf

START = 1_700_000_000_000
PLAN = Plan(shop="s1", seed=3, orders=200, start_ms=START, history_ms=600_000, change_share=0.6)
LATER = START + 60_000


def listed(shop: Shop, low: int, high: int, **config: Any) -> dict[str, Any]:
    query = {"shop": "s1", "from": str(low), "to": str(high)}
    mall = MallConfig(page_size=1_000, **config)
    answer: dict[str, Any] = json.loads(list_orders(shop, query, mall, LATER, "http://mall", drift=False))
    return answer


def test_a_list_of_changes_holds_each_version_and_counts_orders_or_rows() -> None:
    shop = Shop(PLAN, keeps_changes=True)
    by_orders = listed(shop, 0, LATER, listing="changes")
    by_rows = listed(shop, 0, LATER, listing="changes", totals="rows")
    assert len(by_orders["orders"]) == len(shop.events) == by_rows["total"]
    assert by_orders["total"] == 200 < by_rows["total"]


@given(st.lists(st.integers(START - 700_000, LATER), max_size=6))
def test_a_shelf_of_changes_holds_what_has_come_to_be_visible(moments: list[int]) -> None:
    events = make_events(PLAN)
    shelf = Shelf(events, keeps_changes=True)
    for now_ms in moments:
        shelf.advance(now_ms)
    reached = max(moments, default=0)
    assert shelf.listed == sorted(event[1:] for event in events if event.visible_ms <= reached)


def test_by_arrival_an_order_lies_where_it_came_to_be_visible() -> None:
    shop = Shop(PLAN, by_arrival=True)
    shop.shelf.advance(LATER)
    last = {event.number: event for event in sorted(shop.events, key=lambda event: event.version)}
    assert shop.shelf.listed == sorted((event.visible_ms, event.number, event.version) for event in last.values())
    assert all(shop.changed_ms(row) == last[row[1]].modified_ms for row in shop.shelf.listed)


def test_a_total_lies_where_the_window_holds_the_middle_of_the_history() -> None:
    shop, middle = Shop(PLAN), middle_ms(PLAN)
    for low, high, more in ((0, middle, 0), (middle, middle + 1, 1), (middle + 1, LATER, 0), (0, LATER, 1)):
        told = listed(shop, low, high, totals="lies")
        assert told["total"] == len(told["orders"]) + more
    assert "total" not in listed(shop, 0, LATER, totals="none")


def test_from_the_middle_of_the_history_on_the_key_has_another_name() -> None:
    for order in listed(Shop(PLAN), 0, LATER, is_renamed=True)["orders"]:
        assert ("order_id" in order) == (order["modified_ms"] >= middle_ms(PLAN)) == ("id" not in order)


def test_times_that_stand_still_do_not_move_with_a_change() -> None:
    usual, frozen = (make_events(structs.replace(PLAN, frozen_share=share)) for share in (0.0, 1.0))
    first = {event.number: event.modified_ms for event in usual if event.version == 1}
    assert {event.number: event.modified_ms for event in frozen} == first
    assert sorted((event.visible_ms, event.number) for event in frozen) == sorted(
        (event.visible_ms, event.number) for event in usual
    )


@pytest.mark.parametrize(
    ("times", "page_size", "longest_ms", "requests"),
    [([], 5, 10, 0), ([1, 2, 3], 2, 100, 2), ([1, 2, 50], 9, 10, 2), ([1, 11], 9, 10, 2), ([1, 10], 9, 10, 1)],
)
def test_the_fewest_requests(times: list[int], page_size: int, longest_ms: int, requests: int) -> None:
    assert ideal_requests(times, page_size, longest_ms) == requests


def test_what_is_left_of_a_limit_falls_with_each_request_and_grows_with_time() -> None:
    dealer = Dealer(Faults(rate_per_s=5.0), 1)
    assert dealer.left(START) == 5
    taken = 0
    while dealer.deal(START) is None:
        taken += 1
        assert dealer.left(START) == max(0, 5 - taken)
    assert dealer.left(START + 1_000) == 5 + (5 - taken)
    assert Dealer(Faults(), 1).left(START) is None


def test_a_mall_of_a_platform_has_its_manners_and_what_the_command_line_changes() -> None:
    assert config_of(vars(parser().parse_args([]))) == MallConfig()
    given = vars(parser().parse_args(["--platform", "ebay", "--orders", "9", "--frozen-share", "0.5"]))
    assert config_of(given) == mall_as("ebay", orders=9, frozen_share=0.5)
