"""Finds out whether an answer was cut without a word: by a half of its window.

Some platforms list at most 50 orders, whatever size they are asked for, and their total counts what one answer lists.
Then a window of 120 orders looks like one of 50, and every count adds up. A half of the window lists orders that the
whole has not. So the largest answer so far is checked, and once more if another one is as large: a window may have held
just as many. A larger answer shows that smaller ones were whole. So does a total above the orders of its answer.

Such a total may be cut as well: some platforms count, and list on all pages together, at most 1,000 orders of a window.
So the largest total so far, if it may be a limit, is checked by those of two halves (`TotalCheck`). If they count more,
the window is cut. Where there is no total, a list that ends at such a number is read again in halves (`Suspect`)."""

from __future__ import annotations

from typing import Literal, NamedTuple

from platforms.adapter import LARGEST, Page, PageRules
from platforms.bounds import Bounds, Window, window_text
from platforms.errors import PageCut

_LEAST = 10
"""No platform lists fewer at once."""
_CHECKS = 2
_SHOWN = 4096


class PageSize(NamedTuple):
    """The largest answer that was found whole, and how many checks have shown it."""

    rows: int = 0
    checks: int = 0

    def wants(self, rows: int) -> bool:
        """Return whether an answer of so many has to be checked."""
        return rows > self.rows or (rows == self.rows and self.checks < _CHECKS)

    def checked(self, rows: int) -> PageSize:
        """Return what is known once an answer of so many was found whole."""
        return PageSize(rows, self.checks + 1 if rows == self.rows else 1)


ENOUGH = PageSize(LARGEST)
SizeOf = Literal["answer", "total", "list", "limit"]


def may_be_limit(count: int) -> bool:
    """Return whether a count is a number that people choose as a limit, such as 1,000, 250, 4,096 or 9,999. All others
    need no check."""
    is_power = count & (count - 1) == 0 or count & (count + 1) == 0
    return count % 10 == 0 or count % 25 == 0 or is_power or count % 100 in (1, 99)


def wants_halves(known: PageSize, count: int) -> bool:
    """Return whether a count of all pages together may be the most that the platform finds. One that is no round number
    may, if the largest of another window was the same."""
    return known.wants(count) and (may_be_limit(count) or count == known.rows)


def wants_again(known: PageSize, count: int) -> bool:
    """Return the same of a list without a total. To read it again costs more than two totals, so of the numbers by ten
    only those by fifty count as limits."""
    return wants_halves(known, count) and (count % 10 > 0 or count % 50 == 0 or count == known.rows)


class ListSizes:
    """What is known of the sizes of one list: of its answers, of its totals, and of all of it without a total. `limit`:
    the most that its totals count, if one was cut. The readings of a source share `sizes`."""

    def __init__(self, sizes: dict[str, PageSize], list_name: str) -> None:
        self._sizes = sizes
        kinds: tuple[SizeOf, ...] = ("total", "list", "limit")
        self._names = {"answer": list_name} | {kind: f"{list_name} ({kind})" for kind in kinds}

    def __getitem__(self, kind: SizeOf) -> PageSize:
        return self._sizes.get(self._names[kind], PageSize())

    def __setitem__(self, kind: SizeOf, size: PageSize) -> None:
        self._sizes[self._names[kind]] = size


class Suspect(NamedTuple):
    """A list of so many `orders` without a total, read again in halves, as these may be all that the platform lists.
    `known`: how many orders the reading had then. `end_ms`: where the window ends."""

    end_ms: int
    orders: int
    known: int


def is_enough(page: Page, rules: PageRules) -> bool:
    """Return whether an answer shows that no check is needed: it is full, or it tells of more. A list with next pages
    must have named one, as the name of it in the file may be wrong."""
    listed = len(page.rows) + len(page.bad)
    if rules.style != "one":
        return page.next is not None or page.has_more
    return listed >= rules.size or (page.total or 0) > listed > 0


