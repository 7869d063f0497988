"""A part of a window while it is read, and the next step after each of its pages."""

from __future__ import annotations

from typing import Literal

from platforms.adapter import Page, PageRules
from platforms.bounds import Window
from platforms.errors import BrokenContract

_FILL = 0.75  # parts are cut to be this full on average: at 100 a page they then overflow about once in 350
_MOST_PARTS = 64  # of one cut: a wrong total must not make us plan a million requests
_MOST_READINGS = 3  # of a part that cannot be cut smaller

Step = Literal["done", "unproven", "more", "count", "again", "split"]


class Part:
    """One piece of the window while it is being read."""

    def __init__(self, window: Window, readings: int = 1) -> None:
        self.window = window
        self.readings = readings
        self.page: str | None = None
        self.pages = 0
        self.first_total: int | None = None
        self.last_total: int | None = None
        self.is_cut_off = False
        self.is_counting = False
        self.keys: set[str] = set()
        self._turned: set[str] = set()

    def take(self, page: Page, total: int | None, rules: PageRules) -> None:
        if self.pages == 0:
            self.first_total = total
        if total is not None:
            self.last_total = total
        self.is_cut_off = total is None and is_cut_off(page, rules)
        self.pages += 1
        self.keys.update([row.key for row in page.rows])
        # a bad row was listed and counted all the same
        self.keys.update(row.key if row.key is not None else f"\0{row.body!r}" for row in page.bad)

    @property
    def missing(self) -> int:
        """How many more orders the platform counts than it has listed."""
        return max(0, (self.last_total or 0) - len(self.keys))

    def turn(self, page: str | None) -> None:
        assert page is not None  # `decide` says more only when there is more
        if page in self._turned:
            raise BrokenContract(
                f"the platform names the same next page again after {self.pages} pages of {window_text(self.window)}"
            )
        self._turned.add(page)
        self.page = page


def decide(part: Part, page: Page, total: int | None, rules: PageRules, *, can_split: bool) -> Step:
    """Return the next step after `page` was taken into `part`."""
    is_counted = part.first_total is not None and part.first_total == len(part.keys)
    if part.is_counting:
        return "done" if is_counted and total == part.first_total else _mend(part, can_split)
    if part.pages == 1 and is_counted:
        return "done"
    is_full = len(page.rows) + len(page.bad) >= rules.size
    is_cut_short = total is not None or page.next is not None or page.has_more or is_full
    if rules.style == "one" and part.pages == 1 and is_cut_short and can_split:
        return "split"
    if page.next is not None:
        return "more"
    if part.first_total is None:
        return _mend(part, can_split) if page.has_more else "unproven"
    if is_counted and rules.has_live_total and total is not None:
        return "done" if total == part.first_total else _mend(part, can_split)
    return "count" if is_counted else _mend(part, can_split)


def is_cut_off(page: Page, rules: PageRules) -> bool:
    """Return whether the list goes on, as far as the page itself shows, and the page names no next one."""
    is_full = not rules.has_next and rules.style == "one" and len(page.rows) + len(page.bad) >= rules.size
    return page.next is None and (page.has_more or is_full)


def _mend(part: Part, can_split: bool) -> Step:
    """Return the next step for a count that does not add up. One answer would only repeat itself. Several may have
    drifted by chance, and may read differently the next time."""
    if can_split:
        return "split"
    return "again" if part.pages > 1 and part.readings < _MOST_READINGS else "unproven"


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


def window_text(window: Window) -> str:
    """Return the window as people write it."""
    return f"[{window.start_ms}, {window.end_ms})"
