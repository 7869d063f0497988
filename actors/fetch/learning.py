"""Learns what platforms allow from their answers. The ledgers share it with all nodes.

A refusal, or what a header tells, changes the limit in the source's ledger (actors/fetch/rules/limits.py), so other
nodes hear of it at once. Most answers change nothing and cost nothing. State: when the requests of the last minute were
answered, in memory.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping

from actors.fetch.ledgers import BrokenLedger, Contended, Ledgers, MissingLedger
from actors.fetch.rules import limits
from actors.fetch.rules.ledger import Ledger, Limit
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.sources import SourceKey
from actors.runtime.logs import fields
from platforms.told_limits import told_limit
from streams.clock import Clock
from streams.errors import StreamError

log = logging.getLogger(__name__)

SPAN_MS = 60_000
"""Most platforms count by the second or by the minute."""
MOST_TIMES = 2_000


class LearnedLimits:
    """The learned limits of all sources, as this node sees them."""

    def __init__(self, ledgers: Ledgers, clock: Clock) -> None:
        self._ledgers = ledgers
        self._clock = clock
        self._answered: dict[SourceKey, deque[int]] = {}

    def within(self, source: SourceKey, settings: FetchSettings) -> FetchSettings:
        """Return the settings with the rate that the source's limit allows now, and without a burst if it is lower."""
        limit = self._limit(source)
        if limit is None or not limit.per_s:
            return settings
        per_s = limits.allowed(limit, self._clock.now_ms())
        return settings.slowed(per_s) if per_s < settings.rate else settings

    def held_ms(self, source: SourceKey) -> int:
        """Return how long the platform still wants no request from any node."""
        limit = self._limit(source)
        return max(0, limit.until_ms - self._clock.now_ms()) if limit is not None else 0

    async def refused(self, source: SourceKey, settings: FetchSettings, named_ms: int | None) -> int:
        """Take a refusal into account. `named_ms`: the wait that the platform named. Return the wait. If that is
        0, we were not too fast."""
        if named_ms == 0:
            return 0
        now_ms, known = self._clock.now_ms(), self._limit(source)
        times = self._times(source, now_ms, 0 if known is None else known.met_ms)
        span_ms = now_ms - times[0] if times else 0
        wait_ms = limits.next_wait_ms(
            known,
            len(times),
            span_ms,
            settings.throttle_wait_ms if named_ms is None else named_ms,
            now_ms,
            is_named=named_ms is not None,
        )
        wait_ms = min(wait_ms, settings.throttle_cap_ms)
        await self._move(source, lambda ledger: limits.met(ledger, len(times), span_ms, wait_ms, settings.rate, now_ms))
        return wait_ms

    async def answered(self, source: SourceKey, settings: FetchSettings, headers: Mapping[str, str]) -> None:
        """Take an answer into account."""
        now_ms = self._clock.now_ms()
        self._answered.setdefault(source, deque(maxlen=MOST_TIMES)).append(now_ms)
        said = told_limit(headers)
        if said.per_s is not None:
            per_s = said.per_s
            await self._move(source, lambda ledger: limits.told(ledger, per_s, now_ms))
        if said.left == 0 and said.reset_ms:
            until_ms = now_ms + min(said.reset_ms, settings.throttle_cap_ms)
            await self._move(source, lambda ledger: limits.held(ledger, until_ms, now_ms))

    def _times(self, source: SourceKey, now_ms: int, since_ms: int) -> list[int]:
        times = self._answered.get(source, deque())
        return [at_ms for at_ms in times if at_ms > max(since_ms, now_ms - SPAN_MS)]

    def _limit(self, source: SourceKey) -> Limit | None:
        try:
            ledger = self._ledgers.peek(source)
        except BrokenLedger:
            return None
        return None if ledger is None else ledger.limit

    async def _move(self, source: SourceKey, change: Callable[[Ledger], Ledger]) -> None:
        """Change the limit in the ledger, if that changes it. What cannot be stored now is learned again."""
        ledger = self._ledgers.peek(source)
        if ledger is None or change(ledger) is ledger:
            return
        try:
            await self._ledgers.move(source, lambda found: (change(found), None))
        except (Contended, MissingLedger, BrokenLedger, StreamError) as error:
            log.warning("fetcher.limit_not_stored", extra=fields(source=str(source), error=str(error)))
