"""Rows whose times are coarser than the bounds: a platform compares by the millisecond, and shows minutes or days."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from platforms.adapter import Page, Row
from platforms.bounds import Bounds, RequestedBounds, Window, is_asked, until_ms
from platforms.reading import Ask, Reading
from platforms.times import TimeStyle
from tests.unit.platforms.listing_model import declaration

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
BEGIN_MS = 1_760_000_000_000 // DAY_MS * DAY_MS
SIZE = 10


class Shop:
    """Lists orders by their own times, and shows them in whole units. Bounds are whole seconds, and both include."""

    def __init__(self, times_ms: list[int], unit_ms: int) -> None:
        self.orders = [(f"o{number}", at_ms) for number, at_ms in enumerate(sorted(times_ms))]
        self.unit_ms = unit_ms

    def answer(self, ask: Ask, bounds: Bounds) -> Page:
        asked = bounds.request(ask.window)
        assert asked.lower is not None
        assert asked.upper is not None
        lower_ms, upper_ms = int(asked.lower) * 1_000, int(asked.upper) * 1_000
        found = [each for each in self.orders if lower_ms <= each[1] // 1_000 * 1_000 <= upper_ms]
        begin = int(ask.page or 0) * SIZE
        rows = [Row(key, 1, at_ms // self.unit_ms * self.unit_ms, b"{}") for key, at_ms in found[begin : begin + SIZE]]
        return Page(rows, total=len(found))


def read(shop: Shop, window: Window) -> set[str]:
    declared = declaration("one", size=SIZE, numbered="number", step_ms=1_000)
    bounds = Bounds("includes", "includes", 1_000, 1, TimeStyle("unix_s"))
    declared = replace(declared, window=replace(declared.window, bounds=bounds, longest_ms=10 * DAY_MS))
    reading, found = Reading(declared, window, page_sizes={}), set[str]()
    while (ask := reading.next()) is not None:
        found |= {row.key for row in reading.feed(shop.answer(ask, bounds))}
    assert reading.result.is_proven
    return found


def tiles(cuts: list[int], end_ms: int) -> Iterator[Window]:
    """Yield windows up to `end_ms`. Each begins a moment before the one before it has ended, as slices do."""
    edges = sorted({BEGIN_MS, *(BEGIN_MS + cut for cut in cuts if BEGIN_MS + cut < end_ms), end_ms})
    for start_ms, stop_ms in pairwise(edges):
        yield Window(start_ms - 5_000, stop_ms)


@given(
    st.sampled_from([1_000, MINUTE_MS, DAY_MS]),
    st.lists(st.integers(0, 10 * MINUTE_MS - 1), min_size=1, max_size=120),
    st.lists(st.integers(1, 10 * MINUTE_MS), max_size=12),
)
def test_no_order_is_left_out_between_two_windows(unit_ms: int, times: list[int], cuts: list[int]) -> None:
    shop = Shop([BEGIN_MS + at for at in times], unit_ms)
    found = {key for window in tiles(cuts, BEGIN_MS + 10 * MINUTE_MS) for key in read(shop, window)}
    assert found == {key for key, _ in shop.orders}


def test_of_slices_that_begin_just_after_a_whole_minute_none_takes_its_orders_for_the_neighbours() -> None:
    """Most of them were lost, and each window was proven."""
    shop = Shop([BEGIN_MS + 600 * number for number in range(1_000)], MINUTE_MS)
    cuts = [6_000 + MINUTE_MS * number for number in range(10)]
    found = [read(shop, window) for window in tiles(cuts, BEGIN_MS + 10 * MINUTE_MS)]
    assert set[str]().union(*found) == {key for key, _ in shop.orders}
    assert sum(map(len, found)) < 2 * len(shop.orders)


@pytest.mark.parametrize(
    ("at_ms", "unit_ms"),
    [
        (BEGIN_MS, DAY_MS),
        (BEGIN_MS + 8 * HOUR_MS, DAY_MS),
        (BEGIN_MS + MINUTE_MS, MINUTE_MS),
        (BEGIN_MS + 1_000, 1_000),
        (BEGIN_MS + 1, 1),
    ],
)
def test_what_a_round_time_may_stand_for(at_ms: int, unit_ms: int) -> None:
    assert until_ms(at_ms) == at_ms + unit_ms


def test_a_round_time_is_no_sign_of_a_window_that_is_ignored() -> None:
    asked = RequestedBounds(None, None, BEGIN_MS + 90_000, BEGIN_MS + 100_000)
    assert is_asked(asked, BEGIN_MS + MINUTE_MS)
    assert not is_asked(asked, BEGIN_MS + MINUTE_MS + 1)
    assert not is_asked(asked, BEGIN_MS + 2 * MINUTE_MS)
