"""Foreign text and long lists, made fit for our messages. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOST_REASON = 1_000
"""Limit of an error's text, in characters."""


def printable(reason: str) -> str:
    """Return an error's text, made fit for a message: foreign text can be long, or no valid Unicode."""
    return reason[:MOST_REASON].encode("utf-8", "replace").decode()


def some_of(names: Sequence[str], most: int, rest: str = "more") -> str:
    """Return the first `most` names, and how many `rest` there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} {rest}" if len(names) > most else "")


def time_text(at_ms: int) -> str:
    """Return a moment in UTC as it can be written back. Milliseconds are shown only if they are not zero."""
    moment = EPOCH + timedelta(milliseconds=at_ms)
    return moment.isoformat(timespec="milliseconds" if at_ms % 1000 else "seconds").replace("+00:00", "Z")