def wants_check(known: PageSize, page: Page) -> bool:
    """Return whether an answer that seems to be all may have been cut."""
    listed = len(page.rows)
    return known.wants(listed) and listed >= _LEAST and page.next is None and not page.has_more


def halves(window: Window, bounds: Bounds, page: Page) -> tuple[Window, ...]:
    """Return the half in which the list stops, if its rows come in the order of their times. Otherwise both halves.
    None of them: the bounds cannot ask for less."""
    middle_ms = bounds.middle_ms(window)
    if "absent" in (bounds.lower, bounds.upper) or not window.start_ms < middle_ms < window.end_ms:
        return ()
    first, last = Window(window.start_ms, middle_ms), Window(middle_ms, window.end_ms)
    times_ms = [row.modified_ms for row in page.rows if row.modified_ms is not None]
    if len(times_ms) == len(page.rows) and times_ms == sorted(times_ms):
        return (last,)
    if len(times_ms) == len(page.rows) and times_ms == sorted(times_ms, reverse=True):
        return (first,)
    return first, last


class PageCheck:
    """One check. If a half lists others, the whole window is asked for again: orders may have come in between."""

    def __init__(self, window: Window, parts: tuple[Window, ...], page: Page, *, has_next: bool = False) -> None:
        self._windows = (*parts, window)
        self._has_next = has_next
        self._first = page
        self._pages: list[Page] = []

    def next(self) -> Window:
        """Return the window to ask for."""
        return self._windows[len(self._pages)]

    def feed(self, page: Page, known: PageSize) -> PageSize | None:
        """Take an answer. Return what is known after the last one, None before. Raises PageCut."""
        self._pages.append(page)
        most = len(self._windows) - 1
        if len(self._pages) < most:
            return None
        first, whole = self._first, self._keys(self._first)
        others = self._keys(*self._pages[:most]) - whole
        if others and len(self._pages) == most:
            return None
        if others - self._keys(self._pages[-1]):
            raise PageCut(
                f"the platform lists {len(whole)} orders {window_text(self._windows[-1])}, and {len(others)} others "
                f"of a half of it: an answer has {len(whole)} orders at most, "
                f"and {'names no next page' if self._has_next else 'the file says more'}",
                first.rows[0].body[:_SHOWN],
                rows=len(first.rows),
                is_counted=first.total is not None,
            )
        return known.checked(len(self._first.rows))

    @staticmethod
    def _keys(*pages: Page) -> set[str]:
        return {row.key for page in pages for row in page.rows}


class TotalCheck:
    """One check of a total that is above the orders of its answer: by the totals of two halves, and of what both list.
    `first`: the answer that has it."""

    def __init__(self, window: Window, bounds: Bounds, first: Page, total: int) -> None:
        middle_ms = bounds.middle_ms(window)
        middle_ms = middle_ms if middle_ms > window.start_ms else middle_ms + bounds.step_ms
        halves = Window(window.start_ms, middle_ms), Window(middle_ms, window.end_ms)
        self._windows = (*halves, Window(middle_ms, middle_ms + 1))
        self._total = total
        self._totals: list[int | None] = []
        self.first = first
        self.is_cut = False
        self.limit = PageSize()
        """The total, if it was cut. One check says that this is certain, and none that one half counts as many."""

    def next(self) -> Window:
        """Return the window to ask for."""
        return self._windows[len(self._totals)]

    def feed(self, page: Page, known: PageSize) -> PageSize | None:
        """Take an answer. Return what is known after the last one, None before. `is_cut` says what it has shown: also
        if one half counts as many as the whole, which the same limit would do."""
        self._totals.append(page.total)
        counted = [each or 0 for each in self._totals]
        if len(counted) < 2 or (len(counted) == 2 and sum(counted) > self._total):
            return None
        is_above = counted[0] + counted[1] - sum(counted[2:]) > self._total
        self.is_cut = is_above or self._total in counted[:2]
        self.limit = PageSize(self._total, int(is_above)) if self.is_cut else PageSize()
        if self.is_cut or None in self._totals:
            return known
        return known.checked(self._total)
