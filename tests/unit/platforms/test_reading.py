"""A window is read whole, or known not to be: whatever the paging, the ties, and what moves meanwhile."""

from random import Random
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from platforms.adapter import (
    EMPTY_PAGE,
    LARGEST,
    LONGEST_KEY,
    BadRow,
    Declaration,
    Page,
    PageRules,
    Row,
    WindowRules,
)
from platforms.bounds import Bounds, Window
from platforms.reading import Ask, Reading, ShortPart
from platforms.times import TimeStyle
from streams.messages.fetch import LONGEST_ORDER_KEY
from tests.unit.platforms.listing_model import Listed, ModelPlatform, Numbered, Paging, declaration, read_all
from tests.unit.platforms.reading_examples import WIDE, WINDOW, many_times, orders_at, read, times

LATER_MS = 1_000  # where an order goes that is changed while one reads
Style = Literal["one", "token", "number"]


def style_of(style: Style) -> Literal["one", "token"]:
    return "token" if style == "token" else "one"


@given(many_times, st.sampled_from(["keyset", "offset"]), st.sampled_from(["one", "token", "link"]), st.integers(1, 9))
def test_a_quiet_window_is_read_whole_and_proven(
    times_ms: list[int], paging: Paging, style: Literal["one", "token", "link"], size: int
) -> None:
    orders = orders_at(*times_ms)
    reading, rows = read(ModelPlatform(orders, size=size, paging=paging), declaration(style, size=size))
    assert sorted(row.key for row in rows) == sorted(order.key for order in orders)
    assert reading.result.is_proven
    assert reading.result.distinct == len(orders)
    assert reading.is_done


@given(many_times, st.integers(1, 9))
def test_by_splitting_alone_a_window_is_proven_unless_one_moment_has_more_than_a_page(
    times_ms: list[int], size: int
) -> None:
    orders = orders_at(*times_ms)
    reading, rows = read(ModelPlatform(orders, size=size, paging="none"), declaration("one", size=size))
    biggest_tie = max((times_ms.count(at) for at in times_ms), default=0)
    assert reading.result.is_proven == (biggest_tie <= size)
    assert reading.result.missing == sum(max(0, times_ms.count(at) - size) for at in set(times_ms))
    assert bool(reading.result.short) == (biggest_tie > size)
    if reading.result.is_proven:
        assert {row.key for row in rows} == {order.key for order in orders}


@given(many_times, st.integers(1, 9), st.integers(1, 9), st.sampled_from(["number", "offset"]), st.booleans())
def test_where_pages_have_numbers_a_moment_with_more_than_a_page_is_read_whole(
    times_ms: list[int], size: int, cap: int, numbered: Numbered, has_total: bool
) -> None:
    """`cap`: the platform returns smaller pages than it is asked for, which a total shows."""
    orders = orders_at(*times_ms)
    cap = min(size, cap) if has_total else size
    platform = ModelPlatform(orders, size=cap, paging="none", has_total=has_total, numbered=numbered)
    reading, rows = read(platform, declaration("one", size=size, has_total=has_total, numbered=numbered))
    assert sorted(row.key for row in rows) == sorted(order.key for order in orders)
    assert reading.result.is_proven == has_total
    assert reading.result.short == ()


def test_a_crowd_is_read_from_its_last_page_back() -> None:
    """And no page twice: the first answer has shown how many there are."""
    platform = ModelPlatform(orders_at(*[7] * 60), size=20, paging="none", numbered="number")
    reading, asks = Reading(declaration("one", size=20, numbered="number"), Window(7, 8)), list[str | int | None]()
    while (ask := reading.next()) is not None:
        asks.append(ask.page)
        reading.feed(platform.answer(ask))
    assert asks == [None, 2, 1]


def in_no_order(rows: list[Listed]) -> list[Listed]:
    return sorted(rows, key=lambda row: (row.modified_ms * 617 % 1_009, row.key))


@pytest.mark.parametrize("numbered", ["number", "offset"])
def test_a_window_of_some_pages_costs_no_more_requests_than_it_has_pages(numbered: Numbered) -> None:
    """Whatever sorts it, where pages can be asked for by their number."""
    orders = orders_at(*[number * 7 % 1_000 for number in range(190)])
    platform = ModelPlatform(orders, size=10, paging="none", numbered=numbered, shuffle=in_no_order)
    reading, rows = read(platform, declaration("one", size=10, numbered=numbered), WIDE)
    assert (len(rows), reading.result.requests, reading.result.is_proven) == (190, 19, True)


