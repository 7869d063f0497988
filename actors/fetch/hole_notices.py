"""Reports holes: those of one platform within a minute in one notice, and one more notice when no hole is left.

In: each source as the leading monitor sees it at a scan. Out: notices. State: the ledger records whether a hole was
reported (`is_told`) and whether its end has to be reported (`owes_end`). The monitor writes both. A notice on its way
is in memory while this node leads. If a leader dies before it writes the mark, the next leader sends the notice again.
When it cannot go on: a ledger that cannot be written is written at the next scan.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Sequence

import msgspec

from actors.fetch.ledgers import BrokenLedger, Contended, Ledgers, MissingLedger
from actors.fetch.rules import steering
from actors.fetch.rules.ledger import Hole, Ledger
from actors.fetch.settings.watch import LiveSettings
from actors.fetch.sources import SourceKey
from actors.runtime.logs import fields
from actors.runtime.notices.alerts import Alerts
from actors.runtime.rules.notices import MOST_NAMED, Notice
from actors.runtime.rules.texts import some_of
from streams.clock import Clock

log = logging.getLogger(__name__)

TOGETHER_MS = 60_000
"""A hole waits for a person anyway. Within this time there may be more of them, for the same reason."""

HoleKey = tuple[SourceKey, str, int]
Place = tuple[str, str]
"""A platform and a webhook. One notice is on its way to a place at a time."""


class GivenUp(msgspec.Struct, frozen=True):
    """A hole that was not reported, and the webhook to report it to."""

    source: SourceKey
    hole: Hole
    webhook: str


class HoleGroup(msgspec.Struct, frozen=True):
    """The holes of one notice, the first one first."""

    platform: str
    webhook: str
    members: tuple[tuple[SourceKey, Hole], ...]


class Cleared(msgspec.Struct, frozen=True):
    """A notice that no hole is left. `number` distinguishes it from an earlier one."""

    place: Place
    sources: tuple[SourceKey, ...]
    number: int


def hole_key(source: SourceKey, hole: Hole) -> HoleKey:
    """Return the identity of a hole: its source, its window, and its beginning."""
    return source, hole.slice_id, hole.since_ms


def unreported(ledger: Ledger) -> list[Hole]:
    """Return the holes that were not reported."""
    return [hole for hole in ledger.holes if not hole.is_told]


def due_holes(seen: Iterable[GivenUp], now_ms: int) -> list[HoleGroup]:
    """Return the notices that are due: as soon as one hole of a place is a minute old, all of the place are reported
    with it. A hole with a time in the future comes from a node with another clock, and is reported at once."""
    together: dict[Place, list[GivenUp]] = defaultdict(list)
    for each in seen:
        together[each.source.platform, each.webhook].append(each)
    groups: list[HoleGroup] = []
    for (platform, webhook), found in sorted(together.items()):
        if any(not 0 <= now_ms - each.hole.since_ms < TOGETHER_MS for each in found):
            found.sort(key=lambda each: (each.hole.since_ms, each.source, each.hole.slice_id))
            groups.append(HoleGroup(platform, webhook, tuple((each.source, each.hole) for each in found)))
    return groups


def holes_notice(group: HoleGroup) -> Notice:
    """Return the notice of a group of holes."""
    (first, hole), *others = group.members
    if not others:
        return _one_hole(first, hole)
    sources = sorted({source for source, _ in group.members})
    facts: dict[str, str | int] = {"holes": len(group.members), "sources": len(sources), "since_ms": hole.since_ms}
    missing = sum(hole.short.missing for _, hole in group.members if hole.short is not None)
    if missing:
        facts["missing"] = missing
    is_one = len(sources) == 1
    about = str(first) if is_one else group.platform
    whose = (
        "" if is_one else f" of {len(sources)} sources ({some_of([source.source for source in sources], MOST_NAMED)})"
    )
    which = "the first" if is_one else f"the first, of {first}"
    text = f"{len(group.members)} windows{whose} are holes; {which}: {_hole_text(hole)}"
    what_to_do = f"penstock holes list{f' {first}' if is_one else ''}, then redrive or accept them"
    return Notice(kind="hole", source=about, text=text, what_to_do=what_to_do, facts=facts)


def _one_hole(source: SourceKey, hole: Hole) -> Notice:
    facts: dict[str, str | int] = {"start_ms": hole.start_ms, "end_ms": hole.end_ms}
    if hole.short is not None:
        facts |= {"missing": hole.short.missing, "listed": hole.short.listed}
    what_to_do = f"penstock holes redrive {source} {hole.slice_id}, or accept it"
    return Notice(kind="hole", source=str(source), text=_hole_text(hole), what_to_do=what_to_do, facts=facts)


def _hole_text(hole: Hole) -> str:
    if hole.short is not None:
        return f"{hole.slice_id} is not whole: {hole.reason}"
    return f"{hole.slice_id} was given up after {hole.attempts} attempts: {hole.reason}"


def _cleared_notice(platform: str) -> Notice:
    text = "over: no hole is left that waits for a person"
    return Notice(kind="holes_over", source=platform, text=text, what_to_do="nothing: what was redriven is being read")


class HoleNotices:
    """The leading monitor's notices of holes."""

    def __init__(self, ledgers: Ledgers, alerts: Alerts, settings: LiveSettings, clock: Clock) -> None:
        self._ledgers = ledgers
        self._alerts = alerts
        self._settings = settings
        self._clock = clock
        self._seen: list[GivenUp] = []
        self._on_the_way: dict[Place, HoleGroup] = {}
        self._sent: set[HoleKey] = set()
        self._waiting: dict[SourceKey, Place] = {}
        self._left: set[SourceKey] = set()
        self._cleared: dict[Place, Cleared] = {}
        self._count = 0

    def forget(self) -> None:
        """Begin anew: another node may have led, and reported, meanwhile."""
        for memory in (self._seen, self._on_the_way, self._sent, self._waiting, self._left, self._cleared):
            memory.clear()

    def see(self, source: SourceKey, ledger: Ledger, webhook: str) -> None:
        """Take a source as this scan sees it."""
        self._seen += [GivenUp(source, hole, webhook) for hole in unreported(ledger)]
        if not ledger.owes_end:
            self._waiting.pop(source, None)
            return
        self._waiting.setdefault(source, (source.platform, webhook))
        if all(hole.accepted_by for hole in ledger.holes):
            self._left.add(source)

    def is_sent(self, source: SourceKey, hole: Hole) -> bool:
        """Return whether a notice of this hole was sent."""
        return hole_key(source, hole) in self._sent

    async def tell(self, known: Container[SourceKey]) -> list[Hashable]:
        """Submit what is due after a scan of the `known` sources. Return the keys of the notices on their way."""
        seen, self._seen = self._seen, []
        left, self._left = self._left | {source for source in self._waiting if source not in known}, set()
        await self._settle(seen)
        self._clear(left)
        new = [each for each in seen if not self.is_sent(each.source, each.hole)]
        for group in due_holes(new, self._clock.now_ms()):
            place = group.platform, group.webhook
            if place not in self._on_the_way:
                self._on_the_way[place] = group
                self._alerts.submit(group, holes_notice(group), self._webhook_of(group.members[0][0]))
        return [*self._on_the_way.values(), *self._cleared.values()]

    async def _settle(self, seen: Sequence[GivenUp]) -> None:
        """Remove notices that were sent, and those that are not needed any more."""
        found = {hole_key(each.source, each.hole) for each in seen}
        self._sent &= found
        for place, group in list(self._on_the_way.items()):
            keys = {hole_key(source, hole) for source, hole in group.members}
            is_sent = self._alerts.is_sent(group)
            if is_sent and await self._mark({source for source, _ in group.members}, steering.owe_end):
                self._sent |= keys
                del self._on_the_way[place]
            elif not is_sent and found.isdisjoint(keys):
                del self._on_the_way[place]
        for place, cleared in list(self._cleared.items()):
            if self._alerts.is_sent(cleared) and await self._mark(cleared.sources, steering.mark_ended):
                for source in cleared.sources:
                    self._waiting.pop(source, None)
                del self._cleared[place]

    def _clear(self, left: Collection[SourceKey]) -> None:
        """Report the places where no source has a hole any more, if a hole of them was reported."""
        still = {place for source, place in self._waiting.items() if source not in left}
        for place in {self._waiting[source] for source in left if source in self._waiting} - still:
            if place not in self._cleared:
                self._count += 1
                sources = tuple(sorted(source for source in left if self._waiting.get(source) == place))
                cleared = self._cleared[place] = Cleared(place, sources, self._count)
                self._alerts.submit(cleared, _cleared_notice(place[0]), self._webhook_of(sources[0]))

    async def _mark(self, sources: Iterable[SourceKey], mark: Callable[[Ledger], Ledger]) -> bool:
        """Write the mark into each ledger. Return False if some could not be written."""
        is_done = True
        for source in sources:
            try:
                await self._ledgers.move(source, lambda ledger: (mark(ledger), None))
            except (MissingLedger, BrokenLedger):  # removed, or reported as broken
                continue
            except Contended as error:
                log.warning("monitor.hole_unmarked", extra=fields(source=str(source), error=str(error)))
                is_done = False
        return is_done

    def _webhook_of(self, source: SourceKey) -> Callable[[], str]:
        return lambda: self._settings.current(source.platform, source.source).webhook
