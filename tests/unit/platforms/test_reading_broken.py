"""What a reading makes of platforms that repeat pages, miscount or ignore windows, and of rows that nobody can read."""

from contextlib import nullcontext
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from platforms.adapter import (
    LONGEST_KEY,
    BadRow,
    Declaration,
    Page,
    PageRules,
    Row,
    WindowRules,
)
from platforms.bounds import Bounds, Window
from platforms.details import without_details
from platforms.errors import BrokenContract, Unreadable
from platforms.reading import Ask, Reading
from tests.unit.platforms.listing_model import ModelPlatform, declaration, read_all
from tests.unit.platforms.reading_examples import WIDE, WINDOW, many_times, orders_at, read


@pytest.mark.parametrize("end_is_proof", [True, False], ids=["proof", "no proof"])
def test_a_page_that_comes_again_in_place_of_the_next_is_no_end(end_is_proof: bool) -> None:
    """Tokens hold a place, and a cache or a slow index answers one of them with the page before."""

    class Repeating(ModelPlatform):
        answers = 0
        before = Page([])

        def answer(self, ask: Ask) -> Page:
            self.answers += 1
            page = super().answer(ask)
            self.before.next, shown = page.next, self.before if self.answers == 3 else page
            self.before = page
            return shown

    declared = declaration("token", size=3, has_total=False)
    pages = replace(declared.pages, has_next=True, has_end=True, end_is_proof=end_is_proof)
    _, rows = read(
        Repeating(orders_at(*range(10)), size=3, paging="keyset", has_total=False), replace(declared, pages=pages)
    )
    assert len(rows) == 10


class PageCounting(ModelPlatform):
    """Its total counts the orders of one answer."""

    def answer(self, ask: Ask) -> Page:
        page = super().answer(ask)
        page.total = len(page.rows)
        return page


@pytest.mark.parametrize("has_live_total", [False, True], ids=["asked again", "live"])
@pytest.mark.parametrize("style", ["token", "link"])
def test_a_total_that_counts_one_page_is_found_out(style: Literal["token", "link"], has_live_total: bool) -> None:
    platform = PageCounting(orders_at(*range(8)), size=3, paging="keyset")
    with pytest.raises(Unreadable, match="3 orders and then 3 others, as many as each answer lists"):
        read(platform, declaration(style, size=3, has_live_total=has_live_total))


@given(many_times, st.sampled_from(["token", "link", "one"]), st.integers(1, 9), st.booleans())
def test_a_window_whose_total_counts_one_page_is_never_short_in_silence(
    times_ms: list[int], style: Literal["one", "token", "link"], size: int, is_one_page: bool
) -> None:
    orders = orders_at(*times_ms[: size if is_one_page else None])
    try:
        reading, rows = read(PageCounting(orders, size=size, paging="keyset"), declaration(style, size=size))
    except Unreadable:
        assert len(orders) > size
    else:
        assert {row.key for row in rows} == {order.key for order in orders} or not reading.result.is_proven


@pytest.mark.parametrize("total", [1, 0], ids=["of the window", "of the page"])
def test_a_platform_that_always_names_a_next_page_is_read_until_a_page_is_empty(total: int) -> None:
    reading = Reading(declaration("token"), WINDOW)
    reading.feed(Page([Row("a", 1, 5, b"{}")], next="t1", total=1))
    assert reading.next() == (WINDOW, "t1")
    reading.feed(Page([], next="t1", total=total))
    while (ask := reading.next()) is not None:
        assert ask == (WINDOW, None)
        reading.feed(Page([Row("a", 1, 5, b"{}")], next="t1", total=1))
    assert reading.result.is_proven


def test_a_total_of_one_page_hides_no_page_that_has_no_name() -> None:
    reading = Reading(declaration("token"), WINDOW)
    reading.feed(Page([Row("a", 1, 5, b"{}")], total=1, has_more=True))
    assert reading.next() == (Window(0, 5), None)


@pytest.mark.parametrize("token", ["t1", "https://api.example.com/orders?page=2"])
def test_the_same_next_page_twice_is_a_broken_contract(token: str) -> None:
    reading = Reading(declaration("token"), WINDOW)
    reading.feed(Page([Row("a", 1, 5, b"{}")], next=token))
    with pytest.raises(BrokenContract, match="same next page again"):
        reading.feed(Page([Row("a", 1, 5, b"{}")], next=token))


