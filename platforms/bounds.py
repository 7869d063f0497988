"""From our half-open UTC milliseconds to a platform's own form of 'from' and 'to'.

The rule everywhere is: widen, never narrow. A row at any millisecond inside the window must be inside the requested
bounds, whether the platform compares whole milliseconds or drops them to its step first. The reader cuts off rows from
outside the window.

Wall time has no unique meaning where a zone changes its offset. There the lower bound is written with the smallest
offset in force nearby and the upper with the largest, which holds for both ways in which platforms compare: the text
read as an instant (either pass of a repeated hour, either side of a missing one), or wall times stored and compared as
they are. 'Nearby' is as far as the offsets differ: further off no reading of the text can reach.
"""

from __future__ import annotations

from datetime import tzinfo
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta, Struct

from platforms.errors import BadDeclaration
from platforms.times import EARLIEST_MS, LATEST_MS, TimeStyle, can_write, find_zone, offset_ms, write_time

_LONGEST_SHIFT_MS = 26 * 3_600_000  # Samoa left out a whole day, and no zone has moved further
_WEEK_MS = 7 * 86_400_000
_UTC = TimeStyle("iso_z")
_UNITS_MS = ((3_600_000, 86_400_000), (60_000, 60_000), (1_000, 1_000))

BoundKind = Literal["includes", "excludes", "absent"]


class Window(Struct, frozen=True):
    """Half-open range [start_ms, end_ms) in milliseconds UTC, never empty."""

    start_ms: int
    end_ms: int

    def __post_init__(self) -> None:
        if self.start_ms >= self.end_ms:
            raise ValueError(f"window {window_text(self)} is empty or turned round")


def window_text(window: Window) -> str:
    """Return the window for people, in UTC."""
    return f"from {_UTC.write(window.start_ms)} to {_UTC.write(window.end_ms)}"


def until_ms(at_ms: int) -> int:
    """Return the end of what a row's time may stand for: it may lack its milliseconds, its seconds, or all but the day.
    A whole hour may be midnight in some zone."""
    unit_ms = next((unit for whole, unit in _UNITS_MS if at_ms % whole == 0), 1)
    return at_ms + unit_ms


class RequestedBounds(NamedTuple):
    """A window in the platform's form, None where it takes no such bound. An honest platform answers with rows of
    [earliest_ms, latest_ms] only (None: unbounded)."""

    lower: str | None
    upper: str | None
    earliest_ms: int | None
    latest_ms: int | None


def is_asked(bounds: RequestedBounds, modified_ms: int | None) -> bool:
    """Return whether an honest platform may list a row of that time for such bounds."""
    if modified_ms is None:
        return True
    earliest_ms = bounds.earliest_ms
    is_late_enough = earliest_ms is None or modified_ms >= earliest_ms or until_ms(modified_ms) > earliest_ms
    return is_late_enough and (bounds.latest_ms is None or modified_ms <= bounds.latest_ms)


class Bounds(Struct, frozen=True):
    """The platform's comparison. `step_ms` is the unit of written bounds, `clock_ms` the unit of stored order times.
    Leave `clock_ms` 1 unless the platform is known to keep nothing finer. Then no request for a step is in vain."""

    lower: BoundKind = "includes"
    upper: BoundKind = "excludes"
    step_ms: Annotated[int, Meta(ge=1)] = 1
    clock_ms: Annotated[int, Meta(ge=1)] = 1
    time: TimeStyle = TimeStyle()

    def __post_init__(self) -> None:
        if not can_write(self.time, self.step_ms * 1_234_567):
            raise BadDeclaration(
                "window.step", f"steps of {self.step_ms} ms cannot be told apart in {self.time.format}"
            )

    def request(self, window: Window) -> RequestedBounds:
        """Return the bounds to send for `window`, widened to the step and for the zone's jumps."""
        low, high = self._offsets(window.start_ms), self._offsets(window.end_ms)
        lower = None if self.lower == "absent" else self._lower(window.start_ms + low[0])
        upper = None if self.upper == "absent" else self._upper(window.end_ms + high[1])
        return RequestedBounds(
            None if lower is None else write_time(lower - low[0], low[0], self.time),
            None if upper is None else write_time(upper - high[1], high[1], self.time),
            None if lower is None else lower - low[1] - self.step_ms,
            None if upper is None else upper - high[0] + self.step_ms,
        )

    def middle_ms(self, window: Window) -> int:
        """Return the middle of a window, on the step. It may be before its start, where the step is longer."""
        return (window.start_ms + window.end_ms) // 2 // self.step_ms * self.step_ms

    @property
    def blurred(self) -> tuple[tuple[int, int], ...]:
        """The stretches of time in which no bound can be written exactly, earliest first: around the moments at which
        the clocks of wall times are changed. A window that begins or ends in one requests an hour more."""
        return _blurred(self.time.zone) if self.time.format == "wall" else ()

    def _lower(self, at: int) -> int:
        first = -(-at // self.clock_ms) * self.clock_ms
        floor = first // self.step_ms * self.step_ms
        return floor if self.lower == "includes" else floor - self.step_ms

    def _upper(self, at: int) -> int:
        last = (at - 1) // self.clock_ms * self.clock_ms
        if self.upper == "includes":
            return -(-last // self.step_ms) * self.step_ms
        return last // self.step_ms * self.step_ms + self.step_ms

    def _offsets(self, at_ms: int) -> tuple[int, int]:
        """Return the smallest and the largest offset by which a wall time near `at_ms` may be meant."""
        if self.time.format != "wall":
            return 0, 0
        zone = find_zone(self.time.zone)
        wide = _offsets_between(zone, at_ms, _LONGEST_SHIFT_MS, pieces=2)
        reach = max(wide) - min(wide)
        near = _offsets_between(zone, at_ms, reach, pieces=8) if reach else wide
        return min(near), max(near)


def _offsets_between(zone: tzinfo, at_ms: int, reach: int, *, pieces: int) -> list[int]:
    return [offset_ms(zone, at_ms - reach + 2 * reach * i // pieces) for i in range(pieces + 1)]


@lru_cache(maxsize=64)
def _blurred(zone_name: str) -> tuple[tuple[int, int], ...]:
    """Return the stretches around the changes of a zone's clocks. A change that another one follows within two days is
    part of the same stretch."""
    zone, found = find_zone(zone_name), list[tuple[int, int]]()
    for week_ms in range(EARLIEST_MS, LATEST_MS, _WEEK_MS):
        before, after = offset_ms(zone, week_ms), offset_ms(zone, week_ms + _WEEK_MS)
        if before == after:
            continue
        low, high = week_ms, week_ms + _WEEK_MS
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if offset_ms(zone, middle) == before else (low, middle)
        reach = abs(after - before)
        if found and high - reach <= found[-1][1] + 2 * _LONGEST_SHIFT_MS:
            found[-1] = found[-1][0], high + reach
        else:
            found.append((high - reach, high + reach))
    return tuple(found)
