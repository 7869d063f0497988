"""The cursors of a desk's lists: a cursor of the store, with a mark of the list that it belongs to. Pure."""

import hashlib
from collections.abc import Sequence


class BadCursor(ValueError):
    """A cursor that no page gave."""


def write_cursor(cursor: str, about: Sequence[str]) -> str:
    """Return the store's cursor with a mark of its list. The empty cursor stays empty."""
    return f"{cursor}.{_mark(cursor, about)}" if cursor else ""


def read_cursor(text: str, about: Sequence[str]) -> str:
    """Return the store's cursor. Raises BadCursor for one of another list, or a changed one."""
    cursor, _, mark = text.rpartition(".")
    if text and (not text.isascii() or mark != _mark(cursor, about)):
        raise BadCursor("not a cursor of this list")
    return cursor


def _mark(cursor: str, about: Sequence[str]) -> str:
    return hashlib.blake2b("/".join((cursor, *about)).encode(), digest_size=6).hexdigest()
