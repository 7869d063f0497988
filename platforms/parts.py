"""A part of a window while it is read, and the next step after each of its pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from platforms.adapter import Page, PageRules, Row
from platforms.bounds import Bounds, Window, window_text
from platforms.errors import BrokenContract, Unreadable

_FILL = 0.75  # parts are cut to be this full on average: at 100 a page they then overflow about once in 350
_MOST_PARTS = 64  # of one cut: a wrong total must not make us plan a million requests
_MOST_READINGS = 3  # of a part that cannot be cut smaller
_MOST_IN_VAIN = 10  # such readings by number in a row, once one has found other orders than the one before
_MOST_NUMBERED = 60
MOST_AT_ONCE = 20  # pages that are read by number without halving first
_MANY_SHARED = 20  # one row of so many, listed twice, costs a twentieth of the requests
_MOST_REPEATS = 10  # pages in a row that list only what the part has listed before


def names_of(rows: Iterable[Row], rules: PageRules) -> list[str]:
    """Return a name for each of what a total counts: the keys, or one for each row."""
    return [f"{row.key}\0{hash(row.body)}" for row in rows] if rules.counts_rows else [row.key for row in rows]


Step = Literal["done", "unproven", "more", "count", "again", "split", "at once", "numbered", "next"]


class ListedBefore(NamedTuple):
    """What a full answer has listed of a window: all of `window`, if the next answer confirms it. That one begins (or,
    if the latest come first, ends) where this one has stopped. `keys`: of the rows in it. `shared`: of the rows beyond,
    which the next answer must list again. All three are names (`names_of`). `total`: of both. `readings`: of the window
    so far. `is_open`: the next answer did not confirm it, and what the rest lists may (`unsettled`)."""

    window: Window
    keys: frozenset[str]
    shared: frozenset[str]
    total: int | None
    readings: int
    is_open: bool = False

    def again(self, *, is_bounded: bool) -> Part:
        """Return the part that reads the window once more."""
        return Part(self.window, self.readings + 1, may_walk=not is_bounded and self.readings < _MOST_READINGS)


class Part:
    """One piece of the window while it is being read. `behind`: what the answer before it has listed and its first
    answer is to confirm. `is_check`: nothing of it is wanted but that. `may_walk`: a full answer may be followed by one
    that goes on from its last row."""

    def __init__(
        self,
        window: Window,
        readings: int = 1,
        *,
        behind: ListedBefore | None = None,
        is_check: bool = False,
        may_walk: bool = True,
    ) -> None:
        self.window = window
        self.readings = readings
        self.behind = behind
        self.is_check = is_check
        self.may_walk = may_walk
        self.before: tuple[ListedBefore, ...] = ()
        """What the answers before it have listed, from the first one on that is open."""
        self.whole: Part | None = None
        """The part that this one looks for the missing orders of."""
        self.is_searched = False
        """Other parts look for its missing orders."""
        self.lost = 0
        """How many of them no such part has found, as far as those can say."""
        self._moments: dict[str, int] = {}
        self._edges: tuple[set[int], set[int]] = (set(), set())
        self.latest_ms: int | None = None
        self.page: str | int | None = None
        self.pages = 0
        self.is_numbered = False
        self.is_at_once = False  # by number, and its first page is the answer that had the total
        self.listed = 0  # rows of the answers so far
        self._page_size = 0
        self._known = 0
        self._in_vain = 0
        self._repeats = 0
        self.has_repeated = False
        """A page listed nothing but what the part had listed before: it may stand in place of another."""
        self.is_unsure = False
        """An answer of it does not say for certain that it is whole."""
        self.is_full = self.was_full = False
        """The last answer, and the one before it, had as many rows as were asked for."""
        self._is_unsorted = False
        self._left: list[int] = []
        self.first_total: int | None = None
        self.last_total: int | None = None
        self.is_cut_off = False
        self.is_counting = False
        self.counts_rows = False
        self.keys: set[str] = set()
        """What the total counts: the keys, or a name for each row."""
        self._turned: set[str] = set()

    def take(self, page: Page, total: int | None, rules: PageRules) -> None:
        self.counts_rows = rules.counts_rows
        if self.pages == 0 and not (self.is_numbered and total is None):
            self.first_total = total
        if total is not None:
            self.last_total = total
        self.is_cut_off = total is None and is_cut_off(page, rules)
        if self.pages == 0 and not self.is_numbered:
            self._page_size = len(page.rows) + len(page.bad)
        self.is_unsure = self.is_unsure or page.is_unsure
        self.was_full, self.is_full = self.is_full, len(page.rows) + len(page.bad) >= rules.size
        self.pages += 1
        if rules.sort == "ascending" and page.rows and not self.is_numbered:
            self.latest_ms = page.rows[-1].modified_ms
        self.listed += len(page.rows) + len(page.bad)
        known, names = len(self.keys), names_of(page.rows, rules)
        self.keys.update(names)
        if self.whole is not None:
            self.whole.keys.update(names)
        if rules.numbered:
            self._remember_moments(names, page.rows)
        # a bad row was listed and counted all the same
        self.keys.update(row.key if row.key is not None else f"\0{row.body!r}" for row in page.bad)
        if page.rows or page.bad:
            self._repeats = self._repeats + 1 if len(self.keys) == known else 0
            self.has_repeated = self.has_repeated or self._repeats > 0
        self._check_total(len(page.rows) + len(page.bad), total, len(self.keys) - known)

    def _check_total(self, listed: int, total: int | None, new: int) -> None:
        """Raise Unreadable if the totals count what each answer lists, and no window."""
        is_second = self.pages == 2 and not self.is_numbered
        if is_second and new and total == listed and self.first_total == self._page_size:
            raise Unreadable(
                f"the platform counts {self.first_total} orders and then {total} others, as many as each answer lists: "
                "its total is no count of the window; leave out the total of [pages]",
                is_of_rows=False,
            )

    def _remember_moments(self, names: list[str], rows: list[Row]) -> None:
        """Keep the moment of each row of the few pages of a reading at once, and those at which pages begin and end."""
        if self.pages > MOST_AT_ONCE or not rows:
            self._moments = {}
            return
        self._moments.update((name, row.modified_ms) for name, row in zip(names, rows, strict=True) if row.modified_ms)
        begins, ends = self._edges
        begins.add(rows[0].modified_ms or 0)
        ends.add(rows[-1].modified_ms or 0)

    def crowds(self, step_ms: int) -> list[Part]:
        """Return parts that look for the orders that are missing: at each moment that goes on from one page to another.
        If nothing sorts the orders of one moment, each answer sorts them anew, and some of them are on no page."""
        if self.first_total != self.last_total or not self._moments:
            return []
        begins, ends = ({at_ms // step_ms * step_ms for at_ms in edge} for edge in self._edges)
        found = []
        for moment_ms in sorted(begins & ends - {0}, reverse=True):
            start_ms, end_ms = max(self.window.start_ms, moment_ms), min(self.window.end_ms, moment_ms + step_ms)
            if start_ms < end_ms:
                crowd = Part(Window(start_ms, end_ms))
                crowd.whole = self
                crowd.keys = {name for name, at_ms in self._moments.items() if start_ms <= at_ms < end_ms}
                found.append(crowd)
        return found

    @property
    def missing(self) -> int:
        """How many more orders the platform counts than it has listed."""
        return max(0, (self.last_total or 0) - self.counted)

    def may_hide_changes(self, rules: PageRules) -> bool:
        """Return whether a later change of a listed order may have been cut off, if this one answer is full. A total of
        orders does not show that: the answer lists an order more than once, or nothing but its size says where it ends.
        """
        is_one = not self.counts_rows and self.pages == 1
        return is_one and (rules.style == "one" or self._page_size > len(self.keys))

    @property
    def counted(self) -> int:
        """How many of what the total counts there were. One answer is a snapshot: there, equal rows count too."""
        is_snapshot = self.counts_rows and self.pages == 1 and not self.is_numbered
        return self.listed if is_snapshot else len(self.keys)

    def read_by_number(self, rules: PageRules) -> None:
        """Begin a reading by page numbers or offsets: from the last page back, because orders that leave then move the
        others towards the pages that are still to come. Without a total nobody knows the last page: forward. The orders
        of the reading before count too as long as the total is the same: where nothing sorts orders of one moment, each
        reading finds others."""
        self.is_at_once = False
        is_same = self.is_numbered and self.first_total == self.last_total and self.missing
        if not is_same:
            self.keys = set()
        self.readings = self.readings + 1 if self.is_numbered else 1
        self.is_numbered, self.pages, self.listed, self._known = True, 0, 0, len(self.keys)
        self.first_total = self.last_total
        self._left = self._places(rules, self.last_total)
        self.page = self._left.pop() if self._left else 0

    def read_rest_by_number(self, rules: PageRules) -> None:
        """Go on from the last page back to the second one, after the first answer has shown how many there are."""
        self.is_numbered = self.is_at_once = True
        self._known = len(self.keys)
        self._left = self._places(rules, self.first_total)[1:]
        self.page = self._left.pop()

    def _places(self, rules: PageRules, total: int | None) -> list[int]:
        """Return the pages up to the total, first one first. A platform may return smaller pages than it was asked
        for, and the first answer shows their size."""
        size = self._page_size if total is not None and 0 < self._page_size < total else rules.size
        end = min(total or 0, rules.deepest or total or 0)
        if end > rules.most_requests * size:  # a wrong total must not fill the memory with the numbers of pages
            raise BrokenContract(
                f"the platform counts {total} orders {window_text(self.window)}, which are more than "
                f"{rules.most_requests} pages of {size}"
            )
        return [at // size if rules.numbered == "number" else at for at in range(0, end, size)]

    def number_on(self, rules: PageRules) -> bool:
        """Go to the next page by number. False: there is none."""
        if self.first_total is not None:
            self.page = self._left.pop() if self._left else None
            return self.page is not None
        is_over = len(self.keys) == self._known  # an empty page, or the last one again
        self._known = len(self.keys)
        self.is_cut_off = not is_over and 0 < rules.deepest <= self.listed
        self.page = self.pages if rules.numbered == "number" else self.listed
        return not is_over and not self.is_cut_off

    def may_find_more(self) -> bool:
        """Return whether another reading by number is worth its requests. If each lists the same orders, few are."""
        is_other = self.readings > 1 and len(self.keys) > self._known > 0
        self._is_unsorted = self._is_unsorted or is_other
        self._in_vain = 0 if is_other else self._in_vain + 1
        return self.readings < _MOST_NUMBERED and self._in_vain < (
            _MOST_IN_VAIN if self._is_unsorted else _MOST_READINGS
        )

    def turn(self, page: str | None) -> None:
        assert page is not None  # `decide` says more only when there is more
        if page in self._turned:
            raise BrokenContract(
                f"the platform names the same next page again after {self.pages} pages of orders "
                f"{window_text(self.window)}"
            )
        if self._repeats >= _MOST_REPEATS:
            raise BrokenContract(
                f"{self._repeats} pages in a row of orders {window_text(self.window)} list the same again: "
                "the platform does not take the name of the next page"
            )
        self._turned.add(page)
        self.page = page


def decide(
    part: Part, page: Page, total: int | None, rules: PageRules, *, can_split: bool, at_once: bool = True
) -> Step:
    """Return the next step after `page` was taken into `part`. `at_once`: some pages may be read by their number before
    the part is cut into smaller ones."""
    is_counted = part.first_total is not None and part.first_total == part.counted
    if part.is_numbered:
        step = _decide_numbered(part, rules, is_counted=is_counted)
        return "split" if part.is_at_once and can_split and step in ("numbered", "unproven") else step
    if part.is_counting:
        return "done" if is_counted and total == part.first_total else _mend(part, rules, can_split)
    if part.pages == 1 and is_counted and not (part.is_full and can_split and part.may_hide_changes(rules)):
        return _decide_counted(part, page, rules, can_split)
    if part.pages == 2 and is_counted and not (page.rows or page.bad):
        return "done"
    is_cut_short = total is not None or page.next is not None or page.has_more or part.is_full
    if at_once and part.pages == 1 and fits_at_once(part, page, total, rules):
        return "at once"
    if rules.style == "one" and part.pages == 1 and is_cut_short and can_split:
        return "split"
    if page.next is not None:
        return "more"
    if part.first_total is None:
        is_short = page.has_more or (rules.numbered and is_cut_off(page, rules))
        if is_short or part.has_repeated:
            return _mend(part, rules, can_split)
        return "done" if _is_end(part, page, rules) else "unproven"
    if is_counted and rules.has_live_total and total is not None:
        return "done" if total == part.first_total else _mend(part, rules, can_split)
    return "count" if is_counted else _mend(part, rules, can_split)


def _decide_counted(part: Part, page: Page, rules: PageRules, can_split: bool) -> Step:
    """Return the next step after one answer that lists as many orders as its total says. If it says that there is more,
    the total may count that answer alone."""
    if page.next is not None:
        return "more"
    return _mend(part, rules, can_split) if page.has_more else "done"


def fits_at_once(part: Part, page: Page, total: int | None, rules: PageRules) -> bool:
    """Return whether the rest is some pages that can be asked for by their number. Halving needs twice as many
    requests. The total shows whether anything moved meanwhile."""
    listed = len(page.rows) + len(page.bad)
    if not rules.numbered or rules.style != "one" or rules.counts_rows or total is None or part.page is not None:
        return False
    return 0 < listed < total <= MOST_AT_ONCE * listed and (not rules.deepest or total <= rules.deepest)


def repeats_many(following: Part, page: Page) -> bool:
    """Return whether the answer that goes on from the last row lists many of the rows again, which share its moment."""
    return following.behind is not None and len(following.behind.shared) * _MANY_SHARED > len(page.rows)


def crowd_ms(page: Page, window: Window, step_ms: int) -> int | None:
    """Return the moment to which most rows of a page belong. Halving would take many requests to come to it."""
    steps = [row.modified_ms // step_ms * step_ms for row in page.rows if row.modified_ms is not None]
    if not steps:
        return None
    moment, count = Counter(steps).most_common(1)[0]
    is_inside = window.start_ms <= moment and moment + step_ms <= window.end_ms
    return moment if 2 * count > len(page.rows) and is_inside else None


def is_cut_off(page: Page, rules: PageRules) -> bool:
    """Return whether the list goes on, as far as the page itself shows, and the page names no next one."""
    is_full = not rules.has_next and rules.style == "one" and len(page.rows) + len(page.bad) >= rules.size
    return page.next is None and (page.has_more or is_full)


def _is_end(part: Part, page: Page, rules: PageRules) -> bool:
    """Return whether the platform says that the list ends here. A page below its size confirms it, since some leave the
    next page out. While many pages were read, orders may have moved from one to another, unless tokens hold a place.
    One that has died may be answered by an empty page."""
    is_marked = rules.has_end and page.next is None and not (page.has_more or part.is_unsure)
    may_be_dead = part.was_full and not (page.rows or page.bad)
    return is_marked and not part.is_full and not may_be_dead and (part.pages == 1 or rules.end_is_proof)


def _decide_numbered(part: Part, rules: PageRules, *, is_counted: bool) -> Step:
    if is_counted and part.last_total == part.first_total:
        return "done"
    if part.number_on(rules):
        return "next"
    if part.first_total is None:
        return "unproven"
    return "numbered" if part.may_find_more() else "unproven"


def _mend(part: Part, rules: PageRules, can_split: bool) -> Step:
    """Return the next step for a count that does not add up. One answer would only repeat itself. Several may have
    drifted by chance, and may read differently the next time. Pages that can be asked for by number list what no
    smaller window can."""
    if can_split:
        return "split"
    if rules.numbered:
        return "numbered"
    return "again" if part.pages > 1 and part.readings < _MOST_READINGS else "unproven"


def walk_on(part: Part, page: Page, total: int | None, rules: PageRules, bounds: Bounds) -> Part | None:
    """Return the part that goes on from the last row of a full answer, if rows come in the order of the windowed time.
    That they seem to do so in one answer is no proof. The counts of this answer and the next one are (`confirmed`).
    Without an upper bound the counts still find what is missing, and without a total the declaration must say it."""
    is_first = part.pages == 1 and part.page is None and not (part.is_numbered or part.is_counting)
    if rules.style != "one" or not is_first or not part.may_walk or page.bad or not page.rows:
        return None
    is_bounded = bounds.upper != "absent"
    if total is None and (is_bounded or rules.sort != "ascending" or len(page.rows) < rules.size):
        return None
    times = [row.modified_ms for row in page.rows if row.modified_ms is not None]
    may_hide = len(page.rows) >= rules.size and is_bounded and part.may_hide_changes(rules)
    is_all = total is not None and total <= part.counted and not may_hide
    if bounds.lower == "absent" or len(times) < len(page.rows) or is_all:
        return None
    step_ms = bounds.step_ms
    if all(one <= other for one, other in pairwise(times)):
        return _walk_up(part, page, total, rules, times[-1] // step_ms * step_ms, is_bounded=is_bounded)
    if is_bounded and all(one >= other for one, other in pairwise(times)):
        return _walk_down(part, page, total, rules, (times[-1] // step_ms + 1) * step_ms)
    return None


def _walk_up(
    part: Part, page: Page, total: int | None, rules: PageRules, seam_ms: int, *, is_bounded: bool
) -> Part | None:
    start_ms, end_ms = part.window.start_ms, part.window.end_ms
    if seam_ms <= start_ms or (is_bounded and seam_ms >= end_ms):
        return None
    shared = {row for row in page.rows if (row.modified_ms or 0) >= seam_ms}
    behind = _behind(part, Window(start_ms, min(seam_ms, end_ms)), page, shared, total, rules)
    if seam_ms < end_ms:
        return Part(Window(seam_ms, end_ms), behind=behind)
    if total is None:
        return None
    return Part(Window(seam_ms, seam_ms + 1), behind=behind, is_check=True)


def _walk_down(part: Part, page: Page, total: int | None, rules: PageRules, seam_ms: int) -> Part | None:
    start_ms, end_ms = part.window.start_ms, part.window.end_ms
    if not start_ms < seam_ms < end_ms:
        return None
    shared = {row for row in page.rows if (row.modified_ms or 0) < seam_ms}
    behind = _behind(part, Window(seam_ms, end_ms), page, shared, total, rules)
    return Part(Window(start_ms, seam_ms), behind=behind)


def _behind(
    part: Part, window: Window, page: Page, shared: set[Row], total: int | None, rules: PageRules
) -> ListedBefore:
    listed_again = frozenset(names_of(shared, rules))
    names = frozenset(names_of((row for row in page.rows if row not in shared), rules)) - listed_again
    return ListedBefore(window, names, listed_again, total, part.readings)


def confirmed(
    behind: ListedBefore, page: Page, total: int | None, rules: PageRules, *, is_bounded: bool
) -> Literal["proven", "unproven", "later", "no"]:
    """Return whether the answer after `behind` confirms that it had listed all of its window. Without an upper bound
    new orders come at the end of the list, and then the counts prove nothing. `later`: the two totals count orders
    twice that both windows list, so only all that the rest lists can confirm it."""
    listed = set(names_of(page.rows, rules))
    both = None if total is None else len(behind.keys - listed) + total
    if behind.total is None or both is None:
        return "no" if is_bounded else "unproven"
    if not behind.shared <= listed or both < behind.total:
        return "no"
    if both == behind.total:
        return "proven"
    return "later" if is_bounded else "unproven"


def unsettled(before: Sequence[ListedBefore], rest: Iterable[str]) -> list[ListedBefore]:
    """Return what is open and is not confirmed by the names that the rest has listed: each total must be the number of
    different names from there on."""
    names, found = set(rest), list[ListedBefore]()
    for each in reversed(before):
        names |= each.keys | each.shared
        if each.is_open and len(names) != each.total:
            found.append(each)
    return found


def parts_for(total: int | None, size: int) -> int:
    """Return into how many parts to cut a window with `total` rows so that most fit `size`. 2: unknown total."""
    if total is None:
        return 2
    return max(2, min(_MOST_PARTS, -(-total // max(1, int(size * _FILL)))))


def cut_window(window: Window, longest_ms: int, step_ms: int) -> list[Window]:
    """Return the window as parts of at most `longest_ms`, or one step if that is longer. Cuts lie on whole steps."""
    stride = max(step_ms, longest_ms // step_ms * step_ms)
    if window.end_ms - window.start_ms <= stride and stride > step_ms:
        return [window]
    parts, start = [], window.start_ms
    while start < window.end_ms:
        end = min(window.end_ms, (start // step_ms) * step_ms + stride)
        parts.append(Window(start, end))
        start = end
    return parts
