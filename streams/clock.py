"""Now. The wall clock is for what processes share, the monotonic clock for waits within one process."""

import time
from typing import Protocol


def now_ms() -> int:
    """Return the time as whole milliseconds UTC since 1970."""
    return time.time_ns() // 1_000_000


def monotonic_s() -> float:
    """Return seconds of a clock that never goes back. Only differences mean something."""
    return time.monotonic()


class Clock(Protocol):
    """Where an actor's shell takes the time from: the system, or a test."""

    def now_ms(self) -> int: ...


class _SystemClock:
    def now_ms(self) -> int:
        return now_ms()


SYSTEM: Clock = _SystemClock()