def test_a_window_of_many_pages_is_cut_into_windows_of_some() -> None:
    orders = orders_at(*range(900))
    platform = ModelPlatform(orders, size=10, paging="none", numbered="number", shuffle=in_no_order)
    reading, rows = read(platform, declaration("one", size=10, numbered="number"), WIDE)
    assert (len(rows), reading.result.is_proven) == (900, True)
    assert reading.result.requests <= 90 * 1.15 + 5


def test_a_crowd_in_a_window_without_numbers_is_found_at_once() -> None:
    """Its moment is cut out, and the rest is read by itself. It fills an answer, so what follows is asked for too."""
    orders = orders_at(*[7 * number for number in range(5)], *[501] * 10)
    platform = ModelPlatform(orders, size=10, paging="none", shuffle=lambda rows: sorted(rows, reverse=True))
    reading, rows = read(platform, declaration("one", size=10), WIDE)
    assert (len(rows), reading.result.is_proven, reading.result.requests) == (15, True, 5)


def test_before_all_pages_are_read_by_number_nothing_is_done() -> None:
    """A crowd at the beginning: the last page comes before those in the middle."""
    platform = ModelPlatform(orders_at(*[0] * 30, *range(1, 31)), size=20, paging="none", numbered="number")
    declared = declaration("one", size=20, numbered="number")
    reading = Reading(replace(declared, pages=replace(declared.pages, sort="ascending")), WIDE)
    for _ in range(2):
        ask = reading.next()
        assert ask is not None
        reading.feed(platform.answer(ask))
    assert reading.done_until_ms == 0


def test_orders_that_leave_while_a_crowd_is_read_take_no_other_along() -> None:
    platform = ModelPlatform(orders_at(*[7] * 60), size=20, paging="none", numbered="offset")
    reading, seen = Reading(declaration("one", size=20, numbered="offset"), Window(7, 8)), set[str]()
    for at, rows in enumerate(read_all(reading, platform)):
        seen.update(row.key for row in rows)
        if at < 3:
            left = min(platform.orders)
            platform.orders = (platform.orders - {left}) | {Listed(LATER_MS, left.key, 2)}
    assert {order.key for order in platform.orders if order.modified_ms == 7} <= seen
    assert reading.result.is_proven


@pytest.mark.parametrize("seed", range(50))
def test_a_crowd_that_nothing_sorts_is_read_until_all_of_it_was_seen(seed: int) -> None:
    orders, chance = orders_at(*[7] * 60), Random(seed)

    def shuffled(rows: list[Listed]) -> list[Listed]:
        return chance.sample(rows, len(rows))

    platform = ModelPlatform(orders, size=20, paging="none", numbered="number", shuffle=shuffled)
    reading, rows = read(platform, declaration("one", size=20, numbered="number"), Window(7, 8))
    assert reading.result.is_proven
    assert len(rows) == 60
    assert reading.result.requests < 60


@pytest.mark.parametrize("has_total", [True, False])
def test_rows_beyond_the_deepest_page_are_missing_and_known_to_be(has_total: bool) -> None:
    platform = ModelPlatform(orders_at(*[7] * 60), size=20, paging="none", numbered="number", has_total=has_total)
    declared = declaration("one", size=20, numbered="number", deepest=40, has_total=has_total)
    reading, rows = read(platform, declared, Window(7, 8))
    assert len(rows) == 40
    assert reading.result.short == (ShortPart(Window(7, 8), 20 if has_total else 0, 60 if has_total else 0),)


@pytest.mark.parametrize("has_total", [True, False], ids=["with a total", "without"])
@pytest.mark.parametrize("numbered", ["number", "offset"])
def test_a_page_that_is_refused_costs_no_other_page_of_one_moment(numbered: Numbered, has_total: bool) -> None:
    """A platform may refuse pages that lie less deep than its documents say. Nothing smaller can be asked for."""
    platform = ModelPlatform(orders_at(*[7] * 100), size=20, paging="none", numbered=numbered, has_total=has_total)
    reading, refused = Reading(declaration(size=20, numbered=numbered, has_total=has_total), WINDOW), 0
    while (ask := reading.next()) is not None:
        if ask.page in ((2, 3, 4) if numbered == "number" else (40, 60, 80)):
            refused += 1
            reading.split("the platform refuses the page")
        else:
            reading.feed(platform.answer(ask))
    result = reading.result
    assert (result.distinct, result.missing, result.is_proven) == (40, 60 if has_total else 0, False)
    assert (len(result.short), refused > 0) == (1, True)


