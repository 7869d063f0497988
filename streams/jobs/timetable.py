"""The times at which the server delivers, and time zones, checked and written as it reads them. Pure.

They are checked before they are sent, because the server answers every fault with "pattern is invalid", and because it
accepts some mistakes: a due time after April 2262 overflows its clock and fires **at once**. A due time in the past
fires at once too, and rightly so.
"""

import difflib
import zoneinfo
from datetime import UTC, datetime
from functools import cache, lru_cache

from streams.errors import StreamError

LATEST_MS = 9_214_646_400_000
"""2262-01-01, the last whole year that the server's 64-bit nanoseconds reach."""


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


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