def test_a_platform_that_repeats_its_first_page_under_new_names_is_found_out_soon() -> None:
    """A parameter of another release of the interface is ignored in silence (Shopee's `offset`)."""
    reading = Reading(declaration("token", has_total=False), WINDOW)
    page = [Row("a", 1, 5, b"{}"), Row("b", 1, 5, b"{}")]
    for number in range(10):
        reading.feed(Page(page, next=str(number)))
    with pytest.raises(
        BrokenContract, match=r"10 pages in a row of orders from \S+00Z to \S+00\.064Z list the same again"
    ):
        reading.feed(Page(page, next="10"))


def test_some_pages_that_repeat_orders_are_drift_and_not_the_end() -> None:
    reading = Reading(declaration("token", has_total=False), WINDOW)
    for number in range(9):
        reading.feed(Page([Row("a", 1, 5, b"{}")], next=str(number)))
    reading.feed(Page([], next="empty"))
    reading.feed(Page([Row("b", 1, 5, b"{}")], next="more"))
    for number in range(9):
        reading.feed(Page([Row("a", 1, 5, b"{}")], next=f"again {number}"))
    assert reading.next() == (WINDOW, "again 8")


def test_a_reading_that_never_ends_is_ended() -> None:
    reading = Reading(declaration("token", most_requests=50), WINDOW)
    numbers = iter(range(1_000))

    def read_on() -> None:
        while reading.next() is not None:
            reading.feed(Page([], next=str(next(numbers))))

    with pytest.raises(BrokenContract, match="50 requests did not come to the end"):
        read_on()


def test_an_empty_page_in_the_middle_is_not_the_end() -> None:
    reading = Reading(declaration("token", has_total=False), WINDOW)
    reading.feed(Page([Row("a", 1, 5, b"{}")], next="1"))
    reading.feed(Page([], next="2"))
    assert reading.next() == (WINDOW, "2")


def test_rows_of_the_neighbours_are_cut_off_and_counted() -> None:
    declared = Declaration(
        "closed", window=WindowRules(bounds=Bounds("includes", "includes", step_ms=1000)), pages=PageRules(size=9)
    )
    reading = Reading(declared, Window(1_500, 3_000))
    rows = [Row(str(at), 1, at, b"{}") for at in (1_001, 1_499, 1_500, 2_999, 3_000)]
    assert [row.modified_ms for row in reading.feed(Page(rows))] == [1_500, 2_999]
    assert (reading.result.cut, reading.result.strays, reading.result.distinct) == (3, 0, 2)


def test_rows_without_a_certain_time_are_never_cut_off() -> None:
    reading = Reading(declaration(), WINDOW)
    row = Row("a", 1, None, b"{}")
    assert reading.feed(Page([row], total=1)) == [row]


def test_a_stray_row_is_handed_out_because_nobody_else_may_list_it() -> None:
    reading = Reading(declaration(), WINDOW)
    rows = [Row("a", 1, 5, b"{}"), Row("stray", 1, 900_000, b"{}")]
    assert reading.feed(Page(rows, total=2)) == rows
    assert reading.result.strays == 1


def test_a_platform_that_ignores_the_window_is_found_out() -> None:
    """A misspelt filter brings the whole history back, page for page (Mercado Libre does)."""
    reading = Reading(declaration(size=50), WINDOW)
    with pytest.raises(BrokenContract, match="ignores the window"):
        reading.feed(Page([Row(str(at), 1, 100_000 + at, b"{}") for at in range(50)], total=50_000))


def test_a_platform_that_ignores_the_end_is_found_out_although_each_page_has_some_rows_of_the_window() -> None:
    class Endless(ModelPlatform):
        def answer(self, ask: Ask) -> Page:
            return super().answer(Ask(Window(ask.window.start_ms, 10**9), ask.page))

    platform = Endless(orders_at(*range(3, 24_403, 61)), size=20, paging="none")
    reading = Reading(declaration("one", size=20), WIDE)
    with pytest.raises(Unreadable, match="ignores the window"):
        for _ in read_all(reading, platform):
            pass
    assert reading.result.requests < 20


def timeless(*keys: str, version: int = 1) -> Page:
    return Page([Row(key, version, None, b"{}") for key in keys], total=len(keys))


def checking(window: Window = WINDOW, declared: Declaration | None = None) -> Reading:
    return Reading(declared or declaration(size=50), window, checks_window=True)


