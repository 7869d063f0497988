"""Pages of lists: the same at every desk. Pure."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

MOST_LINES = 1_000
PAGE_BYTES = 512 * 1024
"""Of a page as JSON. It fits a message, with room for what goes with it."""

_T = TypeVar("_T")


def page_of(things: Iterable[_T], most: int, most_bytes: int, place: Callable[[_T], str]) -> tuple[list[_T], str]:
    """Return the first things, up to `most` and `most_bytes` as JSON, at least one, and the place of the last one if
    there are more."""
    page: list[_T] = []
    for thing in things:
        most_bytes -= len(msgspec.json.encode(thing)) + 1
        if page and (len(page) == most or most_bytes < 0):
            return page, place(page[-1])
        page.append(thing)
    return page, ""
