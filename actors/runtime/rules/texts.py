"""Foreign text and long lists, made fit for our messages. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOST_REASON = 1_000
"""Limit of an error's text, in characters."""
_PAIRS = (
    (86_400_000, "d", 3_600_000, "h"),
    (3_600_000, "h", 60_000, "m"),
    (60_000, "m", 1_000, "s"),
)


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


def range_text(start_ms: int, end_ms: int) -> str:
    """Return a half-open range of time in UTC."""
    return f"from {time_text(start_ms)} to {time_text(end_ms)}"


def span_text(span_ms: int) -> str:
    """Return a length of time for people: its two largest units, `3d4h`, `2m5s`, `12.5s`, `80ms`."""
    if span_ms < 0:
        return f"-{span_text(-span_ms)}"
    if span_ms < 1000:
        return f"{span_ms}ms"
    if span_ms < 60_000:
        return f"{span_ms / 1000:.1f}".rstrip("0").rstrip(".") + "s"
    for unit_ms, unit, below_ms, below in _PAIRS:
        if span_ms >= unit_ms:
            rest = span_ms % unit_ms // below_ms
            return f"{span_ms // unit_ms}{unit}" + (f"{rest}{below}" if rest else "")
    raise AssertionError("a minute or more has a pair")
