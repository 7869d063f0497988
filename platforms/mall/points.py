"""A limit that counts points: requests take as many as they cost, and points come back all the time."""

from __future__ import annotations


class PointBucket:
    """Holds up to `most` points. A request is let in if as many are left as it may cost. What it cost less comes back
    with its answer."""

    def __init__(self, most: int, per_s: float) -> None:
        self.most = most
        self.per_s = per_s
        self._left = float(most)
        self._at_ms = 0

    def left(self, now_ms: int) -> float:
        """Return how many points are left now."""
        since_ms = now_ms - self._at_ms if self._at_ms else 0
        self._left, self._at_ms = min(float(self.most), self._left + since_ms / 1000 * self.per_s), now_ms
        return self._left

    def take(self, points: float, now_ms: int) -> bool:
        """Take points, if so many are left."""
        if self.left(now_ms) < points:
            return False
        self._left -= points
        return True

    def give_back(self, points: float) -> None:
        """Return what a request cost less than it might have."""
        self._left = min(float(self.most), self._left + points)
