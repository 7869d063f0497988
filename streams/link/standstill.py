"""Detects whether this process stood still lately: it was stopped, or its event loop was blocked.

A message that is read from a socket just after that may be old, and answered by another instance since.
"""

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from streams.clock import monotonic_s, until_turn_s

TICK_S = 0.5
SHORTEST_S = 1.0
"""Less than this is no standstill."""
AFTER_S = 1.0
"""Seconds after a standstill in which a message that is read may be from before it."""


class Standstill:
    """Looks at the clock every so often while `watching`. Those who watch share it (`Connection.standstill`)."""

    def __init__(self) -> None:
        self._watchers = 0
        self._seen_s = math.inf
        self._lasted_s = 0.0
        self._until_s = -math.inf

    @contextmanager
    def watching(self) -> Iterator[Self]:
        """Look at the clock while the block runs."""
        if not self._watchers:
            self._seen_s = math.inf
            self._look()
        self._watchers += 1
        try:
            yield self
        finally:
            self._watchers -= 1
            if not self._watchers:
                self._timer.cancel()

    def lasted_s(self) -> float:
        """Return the seconds that this process stood still just now, 0 if it did not."""
        now_s = monotonic_s()
        self._see(now_s)
        return self._lasted_s if now_s < self._until_s else 0.0

    def _look(self) -> None:
        self._see(monotonic_s())
        self._timer = asyncio.get_running_loop().call_later(until_turn_s(TICK_S), self._look)

    def _see(self, now_s: float) -> None:
        if now_s - self._seen_s > SHORTEST_S:
            self._lasted_s, self._until_s = now_s - self._seen_s, now_s + AFTER_S
        self._seen_s = now_s
