"""One plan makes the same orders for good, and makes what is hard about order lists."""

import json
import zlib
from collections import Counter, defaultdict
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from platforms.mall.config import MallConfig
from platforms.mall.generator import Event, Plan, last_orders, make_events, order_body

START = 1_700_000_000_000
PLAN = Plan(shop="s1", seed=7, orders=2_000, start_ms=START, live_ms=20_000)


def by_order(events: list[Event]) -> dict[int, list[Event]]:
    found: dict[int, list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda each: each.version):
        found[event.number].append(event)
    return found


def test_a_plan_makes_the_same_orders_again_and_another_seed_others() -> None:
    assert make_events(PLAN) == make_events(PLAN)
    assert make_events(PLAN) != make_events(msgspec.structs.replace(PLAN, seed=8))
    assert make_events(PLAN) != make_events(msgspec.structs.replace(PLAN, shop="s2"))


@given(st.integers(0, 10_000), st.integers(0, 60_000), st.integers(1, 200))
def test_versions_of_an_order_rise_in_time_and_stay_inside_the_plan(seed: int, live_ms: int, orders: int) -> None:
    plan = Plan(shop="s1", seed=seed, orders=orders, start_ms=START, history_ms=600_000, live_ms=live_ms)
    found = by_order(make_events(plan))
    assert sorted(found) == list(range(orders))
    for versions in found.values():
        assert [event.version for event in versions] == list(range(1, len(versions) + 1))
        assert all(a.modified_ms < b.modified_ms for a, b in pairwise(versions))
        assert all(START - 600_000 <= event.modified_ms < max(plan.end_ms, START) for event in versions)
        assert all(0 <= event.visible_ms - event.modified_ms <= plan.late_ms for event in versions)


def test_the_hard_things_are_in_it() -> None:
    events = make_events(PLAN)
    assert len(events) - len({event.modified_ms for event in events}) > 50, "equal times"
    assert sum(event.visible_ms > event.modified_ms for event in events) > 100, "listed late"
    assert sum(event.version > 1 for event in events) > 300, "changed"
    assert sum(event.modified_ms >= START for event in events) > 500, "made while one looks on"
    assert sum(event.version > 1 and event.modified_ms >= START for event in events) > 100, "changed while one looks on"


@pytest.mark.parametrize("orders", [10, 2_000, 200_000])
def test_no_moment_has_more_orders_than_a_page(orders: int) -> None:
    events = make_events(msgspec.structs.replace(PLAN, orders=orders))
    assert max(Counter(event.modified_ms for event in events).values()) <= 60


def test_some_come_later_than_any_settling_delay_if_wanted() -> None:
    plan = msgspec.structs.replace(PLAN, very_late_share=0.05, very_late_ms=60_000)
    late = [event.visible_ms - event.modified_ms for event in make_events(plan)]
    assert 40 < sum(delay > plan.late_ms for delay in late) < 250
    assert max(late) <= 60_000


def test_the_truth_is_each_order_s_last_version_with_its_bytes() -> None:
    events = make_events(PLAN)
    truth = last_orders(PLAN, events)
    assert len(truth) == PLAN.orders
    for number, order in enumerate(truth):
        last = by_order([event for event in events if event.number == number])[number][-1]
        assert order[1:4] == (last.version, last.modified_ms, last.visible_ms)
        if number == 50:
            break
    body = order_body(b"s1", 3, truth[3].version, truth[3].modified_ms)
    assert zlib.crc32(body) == truth[3].checksum


@pytest.mark.parametrize("number", range(0, 64, 7))
def test_bodies_are_json_of_a_real_size(number: int) -> None:
    body = order_body(b"s1", number, 2, START, b'"modified_at":"x",')
    read = json.loads(body)
    assert (read["id"], read["version"], read["modified_ms"], read["modified_at"]) == (
        f"s1-{number:07d}",
        2,
        START,
        "x",
    )
    assert 350 < len(body) < 900


def test_orders_are_shared_out_among_the_shops() -> None:
    plans = MallConfig(shops=3, orders=100).plans(START)
    assert [(plan.shop, plan.orders) for plan in plans] == [("s1", 34), ("s2", 33), ("s3", 33)]
