"""How platforms write times, and how we read them: whole milliseconds UTC on our side, any form on theirs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Struct

from platforms.errors import BadDeclaration

EARLIEST_MS = 946_684_800_000  # 2000-01-01: an order time before it is a default that slipped through
LATEST_MS = 4_070_908_800_000  # 2099-01-01: so is one after it
_FARTHEST = 1e300  # a float above it has no milliseconds
_JUMPS_FROM_MS = 1_704_067_200_000  # 2024
_MONTH_MS = 30 * 86_400_000
_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - wall time has no zone, on purpose
_USUAL_PATTERN = "%Y-%m-%d %H:%M:%S"

TimeFormat = Literal["unix_s", "unix_ms", "iso_z", "iso_offset", "wall"]
WireTime = int | float | str


def find_zone(name: str) -> tzinfo:
    """Return the zone of an IANA name. BadDeclaration when this machine does not know the name."""
    if name == "UTC":  # must not depend on the machine's time zone files, which small images leave out
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadDeclaration("zone", f"{name!r} is no IANA time zone known here, such as 'Asia/Shanghai'") from error


class TimeStyle(Struct, frozen=True):
    """How a platform writes a time. `zone` counts for iso_offset and wall, `pattern` (as strftime) for wall."""

    format: TimeFormat = "unix_ms"
    zone: str = "UTC"
    pattern: str = _USUAL_PATTERN

    def __post_init__(self) -> None:
        find_zone(self.zone)

    def write(self, at_ms: int) -> str:
        """Return the instant in this style, with the zone's offset at that time."""
        return write_time(at_ms, offset_ms(find_zone(self.zone), at_ms) if self.format == "wall" else 0, self)


def offset_ms(zone: tzinfo, at_ms: int) -> int:
    """Return how far the zone's wall time is ahead of UTC at that instant."""
    offset = (_EPOCH + timedelta(milliseconds=at_ms)).astimezone(zone).utcoffset()
    assert offset is not None  # UTC and every ZoneInfo have one
    return offset // _MILLISECOND


def has_jumps(zone_name: str) -> bool:
    """Return whether the zone's offset changes within these years, as with summer time."""
    zone = find_zone(zone_name)
    return len({offset_ms(zone, _JUMPS_FROM_MS + month * _MONTH_MS) for month in range(60)}) > 1


def write_time(at_ms: int, wall_offset_ms: int, style: TimeStyle) -> str:
    """Return the instant in the platform's writing. `wall_offset_ms` counts for wall time only."""
    match style.format:
        case "unix_ms":
            return str(at_ms)
        case "unix_s":
            return str(at_ms // 1000)
        case "wall":
            return (_NAIVE_EPOCH + timedelta(milliseconds=at_ms + wall_offset_ms)).strftime(style.pattern)
    precision = "milliseconds" if at_ms % 1000 else "seconds"
    instant = _EPOCH + timedelta(milliseconds=at_ms)
    if style.format == "iso_z":
        return instant.replace(tzinfo=None).isoformat(timespec=precision) + "Z"
    return instant.astimezone(find_zone(style.zone)).isoformat(timespec=precision)


def can_write(style: TimeStyle, at_ms: int) -> bool:
    """Return whether the style can express that instant to the millisecond."""
    if style.format == "unix_s":
        return at_ms % 1000 == 0
    if style.format != "wall":
        return True
    read = datetime.strptime(write_time(at_ms, 0, style), style.pattern)  # noqa: DTZ007
    return (read.replace(tzinfo=None) - _NAIVE_EPOCH) // _MILLISECOND == at_ms


def time_reader(style: TimeStyle) -> Callable[[WireTime], int | None]:
    """Return a function from a time on the wire to milliseconds UTC.

    It gives None if the text may mean two instants. It raises ValueError with the reason for a text that is no time of
    this style, and for a time outside 2000 to 2099."""
    match style.format:
        case "unix_ms":
            return _read_unix_ms
        case "unix_s":
            return lambda value: _plausible(_number(value, 1000))
        case "iso_z" | "iso_offset":
            return lambda value: _plausible(_instant(_parse(value, None)))
    zone = find_zone(style.zone)
    pattern = None if style.pattern == _USUAL_PATTERN else style.pattern
    return lambda value: _wall(_parse(value, pattern), zone)


def _read_unix_ms(value: WireTime) -> int:
    if type(value) is int and EARLIEST_MS <= value < LATEST_MS:  # the usual case, once for every order
        return value
    return _plausible(_number(value, 1))


def _number(value: WireTime, scale: int) -> int:
    if isinstance(value, str):
        if not (value.isascii() and value.isdecimal()):
            raise ValueError(f"time {value[:40]!r} is no number")
        value = int(value)
    if abs(value) > _FARTHEST:
        raise ValueError(f"time {value!r} is no time of these years")
    return int(value * scale)


def _parse(value: WireTime, pattern: str | None) -> datetime:
    if not isinstance(value, str):
        raise ValueError(f"time {value!r} is a number where text was declared")
    # newer Pythons take 24:00 for the next midnight, but the day that was meant is a guess
    if "T24" in value or " 24" in value:
        raise ValueError(f"time {value[:40]!r} has an hour 24")
    try:
        return datetime.fromisoformat(value) if pattern is None else datetime.strptime(value, pattern)  # noqa: DTZ007
    except ValueError as error:
        raise ValueError(f"time {value[:40]!r} cannot be read") from error


def _instant(read: datetime) -> int:
    if read.tzinfo is None:
        raise ValueError(f"time {read.isoformat()!r} has no zone")
    return (read - _EPOCH) // _MILLISECOND


def _wall(read: datetime, zone: tzinfo) -> int | None:
    if read.tzinfo is not None:
        return _plausible(_instant(read))
    first, second = _instant(read.replace(tzinfo=zone)), _instant(read.replace(tzinfo=zone, fold=1))
    return _plausible(first) if first == second else None


def _plausible(at_ms: int) -> int:
    if not EARLIEST_MS <= at_ms < LATEST_MS:
        raise ValueError(f"time {_shown(at_ms)} is not between the years 2000 and 2099")
    return at_ms


def _shown(at_ms: int) -> str:
    try:
        return write_time(at_ms, 0, TimeStyle("iso_z"))
    except OverflowError:  # beyond the year 9999
        return f"{at_ms} ms"
