"""Reports that sources are down, and that they are up again: one notice for each platform.

In: each source as the leading monitor sees it at a scan. Out: notices, and SourceDown and SourceUp for each source of a
notice. State: the ledger records whether an outage was reported (`actors/fetch/rules/outages.py`), so that a new leader
does not repeat it. A notice on its way is in memory, and sources that go down meanwhile wait for the next one. If a
leader dies after it sent a notice and before it wrote that down, the next leader sends the notice again. When it cannot
go on: a ledger that cannot be written is written at the next scan.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Literal

import msgspec

from actors.fetch.fetch_events import source_down, source_up
from actors.fetch.ledgers import BrokenLedger, Contended, Ledgers, MissingLedger
from actors.fetch.rules.ledger import Ledger, Outage
from actors.fetch.rules.outages import mark_over, mark_reported
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.settings.watch import LiveSettings
from actors.fetch.sources import SourceKey
from actors.runtime.logs import fields
from actors.runtime.notices.alerts import Alerts
from actors.runtime.rules.notices import MOST_NAMED, Notice
from actors.runtime.rules.texts import some_of, span_text, time_text
from streams.clock import Clock
from streams.messages.fetch import FetchEvent

log = logging.getLogger(__name__)

Kind = Literal["down", "up"]


class Down(msgspec.Struct, frozen=True):
    """A source with an outage, as one scan sees it: where it is reported, and after how long."""

    source: SourceKey
    outage: Outage
    webhook: str
    patience_ms: int


class OutageGroup(msgspec.Struct, frozen=True):
    """The sources of one notice, all of one platform and one webhook."""

    kind: Kind
    platform: str
    webhook: str
    members: tuple[tuple[SourceKey, Outage], ...]

    @property
    def place(self) -> tuple[str, str, str]:
        """Return the place of the notice. One notice is on its way to a place at a time."""
        return self.kind, self.platform, self.webhook


def due_groups(seen: Iterable[Down], now_ms: int) -> list[OutageGroup]:
    """Return the notices that are due. As soon as one source of a platform is down for longer than its setting allows,
    all that are down and not reported are reported with it. Those that came back are reported when none of their
    platform is down any more, or when the first of them has been back for as long."""
    together: dict[tuple[str, str], list[Down]] = defaultdict(list)
    for each in seen:
        together[each.source.platform, each.webhook].append(each)
    groups: list[OutageGroup] = []
    for (platform, webhook), found in sorted(together.items()):
        new = [each for each in found if not each.outage.over_ms and not each.outage.is_told]
        back = [each for each in found if each.outage.over_ms and each.outage.is_told]
        is_still = any(not each.outage.over_ms and each.outage.is_told for each in found)
        if any(now_ms - each.outage.since_ms >= each.patience_ms for each in new):
            groups.append(_group("down", platform, webhook, new))
        if back and (not is_still or any(now_ms - each.outage.over_ms >= each.patience_ms for each in back)):
            groups.append(_group("up", platform, webhook, back))
    return groups


def _group(kind: Kind, platform: str, webhook: str, found: Sequence[Down]) -> OutageGroup:
    members = sorted(((each.source, each.outage) for each in found), key=lambda one: (one[1].since_ms, one[0]))
    return OutageGroup(kind, platform, webhook, tuple(members))


def group_notice(group: OutageGroup) -> Notice:
    """Return the notice of sources that went down, or came back, together."""
    first, outage = group.members[0]
    count, since = len(group.members), f"since {time_text(outage.since_ms // 1000 * 1000)}"
    who = (
        "it"
        if count == 1
        else f"{count} sources ({some_of([source.source for source, _ in group.members], MOST_NAMED)})"
    )
    facts: dict[str, str | int] = {"sources": count, "since_ms": outage.since_ms}
    if group.kind == "down":
        text = f"down: {who} cannot be reached at all {since}: {outage.reason}"
        do = f"nothing here: it is asked again and read on by itself; penstock sources list {first.platform}"
    else:
        over_ms = max(each.over_ms for _, each in group.members)
        facts["over_ms"] = over_ms
        text = f"over: {who} could not be reached {since}, and can again after {span_text(over_ms - outage.since_ms)}"
        do = "nothing: what was not read meanwhile is being read"
    about = str(first) if count == 1 else group.platform
    return Notice(kind=f"source_{group.kind}", source=about, text=text, what_to_do=do, facts=facts)


class OutageNotices:
    """The leading monitor's notices of outages."""

    def __init__(
        self,
        ledgers: Ledgers,
        alerts: Alerts,
        settings: LiveSettings,
        publish: Callable[[Sequence[FetchEvent]], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self._ledgers = ledgers
        self._alerts = alerts
        self._settings = settings
        self._publish = publish
        self._clock = clock
        self._seen: list[Down] = []
        self._on_the_way: dict[tuple[str, str, str], OutageGroup] = {}

    def forget(self) -> None:
        """Begin anew: another node may have led, and reported, meanwhile."""
        self._seen.clear()
        self._on_the_way.clear()

    def see(self, source: SourceKey, ledger: Ledger, settings: FetchSettings) -> None:
        """Take a source as this scan sees it. For a paused or parked one only the end is reported."""
        outage = ledger.outage
        if outage is not None and (ledger.state == "running" or outage.over_ms):
            self._seen.append(Down(source, outage, settings.webhook, settings.down_after_ms))

    async def tell(self) -> list[OutageGroup]:
        """Submit what is due after a scan. Return the keys of the notices on their way."""
        seen, self._seen = self._seen, []
        busy = set(self._on_the_way)  # what this scan saw is older than what is marked now
        for place in busy:
            group = self._on_the_way[place]
            is_told = self._alerts.is_sent(group)
            if await self._mark(group) if is_told else not _is_worth(group, seen):
                del self._on_the_way[place]
        for group in due_groups(seen, self._clock.now_ms()):
            if group.place not in busy:
                self._on_the_way[group.place] = group
                self._alerts.submit(group, group_notice(group), self._webhook_of(group))
        return list(self._on_the_way.values())

    def _webhook_of(self, group: OutageGroup) -> Callable[[], str]:
        first = group.members[0][0]
        return lambda: self._settings.current(first.platform, first.source).webhook

    async def _mark(self, group: OutageGroup) -> bool:
        """Publish the events, and mark each ledger as reported. Return False if some could not be written."""
        event = source_down if group.kind == "down" else source_up
        await self._publish([event(source, outage) for source, outage in group.members])
        is_done = True
        for source, outage in group.members:
            try:
                await self._ledgers.move(source, self._marker(group.kind, outage))
            except (MissingLedger, BrokenLedger):  # removed, or reported as broken
                continue
            except Contended as error:
                log.warning("monitor.outage_unmarked", extra=fields(source=str(source), error=str(error)))
                is_done = False
        return is_done

    def _marker(self, kind: Kind, outage: Outage) -> Callable[[Ledger], tuple[Ledger, None]]:
        now_ms = self._clock.now_ms()
        if kind == "down":
            return lambda ledger: (mark_reported(ledger, outage.since_ms, now_ms), None)
        return lambda ledger: (mark_over(ledger, outage.over_ms, now_ms), None)


def _is_worth(group: OutageGroup, seen: Sequence[Down]) -> bool:
    """Return whether the notice is still needed: an outage that ended before it was reported needs no report."""
    if group.kind == "up":
        return True
    members = {source for source, _ in group.members}
    return any(each.source in members and not each.outage.over_ms for each in seen)
