"""What a platform can do to us that is no ordinary outcome.

Ordinary trouble (throttled, log in again, come back later) is a value, see `adapter.Outcome`. What stands here is
raised: the answer cannot be trusted, or the adapter itself is not fit to be used. Each says what was found.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class PlatformError(Exception):
    """Something between us and an outside service that no retry of the same request mends."""


class BrokenContract(PlatformError):
    """The platform answered against its own rules. The slice is set aside with this reason and a person is told.

    `reason` is one sentence that holds no order data beyond keys. `said` is the beginning of what the platform said,
    as far as it is known."""

    def __init__(self, reason: str, said: bytes = b"") -> None:
        self.reason = reason
        self.said = said
        super().__init__(reason)


class Unreadable(BrokenContract):
    """Most of what an answer lists, or the answer itself, is not as it was declared: rather the declaration is wrong
    than so many orders. `is_of_rows`: the rows, or the answer itself, cannot be read."""

    def __init__(self, reason: str, said: bytes = b"", *, is_of_rows: bool = True) -> None:
        super().__init__(reason, said)
        self.is_of_rows = is_of_rows


class WindowIgnored(Unreadable):
    """Rows can be read, but they are not from the window that was asked for."""

    def __init__(self, reason: str, said: bytes = b"") -> None:
        super().__init__(reason, said, is_of_rows=False)


class PageCut(Unreadable):
    """Rows can be read, but a platform lists fewer at once than was asked for, and does not say that there are more.
    `rows`: how many. `is_counted`: its total counts what one answer lists."""

    def __init__(self, reason: str, said: bytes, *, rows: int, is_counted: bool) -> None:
        super().__init__(reason, said, is_of_rows=False)
        self.rows = rows
        self.is_counted = is_counted


class Garbled(BrokenContract):
    """The body is no whole JSON (cut short, or mixed up on its way), or it tells of an error in place of orders.
    The same request may well succeed: ask again."""


class BadDeclaration(PlatformError, ValueError):
    """An adapter's declaration, or an account for it, cannot be used. `where` is a path such as `window.step`."""

    def __init__(self, where: str, problem: str) -> None:
        self.where = where
        self.problem = problem
        super().__init__(f"{where}: {problem}")

    @property
    def in_table(self) -> str:
        """The place as it looks in a file: `[window] step`, `[[errors]] 2 outcome`, or a key without a table."""
        table, _, key = self.where.rpartition(".")
        found = re.fullmatch(r"(list|rate|errors)\[(\d+)\](.*)", table or self.where)
        if found is not None:
            below = f", [{found[1]}{found[3]}]" if found[3] else ""
            return f"[[{found[1]}]] number {int(found[2]) + 1}{below} {key if table else ''}".rstrip()
        member = re.fullmatch(r"(\w+)\[(\d+)\]", key)
        key = f"{member[1]}, number {int(member[2]) + 1}" if member is not None else key
        return f"[{table}] {key}" if table else key


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint for a misspelt `name`: ' (did you mean x?)' or the list of what is known."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f" (did you mean {close[0]!r}?)" if close else f" (known: {', '.join(names)})"
