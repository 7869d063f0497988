"""What the mall lists at a moment is what a slow and plain reading of its events says."""

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from platforms.mall.config import MallConfig
from platforms.mall.generator import Event, Plan, make_events
from platforms.mall.listing import BadQuery, Shop, bounds, list_orders, time_text
from platforms.mall.shelf import Shelf

START = 1_700_000_000_000
PLAN = Plan(shop="s1", seed=3, orders=300, start_ms=START, history_ms=60_000, live_ms=30_000, change_share=0.6)
EVENTS = make_events(PLAN)


def listed_at(now_ms: int) -> list[tuple[int, int, int]]:
    last: dict[int, Event] = {}
    for event in EVENTS:
        if event.visible_ms <= now_ms and (event.number not in last or last[event.number].version < event.version):
            last[event.number] = event
    return sorted((event.modified_ms, event.number, event.version) for event in last.values())


@given(st.lists(st.integers(START - 70_000, START + 40_000), max_size=8))
def test_the_shelf_holds_the_newest_visible_version_of_each_order(moments: list[int]) -> None:
    shelf = Shelf(EVENTS)
    reached = 0
    for now_ms in moments:
        shelf.advance(now_ms)
        reached = max(reached, now_ms)
        assert shelf.listed == listed_at(reached)


def test_many_changes_at_once_make_the_same_shelf_as_one_by_one() -> None:
    plan = Plan(shop="s1", seed=3, orders=3_000, start_ms=START)
    events = make_events(plan)
    at_once, one_by_one = Shelf(events), Shelf(events)
    at_once.advance(START + 60_000)
    for event in events:
        one_by_one.advance(event.visible_ms)
    assert at_once.listed == one_by_one.listed


@given(st.integers(START - 60_000, START + 30_000), st.integers(0, 20_000))
def test_a_window_holds_its_start_and_not_its_end(low: int, length: int) -> None:
    shelf = Shelf(EVENTS)
    shelf.advance(START + 60_000)
    first, last = shelf.between(low, low + length)
    assert shelf.listed[first:last] == [row for row in shelf.listed if low <= row[0] < low + length]


def ask(config: MallConfig, **query: Any) -> dict[str, Any]:
    texts = {name: str(value) for name, value in query.items()}
    shop = Shop(PLAN)
    answered = list_orders(shop, texts, config, START + 60_000, "http://mall/orders", drift=False)
    read: dict[str, Any] = json.loads(answered)
    return read


@pytest.mark.parametrize("tokens", ["keyset", "offset"])
@pytest.mark.parametrize("paging", ["token", "link"])
def test_pages_follow_each_other_without_gap(paging: str, tokens: str) -> None:
    config = MallConfig(paging=paging, tokens=tokens, page_size=40)  # type: ignore[arg-type] # parametrised literals
    query: dict[str, Any] = {"shop": "s1", "from": START - 50_000, "to": START + 20_000, "limit": 25}
    ids: list[str] = []
    while True:
        page = ask(config, **query)
        assert len(page["orders"]) <= 25
        ids += [order["id"] for order in page["orders"]]
        if paging == "link" and "next" in page:
            query = {name: value[0] for name, value in parse_qs(urlsplit(page["next"]).query).items()}
        elif "next_page_token" in page:
            query["page_token"] = page["next_page_token"]
        else:
            break
    assert len(ids) == len(set(ids)) == page["total"] > 100


def test_two_lists_have_new_orders_and_changed_ones_in_the_same_words() -> None:
    config, shop = MallConfig(page_size=10_000, has_two_lists=True), Shop(PLAN, has_two_lists=True)
    listed = {}
    for name in ("created", "changed"):
        answer = list_orders(shop, {"shop": "s1", "list": name}, config, START + 60_000, "", drift=False)
        listed[name] = {order["id"]: order for order in json.loads(answer)["orders"]}
    assert len(listed["created"]) == PLAN.orders
    changed = {key: order for key, order in listed["created"].items() if order["version"] > 1}
    assert changed == listed["changed"] != {}
    assert all(order["created_ms"] < order["modified_ms"] for order in changed.values())
    with pytest.raises(BadQuery, match="created, changed"):
        list_orders(shop, {"shop": "s1"}, config, START, "", drift=False)


def test_by_one_page_nothing_leads_further() -> None:
    page = ask(MallConfig(page_size=10), shop="s1", limit=500)
    assert (len(page["orders"]), page["total"]) == (10, 300)
    assert not {"next", "next_page_token"} & set(page)


def test_drift_leaves_out_a_row_of_a_later_page() -> None:
    config, shop = MallConfig(paging="token"), Shop(PLAN)
    query = {"shop": "s1", "limit": "10", "page_token": "o10"}
    honest, drifted = (
        json.loads(list_orders(shop, query, config, START + 60_000, "", drift=drift))["orders"]
        for drift in (False, True)
    )
    assert drifted[:9] == honest[1:]
    first = {"shop": "s1", "limit": "10"}
    pages = [list_orders(shop, first, config, START + 60_000, "", drift=drift) for drift in (False, True)]
    assert pages[0] == pages[1]


@pytest.mark.parametrize(
    ("lower", "upper", "grain_ms", "selected"),
    [
        ("includes", "excludes", 1, (1_000_000, 2_000_000)),
        ("excludes", "excludes", 1, (1_000_001, 2_000_000)),
        ("includes", "includes", 1, (1_000_000, 2_000_001)),
        ("excludes", "includes", 1000, (1_001_000, 2_001_000)),
        ("includes", "excludes", 1000, (1_000_000, 2_000_000)),
    ],
)
def test_bounds_include_or_exclude(lower: Any, upper: Any, grain_ms: int, selected: tuple[int, int]) -> None:
    config = MallConfig(lower=lower, upper=upper, grain_ms=grain_ms)
    assert bounds({"from": "1000000", "to": "2000000"}, config) == selected


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (MallConfig(times="unix_s"), "1700000000"),
        (MallConfig(times="iso"), "2023-11-14T22:13:20Z"),
        (MallConfig(times="iso"), "2023-11-15T03:58:20+05:45"),
        (MallConfig(times="wall", zone="Asia/Kathmandu"), "2023-11-15 03:58:20"),
    ],
)
def test_times_are_taken_in_the_mall_s_own_writing(config: MallConfig, text: str) -> None:
    assert bounds({"from": text}, config)[0] == START
    assert bounds({"from": time_text(START, config)}, config)[0] == START


@pytest.mark.parametrize(
    "query",
    [{"from": "soon"}, {"limit": "-1"}, {"limit": "0"}, {"limit": "x"}, {"page_token": "q"}, {"page_token": "k5"}],
)
def test_what_it_does_not_understand_it_refuses(query: dict[str, str]) -> None:
    with pytest.raises(BadQuery):
        ask(MallConfig(paging="token"), shop="s1", **query)


def test_a_zoneless_time_is_refused_where_zones_are_wanted() -> None:
    with pytest.raises(BadQuery, match="has no zone"):
        ask(MallConfig(times="iso"), shop="s1", **{"from": "2026-01-01T00:00:00"})
