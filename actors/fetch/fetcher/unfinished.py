"""What an attempt at a window has read so far. A later attempt on the same node goes on from there.

A platform that is slow, or that throttles, may answer only a part of a window's requests in the time of one attempt.
The reading keeps its place between requests, and the count at its end finds out what moved meanwhile, as it does for a
reading without a break. State: in memory, some readings, for some minutes. Another node begins anew.
"""

from __future__ import annotations

from actors.fetch.fetcher.decisions import Failed, Hopeless, Missed, Outcome, ReadSlice, TimedOut, TooWide
from actors.fetch.fetcher.rows import NewContents, NewVersions
from actors.fetch.rules.ledger import OpenSlice
from actors.fetch.sources import SourceKey, SourceRecord
from platforms.adapter import Adapter, Row
from platforms.bounds import Window
from platforms.lists import WindowReading

KEEP_MS = 600_000
"""How long an unfinished reading waits for its next attempt. Tokens of next pages may not live longer either."""
MOST_KEPT = 64
MOST_ATTEMPTS = 60
"""How many attempts may go on where the one before them stopped, without spending any."""
MOST_ANEW = 3
"""How many attempts at a slice may begin its window anew without spending any. Each may be on another node, and without
a bound many nodes would do so in turn, for ever."""


class Batch:
    """New rows of one answer, and when they were read. `is_paced`: they may enter."""

    def __init__(self, rows: list[Row], read_ms: int) -> None:
        self.rows = rows
        self.read_ms = read_ms
        self.is_paced = False


class UnfinishedReading:
    """One reading of one window, over one or more attempts. `record`: the source as it was when the reading began.
    `fence`: that of the first attempt. `unpublished`: rows that are not known to be stored."""

    def __init__(
        self,
        adapter: Adapter,
        window: Window,
        reading: WindowReading,
        new: NewVersions | NewContents,
        *,
        fence: int,
        record: SourceRecord | None,
        began_ms: int = 0,
    ) -> None:
        self.record = record
        self.began_ms = began_ms
        self.adapter = adapter
        self.window = window
        self.reading = reading
        self.new = new
        self.fence = fence
        self.new_rows = 0
        self.unpublished: list[Batch] = []
        self.attempts = 0
        self.requests_before = 0
        self.used_ms = 0
        self.is_void = False
        """An answer does not count. The window has to be read anew."""

    @property
    def absent(self) -> list[Row]:
        """Listed orders of which the platform has no details yet."""
        return [row.listed for row in self.reading.bad if row.listed is not None]

    @property
    def has_moved(self) -> bool:
        """Return whether this attempt came further than the one before it, and another may."""
        return not self.is_void and self.attempts < MOST_ATTEMPTS and self.reading.requests > self.requests_before

    def ended(self, held: OpenSlice, outcome: Outcome) -> Outcome:
        """Return what an attempt at `held` that ended so comes to. One that moved goes on. A refusal that a later
        attempt meets may be for a page's token that has expired. So may be silence. The next attempt begins anew."""
        match outcome:
            case TimedOut(is_missed=False) | TooWide() if self.has_moved and (self.attempts or held.anew < MOST_ANEW):
                reason = f"{outcome.reason}; the next attempt goes on from there"
                return TimedOut(reason, goes_on=True, is_anew=not self.attempts)
            case Hopeless(reason=reason) if self.attempts:
                self.is_void = True
                return Failed(f"{reason}, in a reading of several attempts; the next one begins anew")
            case Failed() | Missed() | TimedOut(is_missed=True) if self._is_stuck:
                self.is_void = True
                return outcome
            case _:
                return outcome

    @property
    def _is_stuck(self) -> bool:
        """Return whether a whole attempt got no answer under the name of a next page. Names die, and some platforms
        answer to a dead one as if they were down. Another reading gets other names."""
        if self.is_void or not self.attempts or self.reading.requests > self.requests_before:
            return False
        ask = self.reading.next()
        return ask is not None and isinstance(ask.page, str)

    def done_until_ms(self, step_ms: int) -> int:
        """Return the time before which all was read and stored, on a whole step. 0: nobody knows."""
        reading = self.reading
        if self.is_void or not reading.requests or self.unpublished or reading.bad or reading.result.short:
            return 0
        return reading.done_until_ms // step_ms * step_ms

    def take(self, rows: list[Row], read_ms: int) -> Batch | None:
        """Take an answer's rows, and return what of them is to be published."""
        new = self.new.take(rows, read_ms)
        if not new:
            return None
        self.new_rows += len(new)
        batch = Batch(new, read_ms)
        self.unpublished.append(batch)
        return batch

    def published(self, batch: Batch) -> None:
        self.unpublished.remove(batch)
        if isinstance(self.new, NewContents):
            self.new.confirm(batch.rows, batch.read_ms)


class UnfinishedReadings:
    """The unfinished readings of this node."""

    def __init__(self) -> None:
        self._kept: dict[tuple[SourceKey, str], UnfinishedReading] = {}

    def take(
        self, work: ReadSlice, record: SourceRecord | None, adapter: Adapter, window: Window, now_ms: int
    ) -> UnfinishedReading | None:
        """Return the unfinished reading of the slice, ready for another attempt, if there is one that still fits. After
        a change of the source it does not: the account may be another shop's."""
        found = self._kept.pop((work.source, work.slice.slice_id), None)
        if found is None or found.record != record or found.adapter is not adapter or found.window != window:
            return None
        if now_ms > found.used_ms + KEEP_MS:
            return None
        found.attempts += 1
        found.requests_before = found.reading.requests
        return found

    def keep(self, work: ReadSlice, progress: UnfinishedReading, now_ms: int) -> None:
        """Keep an unfinished reading for the next attempt, if it is worth it. The oldest ones make room."""
        if progress.is_void or not progress.reading.requests:
            return
        progress.used_ms = now_ms
        self._kept[work.source, work.slice.slice_id] = progress
        while len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
