"""What a shop lists right now: of each order the newest version that has come to be visible, sorted by its time. Or
each version, as a list of changes does."""

from __future__ import annotations

from bisect import bisect_left, insort

from platforms.mall.generator import Event

Listed = tuple[int, int, int]
"""modified_ms, number, version"""

_REBUILD_FROM = 2_000  # so many changes at once are cheaper to sort than to insert one by one


class Shelf:
    """The present list, moved on by `advance`. Costs a binary search and a memory move per change. keeps_changes: an
    older version stays. by_arrival: the time of a version is when it came to be visible."""

    def __init__(self, events: list[Event], *, keeps_changes: bool = False, by_arrival: bool = False) -> None:
        if by_arrival:
            events = [event._replace(modified_ms=event.visible_ms) for event in events]
        self._events = events
        self._keeps_changes = keeps_changes
        self._applied = 0
        self.newest: dict[int, Listed] = {}
        self.listed: list[Listed] = []

    def advance(self, now_ms: int) -> None:
        """Apply all that has come to be visible up to `now_ms` (included). A clock that goes back changes nothing."""
        events, at = self._events, self._applied
        if at >= len(events) or events[at].visible_ms > now_ms:
            return
        end = bisect_left(events, (now_ms + 1,), lo=at)
        if end - at >= _REBUILD_FROM:
            self._rebuild(events[at:end])
        else:
            for event in events[at:end]:
                self._apply(event)
        self._applied = end

    def between(self, low_ms: int, high_ms: int) -> tuple[int, int]:
        """Return the places [first, last) in `listed` of the orders with low_ms <= modified < high_ms."""
        first = bisect_left(self.listed, (low_ms,))
        return first, max(first, bisect_left(self.listed, (high_ms,)))

    def _apply(self, event: Event) -> None:
        old = self.newest.get(event.number)
        if old is not None and not self._keeps_changes:
            if old[2] > event.version:
                return
            del self.listed[bisect_left(self.listed, old)]
        listed = (event.modified_ms, event.number, event.version)
        if old is None or old[2] < event.version:
            self.newest[event.number] = listed
        insort(self.listed, listed)

    def _rebuild(self, events: list[Event]) -> None:
        for event in events:
            old = self.newest.get(event.number)
            if old is None or old[2] < event.version:
                self.newest[event.number] = (event.modified_ms, event.number, event.version)
        new = [(event.modified_ms, event.number, event.version) for event in events]
        self.listed = sorted([*self.listed, *new] if self._keeps_changes else self.newest.values())
