"""The platforms' own clocks, as their answers tell them: a window is read when it has settled by the platform's time.

A platform whose clock is behind ours lists nothing yet of what we take for past. So the time that an answer tells is
what decides whether it counts; and what was heard of a clock is remembered, so that a slice which would come too early
waits instead of asking. State: a difference a source, in memory.
"""

from __future__ import annotations

import logging

from actors.fetch.rules.slices import Slice
from actors.fetch.sources import SourceKey
from actors.runtime.logs import fields

log = logging.getLogger(__name__)

ODD_MS = 3_600_000
"""No clock is that wrong: it is the adapter that reads another time, or another zone, from the answer."""


class PlatformClocks:
    """What the platforms' clocks say, as milliseconds to add to ours."""

    def __init__(self) -> None:
        self._ahead: dict[SourceKey, int] = {}
        self._odd: set[SourceKey] = set()

    def early_ms(self, source: SourceKey, piece: Slice, settle_ms: int, now_ms: int) -> int:
        """Return how long a request for the slice should wait, by what is known of the platform's clock; 0 if it may
        go now. At worst it goes too early, and its answer does not count."""
        ahead_ms = self._ahead.get(source)
        return 0 if ahead_ms is None else max(0, piece.end_ms + settle_ms - now_ms - ahead_ms)

    def missing_ms(self, source: SourceKey, piece: Slice, settle_ms: int, *, said_ms: int | None, asked_ms: int) -> int:
        """Return how much too early an answer was made that tells `said_ms` as its time, asked for at `asked_ms`; 0 if
        it counts, or tells no time."""
        if said_ms is None or not self._believes(source, said_ms - asked_ms):
            return 0
        self._ahead[source] = said_ms - asked_ms
        return max(0, piece.end_ms + settle_ms - said_ms)

    def _believes(self, source: SourceKey, ahead_ms: int) -> bool:
        if abs(ahead_ms) <= ODD_MS:
            return True
        if source not in self._odd:
            self._odd.add(source)
            log.warning("platform.odd_clock", extra=fields(source=str(source), ahead_ms=ahead_ms))
        return False
