"""When the server fires delayed jobs by itself, so that it never has too many at once. Pure.

The server loads all schedules that are due inside one lock, and then fires them. Whatever else it is asked waits
meanwhile. With 300,000 in one second that took ten seconds. So each quarter of a second has room for `ROOM` firings. A
job that finds its own quarter full gets a later time, in the next one with room, in the order of adding (ADR 82). Jobs
that are not in a crowd keep their time.

Each process that adds jobs counts for itself, and tells the others what it has added since (`news`) once that is
`STEP` in a quarter, with all that it knows of. So one that starts later learns of a crowd from the next news.

Memory is bounded. Beyond `MOST_KEPT` quarters, those that have passed go, and then those with the fewest jobs.
"""

from collections.abc import Iterable

from actors.jobs.rules.job_rules import BACKSTOP_MS

QUARTER_MS = 250
"""The server looks for what is due no more often."""
ROOM = 7_500
"""30,000 firings a second. A server with half of a core needs a fifth of a second for a quarter's."""
STEP = 250
MOST_LATER_MS = 60_000
"""So much later the server fires a job at most, however large the crowd: 1,800,000 jobs fit in."""
MOST_KEPT = 8_192

News = tuple[int, int, int]
"""A quarter, what its sender has added to it since its last news, and all that its sender knows of."""


class DueCrowds:
    """How many jobs the server fires in which quarter, counted since 1970."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._untold: dict[int, int] = {}
        self._next: dict[int, int] = {}
        """In which quarter those of a full one go on."""
        self._news: set[int] = set()

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def has_news(self) -> bool:
        """Whether the others are to be told."""
        return bool(self._news)

    def place(self, due_ms: int, *, now_ms: int) -> int:
        """Take a job in. Return by how many ms later than usual the server shall fire it."""
        fires_ms = due_ms + BACKSTOP_MS
        own = fires_ms // QUARTER_MS
        quarter = self._next.get(own, own)
        if (count := self._counts.get(quarter, 0)) >= ROOM:
            quarter, count = self._with_room(own, quarter)
        self._counts[quarter] = count + 1
        self._untold[quarter] = untold = self._untold.get(quarter, 0) + 1
        if untold == STEP:
            self._news.add(quarter)
        if len(self._counts) > MOST_KEPT:
            self._forget(now_ms)
        return 0 if quarter == own else quarter * QUARTER_MS + min(count, ROOM - 1) * QUARTER_MS // ROOM - fires_ms

    def news(self) -> list[News]:
        """Return what to tell the others now."""
        told = [(quarter, self._untold.pop(quarter, 0), self._counts[quarter]) for quarter in sorted(self._news)]
        self._news.clear()
        return told

    def heard(self, news: Iterable[News], *, now_ms: int) -> None:
        """Learn what another process told. A repeat does no harm: jobs are fired later than they need to be."""
        for quarter, since, known in news:
            self._counts[quarter] = max(self._counts.get(quarter, 0) + since, known)
        if len(self._counts) > MOST_KEPT:
            self._forget(now_ms)

    def _with_room(self, own: int, quarter: int) -> tuple[int, int]:
        last = own + MOST_LATER_MS // QUARTER_MS
        while (count := self._counts.get(quarter, 0)) >= ROOM and quarter < last:
            quarter += 1
        self._next[own] = quarter
        return quarter, count

    def _forget(self, now_ms: int) -> None:
        kept = [quarter for quarter in self._counts if quarter >= now_ms // QUARTER_MS]
        kept = sorted(kept, key=self._counts.__getitem__)[-MOST_KEPT // 2 :]
        self._counts = {quarter: self._counts[quarter] for quarter in kept}
        self._untold = {quarter: untold for quarter, untold in self._untold.items() if quarter in self._counts}
        self._news &= self._counts.keys()
        self._next.clear()
