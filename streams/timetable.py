"""The times at which the server delivers: due times, intervals and cron lines, checked and written as it reads them.
Pure.

They are checked before they are sent, because the server answers every fault with "pattern is invalid", and because it
accepts some mistakes: a due time after April 2262 overflows its clock and fires **at once**. A due time in the past
fires at once too, and rightly so.
"""

import difflib
import re
import zoneinfo
from datetime import UTC, datetime
from functools import cache, lru_cache

from streams.errors import StreamError

LATEST_MS = 9_214_646_400_000
"""2262-01-01, the last whole year that the server's 64-bit nanoseconds reach."""
SHORTEST_EVERY_MS = 1_000
LONGEST_EVERY_MS = 100 * 366 * 86_400_000

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: tuple[tuple[str, int, int, tuple[str, ...]], ...] = (
    ("second", 0, 59, ()),
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 6, _DAYS),
)
_NICKNAMES = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
_PART = re.compile(r"(?P<range>\*|\?|(?P<low>\w+)(?:-(?P<high>\w+))?)(?:/(?P<step>\w+))?")
_SIX = "second minute hour day-of-month month day-of-week, e.g. `0 30 9 * * MON-FRI`"


class BadSchedule(StreamError, ValueError):
    """A time that cannot be scheduled. The message says which value, why, and what to write instead."""


def at_line(due_ms: int) -> str:
    """Return the line for one delivery at `due_ms`, to the millisecond."""
    if not isinstance(due_ms, int) or isinstance(due_ms, bool):
        raise BadSchedule(f"due_ms {due_ms!r}: whole milliseconds UTC since 1970 are needed")
    if not 0 <= due_ms <= LATEST_MS:
        raise BadSchedule(f"due_ms {due_ms!r}: use 0 to {LATEST_MS} (the end of 2261); were seconds or µs meant?")
    seconds, ms = divmod(due_ms, 1000)
    return f"{_at_second(seconds)}.{ms:03d}Z"


@lru_cache(maxsize=4096)
def _at_second(seconds: int) -> str:
    """Return the line to the second. It is cached, since many jobs are due in the same second."""
    return f"@at {datetime.fromtimestamp(seconds, UTC).isoformat()[:19]}"  # strftime takes ten times as long


def every_line(every_ms: int) -> str:
    """Return the line for a delivery each `every_ms` from now on."""
    if not isinstance(every_ms, int) or isinstance(every_ms, bool):
        raise BadSchedule(f"every_ms {every_ms!r}: whole milliseconds are needed")
    if not SHORTEST_EVERY_MS <= every_ms <= LONGEST_EVERY_MS:
        raise BadSchedule(
            f"every_ms {every_ms!r}: use {SHORTEST_EVERY_MS} (the server's shortest) to {LONGEST_EVERY_MS}"
        )
    return f"@every {every_ms}ms"


def cron_line(expression: str) -> str:
    """Return a cron expression of six fields, or a nickname like `@daily`, with its blanks normalized."""
    text = " ".join(expression.split()) if isinstance(expression, str) else ""
    if text.lower() in _NICKNAMES:
        return text.lower()
    fields = text.split(" ")
    if len(fields) != len(_FIELDS):
        names = f"or one of {', '.join(_NICKNAMES)}"
        raise BadSchedule(f"cron {_shown(expression)}: {len(text.split())} fields; six are needed: {_SIX}, {names}")
    for field, (name, lowest, highest, words) in zip(fields, _FIELDS, strict=True):
        for part in field.split(","):
            if fault := _part_fault(part, lowest, highest, words):
                raise BadSchedule(f"cron {_shown(expression)}: {name} {_shown(part)}: {fault}")
    return text


def check_tz(tz: str) -> str:
    """Return a time zone of the IANA list, as `Europe/Berlin`. Raises BadSchedule, which names the nearest zone."""
    if tz in _zones():
        return tz
    near = difflib.get_close_matches(str(tz), _zones(), n=1)
    hint = f"is {near[0]} meant?" if near else "use a name of the IANA list, as Europe/Berlin"
    raise BadSchedule(f"time zone {_shown(tz)}: unknown; {hint}")


@cache
def _zones() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


def _part_fault(part: str, lowest: int, highest: int, words: tuple[str, ...]) -> str:
    """Return what is wrong with one part of a field (`*`, `5`, `1-5`, `MON`, `*/2`), "" if nothing is."""
    found = _PART.fullmatch(part)
    if not found:
        return "not understood; use numbers, ranges `1-5`, lists `1,3` and steps `*/2`"
    step = found["step"]
    if step is not None and (not step.isdigit() or int(step) == 0):
        return "a step is a number from 1"
    low = _number(found["low"], words, lowest) if found["low"] else lowest
    high = _number(found["high"], words, lowest) if found["high"] else low
    if low is None or high is None or not lowest <= low <= highest or not lowest <= high <= highest:
        return f"use {lowest} to {highest}" + (f" or {words[0]} to {words[-1]}" if words else "")
    return "the range runs backwards" if low > high else ""


def _number(text: str, words: tuple[str, ...], lowest: int) -> int | None:
    if text.isascii() and text.isdigit():
        return int(text) if len(text) <= 2 else None
    return words.index(text.lower()) + lowest if text.lower() in words else None


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
