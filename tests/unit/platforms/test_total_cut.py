"""A platform that counts and lists only so many orders of any window, on all pages together, loses none of them."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from platforms.adapter import Page
from platforms.bounds import Bounds, Window
from platforms.errors import PageCut
from platforms.page_check import PageSize, may_be_limit
from platforms.reading import Ask, Reading
from tests.unit.platforms.listing_model import Listed, ModelPlatform, declaration, row_of

SIZE = 10
WINDOW = Window(0, 100_000)
TOTALS = " (total)"
LISTS = " (list)"


class CappedSearch(ModelPlatform):
    """Finds at most `cap` orders of a window, by their keys. Its total counts those."""

    def __init__(self, orders: list[Listed], cap: int, *, has_tokens: bool = False) -> None:
        super().__init__(orders, size=SIZE, paging="offset" if has_tokens else "none", numbered="number")
        self.cap = cap
        self.both_include = False
        self.requests = 0

    def answer(self, ask: Ask) -> Page:
        self.requests += 1
        start_ms, end_ms = ask.window.start_ms, ask.window.end_ms + self.both_include
        rows = sorted(
            (each for each in self.orders if start_ms <= each.modified_ms < end_ms), key=lambda each: each.key
        )
        rows = rows[: self.cap]
        begin = self._begin(rows, ask.page)
        shown = rows[begin : begin + self.size]
        return Page([row_of(each) for each in shown], self._token(begin + len(shown), shown), len(rows))

    def _token(self, end: int, shown: list[Listed]) -> str | None:
        return super()._token(end, shown) if len(shown) == self.size else None


def orders(count: int, at_ms: Callable[[Random], int] = lambda chance: chance.randrange(100_000)) -> list[Listed]:
    chance = Random(count)
    return [Listed(at_ms(chance), f"o{number:04}", 1) for number in range(count)]


def read(platform: CappedSearch, known: dict[str, PageSize], window: Window = WINDOW) -> tuple[set[str], Reading]:
    style: Literal["one", "token"] = "token" if platform.paging == "offset" else "one"
    declared = declaration(style, size=SIZE, numbered="" if style == "token" else "number")
    if style == "token":
        declared = replace(declared, pages=replace(declared.pages, has_next=True, has_end=True))
    if platform.both_include:
        bounds = Bounds(lower="includes", upper="includes")
        declared = replace(declared, window=replace(declared.window, bounds=bounds))
    reading = Reading(declared, window, page_sizes=known)
    found: set[str] = set()
    while (ask := reading.next()) is not None:
        found |= {row.key for row in reading.feed(platform.answer(ask))}
    return found, reading


@pytest.mark.parametrize("has_tokens", [False, True], ids=["numbers", "tokens"])
@pytest.mark.parametrize(
    "where",
    [
        lambda chance: chance.randrange(100_000),
        lambda chance: chance.randrange(60_000, 100_000),
        lambda chance: chance.randrange(1_000),
        lambda chance: int(chance.triangular(0, 99_999, 70_000)),
    ],
    ids=["even", "in the last half", "in a second", "in a heap"],
)
def test_a_cut_total_is_found_out_by_those_of_two_halves(where: Callable[[Random], int], has_tokens: bool) -> None:
    platform, known = CappedSearch(orders(450, where), 100, has_tokens=has_tokens), dict[str, PageSize]()
    found, reading = read(platform, known)
    assert len(found) == 450
    assert reading.result.is_proven
    assert known.get(TOTALS, PageSize()).rows < 100
    assert len(read(platform, known)[0]) == 450, "and so is the next one, whatever the first has shown"


def growing(listed: list[Listed], slices: int) -> Iterator[tuple[Window, set[str]]]:
    """Yield windows from the same start, each longer than the one before, with the keys of its orders."""
    for number in range(slices):
        window = Window(0, 100_000 * (number + 1) // slices)
        yield window, {each.key for each in listed if each.modified_ms < window.end_ms}


@given(st.integers(0, 300), st.sampled_from([50, 64, 90, 99, 100, 125, 200]), st.booleans(), st.integers(1, 12))
def test_windows_that_grow_are_read_whole_whatever_the_limit(
    count: int, cap: int, has_tokens: bool, slices: int
) -> None:
    listed, known = orders(count), dict[str, PageSize]()
    for window, there in growing(listed, slices):
        found, reading = read(CappedSearch(listed, cap, has_tokens=has_tokens), known, window)
        assert found == there
        assert reading.result.is_proven


@pytest.mark.parametrize("others", [[], [90_000]], ids=["alone", "beside another"])
def test_more_orders_of_one_moment_than_the_platform_lists_are_never_proven(others: list[int]) -> None:
    """Nothing smaller can be asked for. Beside another order the totals show for certain that some are left out."""
    listed = [Listed(at_ms, f"o{number:04}", 1) for number, at_ms in enumerate([*others, *[40_000] * 150])]
    found, reading = read(CappedSearch(listed, 100), {})
    assert len(found) == 100 + len(others)
    assert not reading.result.is_proven
    assert [(part.window, part.listed) for part in reading.result.short] == [(Window(40_000, 40_001), 100)] * len(
        others
    )


@pytest.mark.parametrize("has_tokens", [False, True], ids=["numbers", "tokens"])
def test_a_whole_total_costs_two_requests_until_one_is_larger(has_tokens: bool) -> None:
    platform, known = CappedSearch(orders(90), 1_000, has_tokens=has_tokens), {TOTALS: PageSize(91), "": PageSize()}
    read(platform, known)
    usual, known = platform.requests, dict[str, PageSize]()
    for _ in range(3):
        platform.requests = 0
        assert len(read(platform, known)[0]) == 90
        assert platform.requests == usual + 2
    read(CappedSearch(orders(91), 1_000, has_tokens=has_tokens), known)
    platform.requests = 0
    read(platform, known)
    assert (platform.requests, known[TOTALS].rows) == (usual, 91)


def test_orders_at_the_seam_of_two_halves_are_no_cut() -> None:
    """Both halves list them, as both bounds include. Two halves with another seam show that nothing is cut."""
    listed = [Listed(50_000 + number % 2, f"o{number:02}", 1) for number in range(60)]
    listed += [Listed(number * 997, f"p{number:02}", 1) for number in range(30)]
    platform, known = CappedSearch(listed, 1_000), {TOTALS: PageSize(91)}
    platform.both_include = True
    read(platform, known)
    usual, platform.requests, known = platform.requests, 0, {}
    assert len(read(platform, known)[0]) == 90
    assert (platform.requests, known[TOTALS].rows) == (usual + 5, 90)


@pytest.mark.parametrize("both_include", [False, True], ids=["apart", "both include"])
def test_a_crowd_at_the_seam_of_two_halves_hides_no_cut(both_include: bool) -> None:
    at_ms = [*range(0, 30_000, 1_000), *[50_000] * 60, *range(60_000, 90_000, 1_000)]
    platform = CappedSearch([Listed(each, f"o{number:03}", 1) for number, each in enumerate(at_ms)], 100)
    platform.both_include = both_include
    found, reading = read(platform, {})
    assert (len(found), reading.result.is_proven) == (120, True)


def test_a_total_that_a_half_does_not_have_shows_nothing() -> None:
    class Forgetful(CappedSearch):
        def answer(self, ask: Ask) -> Page:
            page = super().answer(ask)
            page.total = None if ask.window != WINDOW else page.total
            return page

    platform, known = Forgetful(orders(90), 1_000), dict[str, PageSize]()
    assert len(read(platform, known)[0]) == 90
    assert known[TOTALS] == PageSize()


def test_a_half_that_is_too_wide_ends_the_check() -> None:
    platform = CappedSearch(orders(90), 1_000)
    reading = Reading(declaration("one", size=SIZE, numbered="number"), WINDOW, page_sizes={})
    first = reading.next()
    assert first is not None
    found = {row.key for row in reading.feed(platform.answer(first))}
    reading.split()
    while (ask := reading.next()) is not None:
        found |= {row.key for row in reading.feed(platform.answer(ask))}
    assert len(found) == 90


def test_an_answer_that_names_no_next_page_and_was_cut_is_found_out() -> None:
    """As with a file that looks for the next page under a wrong name."""
    platform = CappedSearch(orders(45), 1_000, has_tokens=True)
    declared = declaration("token", size=20, has_total=False)
    declared = replace(declared, pages=replace(declared.pages, has_next=True, has_end=True))
    reading = Reading(declared, WINDOW, page_sizes={})

    def answer() -> Page:
        ask = reading.next()
        assert ask is not None
        page = platform.answer(ask)
        page.next, page.total = None, None
        return page

    reading.feed(answer())
    reading.feed(answer())
    reading.feed(answer())
    last = answer()
    with pytest.raises(PageCut, match=r"10 orders at most, and names no next page"):
        reading.feed(last)


def test_a_total_that_nobody_chooses_as_a_limit_is_not_checked() -> None:
    platform, known = CappedSearch(orders(93), 1_000), dict[str, PageSize]()
    read(platform, known)
    assert (platform.requests, known[TOTALS].rows) == (10, 93)


@pytest.mark.parametrize("has_tokens", [False, True], ids=["numbers", "tokens"])
def test_a_limit_that_is_not_round_is_found_out_when_it_comes_again(has_tokens: bool) -> None:
    platform, known = CappedSearch(orders(450), 93, has_tokens=has_tokens), dict[str, PageSize]()
    assert len(read(platform, known)[0]) == 93, "nobody can know"
    found, reading = read(platform, known)
    assert (len(found), reading.result.is_proven, known[TOTALS].rows) == (450, True, 93)
    assert len(read(platform, known)[0]) == 450


class CappedList(CappedSearch):
    """Has no total. `ends`: whether the last page says so."""

    def answer(self, ask: Ask) -> Page:
        page = super().answer(ask)
        page.total = None
        return page


def read_list(platform: CappedSearch, known: dict[str, PageSize], window: Window = WINDOW) -> tuple[set[str], Reading]:
    platform.requests = 0
    declared = declaration("token", size=SIZE, has_total=False)
    pages = replace(declared.pages, has_next=True, has_end=True, end_is_proof=True)
    reading, found = Reading(replace(declared, pages=pages), window, page_sizes=known), set[str]()
    while (ask := reading.next()) is not None:
        found |= {row.key for row in reading.feed(platform.answer(ask))}
    return found, reading


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 63), st.integers(1, 40)), max_size=6), min_size=1, max_size=3),
    st.sampled_from([20, 25, 50]),
    st.booleans(),
    st.sampled_from(["numbers", "tokens", "no total"]),
)
@example([[(0, 11), (17, 40)]], 50, True, "numbers")
@example([[(0, 10), (1, 40)], [(0, 10), (1, 40)], [(0, 51)]], 50, False, "numbers")
@example([[(0, 26)]], 25, False, "no total")
def test_wherever_crowds_are_no_window_is_proven_with_an_order_missing(
    windows: list[list[tuple[int, int]]], cap: int, both_include: bool, kind: str
) -> None:
    """Each window has crowds at some moments, and all share what is known of the platform."""
    known = dict[str, PageSize]()
    for crowds in windows:
        at_ms = [at for at, count in crowds for _ in range(count)]
        listed = [Listed(at, f"o{number * 37 % 997:03}", 1) for number, at in enumerate(at_ms)]
        made, reads = (CappedList, read_list) if kind == "no total" else (CappedSearch, read)
        platform = made(listed, cap, has_tokens=kind != "numbers")
        platform.both_include = both_include
        found, reading = reads(platform, known, Window(0, 64))
        assert not reading.result.is_proven or len(found) == len(listed)
        assert platform.requests < 40 + 6 * len(listed)


def test_a_list_without_a_total_that_ends_at_a_limit_is_read_in_halves() -> None:
    platform, known = CappedList(orders(450), 100, has_tokens=True), dict[str, PageSize]()
    for _ in range(3):
        found, reading = read_list(platform, known)
        assert len(found) == 450
        assert reading.result.is_proven


def test_a_list_without_a_total_that_ends_at_a_number_that_may_be_a_limit_is_read_again() -> None:
    platform, known = CappedList(orders(100), 1_000, has_tokens=True), dict[str, PageSize]()
    for most in (22, 22, 22):
        found, _reading = read_list(platform, known)
        assert len(found) == 100
        assert 11 < platform.requests <= most


def test_a_list_of_pages_without_rows_is_not_cut() -> None:
    """Filters of some platforms leave pages empty, and name a next one all the same."""

    class Empty(CappedList):
        def answer(self, ask: Ask) -> Page:
            self.requests += 1
            return Page([], None if ask.page else "next", None)

    platform = Empty([], 100, has_tokens=True)
    assert read_list(platform, {})[1].result.distinct == 0
    assert platform.requests == 2


def test_the_halves_of_a_list_cost_as_much_as_the_list_once_more() -> None:
    """They end at round numbers too, and those are below what the whole has shown."""
    listed = [Listed(number * 250, f"o{number:04}", 1) for number in range(400)]
    platform = CappedList(listed, 1_000, has_tokens=True)
    assert len(read_list(platform, {})[0]) == 400
    assert platform.requests <= 2 * 42


def test_a_larger_list_shows_that_a_smaller_one_was_whole() -> None:
    known = dict[str, PageSize]()
    for count, requests in ((123, 13), (100, 11), (97, 10)):
        platform = CappedList(orders(count), 1_000, has_tokens=True)
        assert len(read_list(platform, known)[0]) == count
        assert platform.requests == requests


@given(st.integers(0, 300), st.sampled_from([50, 99, 100, 125, 200]), st.integers(1, 12))
def test_windows_that_grow_hide_no_order_of_a_list_without_a_total(count: int, cap: int, slices: int) -> None:
    listed, known = orders(count), dict[str, PageSize]()
    for window, there in growing(listed, slices):
        found, _ = read_list(CappedList(listed, cap, has_tokens=True), known, window)
        assert found == there


@pytest.mark.parametrize(
    ("count", "may_be"),
    [(1_000, True), (250, True), (4_096, True), (9_999, True), (10_001, True), (65_535, True), (1_203, False)],
)
def test_limits_are_round_numbers(count: int, may_be: bool) -> None:
    assert may_be_limit(count) == may_be
