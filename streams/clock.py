"""Now. The wall clock is for what processes share, the monotonic clock for waits within one process.

What a process does every so often, it does at its turns (`until_turn_s`). All nodes have the same turns. So an idle
node wakes a few times a second for everything: its own looks, its leases, and the heartbeats of all others. If each had
its own moment, eight idle nodes would wake one another hundreds of times a second.
"""

import time
from typing import Protocol

ASIDE_S = 0.3
"""By how much turns are off whole seconds. Schedules of jobs fire at whole seconds, and go first."""


def now_ms() -> int:
    """Return the time as whole milliseconds UTC since 1970."""
    return time.time_ns() // 1_000_000


monotonic_s = time.monotonic
"""Returns seconds of a clock that never goes back. Only differences mean something."""


def until_turn_s(every_s: float, at_s: float | None = None) -> float:
    """Return how long to wait for the next turn of what happens each `every_s` seconds. It is at least a quarter of
    `every_s`, and at most a quarter more than it. `at_s`: now, by the wall clock. If that clock is set or wrong, the
    node just has turns of its own."""
    rest_s = every_s - ((now_ms() / 1000 if at_s is None else at_s) - ASIDE_S) % every_s
    return rest_s if rest_s > every_s / 4 else rest_s + every_s


def turn_from_ms(moment_ms: int, every_ms: int) -> int:
    """Return the first turn at `moment_ms` or after it, of what happens each `every_ms`."""
    aside_ms = round(ASIDE_S * 1000)
    return -((aside_ms - moment_ms) // every_ms) * every_ms + aside_ms


class Clock(Protocol):
    """Where an actor's shell takes the time from: the system, or a test."""

    def now_ms(self) -> int: ...


class _SystemClock:
    def now_ms(self) -> int:
        return now_ms()


SYSTEM: Clock = _SystemClock()
