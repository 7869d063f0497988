"""Moments and spans as people write and read them on the command line. Inside, time is whole milliseconds UTC.

A moment without a zone means different times in different places, so it is refused unless a zone is named. A window
that is wrong by eight hours is dangerous because it looks right.
"""

import re
from datetime import UTC, datetime
from difflib import get_close_matches
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from actors.runtime.rules.setting_values import BadSetting, read_duration
from actors.runtime.rules.texts import EPOCH, span_text, time_text
from penstock.errors import UsageError

__all__ = ["fact_text", "read_moment", "read_range", "read_zone", "span_text", "time_text"]

_MOMENT = re.compile(
    r"(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?)\s?(Z|z|[+-]\d{2}:?\d{2})?)?", re.ASCII
)
_FROM_1980_MS = 315_532_800_000
_WRITE = "write it as 2026-01-31T08:00:00Z, 2026-01-31T16:00:00+08:00, -3d or now"


def read_moment(text: str, *, now_ms: int, zone: ZoneInfo | None = None) -> int:
    """Return the moment that `text` names: ISO 8601 with an offset, `-3d` (before now), or `now`. The last two are
    rounded down to the whole second. With `zone`, wall time and a bare date (its midnight) are in that zone. Raises
    UsageError."""
    text = text.strip()
    if text == "now" or text.startswith("-"):
        at_ms = now_ms if text == "now" else now_ms - _span_ms(text)
        return _since_1970(text, at_ms - at_ms % 1000)
    if text.isdecimal():
        raise UsageError(f"time {text!r}: a bare number is no moment{_meant(text)}; {_WRITE}")
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise UsageError(f"time {text[:64]!r}: is no moment; {_WRITE}")
    date, clock, offset = found.groups()
    wall = _read_wall(text, f"{date}T{clock or '00:00'}".replace(",", "."))
    if offset:
        moment = _read_wall(text, f"{wall.isoformat()}{offset.upper()}")
    elif zone is None:
        raise UsageError(f"time {text!r}: says no zone; add Z or an offset such as +08:00, or name one with --tz")
    else:
        moment = _in_zone(text, wall, zone)
    return _milliseconds(text, moment)


def read_range(start: str, end: str, *, now_ms: int, zone: ZoneInfo | None = None) -> tuple[int, int]:
    """Return a half-open range of time. Raises UsageError, also if the range is empty or reversed."""
    start_ms, end_ms = (read_moment(text, now_ms=now_ms, zone=zone) for text in (start, end))
    if start_ms >= end_ms:
        raise UsageError(f"from {start} to {end}: the first moment must lie before the second")
    return start_ms, end_ms


def read_zone(name: str) -> ZoneInfo | None:
    """Return the time zone of that name (Asia/Shanghai), None for an empty name. Raises UsageError with the nearest
    name."""
    if not name:
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        near = get_close_matches(name, sorted(available_timezones()), 1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else "write one such as Asia/Shanghai"
        raise UsageError(f"--tz {name[:64]!r}: no such time zone; {hint}") from None


def fact_text(name: str, value: object) -> str:
    """Return a fact of a record for people. The name of a time in ms ends in `_ms`, and from 1980 on it is a moment."""
    if not isinstance(value, int) or not name.endswith("_ms"):
        return str(value)
    return time_text(value) if value >= _FROM_1980_MS else span_text(value)


def _span_ms(text: str) -> int:
    try:
        return read_duration("time", text[1:])
    except BadSetting:
        raise UsageError(
            f"time {text!r}: is no moment before now; write a number with its unit, as -3d or -90m"
        ) from None


def _meant(digits: str) -> str:
    """Return the moment that a number would be as Unix time, since slice ids hold such numbers."""
    at_ms = int(digits) if len(digits) == 13 else int(digits) * 1000 if len(digits) == 10 else 0
    return f" (in Unix time it would be {time_text(at_ms)})" if at_ms else ""


def _read_wall(text: str, iso: str) -> datetime:
    try:
        return datetime.fromisoformat(iso)
    except ValueError:
        raise UsageError(f"time {text!r}: does not exist in the calendar; {_WRITE}") from None


def _in_zone(text: str, wall: datetime, zone: ZoneInfo) -> datetime:
    """Raise UsageError for a wall time that a change of the clock makes twice or never."""
    early, late = (wall.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    if early.utcoffset() != late.utcoffset():
        is_gap = early.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != wall
        fault = "does not exist" if is_gap else "exists twice"
        raise UsageError(f"time {text!r}: {fault} in {zone.key}, where the clock changes; write it with an offset")
    return early


def _milliseconds(text: str, moment: datetime) -> int:
    since = moment - EPOCH
    return _since_1970(text, (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000)


def _since_1970(text: str, at_ms: int) -> int:
    if at_ms < 0:
        raise UsageError(f"time {text!r}: lies before 1970")
    return at_ms