@pytest.mark.parametrize("count", [1, 3, 50])
def test_where_no_row_tells_its_time_two_windows_apart_show_whether_the_window_is_obeyed(count: int) -> None:
    reading, shop = checking(), timeless(*(f"o{n}" for n in range(count)))
    reading.feed(shop)
    assert reading.next() == (Window(0, 21), None)
    assert reading.feed(shop) == []
    assert reading.next() == (Window(43, 64), None)
    with pytest.raises(
        Unreadable, match=r"from \S+:00Z to \S+00\.021Z as from \S+00\.043Z to \S+00\.064Z: it ignores the window"
    ):
        reading.feed(shop)


@pytest.mark.parametrize(
    ("first", "last"), [(("a", "b", "c"), ("b", "c")), (("a",), ("a", "b", "c"))], ids=["no end", "no start"]
)
def test_a_window_of_which_one_bound_is_ignored_is_found_out(first: tuple[str, ...], last: tuple[str, ...]) -> None:
    reading = checking()
    reading.feed(timeless("a", "b", "c"))
    reading.feed(timeless(*first))
    with pytest.raises(Unreadable, match="it ignores the window"):
        reading.feed(timeless(*last))


@pytest.mark.parametrize(
    ("first", "last", "obeys"),
    [
        (("a",), ("c",), True),
        (("a", "b"), (), False),
        ((), (), False),
        (("a", "b", "x", "y", "z"), ("z", "c", "d"), True),
    ],
)
def test_a_window_that_is_obeyed_is_read_on_after_the_check(
    first: tuple[str, ...], last: tuple[str, ...], obeys: bool
) -> None:
    """One order in both is no proof: a platform may list an order once for each of its changes."""
    reading = checking()
    assert len(reading.feed(timeless("a", "b", "c"))) == 3
    reading.feed(timeless(*first))
    reading.feed(timeless(*last))
    assert reading.next() is None
    assert (reading.obeys, reading.result.is_proven, reading.result.requests) == (obeys, True, 3)


def test_other_states_of_one_order_in_both_windows_are_changes_and_not_the_whole_shop() -> None:
    reading = checking()
    reading.feed(timeless("a"))
    reading.feed(timeless("a", version=2))
    reading.feed(timeless("a", version=3))
    assert reading.obeys


@pytest.mark.parametrize(
    "reading",
    [
        Reading(declaration(size=50), WINDOW),
        checking(Window(0, 2)),
        checking(declared=Declaration("absent", WindowRules(bounds=Bounds(upper="absent")))),
    ],
    ids=["not wanted", "too narrow", "no upper bound"],
)
def test_what_cannot_be_checked_or_need_not_be_is_not(reading: Reading) -> None:
    reading.feed(timeless("a"))
    assert (reading.next(), reading.obeys) == (None, None)


def test_rows_that_tell_their_time_need_no_check() -> None:
    reading = checking()
    reading.feed(Page([Row("a", 1, None, b"{}"), Row("b", 1, 5, b"{}")], total=2))
    assert (reading.next(), reading.obeys) == (None, None)


