"""Reads one window the best way that a declaration allows, without I/O of its own.

    reading = Reading(adapter.declaration, window)
    while (ask := reading.next()) is not None:
        response = …send adapter.request(ask.window, ask.page, account, now_ms)…
        match adapter.outcome(response):
            case None:    rows = reading.feed(adapter.page(response))     # publish these now
            case Split(): reading.split()
            case Empty(): reading.feed(EMPTY_PAGE)
            case …:       # give the slice back, park the source, … (a retry in place just asks `next` again)
    # the same holds for Garbled from `page`: nothing was fed, so `next` asks the same again
    reading.result

A window is read as a stack of parts, earliest first. A part is closed when its count is proven: the different keys read
equal the platform's total, and, when it took more than one answer, the total asked for again at the end. One answer is
one snapshot: nothing can move while it is made. A part that does not add up is cut into smaller ones and read again.
Where nothing smaller can be asked for (the clock's smallest step, no bound, an hour that repeats) the part is read by
page number or offset if the platform has such pages, from the last page back, and else three times at most. Then the
reader takes the rows it has and marks the result unproven. If the platform counts more
orders than it handed out, or ends a list that it says goes on, the result says where and by how much it is *short*.

Where the rows of a full answer come in the order of the windowed time, the next request begins at the last row's time
(or ends there, if the latest come first) instead of asking for the same rows again in smaller parts. Its rows and the
two totals show whether anything was left out in between. If so, that piece is read by itself. Lists without an upper
bound are read in this way as well, up to the end of the window.

Where rows come in another order, or many share a moment, and pages have numbers or offsets, some pages are read so,
from the last page back to the second one, before anything is cut. If the count does not add up, the part is cut then.

Orders that change between pages leave the window (their new version belongs to a later one) and move others under the
reader. The count at the end detects that. It cannot detect that one order leaves and another comes in late between the
same two answers. The later look at closed windows is there for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

from platforms.adapter import EMPTY_PAGE, BadRow, Declaration, Page, Row
from platforms.bounds import Window, is_asked, window_text
from platforms.errors import BrokenContract
from platforms.page_check import (
    ENOUGH,
    ListSizes,
    PageCheck,
    PageSize,
    TotalCheck,
    halves,
    is_enough,
    may_be_limit,
    wants_again,
    wants_check,
    wants_halves,
)
from platforms.parts import (
    MOST_AT_ONCE,
    ListedBefore,
    Part,
    Step,
    confirmed,
    crowd_ms,
    cut_window,
    decide,
    fits_at_once,
    parts_for,
    repeats_many,
    unsettled,
    walk_on,
)
from platforms.row_sieve import RowSieve
from platforms.window_check import WindowCheck, thirds


class Ask(NamedTuple):
    """The next request: the window, and the page of it: None is the first, text is what an earlier answer named, and a
    number is the place of a page (see `PageRules.numbered`)."""

    window: Window
    page: str | int | None


class ShortPart(NamedTuple):
    """A part of the window that is known not to be whole: `missing` of `listed` orders, 0 of 0 without a count.
    `list_name`: of several lists, the one that is short."""

    window: Window
    missing: int
    listed: int
    list_name: str = ""


class ReadingResult(Struct, frozen=True):
    """The result of a window.

    distinct: keys handed out. requests: answers fed, and splits. cut: rows that belong to the neighbours. strays: rows
    from outside the requested bounds, which were handed out all the same. missing: orders that the totals count and
    that the platform did not list, however small the parts. short: the parts with such orders. is_counted: each part
    has a total, right or wrong. bad: rows set aside. Without a total nothing is proven."""

    distinct: int
    is_proven: bool
    requests: int
    cut: int
    strays: int
    missing: int
    short: tuple[ShortPart, ...]
    is_counted: bool
    bad: tuple[BadRow, ...]


class Reading:
    """One attempt at one window. Bounded by its keys: rows are handed out page by page and not kept.

    With `sets_bad_aside` the caller promises to store `bad` rows as dead letters. Without it, a reading that met one
    ends in BrokenContract, after all good rows were handed out. `is_trusted`: rows of this platform could be read
    before, so one or two bad ones may be all that it lists. With `checks_window` the first answer with rows, if they do
    not show that the platform obeys the window, is followed by a check of that. `obeys` is the result: False if
    the check showed nothing, None without a check. `versions`: of the orders handed out, which other readings may
    share. `page_sizes`: by list, what is known of how many orders the platform lists at once. With it, an answer that
    may have been cut without a word is checked (`page_check`), and what that shows is added. PageCut if it was."""

    def __init__(
        self,
        declaration: Declaration,
        window: Window,
        *,
        sets_bad_aside: bool = False,
        is_trusted: bool = True,
        checks_window: bool = False,
        page_sizes: dict[str, PageSize] | None = None,
        list_name: str = "",
        versions: dict[str, int] | None = None,
    ) -> None:
        self._rules = declaration.pages
        self._bounds = declaration.window.bounds
        self._always_narrows = self._bounds.time.format != "wall" and "absent" not in (
            self._bounds.lower,
            self._bounds.upper,
        )
        self._is_bounded = self._bounds.upper != "absent"
        self._sets_bad_aside = sets_bad_aside
        self._window = window
        step_ms = self._bounds.step_ms
        longest_ms = max(step_ms, declaration.window.longest_ms - 2 * step_ms)  # bounds widen the window
        pieces = cut_window(window, longest_ms, step_ms) if self._is_bounded else [window]
        self._todo = [Part(piece) for piece in reversed(pieces)]
        self._rows = RowSieve(declaration, window, is_trusted=is_trusted, versions={} if versions is None else versions)
        self._is_proven = self._is_counted = True
        self._requests = self._moved = 0
        self._at_once = True  # no reading by number has failed yet
        self._short: list[ShortPart] = []
        self._wants_check = checks_window
        self._check: WindowCheck | None = None
        self._sizes = None if page_sizes is None else ListSizes(page_sizes, list_name)
        self._page_check: PageCheck | None = None
        self._total_check: TotalCheck | None = None
        self.obeys: bool | None = None

    @property
    def list_name(self) -> str:
        """The list that the next request is for, of several (see `platforms.lists`). Here there is one."""
        return ""

    @property
    def is_done(self) -> bool:
        return not self._todo

    @property
    def requests(self) -> int:
        """Answers fed so far, and splits."""
        return self._requests

    @property
    def done_until_ms(self) -> int:
        """The time before which all of the window was read, and proven as far as it can be."""
        if not self._todo:
            return self._window.end_ms
        part = self._todo[-1].whole or self._todo[-1]
        if part.before:
            return min(part.window.start_ms, part.before[0].window.start_ms)
        if part.is_searched:
            return part.window.start_ms
        if part.behind is not None and part.pages == 0:
            return min(part.window.start_ms, part.behind.window.start_ms)
        if part.latest_ms is None:
            return part.window.start_ms
        return max(part.window.start_ms, min(part.window.end_ms, part.latest_ms))

    @property
    def bad(self) -> tuple[BadRow, ...]:
        """Rows set aside so far, and listed orders without details."""
        return (*self._rows.bad.values(), *self._rows.lacking)

    @property
    def lacks_many(self) -> bool:
        """Whether so many orders lack their details that the platform or the file is at fault."""
        return self._rows.lacks_many

    def next(self) -> Ask | None:
        """Return the next request, the same again until it was fed or split. None: the window is read.
        BrokenContract when it does not end, or ended with bad rows without `sets_bad_aside`."""
        check = self._check or self._page_check or self._total_check
        if check is not None:
            return Ask(check.next(), None)
        if self._todo:
            if self._requests - self._moved >= self._rules.most_requests:
                raise BrokenContract(
                    f"{self._requests} requests did not come to the end of the orders {window_text(self._window)}"
                )
            part = self._todo[-1]
            return Ask(part.window, part.page)
        if self.bad and not self._sets_bad_aside:
            raise self._rows.too_many_bad()
        return None

    def feed(self, page: Page) -> list[Row]:
        """Take the answer to `next()` and return the rows to publish now: each key once, and again when a higher
        version turns up. BrokenContract on a page named twice, Unreadable when most rows cannot be read or lie
        outside the requested bounds."""
        self._requests += 1
        if self._check is not None:
            self._judge(self._check, page)
            return []
        if self._page_check is not None:
            self._judge_page(self._page_check, page)
            return []
        if self._total_check is not None:
            self._judge_total(self._total_check, page)
            return []
        part = self._todo[-1]
        self._begin_check(part, page)
        self._begin_page_check(part, page)
        rows = self._rows.inside(page, part.window)
        # "nothing there" in the middle of a list is the end of the list, and counts nothing
        is_a_count = self._rules.has_total and not (page is EMPTY_PAGE and part.page not in (None, 0))
        total = page.total if is_a_count and not _is_no_count(page) else None
        part.take(page, total, self._rules)
        again = self._confirm(part, page, total)
        following = walk_on(part, page, total, self._rules, self._bounds)
        if self._at_once and following is not None and repeats_many(following, page):
            following = None if fits_at_once(part, page, total, self._rules) else following
        if following is not None:
            self._moved = self._requests
            following.before = part.before
            self._todo[-1] = following
        elif part.is_check:
            self._todo.pop()
        elif self._is_beyond(part):
            self._is_proven = self._is_counted = False
            self._todo.pop()
        else:
            can_split = self._can_split(part.window)
            step = decide(part, page, total, self._rules, can_split=can_split, at_once=self._at_once)
            if step == "done" and (limit := self._limit_met(part)):
                step, part.is_cut_off = "unproven", limit.is_certain
            if (can_split or self._always_narrows) and self._may_be_cut(part, step):
                step = "split" if can_split else "unproven"
            self._move(part, step, page, total)
            if step in ("at once", "more"):
                self._begin_total_check(part, page, total)
            if step in ("done", "unproven", "split") and not part.is_searched:
                again += unsettled(part.before, part.keys) if step == "done" else _open(part.before)
        self._read_again(again)
        self._end_searches()
        return self._rows.fresh(rows)

    def feed_late(self, page: Page) -> list[Row]:
        """Take details that listed orders of `bad` lacked before. Return the rows to publish now."""
        read = Page(page.rows, bad=[row for row in page.bad if row.listed is None])
        return self._rows.fresh(self._rows.inside(read, self._window))

    def _read_again(self, listed: Sequence[ListedBefore]) -> None:
        if listed:
            self._todo.extend(each.again(is_bounded=self._is_bounded) for each in listed)
            self._sort()

    def _sort(self) -> None:
        """Put the earliest part on top. One that is searched comes after the parts that do so."""
        self._todo.sort(key=lambda each: -(each.window.end_ms if each.is_searched else each.window.start_ms))

    def _end_searches(self) -> None:
        while self._todo and self._todo[-1].is_searched:
            self._end_search(self._todo[-1])

    def _end_search(self, part: Part) -> None:
        """Close a part whose missing orders have been looked for, or cut it if they were not found there."""
        if len(part.keys) == part.first_total or part.lost:
            self._todo.pop()
            self._read_again(unsettled(part.before, part.keys))
            return
        part.is_searched, self._at_once = False, False
        self._replace(part, parts_for(part.first_total, self._rules.size))
        self._read_again(_open(part.before))

    def _confirm(self, part: Part, page: Page, total: int | None) -> list[ListedBefore]:
        """Judge by the first answer of a part what the one before it has listed. Return what is to be read again."""
        behind = part.behind
        if behind is None or part.pages > 1:
            return []
        verdict = confirmed(behind, page, total, self._rules, is_bounded=self._is_bounded)
        self._is_proven = self._is_proven and verdict != "unproven"
        self._is_counted = self._is_counted and behind.total is not None
        if part.before or verdict == "later":
            part.before = (*part.before, behind._replace(is_open=verdict == "later"))
        return [behind] if verdict == "no" else []

    def _is_beyond(self, part: Part) -> bool:
        """Return whether the rest of a list is of no interest: it lies behind the window."""
        is_sorted = not self._is_bounded and self._rules.sort == "ascending"
        is_whole = part.first_total == len(part.keys)
        return is_sorted and not is_whole and part.latest_ms is not None and part.latest_ms >= self._window.end_ms

    def split(self, why: str = "") -> None:
        """Cut the present part in two, because the platform finds it too wide, or `why`. If nothing smaller can be
        asked for, a page that has a number is left out, and its orders count as missing. Else BrokenContract."""
        self._requests += 1
        if self._check or self._page_check or self._total_check:
            if self._check is not None:
                self.obeys = False
            self._check = self._page_check = self._total_check = None
            return
        part = self._todo[-1]
        if not self._can_split(part.window) and part.is_numbered:
            step = decide(part, EMPTY_PAGE, None, self._rules, can_split=False)
            part.is_cut_off = step == "unproven"
            self._move(part, step, EMPTY_PAGE, None)
            self._end_searches()
            return
        if not self._can_split(part.window):
            raise BrokenContract(
                f"{why or 'the platform finds it too wide'}; nothing smaller than orders {window_text(part.window)} "
                "can be asked for"
            )
        self._replace(part, 2)

    @property
    def result(self) -> ReadingResult:
        """Return the window's result. It is final once `next()` gave None."""
        return ReadingResult(
            distinct=len(self._rows.versions),
            is_proven=self._is_proven,
            requests=self._requests,
            cut=self._rows.cut,
            strays=self._rows.strays,
            missing=sum(part.missing for part in self._short),
            short=tuple(self._short),
            is_counted=self._is_counted,
            bad=self.bad,
        )

    def _begin_check(self, part: Part, page: Page) -> None:
        """Check the window next if the answer has rows and none of them shows that it is from there."""
        if not self._wants_check or not page.rows:
            return
        bounds = self._bounds.request(part.window)
        if any(row.modified_ms is not None and is_asked(bounds, row.modified_ms) for row in page.rows):
            return
        self._wants_check = False
        windows = thirds(part.window, self._bounds)
        self._check = None if windows is None else WindowCheck(windows)

    def _judge(self, check: WindowCheck, page: Page) -> None:
        verdict = check.feed(page)
        if verdict is not None:
            self.obeys, self._check = verdict == "obeys", None

    def _begin_page_check(self, part: Part, page: Page) -> None:
        """Check the answer next if it may have been cut, and nothing says so."""
        if self._sizes is None or part.pages or part.is_numbered:
            return
        if is_enough(page, self._rules):
            self._sizes["answer"] = ENOUGH
        elif self._rules.style != "one" and not may_be_limit(len(page.rows)):
            return
        elif wants_check(self._sizes["answer"], page):
            parts = halves(part.window, self._bounds, page)
            self._page_check = PageCheck(part.window, parts, page, has_next=self._rules.has_next) if parts else None

    def _judge_page(self, check: PageCheck, page: Page) -> None:
        assert self._sizes is not None
        known = check.feed(page)
        if known is not None:
            self._sizes["answer"], self._page_check = known, None

    def _begin_total_check(self, part: Part, page: Page, total: int | None) -> None:
        """Check the total of a first answer next if it may be the most that the platform counts."""
        if self._sizes is None or total is None or part.pages > 1 or not self._can_split(part.window):
            return
        known = self._sizes["total"]
        if wants_halves(known, total):
            self._total_check = TotalCheck(part.window, self._bounds, page, total)
        elif total > known.rows:
            self._sizes["total"] = PageSize(total)

    def _limit_met(self, part: Part) -> PageSize | None:
        """Return the most that the platform counts, if a part that cannot be cut lists as many orders. If that is known
        for certain, the part is cut off."""
        limit = PageSize() if self._sizes is None else self._sizes["limit"]
        is_one_answer = part.pages < 2 and not part.is_numbered
        if is_one_answer or not limit.rows or part.first_total != limit.rows or self._can_split(part.window):
            return None
        return limit

    def _may_be_cut(self, part: Part, step: Step) -> bool:
        """Return whether a list of several pages without a total ends where the platform may list no more."""
        count = len(part.keys)
        is_end = step in ("done", "unproven") and part.first_total is None and part.pages > 1 and not part.is_numbered
        if not is_end or self._sizes is None:
            return False
        known = self._sizes["list"]
        self._sizes["list"] = max(known, PageSize(count))  # so its halves are whole, unless they list as many
        return wants_again(known, count)

    def _judge_total(self, check: TotalCheck, page: Page) -> None:
        assert self._sizes is not None
        known = check.feed(page, self._sizes["total"])
        if known is None:
            return
        self._sizes["total"], self._total_check = known, None
        if check.is_cut:
            self._sizes["limit"] = max(self._sizes["limit"], check.limit)
            part = self._todo[-1]
            self._replace(part, 2, crowd_ms(check.first, part.window, self._bounds.step_ms))

    def _move(self, part: Part, step: Step, page: Page, total: int | None) -> None:
        match step:
            case "done" | "unproven":
                self._is_proven = self._is_proven and step == "done"
                self._is_counted = self._is_counted and part.last_total is not None
                if part.whole is not None:
                    part.whole.lost += part.missing
                if part.missing or part.is_cut_off:
                    self._short.append(ShortPart(part.window, part.missing, part.last_total or 0))
                self._todo.pop()
            case "more":
                part.turn(page.next)
            case "count":
                part.page, part.is_counting = None, True
            case "at once":
                part.read_rest_by_number(self._rules)
            case "numbered":
                part.read_by_number(self._rules)
            case "next":
                pass
            case "again":
                self._todo[-1] = Part(part.window, readings=part.readings + 1)
            case "split" if part.is_at_once and (crowds := part.crowds(self._bounds.step_ms)):
                part.is_searched = True
                self._todo.extend(crowds)
            case "split":
                self._at_once = self._at_once and not part.is_at_once
                pages = MOST_AT_ONCE // 2 if self._rules.numbered and self._at_once else 1
                moment_ms = None if part.is_at_once else crowd_ms(page, part.window, self._bounds.step_ms)
                self._replace(part, parts_for(total, pages * self._rules.size), moment_ms)

    def _replace(self, part: Part, count: int, moment_ms: int | None = None) -> None:
        """Cut the part into so many, or at the moment to which most of its rows belong."""
        step_ms = self._bounds.step_ms
        start_ms, end_ms = part.window.start_ms, part.window.end_ms
        pieces = cut_window(part.window, -(-(end_ms - start_ms) // count), step_ms)
        if moment_ms is not None:
            bounds = sorted({start_ms, moment_ms, moment_ms + step_ms, end_ms})
            pieces = [Window(one, other) for one, other in pairwise(bounds)]
        self._todo.pop()
        if part.pages == 0:
            self._read_again(([] if part.behind is None else [part.behind]) + _open(part.before))
        self._todo.extend(Part(piece) for piece in reversed(pieces))
        self._sort()

    def _can_split(self, window: Window) -> bool:
        step_ms = self._bounds.step_ms
        seam_ms = (window.start_ms // step_ms + 1) * step_ms
        return seam_ms < window.end_ms and (self._always_narrows or self._narrows(window))

    def _narrows(self, window: Window) -> bool:
        """Return whether half the window requests clearly less: not without a bound, nor where wall time repeats."""
        whole = self._bounds.request(window)
        half = self._bounds.request(Window(window.start_ms, (window.start_ms + window.end_ms + 1) // 2))
        if whole.earliest_ms is None or whole.latest_ms is None or half.earliest_ms is None or half.latest_ms is None:
            return False
        return (half.latest_ms - half.earliest_ms) * 4 <= (whole.latest_ms - whole.earliest_ms) * 3


def _is_no_count(page: Page) -> bool:
    """Return whether a total cannot be one: the same answer lists more orders. Then it counts something else."""
    return page.total is not None and page.total < len({row.key for row in page.rows})


def _open(before: Sequence[ListedBefore]) -> list[ListedBefore]:
    return [each for each in before if each.is_open]