def test_a_total_that_lies_ends_the_reading_by_number_too() -> None:
    platform = ModelPlatform(orders_at(*[7] * 60), size=20, paging="none", numbered="number")
    reading = Reading(declaration("one", size=20, numbered="number"), Window(7, 8))
    while (ask := reading.next()) is not None:
        page = platform.answer(ask)
        page.total = 100
        reading.feed(page)
    assert (reading.result.missing, reading.result.is_proven) == (40, False)
    assert reading.result.requests < 20


@given(many_times, st.integers(1, 9), st.sampled_from(["one", "token"]))
def test_without_a_total_all_is_read_and_nothing_is_proven(
    times_ms: list[int], size: int, style: Literal["one", "token"]
) -> None:
    orders = orders_at(*times_ms)
    platform = ModelPlatform(orders, size=size, paging="keyset", has_total=False)
    reading, rows = read(platform, declaration(style, size=size, has_total=False))
    assert {row.key for row in rows} == {order.key for order in orders}
    assert not reading.result.is_proven


@given(
    st.data(),
    many_times,
    st.sampled_from(["keyset", "offset"]),
    st.sampled_from(["one", "token", "number"]),
    st.integers(1, 5),
    st.booleans(),
)
def test_what_is_proven_is_whole_although_orders_leave_while_one_pages(
    data: st.DataObject, times_ms: list[int], paging: Paging, style: Style, size: int, is_live: bool
) -> None:
    orders = orders_at(*times_ms)
    numbered: Numbered = "number" if style == "number" else ""
    platform = ModelPlatform(
        orders, size=size, paging=paging, numbered=numbered, shuffle=in_no_order if numbered else list
    )
    reading = Reading(declaration(style_of(style), size=size, has_live_total=is_live, numbered=numbered), WINDOW)
    seen: set[str] = set()
    for rows in read_all(reading, platform):
        seen.update(row.key for row in rows)
        inside = sorted(order for order in platform.orders if order.modified_ms < LATER_MS)
        one_leaves: bool = data.draw(st.booleans(), label="one leaves")
        if inside and one_leaves:
            left = data.draw(st.sampled_from(inside))
            platform.orders.remove(left)
            platform.orders.add(Listed(LATER_MS, left.key, 2))
    if reading.result.is_proven or paging == "keyset":
        assert {order.key for order in platform.orders if order.modified_ms < LATER_MS} <= seen


@given(st.data(), many_times, st.sampled_from(["one", "token", "number"]), st.integers(1, 5))
def test_late_comers_hide_nothing_that_was_there_before(
    data: st.DataObject, times_ms: list[int], style: Style, size: int
) -> None:
    orders = orders_at(*times_ms)
    numbered: Numbered = "number" if style == "number" else ""
    platform = ModelPlatform(
        orders, size=size, paging="keyset", numbered=numbered, shuffle=in_no_order if numbered else list
    )
    reading = Reading(declaration(style_of(style), size=size, numbered=numbered), WINDOW)
    seen: set[str] = set()
    late = iter(range(20))
    for rows in read_all(reading, platform):
        seen.update(row.key for row in rows)
        if data.draw(st.booleans(), label="one comes late") and (number := next(late, None)) is not None:
            platform.orders.add(Listed(data.draw(times), f"late{number}", 1))
    if reading.result.is_proven or style != "number":
        assert {order.key for order in orders} <= seen


@given(many_times, st.integers(2, 9))
def test_a_full_page_without_a_total_is_never_taken_for_the_whole(times_ms: list[int], size: int) -> None:
    orders = orders_at(*times_ms)
    platform = ModelPlatform(orders, size=size, paging="none", has_total=False)
    _, rows = read(platform, declaration("one", size=size, has_total=False))
    if max((times_ms.count(at) for at in times_ms), default=0) < size:
        assert {row.key for row in rows} == {order.key for order in orders}


@given(many_times, st.integers(1, 9), st.integers(0, 40))
def test_where_nobody_counts_a_list_that_breaks_off_is_short_by_an_unknown_number(
    times_ms: list[int], size: int, bad: int
) -> None:
    """Rows that cannot be read fill an answer like others."""
    platform = ModelPlatform(orders_at(*times_ms), size=size, paging="none", has_total=False)
    reading = Reading(declaration("one", size=size, has_total=False), WINDOW, sets_bad_aside=True)
    while (ask := reading.next()) is not None:
        page = platform.answer(ask)
        odd = [row for row in page.rows if row.key == f"o{bad}"]
        page.rows = [row for row in page.rows if row not in odd]
        page.bad = [BadRow(row.key, "odd", b"{}") for row in odd]
        reading.feed(page)
    full = {at for at in times_ms if times_ms.count(at) >= size}
    assert {part.window.start_ms for part in reading.result.short} == full
    assert all((part.missing, part.listed) == (0, 0) for part in reading.result.short)


