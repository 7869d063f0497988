"""Cron lines: the moments that they name, in milliseconds UTC. Pure.

**Clock changes.** A line with a fixed minute and hour fires once a day. A time that the change leaves out fires when
the clock goes on (02:30 becomes 03:00). A time that comes twice fires the first time. A line whose minute or hour
starts with `*` follows the elapsed time: `*/15 * * * *` fires each quarter of an hour, also through the hour that comes
twice, and not in one that is left out. Debian's cron does the same. With seconds before the five fields it is the same.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

LONGEST_LINE = 256
MINUTE_S, HOUR_S = 60, 3_600

_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_RANGES = {
    "second": "0 to 59",
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day-of-month": "1 to 31 or L, and a day that the month has",
    "month": "1 to 12 or JAN to DEC",
    "day-of-week": "0 to 7 or SUN to SAT",
}
FORM = "minute hour day-of-month month day-of-week, as `30 9 * * MON-FRI`, with seconds before it if need be"


class BadRecurrence(ValueError):
    """A schedule that is refused: which field, which value, what is wrong with it, and what to write instead."""

    def __init__(self, field: str, value: object, what: str, hint: str) -> None:
        shown = ascii(value)
        super().__init__(f"{field} {shown if len(shown) <= 80 else f'{shown[:77]}...'}: {what}; {hint}")
        self.field, self.value, self.what, self.hint = field, value, what, hint


def check_cron(line: str) -> None:
    """Raise BadRecurrence unless the line has five fields, six with seconds first, or is a nickname like `@daily`."""
    if len(line) > LONGEST_LINE:
        raise BadRecurrence("cron", line, f"has {len(line)} characters", f"use at most {LONGEST_LINE}")
    try:
        _fields(line)
    except CronSimError as error:
        name = str(error).removeprefix("Bad ")
        if name in _RANGES:
            raise BadRecurrence("cron", line, f"the {name} is not understood", f"use {_RANGES[name]}") from error
        raise BadRecurrence("cron", line, f"has {len(line.split())} fields", f"write {FORM}") from error


class _Minutes(CronSim):
    """The library's moments, also where the clock changes by less than an hour, or amid an hour. There the library's
    jumps to an hour or a minute leave out moments, or lead back, again and again (Pacific/Chatham)."""

    def advance_hour(self) -> bool:
        if self.dt.hour in self.hours:
            return False
        while self.dt.hour not in self.hours:
            self.tick(HOUR_S - self.dt.minute * MINUTE_S - self.dt.second)
            if self.dt.hour == 0:
                break  # the day is another one
        return True

    def tick(self, seconds: int = 1) -> None:
        begun = self.dt
        super().tick(seconds)
        if seconds > MINUTE_S and self.dt.utcoffset() != begun.utcoffset():
            self.dt = begun
            super().tick(MINUTE_S - begun.second)


class _Fields(NamedTuple):
    """The parts of a cron line: the library computes the minutes, and the seconds lie within each of its minutes."""

    minutes: str
    seconds: tuple[int, ...]


@lru_cache(maxsize=1024)
def _fields(line: str) -> _Fields:
    """Return a line's parts. Raises CronSimError.
    The library follows Debian at a change of the clock only for five fields. A line with seconds must behave the
    same."""
    text = _NICKNAMES.get(line.strip().lower(), line)
    parsed = CronSim(text, datetime(2000, 1, 1, tzinfo=UTC))
    return _Fields(" ".join(parsed.parts[1:]), tuple(sorted(parsed.seconds)))


@lru_cache(maxsize=4096)
def next_cron(line: str, tz: str, after_ms: int) -> int | None:
    """Return the first moment after `after_ms`, or None if there is none. Cached for the next calls."""
    return next((at_ms for at_ms in cron_dues(line, tz, after_ms) if at_ms > after_ms), None)


def cron_dues(line: str, tz: str, after_ms: int) -> Iterator[int]:
    """Yield moments from the minute of `after_ms` on, never falling. Around a change of the clock some come twice."""
    minutes, seconds = _fields(line)
    start = datetime.fromtimestamp(after_ms // 60_000 * 60, UTC) - timedelta(minutes=1)
    for minute in _Minutes(minutes, start.astimezone(ZoneInfo(tz))):
        at_s = int(minute.timestamp())
        yield from ((at_s + second) * 1000 for second in seconds)
