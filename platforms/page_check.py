"""Finds out whether an answer was cut without a word: by a half of its window.

Some platforms list at most 50 orders, whatever size they are asked for, and their total counts what one answer lists.
Then a window of 120 orders looks like one of 50, and every count adds up. A half of the window lists orders that the
whole has not. So the largest answer so far is checked, and each one that is as large: a window may have held just as
many. A larger answer shows that smaller ones were whole. So does a total above the orders of its answer.

Such a total may be cut as well: some platforms count, and list on all pages together, at most 1,000 orders of a window.
So the largest total so far, if it may be a limit, is checked by those of two halves (`TotalCheck`). If they count more,
the window is cut. Where there is no total, a list that ends at such a number is read again in halves."""

from __future__ import annotations

from typing import Literal, NamedTuple

from platforms.adapter import LARGEST, Page, PageRules
from platforms.bounds import Bounds, Window, window_text
from platforms.errors import PageCut

_LEAST = 10
"""No platform lists fewer at once."""
_SHOWN = 4096


class PageSize(NamedTuple):
    """The largest answer, total or list so far. `is_certain`: of a limit, that totals of two halves have shown it."""

    rows: int = 0
    is_certain: bool = False


ENOUGH = PageSize(LARGEST)
SizeOf = Literal["answer", "total", "list", "limit"]


def may_be_limit(count: int) -> bool:
    """Return whether a count is a number that people choose as a limit, such as 1,000, 250, 4,096 or 9,999."""
    is_power = count & (count - 1) == 0 or count & (count + 1) == 0
    return count % 10 == 0 or count % 25 == 0 or is_power or count % 100 in (1, 99)


def wants_halves(known: PageSize, count: int) -> bool:
    """Return whether a count of all pages together may be the most that the platform finds. One that is no round number
    may, if the largest of another window was the same. A window may have held just as many, so that is never settled.
    """
    return count >= max(known.rows, _LEAST) and (may_be_limit(count) or count == known.rows)


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
    return listed >= max(known.rows, _LEAST) and page.next is None and not page.has_more


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

    def feed(self, page: Page) -> PageSize | None:
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
        return PageSize(len(self._first.rows))

    @staticmethod
    def _keys(*pages: Page) -> set[str]:
        return {row.key for page in pages for row in page.rows}


class TotalCheck:
    """One check of a total that is above the orders of its answer: by the totals of two halves. Where these are more
    together, both may count the orders at their seam, so those are counted by themselves. If they may be the reason,
    the seam is put elsewhere once, and then the total counts as cut. `first`: the answer that has the total."""

    def __init__(self, window: Window, bounds: Bounds, first: Page, total: int) -> None:
        middle_ms = bounds.middle_ms(window)
        middle_ms = middle_ms if middle_ms > window.start_ms else middle_ms + bounds.step_ms
        other_ms = bounds.middle_ms(Window(window.start_ms, middle_ms))
        self._window = window
        self._seams = [other_ms, middle_ms] if other_ms > window.start_ms else [middle_ms]
        self._total = total
        self._totals: list[int | None] = []
        self.first = first
        self.is_cut = False
        self.limit = PageSize()
        """The total, if it was cut."""

    def next(self) -> Window:
        """Return the window to ask for."""
        seam_ms = self._seams[-1]
        halves = Window(self._window.start_ms, seam_ms), Window(seam_ms, self._window.end_ms)
        return (*halves, Window(seam_ms, seam_ms + 1))[len(self._totals)]

    def feed(self, page: Page, known: PageSize) -> PageSize | None:
        """Take an answer. Return what is known after the last one, None before. `is_cut` says what it has shown: also
        if one half counts as many as the whole, which the same limit would do."""
        self._totals.append(page.total)
        counted = [each or 0 for each in self._totals]
        both = sum(counted[:2])
        if len(counted) < 2 or (len(counted) == 2 and both > self._total):
            return None
        is_above, is_half = both - sum(counted[2:]) > self._total, self._total in counted[:2]
        if both > self._total and not (is_above or is_half) and len(self._seams) > 1:
            self._seams.pop()
            self._totals.clear()
            return None
        self.is_cut = both > self._total or is_half
        self.limit = PageSize(self._total, is_above) if self.is_cut else PageSize()
        if self.is_cut or None in self._totals:
            return known
        return PageSize(self._total)