def test_a_full_answer_is_the_last_one_where_every_other_names_the_next() -> None:
    declared = Declaration("named", pages=PageRules(size=2, has_next=True))
    reading = Reading(declared, Window(0, 1))
    reading.feed(Page([Row("a", 1, 0, b"{}"), Row("b", 1, 0, b"{}")]))
    assert reading.is_done
    assert reading.result.short == ()


@pytest.mark.parametrize("style", ["one", "token"])
def test_a_platform_that_says_there_is_more_and_names_no_way_to_it_is_short(style: Literal["one", "token"]) -> None:
    reading = Reading(declaration(style, size=9, has_total=False), Window(0, 2))
    reading.feed(Page([Row("a", 1, 0, b"{}")], has_more=True))
    assert reading.next() == (Window(0, 1), None)
    reading.feed(Page([Row("a", 1, 0, b"{}")], has_more=True))
    reading.feed(Page([]))
    assert reading.is_done
    assert reading.result.short == (ShortPart(Window(0, 1), 0, 0),)


@pytest.mark.parametrize("at_end", [Page([]), EMPTY_PAGE], ids=["a page without a total", "nothing there"])
def test_a_count_told_with_the_first_page_only_is_not_forgotten(at_end: Page) -> None:
    reading = Reading(declaration("token", size=2), Window(0, 1))
    while reading.next() is not None:
        reading.feed(Page([Row("a", 1, 0, b"{}"), Row("b", 1, 0, b"{}")], next="2", total=5))
        reading.feed(at_end)
    assert (reading.result.missing, reading.result.short) == (3, (ShortPart(Window(0, 1), 3, 5),))


def test_orders_that_left_while_one_paged_are_not_missing() -> None:
    reading = Reading(declaration("token", size=2), Window(0, 1))
    while reading.next() is not None:
        reading.feed(Page([Row("a", 1, 0, b"{}"), Row("b", 1, 0, b"{}")], next="2", total=3))
        reading.feed(Page([], total=2))
    assert (reading.result.is_proven, reading.result.missing, reading.result.is_counted) == (False, 0, True)


def test_a_total_counted_with_each_page_need_not_be_asked_for_again() -> None:
    orders = orders_at(*range(10))
    for has_live_total, requests in ((True, 4), (False, 5)):
        platform = ModelPlatform(orders, size=3, paging="offset")
        reading, rows = read(platform, declaration("token", has_live_total=has_live_total))
        assert (len(rows), reading.result.is_proven, reading.result.requests) == (10, True, requests)


def test_a_live_total_that_is_another_on_the_last_page_closes_nothing() -> None:
    reading = Reading(declaration("token", size=2, has_live_total=True), WINDOW)
    reading.feed(Page([Row("a", 1, 1, b"{}"), Row("b", 1, 2, b"{}")], next="2", total=3))
    reading.feed(Page([Row("d", 1, 4, b"{}")], total=2))
    assert not reading.is_done


def test_a_total_that_is_another_at_the_end_closes_nothing_although_the_keys_are_as_many() -> None:
    """One leaves, which hides a third, and one comes late, which makes up the number; then the late one leaves too."""
    reading = Reading(declaration("token", size=2), WINDOW)
    reading.feed(Page([Row("a", 1, 1, b"{}"), Row("b", 1, 2, b"{}")], next="2", total=4))
    reading.feed(Page([Row("d", 1, 4, b"{}"), Row("late", 1, 5, b"{}")], total=4))
    assert reading.next() == (WINDOW, None)
    reading.feed(Page([Row("b", 1, 2, b"{}"), Row("d", 1, 4, b"{}")], next="2", total=3))
    ask = reading.next()
    assert ask is not None
    assert ask.window != WINDOW


