"""A limit for any one second. A pace alone does not give that limit, as it lets a burst through besides.

A pace of `per_s` with a burst lets `per_s` and the burst through in the second after a pause. This counts everything
let through in the last second. Of a rate that is no whole number, a second may have the next whole one, and the span is
longer by as much: of 2.9 a second it is three in 1,034 ms. So no second has more than the rate rounded up, and all
seconds together have the rate. Pure but for its memory, which has one entry for each time that something was let
through within a second.
"""

import math
from collections import deque

MARGIN = 1.01
"""How much longer the second is. Some milliseconds, not always as many, pass between an item's permission and its
start."""
TINY = 1e-9
"""What the last bits of a sum may be wrong by."""


def whole_above(per_s: float) -> int:
    """Return how many a second may have: the rate, rounded up."""
    return math.ceil(per_s - TINY)


class SecondCap:
    """Counts what was let through, or will be. Moments do not go back. For rates below one a second the span is longer,
    the count one."""

    def __init__(self, margin: float = MARGIN) -> None:
        self._margin = margin
        self._lumps: deque[tuple[float, int]] = deque()
        self._count = 0
        self.holds = False
        """Whether it held the last caller back, and not the pace. The caller keeps this."""

    def room(self, per_s: float, now_ms: float) -> int:
        """Return how many may be let through now."""
        most, span_ms = self._measure(per_s)
        while self._lumps and self._lumps[0][0] + span_ms <= now_ms:
            self._count -= self._lumps.popleft()[1]
        return max(0, most - self._count)

    def spent(self, now_ms: float) -> int:
        """Return how many were let through in the last second. For rates of one a second or more."""
        count = self._count
        for at_ms, lump in self._lumps:
            if now_ms < at_ms + 1000 * self._margin:
                break
            count -= lump
        return count

    def add(self, count: int, now_ms: float) -> None:
        """Count `count` as let through."""
        self._lumps.append((now_ms, count))
        self._count += count

    def take_back(self, count: int) -> None:
        """Remove the last `count` from the count."""
        while count > 0 and self._lumps:
            at_ms, last = self._lumps.pop()
            taken = min(count, last)
            self._count, count = self._count - taken, count - taken
            if last > taken:
                self._lumps.append((at_ms, last - taken))

    def wait_ms(self, per_s: float, now_ms: float) -> float:
        """Return how many milliseconds it takes until there is room for one more, 0 if there is."""
        most, span_ms = self._measure(per_s)
        over = self._count - most + 1
        if over <= 0:
            return 0.0
        for at_ms, lump in self._lumps:
            over -= lump
            if over <= 0:
                return max(0.0, at_ms + span_ms - now_ms)
        return 0.0

    def _measure(self, per_s: float) -> tuple[int, float]:
        """Return a whole number of items, and the milliseconds in which they may be let through."""
        most = max(1, whole_above(per_s))
        return most, most / per_s * 1000 * self._margin
