"""What a node began under each key of a rate, second by second, for as long as people look back.

Seconds are whole ones since 1970, of the server's clock, so that those of several nodes can be added up. Pure but for
its memory: one small ring a key. A key that was idle for all of the span may be forgotten.
"""

from collections.abc import Sequence

from actors.runtime.rules.sweeps import Sweeps
from streams.messages.begun import MOST_SECONDS

SPAN = MOST_SECONDS + 8
"""Seconds that are kept: some more than are asked for, since a question comes a moment later."""
FEW = 1_024
"""Keys that are kept whether they are idle or not."""


class _Ring:
    """One key's seconds. `last_s`: the latest one. `ended`: how many began in all the seconds before it. `told`: the
    highest total that anybody has seen."""

    __slots__ = ("counts", "ended", "last_s", "told")

    def __init__(self, at_s: int) -> None:
        self.counts = [0] * SPAN
        self.last_s = at_s
        self.ended = 0
        self.told = 0

    def move(self, at_s: int) -> None:
        """Make this second the latest one. A second further back than the span: the clock was set back, so what was
        counted belongs to no second any more."""
        self.ended += self.counts[self.last_s % SPAN]
        for second in range(max(self.last_s + 1, at_s - SPAN + 1), at_s + 1):
            self.counts[second % SPAN] = 0
        if at_s <= self.last_s:
            self.counts = [0] * SPAN
        self.last_s = at_s

    def at(self, second: int) -> int:
        return self.counts[second % SPAN] if self.last_s - SPAN < second <= self.last_s else 0

    def total(self, now_s: int) -> int:
        self.told = max(self.told, self.ended + (self.counts[self.last_s % SPAN] if self.last_s < now_s else 0))
        return self.told


class BegunCounts:
    """The counts of one node. Cheap to add to: it is called for whatever begins."""

    def __init__(self) -> None:
        self._rings: dict[str, _Ring] = {}
        self._sweeps = Sweeps(FEW)

    def add(self, key: str, count: int, at_s: int) -> None:
        """Count what begins in the second `at_s`. A second a little before the latest one counts as such."""
        ring = self._rings.get(key)
        if ring is None:
            ring = self._new(key, at_s)
        if at_s != ring.last_s:
            if ring.last_s - SPAN < at_s < ring.last_s:
                ring.ended += count
            else:
                ring.move(at_s)
        ring.counts[at_s % SPAN] += count

    def take_back(self, key: str, count: int) -> None:
        """Remove the last `count`, which did not begin after all."""
        ring = self._rings.get(key)
        second = ring.last_s if ring is not None else 0
        while ring is not None and count > 0 and second > ring.last_s - SPAN:
            taken = min(count, ring.counts[second % SPAN])
            ring.counts[second % SPAN] -= taken
            count, second = count - taken, second - 1

    def begun(self, key: str, until_s: int, seconds: int) -> tuple[int, ...]:
        """Return how many began in each of the seconds up to `until_s`, the oldest first. Empty: the key is unknown."""
        ring = self._rings.get(key)
        if ring is None:
            return ()
        return tuple(ring.at(second) for second in range(until_s - seconds + 1, until_s + 1))

    def totals(self, now_s: int) -> Sequence[tuple[str, int]]:
        """Return each key with how many began before the second `now_s`, since the key is known. It never falls.
        Another thread may call it."""
        return [(key, ring.total(now_s)) for key, ring in list(self._rings.items())]

    def _new(self, key: str, at_s: int) -> _Ring:
        if self._sweeps.is_due(len(self._rings)):
            self._rings = {each: ring for each, ring in self._rings.items() if ring.last_s > at_s - SPAN}
            self._sweeps.swept(len(self._rings))
        ring = self._rings[key] = _Ring(at_s)
        return ring
