"""The platforms' own clocks, as their responses show them. A window is read when it has settled by the platform's time.

A platform whose clock is behind ours does not list yet what is past for us. So the time in a response decides whether
the response counts. The difference of the clocks is remembered, so that a slice which would be too early waits and
sends no request.

The `Date` of a response also shows whether our own clock is wrong. Many platforms refuse a request that is signed with
another time, so such a source is asked with the platform's time. State: two differences a source, in memory.
"""

from __future__ import annotations

import logging

from actors.fetch.rules.slices import Slice
from actors.fetch.sources import SourceKey
from actors.runtime.logs import fields
from platforms.adapter import Response
from platforms.outcomes import http_date_ms

log = logging.getLogger(__name__)

ODD_MS = 3_600_000
"""No clock is that wrong. The adapter reads another time, or another zone, from the response."""

OFF_MS = 60_000
"""Below this a request has our own time. Platforms refuse a time that is wrong by some minutes."""


class PlatformClocks:
    """The platforms' clocks, as milliseconds to add to ours."""

    def __init__(self) -> None:
        self._ahead: dict[SourceKey, int] = {}
        self._dates: dict[SourceKey, int] = {}
        self._odd: set[SourceKey] = set()

    def early_ms(self, source: SourceKey, piece: Slice, settle_ms: int, now_ms: int) -> int:
        """Return how many ms a request for the slice should wait, by what is known of the platform's clock. 0 if it may
        go now. At worst it goes too early, and its response does not count."""
        ahead_ms = self._ahead.get(source)
        return 0 if ahead_ms is None else max(0, piece.end_ms + settle_ms - now_ms - ahead_ms)

    def missing_ms(self, source: SourceKey, piece: Slice, settle_ms: int, *, said_ms: int | None, asked_ms: int) -> int:
        """Return how many ms too early a response was made. `said_ms` is its own time, `asked_ms` the time of the
        request. 0 if it counts, or has no time."""
        if said_ms is None or not self._believes(source, said_ms - asked_ms):
            return 0
        self._ahead[source] = said_ms - asked_ms
        return max(0, piece.end_ms + settle_ms - said_ms)

    def time_for(self, source: SourceKey, now_ms: int) -> int:
        """Return the time of a request: ours, or the platform's if they are far apart."""
        ahead_ms = self._dates.get(source, 0)
        return now_ms + ahead_ms if abs(ahead_ms) >= OFF_MS else now_ms

    def was_mistimed(self, source: SourceKey, date_ms: int | None, *, asked_ms: int, sent_ms: int, now_ms: int) -> bool:
        """Take the `Date` of a response that came at `now_ms`. Its request was sent at `asked_ms`, as of `sent_ms`.
        Return whether that was a wrong time."""
        if date_ms is None or not self._believes(source, date_ms - asked_ms):
            return False
        self._dates[source] = date_ms - min(max(date_ms, asked_ms), now_ms)
        return abs(date_ms - sent_ms) >= OFF_MS

    def _believes(self, source: SourceKey, ahead_ms: int) -> bool:
        if abs(ahead_ms) <= ODD_MS:
            return True
        if source not in self._odd:
            self._odd.add(source)
            log.warning("platform.odd_clock", extra=fields(source=str(source), ahead_ms=ahead_ms))
        return False


def date_of(response: Response) -> int | None:
    """Return the time of a response by its header, if it has one."""
    return http_date_ms(response.headers.get("date", ""))