def test_empty_windows_wait_with_the_check_for_rows() -> None:
    reading = checking(declared=declaration(size=2))
    reading.feed(Page([], total=9))
    ask = reading.next()
    assert ask is not None
    reading.feed(timeless("a"))
    assert reading.next() == (Window(ask.window.start_ms, ask.window.start_ms + ask.window.end_ms // 3), None)


def test_a_check_that_is_too_wide_for_the_platform_is_left_out_and_has_shown_nothing() -> None:
    reading = checking()
    reading.feed(timeless("a"))
    reading.split()
    assert (reading.next(), reading.obeys) == (None, False)


def test_an_order_that_is_too_large_goes_aside_alone() -> None:
    declared = Declaration("small", pages=PageRules(size=9, has_total=True), largest_row=1_000)
    reading = Reading(declared, WINDOW, sets_bad_aside=True)
    rows = reading.feed(Page([Row("a", 1, 5, b"{}"), Row("big", 1, 5, b"x" * 10_000_000)], total=2))
    assert [row.key for row in rows] == ["a"]
    assert reading.next() is None
    assert reading.result.is_proven
    (bad,) = reading.result.bad
    assert bad.key == "big"
    assert "10000000 bytes" in bad.reason
    assert len(bad.body) == 4_096


def test_bad_rows_that_nobody_sets_aside_break_the_reading_after_the_good_ones() -> None:
    reading = Reading(declaration(), WINDOW)
    bad = BadRow("b", "the key is empty", b"{}")
    assert len(reading.feed(Page([Row("a", 1, 5, b"{}")], total=2, bad=[bad]))) == 1
    with pytest.raises(BrokenContract, match="1 rows cannot be read; the first, key 'b': the key is empty"):
        reading.next()


def test_bad_rows_by_the_hundred_are_the_declaration_s_fault() -> None:
    reading = Reading(declaration(size=200), WINDOW, sets_bad_aside=True)
    good = [Row(f"g{n}", 1, 5, b"{}") for n in range(200)]
    with pytest.raises(BrokenContract, match="101 rows cannot be read"):
        reading.feed(Page(good, total=301, bad=[BadRow(str(n), "no time", b"{}") for n in range(101)]))


@pytest.mark.parametrize(
    ("good", "bad", "is_trusted", "fails"),
    [
        (0, 1, False, True),
        (1, 1, False, False),
        (1, 2, False, True),
        (0, 2, True, False),
        (0, 3, True, True),
        (3, 3, True, False),
        (52, 53, True, True),
    ],
)
def test_where_most_rows_of_an_answer_cannot_be_read_the_reading_ends_and_says_so(
    good: int, bad: int, is_trusted: bool, fails: bool
) -> None:
    """One or two rows alone may be odd ones, of a platform whose rows could be read before."""
    page = Page(
        [Row(f"g{n}", 1, 5, b"{}") for n in range(good)],
        total=good + bad,
        bad=[BadRow(f"b{n}", f"rows[{n}]: no version", b'{"n":%d}' % n) for n in range(bad)],
    )
    reading = Reading(declaration(size=200), WINDOW, sets_bad_aside=True, is_trusted=is_trusted)
    if not fails:
        assert len(reading.feed(page)) == good
        assert len(reading.bad) == bad
        return
    with pytest.raises(Unreadable) as told:
        reading.feed(page)
    assert told.value.reason == (
        f"{bad} of {good + bad} rows of an answer cannot be read; the first, key 'b0': rows[0]: no version"
    )
    assert told.value.said == b'{"n":0}'
    assert reading.bad == ()


@pytest.mark.parametrize(("late", "fails"), [(1, False), (2, False), (3, True)])
def test_a_new_source_may_list_an_order_or_two_before_it_has_their_details(late: int, fails: bool) -> None:
    """Three of three show a wrong `[detail] key`."""
    page = Page([], total=late, bad=[without_details(Row(f"b{n}", 1, 5, b"{}")) for n in range(late)])
    reading = Reading(declaration(size=200), WINDOW, sets_bad_aside=True, is_trusted=False)
    with pytest.raises(Unreadable) if fails else nullcontext():
        reading.feed(page)
    assert len(reading.bad) == (0 if fails else late)


def late_details(*numbers: int) -> Page:
    return Page([], total=len(numbers), bad=[without_details(Row(f"b{n}", 1, 5, b"{}")) for n in numbers])


def test_many_orders_whose_details_come_later_are_no_fault_of_a_known_platform() -> None:
    """Orders of the last minutes may all lack their details at once. Nothing about them is unreadable."""
    reading = Reading(declaration(size=200), WINDOW, sets_bad_aside=True)
    assert reading.feed(late_details(*range(150))) == []
    assert len(reading.bad) == 150
    whole = [Row(f"b{n}", 2, 5, b'{"n":1}') for n in range(149)]
    unread = BadRow("b149", "found[149]: no version", b'{"n":149}')
    assert reading.feed_late(Page(whole, bad=[*late_details(149).bad, unread])) == whole
    assert reading.feed_late(Page(whole)) == []
    assert (reading.bad, reading.result.distinct) == ((unread,), 149)


ODD_ROWS = {
    "its key has 513": Row("k" * 513, 1, 5, b"{}"),
    "its key has 0": Row("", 1, 5, b"{}"),
    "its version": Row("odd", 2**63, 5, b"{}"),
    "its version is": Row("odd", -1, 5, b"{}"),
    "its time": Row("odd", 1, 2**63, b"{}"),
    "deeply": Row("odd", 1, 5, b"[" * 50_000 + b"]" * 50_000),
}


@pytest.mark.parametrize("why", ODD_ROWS)
def test_a_row_that_no_message_can_carry_goes_aside_alone(why: str) -> None:
    reading = Reading(declaration(size=9), WINDOW, sets_bad_aside=True, is_trusted=False)
    rows = reading.feed(Page([Row("a", 1, 5, b"{}"), ODD_ROWS[why], Row("z", 1, 5, b"{}")], total=3))
    assert [row.key for row in rows] == ["a", "z"]
    (bad,) = reading.result.bad
    assert why in bad.reason
    assert len(bad.key or "") <= LONGEST_KEY
    assert reading.result.is_proven
