"""Finds out whether a platform obeys the window, where no row tells its time: by two windows apart from each other.

Many platforms ignore a misspelt parameter in silence. Each window then lists the whole shop, and every count adds up.
So the first and the last third of a window are asked for. A platform that obeys lists no order in both."""

from __future__ import annotations

from typing import Literal

from platforms.adapter import Page
from platforms.bounds import Bounds, Window, window_text
from platforms.errors import WindowIgnored

_SHOWN = 4096

Verdict = Literal["obeys", "unknown"]


class WindowCheck:
    """One check, by two windows that have nothing in common."""

    def __init__(self, windows: tuple[Window, Window]) -> None:
        self._windows = windows
        self._pages: list[Page] = []

    def next(self) -> Window:
        """Return the window to ask for."""
        return self._windows[len(self._pages)]

    def feed(self, page: Page) -> Verdict | None:
        """Take an answer. Return the verdict after the second one, None before. Raises WindowIgnored if the platform
        ignores the window."""
        self._pages.append(page)
        if len(self._pages) < 2:
            return None
        first, second = ({(row.key, row.version) for row in each.rows} for each in self._pages)
        in_both = first & second
        if in_both and 2 * len(in_both) >= min(len(first), len(second)):
            names = " as ".join(window_text(each) for each in self._windows)
            raise WindowIgnored(
                f"the platform lists the same {len(in_both)} orders {names}: it ignores the window; check the names "
                "of its parameters",
                self._pages[0].rows[0].body[:_SHOWN],
            )
        return "obeys" if first and second else "unknown"


def thirds(window: Window, bounds: Bounds) -> tuple[Window, Window] | None:
    """Return the first and the last third of a window. None: the bounds cannot ask for them apart from each other."""
    step_ms = bounds.step_ms
    third_ms = (window.end_ms - window.start_ms) // 3 // step_ms * step_ms
    if not third_ms:
        return None
    first = Window(window.start_ms, window.start_ms + third_ms)
    last = Window(window.end_ms - third_ms, window.end_ms)
    latest_ms, earliest_ms = bounds.request(first).latest_ms, bounds.request(last).earliest_ms
    if latest_ms is None or earliest_ms is None or latest_ms >= earliest_ms:
        return None
    return first, last