def test_drift_by_offset_is_found_out_and_mended() -> None:
    """One order leaves after the first page, and the one behind it slips onto the page already read."""
    platform = ModelPlatform(orders_at(*range(9)), size=3, paging="offset")
    reading = Reading(declaration("token"), WINDOW)
    seen: set[str] = set()
    for number, rows in enumerate(read_all(reading, platform)):
        seen.update(row.key for row in rows)
        if number == 0:
            platform.orders = {order for order in platform.orders if order.key != "o0"} | {Listed(LATER_MS, "o0", 2)}
            assert "o3" not in seen
    assert seen == {f"o{number}" for number in range(9)}
    assert reading.result.is_proven


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(upper="absent"),
        Bounds(lower="absent"),
        Bounds(step_ms=1000, time=TimeStyle("wall", "Europe/Berlin")),
        Bounds(step_ms=100_000_000_000),
    ],
)
def test_where_nothing_smaller_can_be_asked_for_a_count_that_is_off_is_read_again(bounds: Bounds) -> None:
    """Cutting such a window would ask for all of it in each piece. Three readings, then it is unproven."""
    declared = Declaration(
        "wide", window=WindowRules(bounds=bounds), pages=PageRules(style="token", size=2, has_total=True)
    )
    fold = Window(1_792_890_000_000, 1_792_890_600_000)
    rows = [Row(f"o{number}", 1, fold.start_ms + number, b"{}") for number in range(4)]
    for drifts, is_proven, requests in ((1, True, 5), (2, True, 7), (3, False, 6)):
        reading = Reading(declared, fold)
        asks = []
        while (ask := reading.next()) is not None:
            asks.append(ask)
            has_drifted = asks.count(Ask(fold, None)) <= drifts
            second = rows[3:] if has_drifted else rows[2:]
            reading.feed(Page(rows[:2], next="2", total=4) if ask.page is None else Page(second, total=4))
        assert {ask.window for ask in asks} == {fold}
        assert (reading.result.is_proven, reading.result.requests) == (is_proven, requests)
        assert reading.result.missing == (0 if is_proven else 1)


def test_the_parts_are_cut_by_the_total_so_that_few_requests_do() -> None:
    orders = orders_at(*range(0, 10_000, 10))
    reading, rows = read(ModelPlatform(orders, size=100, paging="none"), declaration(size=100), Window(0, 10_000))
    assert len(rows) == 1_000
    assert reading.result.requests <= 16  # halving would take 31


def test_each_key_is_handed_out_once_and_again_with_a_higher_version() -> None:
    reading = Reading(declaration("token", size=2), WINDOW)
    first = Row("a", 2, 5, b"{}")
    assert reading.feed(Page([first, Row("b", 1, 5, b"{}")], next="2", total=4)) == [first, Row("b", 1, 5, b"{}")]
    newer = Row("a", 3, 6, b"{}")
    assert reading.feed(Page([Row("b", 1, 5, b"{}"), newer, Row("a", 1, 5, b"{}")], next="3", total=4)) == [newer]


def test_of_two_versions_in_one_page_the_higher_is_handed_out() -> None:
    for versions in ((1, 2), (2, 1)):
        reading = Reading(declaration(), WINDOW)
        rows = reading.feed(Page([Row("a", version, 5, b"{}") for version in versions], total=2))
        assert [(row.key, row.version) for row in rows] == [("a", 2)]


def test_an_unordered_version_is_handed_out_whenever_it_is_another() -> None:
    declared = Declaration("hashed", pages=PageRules(style="token", size=1), is_version_ordered=False)
    reading = Reading(declared, WINDOW)
    assert len(reading.feed(Page([Row("a", 9, 5, b"{}")], next="1"))) == 1
    assert len(reading.feed(Page([Row("a", 9, 5, b"{}")], next="2"))) == 0
    assert len(reading.feed(Page([Row("a", 3, 5, b"{}")]))) == 1


def test_a_total_of_100_with_99_rows_ends_unproven_with_all_99() -> None:
    """The hundredth order is counted and never listed, wherever one looks."""
    orders = orders_at(*[number % 64 for number in range(99)])
    platform = ModelPlatform([*orders, Listed(9, "hidden", 1)], size=100, paging="none")
    reading = Reading(declaration(size=100), WINDOW)
    seen = []
    while (ask := reading.next()) is not None:
        page = platform.answer(ask)
        page.rows = [row for row in page.rows if row.key != "hidden"]
        seen += reading.feed(page)
    assert len(seen) == 99
    assert not reading.result.is_proven
    assert reading.result.missing == 1
    assert reading.result.requests < 30


def test_what_is_allowed_here_is_what_messages_carry() -> None:
    assert (LONGEST_KEY, LARGEST) == (LONGEST_ORDER_KEY, 2**63 - 1)
    deep = Row("a", 1, 5, b"[" * 500 + b"]" * 500)
    assert Reading(declaration(), WINDOW).feed(Page([deep], total=1)) == [deep]


def test_asking_again_without_an_answer_asks_the_same() -> None:
    reading = Reading(declaration(), WINDOW)
    assert reading.next() == reading.next() == (WINDOW, None)
