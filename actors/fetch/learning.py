"""Learns what platforms allow from their answers. All nodes have one limit.

A refusal, or what a header tells, changes the limit (actors/fetch/rules/limits.py), so other nodes hear of it at once.
Most answers change nothing and cost nothing. A limit is kept in the source's ledger. If the adapter declares that the
platform counts by application, and not by shop, all its sources have one limit: the record `limit.<platform>` in
DIGESTS. State: when this node's requests of the last minute were answered, in memory.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from anyio.abc import TaskStatus

from actors.fetch.budget import Budgets
from actors.fetch.ledgers import BrokenLedger, Contended, Ledgers, MissingLedger
from actors.fetch.rules import limits
from actors.fetch.rules.ledger import Ledger, Limit
from actors.fetch.rules.limits import PaceVerdict, RecentAnswers, allowed
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.sources import SourceKey
from actors.runtime.live import Live
from actors.runtime.logs import fields
from platforms.adapter import RateBucket
from platforms.told_limits import ToldLimit
from streams.buckets.bucket import Bucket
from streams.buckets.entries import Entry
from streams.clock import Clock
from streams.errors import StreamError

log = logging.getLogger(__name__)

Move = Callable[[Limit | None], Limit | None]
OF_APP, OF_SHOP = frozenset({"app", "endpoint"}), frozenset({"shop", "app_shop"})
NEAR = 1.05
"""A told rate that is no more than so much below a declared one is that one."""


class LearnedLimits:
    """The learned limits of all sources, as this node sees them. `shared`: where limits of whole platforms are kept."""

    def __init__(self, ledgers: Ledgers, shared: Bucket[bytes], budgets: Budgets, clock: Clock) -> None:
        self._ledgers = ledgers
        self._bucket = shared
        self._shared = Live[Limit](shared, _read, unreadable="limit.unreadable", pattern="limit.>", keeps_last=True)
        self._budgets = budgets
        self._clock = clock
        self._answers: defaultdict[SourceKey | str, RecentAnswers] = defaultdict(RecentAnswers)

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Follow the limits of platforms until cancelled."""
        await self._shared.run(task_status=task_status)

    def within(self, source: SourceKey, settings: FetchSettings, declared: Sequence[RateBucket] = ()) -> FetchSettings:
        """Return the settings with the rates that the limits allow now."""
        own = _pace(self._of_source(source), declared, self._clock.now_ms())
        if own is not None and own < settings.rate:
            settings = settings.slowed(own, has_burst=not _was_met(self._of_source(source)))
        if (known := self._of_source(source)) is not None and 0 < known.burst < settings.burst:
            settings = msgspec.structs.replace(settings, burst=known.burst)
        per_s = self.platform_rate(source.platform, settings, declared)
        if per_s != settings.platform_rate:
            settings = msgspec.structs.replace(settings, platform_rate=per_s, burst=1)
        return settings

    def platform_rate(self, platform: str, settings: FetchSettings, declared: Sequence[RateBucket] = ()) -> float:
        """Return how many requests a second all sources of a platform may send now. 0: no limit."""
        learned = _pace(self._shared.get(_key(platform)), declared, self._clock.now_ms())
        if learned is None:
            return settings.platform_rate
        return min(learned, settings.platform_rate or learned)

    def held_ms(self, source: SourceKey) -> int:
        """Return how long the platform still wants no request from any node."""
        both = (self._of_source(source), self._shared.get(_key(source.platform)))
        until_ms = max((limit.until_ms for limit in both if limit is not None), default=0)
        return max(0, until_ms - self._clock.now_ms())

    async def refused(
        self, source: SourceKey, settings: FetchSettings, declared: Sequence[RateBucket], named_ms: int | None
    ) -> PaceVerdict:
        """Take a refusal into account. `named_ms`: the wait that the platform named."""
        now_ms, is_shared = self._clock.now_ms(), _is_shared(declared)
        known = self._shared.get(_key(source.platform)) if is_shared else self._of_source(source)
        part = self._budgets.part_of(source, is_shared=is_shared)
        most_per_s = settings.platform_rate or sum(bucket.lists_per_s for bucket in declared if bucket.scope in OF_APP)
        most_per_s = (most_per_s if is_shared else 0.0) or settings.rate
        refusal = self._answers[source.platform if is_shared else source].refusal(
            known, named_ms, most_per_s, part, now_ms
        )
        if known is not None and limits.is_slow(known, now_ms):
            refusal = RecentAnswers.of(known.heard).refusal(known, named_ms, most_per_s, 1.0, now_ms)

        def verdict(limit: Limit | None) -> PaceVerdict:
            wait_ms, cap_ms = settings.throttle_wait_ms, settings.throttle_cap_ms
            return limits.met(limit, refusal, wait_ms, now_ms, most_wait_ms=cap_ms)

        await self._move(source, is_shared, lambda limit: verdict(limit).limit)
        return verdict(known)

    async def answered(
        self,
        source: SourceKey,
        settings: FetchSettings,
        declared: Sequence[RateBucket],
        said: ToldLimit,
    ) -> None:
        """Take an answer, and what it tells of the limit, into account."""
        now_ms, is_shared = self._clock.now_ms(), _is_shared(declared)
        answers = self._answers[source.platform if is_shared else source]
        answers.add(now_ms)
        await self._move(source, is_shared, lambda limit: limits.heard(limit, now_ms))
        if said.per_s is not None or said.most is not None:
            per_s = answers.mean_per_s(said.per_s) if said.per_s and said.is_rough else said.per_s
            change = partial(limits.told, per_s=per_s, burst=said.most, is_rough=said.is_rough)
            await self._move(source, is_shared, change)
        if said.left == 0 and said.reset_ms:
            until_ms = now_ms + min(said.reset_ms, settings.throttle_cap_ms)
            await self._move(source, is_shared, lambda limit: limits.held(limit, until_ms))

    def _of_source(self, source: SourceKey) -> Limit | None:
        try:
            ledger = self._ledgers.peek(source)
        except BrokenLedger:
            return None
        return None if ledger is None else ledger.limit

    async def _move(self, source: SourceKey, is_shared: bool, change: Move) -> None:
        """Change the limit, if that changes it. What cannot be stored now is learned again."""
        try:
            if is_shared:
                await self._move_shared(_key(source.platform), change)
            else:
                await self._move_own(source, change)
        except (Contended, MissingLedger, BrokenLedger, StreamError) as error:
            log.warning("fetcher.limit_not_stored", extra=fields(source=str(source), error=str(error)))

    async def _move_own(self, source: SourceKey, change: Move) -> None:
        def moved(ledger: Ledger) -> tuple[Ledger, None]:
            after = change(ledger.limit)
            return (ledger if after is ledger.limit else msgspec.structs.replace(ledger, limit=after)), None

        ledger = self._ledgers.peek(source)
        if ledger is not None and moved(ledger)[0] is not ledger:
            await self._ledgers.move(source, moved)

    async def _move_shared(self, key: str, change: Move) -> None:
        known = self._shared.get(key)
        if change(known) is known:
            return

        def moved(entry: Entry[bytes] | None) -> tuple[bytes | None, Limit | None]:
            before = None if entry is None else _read(entry)
            after = change(before)
            return (None if after is before or after is None else msgspec.json.encode(after)), after

        limit, revision = await self._bucket.update(key, moved)
        if limit is not None:
            self._shared.learn(key, limit, revision)


def _is_shared(declared: Sequence[RateBucket]) -> bool:
    """Return whether the platform counts the requests of all shops together, as far as its adapter says."""
    scopes = {bucket.scope for bucket in declared}
    return bool(scopes & OF_APP) and not scopes & OF_SHOP


def _pace(limit: Limit | None, declared: Sequence[RateBucket], now_ms: int) -> float | None:
    """Return how many requests a second a limit allows. A told rate that the adapter declares, too, is kept by that
    budget, with its burst, until the platform refuses."""
    if limit is None:
        return None
    paces = [allowed(limit, now_ms) or 0.0]
    if _was_met(limit) or not any(0 < bucket.lists_per_s <= NEAR * limit.told for bucket in declared):
        paces.append(limit.told)
    return min((pace for pace in paces if pace), default=None)


def _was_met(limit: Limit | None) -> bool:
    return limit is not None and limit.met_ms > 0


def _key(platform: str) -> str:
    return f"limit.{platform}"


def _read(entry: Entry[bytes]) -> Limit:
    return msgspec.json.decode(entry.value, type=Limit)
