"""How fast to go: an even pace for requests, and a window that narrows when a platform has trouble.

The pace is the generic cell rate algorithm (ITU-T I.371). One number, the moment up to which the rate has been spent,
replaces a token bucket and needs no tick. Pace and window are values: a function returns the next value and what to do.
Moments are milliseconds of any clock that does not go back. Within a process that is the loop's clock.
"""

import msgspec
from msgspec.structs import replace


class Rate(msgspec.Struct, frozen=True):
    """`per_s` a second, evenly, and up to `burst` at once after a pause. `per_s` must be above 0, `burst` 1 or more."""

    per_s: float
    burst: float = 1

    @property
    def interval_ms(self) -> float:
        return 1000 / self.per_s


class Pace(msgspec.Struct, frozen=True):
    """What has been spent of a rate: everything up to `spent_ms`. The first value is `Pace()`: a full burst is free."""

    spent_ms: float = float("-inf")


def acquire(pace: Pace, rate: Rate, now_ms: float, cost: float = 1) -> tuple[Pace, float]:
    """Reserve `cost` and return the next pace, and how many milliseconds to wait before acting on it (0: at once).

    Reservations are served in the order of the calls. To give up one that would wait too long, keep the pace from
    before. Over any span of t seconds this lets through at most `rate.per_s` x t + `rate.burst`, as long as no single
    cost is above the burst. A larger cost waits until the rate has made it up.
    """
    spent_ms = max(pace.spent_ms, now_ms) + cost * rate.interval_ms
    return Pace(spent_ms), max(0.0, spent_ms - rate.burst * rate.interval_ms - now_ms)


def conforming(pace: Pace, rate: Rate, now_ms: float) -> int:
    """Return how much may be spent at once without any wait, at most a burst."""
    room_ms = now_ms + rate.burst * rate.interval_ms - max(pace.spent_ms, now_ms)
    return max(0, int(room_ms / rate.interval_ms + 1e-9))


def stop_until(pace: Pace, rate: Rate, until_ms: float) -> Pace:
    """Let nothing through before `until_ms`, and begin evenly there, without a burst: the platform has just throttled.
    Earlier reservations stay valid."""
    return Pace(max(pace.spent_ms, until_ms + (rate.burst - 1) * rate.interval_ms))


def changed(pace: Pace, before: Rate, rate: Rate, now_ms: float, *, longest_ms: float) -> Pace:
    """Return the pace at another rate. A wait changes as the interval does, up to `longest_ms`. What could be spent at
    once still can, but no more of it than the new rate makes up for in the same time."""
    late_ms = now_ms + before.burst * before.interval_ms - max(pace.spent_ms, now_ms)
    ready = late_ms / before.interval_ms
    if ready > 1:
        ready = max(1.0, min(ready, late_ms / rate.interval_ms))
    return Pace(now_ms + min(longest_ms, (1 - ready) * rate.interval_ms) + (rate.burst - 1) * rate.interval_ms)


def forgive(pace: Pace, rate: Rate, now_ms: float, most_ms: float, *, keep_ms: float) -> Pace:
    """Give up what was to be caught up on beyond `keep_ms`, at most so much, so that it is not made up for later."""
    spare_ms = now_ms + rate.burst * rate.interval_ms - pace.spent_ms - keep_ms
    return Pace(pace.spent_ms + min(most_ms, spare_ms)) if spare_ms > 0 else pace


class RequestWindow(msgspec.Struct, frozen=True):
    """How many requests may be under way at once. It grows by one in each round of successes, and shrinks by a factor
    on trouble (AIMD, Chiu and Jain 1989). It stays between `least` and `most`, and starts at `size`."""

    size: float
    most: int
    least: int = 1
    calm_until_ms: float = float("-inf")  # earlier trouble was caused before the last reduction

    @property
    def limit(self) -> int:
        return int(self.size)


ON_THROTTLE = 0.5
"""The platform reported too many requests."""
ON_TIMEOUT = 0.75
"""It may have been the network. A platform that throttles would have answered so."""


def succeeded(window: RequestWindow) -> RequestWindow:
    """Return the window after one success: `size` successes widen it by one."""
    return replace(window, size=min(float(window.most), window.size + 1 / window.size))


def throttled(window: RequestWindow, now_ms: float, *, round_ms: float) -> RequestWindow:
    """Return the window after the platform reported too many requests. See `_fallen`."""
    return _fallen(window, now_ms, round_ms, ON_THROTTLE)


def timed_out(window: RequestWindow, now_ms: float, *, round_ms: float) -> RequestWindow:
    """Return the window after a request had no answer in time. See `_fallen`."""
    return _fallen(window, now_ms, round_ms, ON_TIMEOUT)


def _fallen(window: RequestWindow, now_ms: float, round_ms: float, share: float) -> RequestWindow:
    """Narrow once in a round: requests that were under way together all report one and the same trouble."""
    if now_ms < window.calm_until_ms:
        return window
    return replace(window, size=max(float(window.least), window.size * share), calm_until_ms=now_ms + round_ms)
