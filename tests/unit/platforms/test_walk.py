"""A window with many pages is read by a bound that moves to the last row of each, whole or known not to be."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from platforms.adapter import Declaration, Page, PageRules, Row, WindowRules
from platforms.bounds import Bounds, Window
from platforms.reading import Ask, Reading
from tests.unit.platforms.listing_model import Listed, ModelPlatform, declaration, read_all

WINDOW = Window(0, 1_000)
Order = Callable[[list[Listed]], list[Listed]]
times = st.lists(st.integers(0, 999) | st.sampled_from([7, 500]), max_size=60)


class Endless(ModelPlatform):
    """A list with a lower bound only."""

    def answer(self, ask: Ask) -> Page:
        return super().answer(Ask(Window(ask.window.start_ms, 10**9), ask.page))


def orders_at(*times_ms: int) -> list[Listed]:
    return [Listed(at, f"o{number}", 1) for number, at in enumerate(times_ms)]


def latest_first(rows: list[Listed]) -> list[Listed]:
    return sorted(rows, key=lambda row: (-row.modified_ms, row.key))


def by_key(rows: list[Listed]) -> list[Listed]:
    return sorted(rows, key=lambda row: int(row.key[1:]))


def shuffled_ties(rows: list[Listed]) -> list[Listed]:
    chance = Random(len(rows))
    return sorted(rows, key=lambda row: (row.modified_ms // 50, chance.random()))


def endless(style: Literal["one", "link"] = "one", *, size: int, has_total: bool, is_sorted: bool) -> Declaration:
    return Declaration(
        name="model",
        window=WindowRules(bounds=Bounds(upper="absent"), longest_ms=100),
        pages=PageRules(style=style, size=size, has_total=has_total, sort="ascending" if is_sorted else ""),
    )


def read(platform: ModelPlatform, declared: Declaration, window: Window = WINDOW) -> tuple[Reading, list[Row]]:
    reading = Reading(declared, window)
    return reading, [row for rows in read_all(reading, platform) for row in rows]


@pytest.mark.parametrize("order", [list, latest_first])
def test_a_sorted_window_costs_hardly_more_requests_than_it_has_pages(order: Order) -> None:
    orders = orders_at(*Random(1).sample(range(1_000), 800))
    reading, rows = read(ModelPlatform(orders, size=20, paging="none", shuffle=order), declaration(size=20))
    assert sorted(row.key for row in rows) == sorted(each.key for each in orders)
    assert reading.result.is_proven
    assert reading.result.requests <= 800 / 20 * 1.1


@given(times, st.integers(2, 9), st.sampled_from([list, latest_first, by_key, shuffled_ties]), st.sampled_from([1, 10]))
def test_whatever_sorts_a_window_it_is_read_whole_or_known_to_be_short(
    times_ms: list[int], size: int, order: Order, step_ms: int
) -> None:
    orders = orders_at(*times_ms)
    reading, rows = read(
        ModelPlatform(orders, size=size, paging="none", shuffle=order), declaration(size=size, step_ms=step_ms)
    )
    found, result = {row.key for row in rows}, reading.result
    assert len(found) == len(orders) or not result.is_proven
    assert len(found) + result.missing >= len(orders)


@given(times, st.integers(2, 9), st.randoms(use_true_random=False))
def test_nothing_is_lost_while_orders_leave_a_window_that_is_walked(
    times_ms: list[int], size: int, chance: Random
) -> None:
    """An order that leaves is listed in a later window."""
    platform = ModelPlatform(orders_at(*times_ms), size=size, paging="none", numbered="number")
    reading, seen = Reading(declaration(size=size, numbered="number"), WINDOW), set[str]()
    for at, rows in enumerate(read_all(reading, platform)):
        seen.update(row.key for row in rows)
        if platform.orders and at < 20 and chance.random() < 0.5:
            left = chance.choice(sorted(platform.orders))
            platform.orders = (platform.orders - {left}) | {Listed(5_000, left.key, 2)}
    assert {each.key for each in platform.orders if each.modified_ms < 1_000} <= seen


@given(times, st.integers(2, 9), st.booleans(), st.integers(1, 1_500))
def test_a_list_without_an_end_is_walked_up_to_the_end_of_the_window(
    times_ms: list[int], size: int, has_total: bool, end_ms: int
) -> None:
    orders = orders_at(*times_ms)
    platform = Endless(orders, size=size, paging="none", has_total=has_total)
    reading, rows = read(platform, endless(size=size, has_total=has_total, is_sorted=True), Window(0, end_ms))
    wanted = {each.key for each in orders if each.modified_ms < end_ms}
    biggest_tie = max((times_ms.count(at) for at in times_ms), default=0)
    if biggest_tie < size:
        assert {row.key for row in rows} == wanted
        assert reading.result.is_proven == has_total
    assert wanted == {row.key for row in rows} or reading.result.short


def test_of_a_list_without_an_end_nobody_reads_the_rest() -> None:
    platform = Endless(orders_at(*range(0, 10_000, 10)), size=20, paging="keyset", has_total=False)
    styles: list[Literal["one", "link"]] = ["one", "link"]
    for style in styles:
        declared = endless(style, size=20, has_total=False, is_sorted=True)
        reading, rows = read(platform, declared, Window(1_000, 2_000))
        assert len(rows) == 100
        assert reading.result.requests <= 7


@given(times, st.integers(2, 9), st.integers(0, 30))
def test_what_is_said_to_be_done_was_read(times_ms: list[int], size: int, answers: int) -> None:
    """A reading that ends early has read all before the time that it names."""
    orders = orders_at(*times_ms)
    for platform, declared in (
        (ModelPlatform(orders, size=size, paging="none"), declaration(size=size)),
        (ModelPlatform(orders, size=size, paging="none", shuffle=latest_first), declaration(size=size)),
        (
            ModelPlatform(orders, size=size, paging="keyset", has_total=False),
            replace(declaration("token", size=size, has_total=False), pages=PageRules("token", size, sort="ascending")),
        ),
        (
            Endless(orders, size=size, paging="none", has_total=True),
            endless(size=size, has_total=True, is_sorted=False),
        ),
    ):
        reading, seen = Reading(declared, WINDOW), set[str]()
        for at, rows in enumerate(read_all(reading, platform)):
            seen.update(row.key for row in rows)
            short = {each.window.start_ms for each in reading.result.short}
            if not short:
                assert {each.key for each in orders if each.modified_ms < reading.done_until_ms} <= seen
            if at == answers:
                break


def test_a_walk_may_have_more_answers_than_a_reading_that_does_not_move() -> None:
    platform = ModelPlatform(orders_at(*range(500)), size=5, paging="none")
    reading, rows = read(platform, declaration(size=5, most_requests=20))
    assert len(rows) == 500
    assert reading.result.is_proven


def test_an_order_that_only_seems_to_be_sorted_by_time_is_found_out_by_the_counts() -> None:
    """By key the first page looks sorted, and an order of the last one has an early time."""
    orders = orders_at(*range(0, 100, 10), 5)
    reading, rows = read(ModelPlatform(orders, size=4, paging="none", shuffle=by_key), declaration(size=4))
    assert len(rows) == 11
    assert reading.result.is_proven


def test_where_many_share_a_moment_pages_by_number_cost_less_than_a_moving_bound() -> None:
    """Ten orders in each second, by a clock of seconds: each answer of the bound would list ten of them again."""
    orders = orders_at(*[number // 10 for number in range(1_900)])
    declared = declaration("one", size=100, numbered="number")
    reading, rows = read(ModelPlatform(orders, size=100, paging="none", numbered="number"), declared)
    assert (len(rows), reading.result.is_proven, reading.result.requests) == (1_900, True, 19)


def test_an_order_that_two_answers_share_and_the_second_leaves_out_is_looked_for() -> None:
    """The last row of an answer stands at the moment at which the next one begins. If that one has another order there
    in its place, the totals add up all the same."""
    platform = ModelPlatform(orders_at(*range(0, 80, 10)), size=4, paging="none")
    reading, seen = Reading(declaration(size=4), WINDOW), set[str]()
    ask = reading.next()
    assert ask is not None
    seen.update(row.key for row in reading.feed(platform.answer(ask)))
    ask = reading.next()
    assert ask is not None
    assert ask.window.start_ms == 30
    page = platform.answer(ask)  # it was made while o3 was gone and o9 was there
    rows = [Row("o9", 1, 35, b"{}") if row.key == "o3" else row for row in page.rows]
    seen.update(row.key for row in reading.feed(Page(sorted(rows, key=lambda row: row.modified_ms or 0), None, 5)))
    windows = [ask.window for ask in iter_asks(reading, platform)]
    assert Window(0, 30) in windows


def iter_asks(reading: Reading, platform: ModelPlatform) -> Iterator[Ask]:
    while (ask := reading.next()) is not None:
        yield ask
        reading.feed(platform.answer(ask))
