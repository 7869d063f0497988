"""A platform that lists fewer orders at once than the file says, and does not say that there are more, is found out."""

from random import Random
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from platforms.adapter import Page, WindowRules
from platforms.bounds import Bounds, Window
from platforms.errors import PageCut
from platforms.page_check import ENOUGH, PageSize
from platforms.reading import Ask, Reading
from tests.unit.platforms.listing_model import Listed, ModelPlatform, declaration

SIZE = 100
WINDOW = Window(0, 1_000)
Told = Literal["page", "window", "nothing"]


class CappedPlatform(ModelPlatform):
    """Lists at most `cap` orders. Its total counts those of the answer, those of the window, or is not there."""

    def __init__(self, orders: list[Listed], cap: int, told: Told) -> None:
        super().__init__(orders, size=cap, paging="none")
        self.told = told
        self.requests = 0

    def answer(self, ask: Ask) -> Page:
        self.requests += 1
        page = super().answer(ask)
        page.next = None
        page.total = {"page": len(page.rows), "window": page.total, "nothing": None}[self.told]
        return page


def orders(count: int, length_ms: int = 1_000) -> list[Listed]:
    return [Listed(at * length_ms // max(1, count), f"o{at}", 1) for at in range(count)]


def read(
    platform: CappedPlatform,
    checked: dict[str, PageSize] | None,
    window: Window = WINDOW,
    rules: WindowRules | None = None,
) -> tuple[set[str], Reading]:
    declared = declaration("one", size=SIZE, has_total=platform.told != "nothing")
    reading = Reading(replace(declared, window=rules or declared.window), window, page_sizes=checked)
    found: set[str] = set()
    while (ask := reading.next()) is not None:
        found |= {row.key for row in reading.feed(platform.answer(ask))}
    return found, reading


@pytest.mark.parametrize("told", ["page", "nothing"])
def test_an_answer_that_was_cut_is_found_out_by_a_half_of_its_window(told: Told) -> None:
    with pytest.raises(PageCut, match=r"50 orders from .*, and 50 others of a half of it") as cut:
        read(CappedPlatform(orders(120), 50, told), {})
    assert (cut.value.rows, cut.value.is_counted) == (50, told == "page")


@pytest.mark.parametrize("order", ["oldest first", "newest first", "by chance", "without times"])
def test_however_a_platform_sorts_what_it_cuts_it_is_found_out(order: str) -> None:
    class Sorted(CappedPlatform):
        def answer(self, ask: Ask) -> Page:
            page = super().answer(ask)
            if order == "without times":
                page.rows = [row._replace(modified_ms=None) for row in page.rows]
            return page

    early, late = orders(20, 500), [Listed(500 + at // 2, f"p{at}", 1) for at in range(180)]
    platform = Sorted([*early, *late], 60, "page")
    platform.shuffle = {
        "newest first": lambda rows: rows[::-1],
        "by chance": lambda rows: Random(5).sample(rows, len(rows)),
    }.get(order, list)
    with pytest.raises(PageCut):
        read(platform, {})


def test_a_total_of_the_window_needs_no_check() -> None:
    platform, checked = CappedPlatform(orders(120), 50, "window"), dict[str, PageSize]()
    found, _ = read(platform, checked)
    assert len(found) == 120
    assert checked == {"": ENOUGH}
    before = platform.requests
    read(platform, checked, Window(0, 300))
    assert platform.requests == before + 1


@given(st.integers(0, 99), st.sampled_from(["page", "nothing"]))
def test_a_whole_answer_costs_one_more_request_until_one_is_larger(count: int, told: Told) -> None:
    platform, checked = CappedPlatform(orders(count), SIZE, told), dict[str, PageSize]()
    for _ in range(3):
        platform.requests = 0
        found, _ = read(platform, checked)
        assert (len(found), platform.requests) == (count, 1 + (count >= 10))
    assert checked == ({"": PageSize(count)} if count >= 10 else {})


def test_a_larger_answer_shows_that_smaller_ones_were_whole() -> None:
    platform, checked = CappedPlatform(orders(60), SIZE, "page"), dict[str, PageSize]()
    read(platform, checked)
    platform.requests = 0
    for end_ms in range(100, 1_000, 50):
        read(platform, checked, Window(0, end_ms))
    assert platform.requests == 18


@given(st.integers(12, 300), st.integers(10, 99), st.sampled_from(["page", "nothing"]), st.integers(1, 20))
def test_windows_that_grow_never_hide_an_order(count: int, cap: int, told: Told, slices: int) -> None:
    """Each slice is read whole, or the reading says that it is not."""
    listed, checked = orders(count), dict[str, PageSize]()
    for at in range(slices):
        window = Window(0, 1_000 * (at + 1) // slices)
        platform = CappedPlatform(listed, cap, told)
        there = {each.key for each in listed if each.modified_ms < window.end_ms}
        try:
            found, _ = read(platform, checked, window)
        except PageCut:
            assert len(there) > cap
            return
        assert found == there


def test_an_order_that_comes_in_between_is_no_cut() -> None:
    listed = orders(40)

    class Late(CappedPlatform):
        def answer(self, ask: Ask) -> Page:
            page = super().answer(ask)
            self.orders.add(Listed(900, "late", 1))
            return page

    platform = Late(listed, SIZE, "page")
    found, _ = read(platform, {})
    assert found == {each.key for each in listed}
    assert platform.requests == 3


@pytest.mark.parametrize("checked", [None, {"": PageSize(51)}], ids=["nobody asks for it", "more were whole"])
def test_where_nobody_asks_for_a_check_there_is_none(checked: dict[str, PageSize] | None) -> None:
    platform = CappedPlatform(orders(50), SIZE, "page")
    read(platform, checked)
    assert platform.requests == 1


def test_a_list_without_a_bound_cannot_be_checked() -> None:
    platform = CappedPlatform(orders(50), SIZE, "page")
    declared = declaration("one", size=SIZE)
    read(platform, {}, rules=replace(declared.window, bounds=Bounds(upper="absent")))
    assert platform.requests == 1
