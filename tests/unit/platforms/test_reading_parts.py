"""How a window is cut into parts, asked for in pieces that the platform takes, and totals that are none."""

from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from platforms.adapter import (
    EMPTY_PAGE,
    Declaration,
    Page,
    Row,
    WindowRules,
)
from platforms.bounds import Bounds, Window
from platforms.errors import BrokenContract
from platforms.parts import cut_window, parts_for
from platforms.reading import Reading
from tests.unit.platforms.listing_model import ModelPlatform, Numbered, declaration
from tests.unit.platforms.reading_examples import WINDOW, orders_at


def test_a_window_that_is_too_wide_for_the_platform_is_halved() -> None:
    reading = Reading(declaration(), WINDOW)
    reading.split()
    asks = []
    while (ask := reading.next()) is not None:
        asks.append(ask.window)
        reading.feed(EMPTY_PAGE)
    assert asks == [Window(0, 32), Window(32, 64)]
    assert reading.result.is_proven


def test_a_single_step_that_is_too_wide_for_the_platform_is_a_broken_contract() -> None:
    reading = Reading(declaration(step_ms=1000), Window(0, 1000))
    with pytest.raises(
        BrokenContract,
        match=r"finds it too wide; nothing smaller than orders from 1970-01-01T00:00:00Z to 1970-01-01T00:00:01Z",
    ):
        reading.split()
    with pytest.raises(BrokenContract, match="50 bytes announced, 10 allowed; nothing smaller"):
        reading.split("50 bytes announced, 10 allowed")


def test_windows_are_asked_for_in_pieces_no_longer_than_the_platform_takes() -> None:
    declared = Declaration("short", window=WindowRules(longest_ms=1_000, bounds=Bounds("excludes", "includes")))
    reading = Reading(declared, Window(0, 10_000))
    while (ask := reading.next()) is not None:
        lower, upper = declared.window.bounds.request(ask.window)[:2]
        assert int(upper or 0) - int(lower or 0) <= 1_000
        reading.feed(EMPTY_PAGE)


@given(st.integers(0, 500), st.integers(1, 500), st.integers(1, 300), st.sampled_from([1, 7, 10]))
def test_parts_of_a_window_tile_it(start: int, length: int, longest: int, step: int) -> None:
    window = Window(start, start + length)
    parts = cut_window(window, longest, step)
    assert parts[0].start_ms == window.start_ms
    assert parts[-1].end_ms == window.end_ms
    assert all(before.end_ms == after.start_ms for before, after in pairwise(parts))
    assert all(part.end_ms - part.start_ms <= max(longest, step) for part in parts)
    assert all(part.end_ms % step == 0 for part in parts[:-1])


@given(st.none() | st.integers(0, 10**12), st.integers(1, 1_000))
def test_a_window_is_cut_into_some_parts_and_never_into_thousands(total: int | None, size: int) -> None:
    assert 2 <= parts_for(total, size) <= 64


@pytest.mark.parametrize("numbered", ["number", "offset"])
def test_a_total_beyond_all_pages_ends_the_reading_and_takes_no_memory(numbered: Numbered) -> None:
    rows = [Row(f"o{number}", 1, 7, b"{}") for number in range(3)]
    reading = Reading(declaration("one", size=3, numbered=numbered), Window(7, 8))
    told = ""
    for _ in range(5):
        assert reading.next() is not None
        try:
            reading.feed(Page(list(rows), total=10**14))
        except BrokenContract as error:
            told = error.reason
            break
    assert "more than 5000 pages of 3" in told


@pytest.mark.parametrize("style", ["one", "token"])
def test_a_total_below_the_rows_of_its_own_answer_is_none(style: Literal["one", "token"]) -> None:
    """It costs no more than a list without a total, and proves nothing."""
    orders = orders_at(*range(60))
    platform = ModelPlatform(orders, size=10, paging="keyset")
    costs = {}
    for has_total in (True, False):
        reading = Reading(declaration(style, size=10, has_total=has_total), WINDOW)
        found: set[str] = set()
        while (ask := reading.next()) is not None:
            page = platform.answer(ask)
            page.total = 0 if has_total else None
            found |= {row.key for row in reading.feed(page)}
        assert (found, reading.result.missing, reading.result.is_proven) == ({each.key for each in orders}, 0, False)
        costs[has_total] = reading.result.requests
    assert costs[True] == costs[False]
