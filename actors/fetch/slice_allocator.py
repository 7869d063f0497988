"""Slice allocator: cuts the next slices of the sources that this node tends, and offers them to the fetchers.

In: a look at a source, when its ledger, its settings or the live nodes changed, or when time alone makes one due. Out:
an offer on `slices.<platform>.<lane>.<source>.<slice_id>` for each open slice that nobody holds. State: none of its
own. The ledger is the state. The times of the last offers are a cache that saves repeats. Rendezvous hashing over some
of the live nodes that allocate (`tending_nodes`) decides who tends a source. They alone follow the ledgers (ADR 67). If
two believe that they tend a source, compare-and-set decides.

Under redelivery: cutting twice conflicts, and the server refuses a second offer because its subject must not exist yet.
When it cannot go on: a source that fails is looked at again later, alone. The others go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from functools import lru_cache
from typing import NamedTuple

import anyio
from anyio.abc import TaskStatus
from msgspec import Raw, structs

from actors.fetch.ledgers import BrokenLedger, Contended, Ledgers, MissingLedger
from actors.fetch.rules.cutting import NOTHING_OFFERED, OfferKey, cut, next_due_ms, offer_key, offers_due
from actors.fetch.rules.ledger import Ledger, OpenSlice
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.rules.tuning import MOST_LONGER, MOST_LONGER_BY_NUMBER, MOST_PAGES, Lengths, pages_of
from actors.fetch.settings.watch import LiveSettings
from actors.fetch.sources import SourceKey, Sources, UnknownSource, UnusableSource
from actors.runtime.failpoints import reach
from actors.runtime.membership import Members, NodeRecord
from actors.runtime.pieces import in_pieces
from actors.runtime.rules.placement import FEWEST, chosen
from actors.runtime.tending import AGAIN_MS, Failures, Tending, nodes_of, tended_by
from platforms.adapter import Declaration
from platforms.bounds import Bounds
from streams.clock import Clock, turn_from_ms
from streams.errors import Refused, RevisionConflict, StreamError
from streams.link.connection import Connection
from streams.messages.fetch import NO_LEDGER, SliceOffer, encode
from streams.messages.ids import message_id
from streams.publish.publisher import Outgoing, Publisher
from streams.subjects import Namespace
from streams.topology.specs import fetch_consumer
from streams.topology.topology import ensure_consumer

log = logging.getLogger(__name__)

ROLE, MONITOR = "allocator", "monitor"
MUST_NOT_EXIST = {"Nats-Expected-Last-Subject-Sequence": "0"}
AT_ONCE = 64
MOST_TOLD = 4_096
"""Bytes of a ledger that an offer carries. One with many holes is larger, and is read."""
NOTHING_TOLD = (0, b"")
LISTING_MS = 600_000
"""How often a list without a time filter is read, unless a sweep is set."""
FAR_MS, TURN_MS = 20_000, 1_000
"""What is due only after so long is looked at in turns of a second: a second later at most."""
SETTINGS_SOON_MS = 50
"""Settings are in force a quarter of a second after they arrive. A new source waits for its own."""
FORESEEN = (Contended, MissingLedger, BrokenLedger, UnknownSource, UnusableSource, StreamError)


class LastOffer(NamedTuple):
    """When each open slice of a source was last offered, to the lanes of one place. A forgotten slice is offered once
    more."""

    place: str = ""
    at_ms: Mapping[OfferKey, int] = NOTHING_OFFERED


def tending_nodes(nodes: Collection[NodeRecord], role: str = ROLE) -> list[str]:
    """Return which of the live nodes tend sources: enough of them for the sources that there are, and the one that
    leads the monitor before others, since it follows the ledgers anyway. While one of them allocates in an earlier
    version, the rule is as that one believes: otherwise nobody would tend what it leaves to a node that is not
    chosen."""
    allocating = [node for node in nodes if node.has_role(role)]
    names = nodes_of(allocating, role)
    match min((node.placement for node in allocating), default=0):
        case 0:
            return names
        case 1:
            return chosen(role, names)
        case _:
            leading = {node.node for node in allocating if MONITOR in node.leads}
            return chosen(role, names, most=FEWEST + max(node.crowd for node in allocating), first=leading)


def lane_name(lane: str, place: str) -> str:
    """Return the lane's token. A pinned or bound source has lanes of its own, from which only nodes pull that may."""
    return f"{lane}_{place}" if place else lane


async def ensure_lanes(connection: Connection, platform: str, place: str) -> None:
    """Make the consumers that slices are pulled from, if they are not there."""
    for lane in ("tail", "back"):
        await ensure_consumer(connection, fetch_consumer(connection.namespace, platform, lane_name(lane, place)))


def with_declared(settings: FetchSettings, declared: Declaration) -> FetchSettings:
    """Return the settings with what the adapter asks for: a longer settle time, and its second looks and its sweep if
    none are set. Each
    reading of a list without a time filter is a second look and a sweep by itself."""
    is_whole = declared.window.bounds.lower == "absent"
    return structs.replace(
        settings,
        settle_ms=max(settings.settle_ms, declared.settle_ms),
        sweep_ms=settings.sweep_ms or declared.sweep_ms,
        again_ms=() if is_whole else settings.looks_ms(declared.again_ms),
    )


def is_halved(declared: Declaration) -> bool:
    """Return whether a window with more than a page can only be read again in smaller ones."""
    pages = declared.pages
    has_way = declared.has_times or (pages.numbered and not pages.counts_rows)
    return pages.style == "one" and not (pages.has_total and has_way)


def lengths_of(declared: Declaration, settings: FetchSettings) -> Lengths:
    """Return what bounds the slices of a source. A list whose windows can only be halved has one page in a slice. Of
    such pages a quarter is left free, because a page that overflows costs two more. Several lists share the rate."""
    pages, bounds = declared.pages, declared.window.bounds
    overlap_ms = max(settings.overlap_before_ms, declared.overlap_ms) + settings.overlap_after_ms
    rates = [settings.rate, *(bucket.lists_per_s for bucket in declared.rate if bucket.lists_per_s)]
    per_s = min([*rates, settings.platform_rate] if settings.platform_rate else rates) / declared.lists
    is_narrow = is_halved(declared)
    count = 1 if is_narrow else pages_of(per_s, settings.timeout_ms)
    return Lengths(
        longest_ms=max(2 * overlap_ms, declared.window.longest_ms - 2 * bounds.step_ms - overlap_ms),
        rows=max(1, pages.size * 3 // 4) if is_narrow else pages.size * count,
        pages=count,
        overlap_ms=overlap_ms,
        per_s=per_s,
        is_one_walk=bounds.upper == "absent",
        least_live_ms=(settings.sweep_ms or LISTING_MS) if bounds.lower == "absent" else 0,
        whole=() if bounds.upper == "absent" else _whole(bounds, overlap_ms),
        longer=_longer(declared, count),
    )


def _longer(declared: Declaration, pages: int) -> float:
    """Return how many times longer slices may be for their overlap. Those of few pages stay short: the rate is low."""
    if pages < MOST_PAGES:
        return 1.0
    return MOST_LONGER_BY_NUMBER if declared.pages.numbered else MOST_LONGER


@lru_cache(maxsize=256)
def _whole(bounds: Bounds, overlap_ms: int) -> tuple[tuple[int, int], ...]:
    """Return the stretches that are not cut: a slice that ends in one requests all of it. Windows are wider than their
    slices, and end outside all the same."""
    spare_ms = overlap_ms + 2 * bounds.step_ms
    return tuple(
        ((start_ms - spare_ms) // 1_000 * 1_000, -(-(stop_ms + spare_ms) // 1_000) * 1_000)
        for start_ms, stop_ms in bounds.blurred
    )


def at_a_turn(due_ms: int | None, now_ms: int) -> int | None:
    """Return the turn at or after a moment, if that is far: so many quiet sources wake their nodes together."""
    if due_ms is None or due_ms - now_ms < FAR_MS:
        return due_ms
    return turn_from_ms(due_ms, TURN_MS)


class SliceAllocator:
    """Looks at each tended source exactly when there is something to do. Sleeps otherwise."""

    def __init__(
        self,
        *,
        ledgers: Ledgers,
        sources: Sources,
        settings: LiveSettings,
        members: Members,
        publisher: Publisher,
        namespace: Namespace,
        clock: Clock,
    ) -> None:
        self._ledgers = ledgers
        self._sources = sources
        self._settings = settings
        self._members = members
        self._publisher = publisher
        self._namespace = namespace
        self._clock = clock
        failures: Failures[SourceKey] = Failures(log, "allocator.look_failed", "source", FORESEEN)
        self._tending = Tending(clock, failures, at_once=AT_ONCE)
        self._is_ours = tended_by(members, ROLE, among=tending_nodes)
        self._offered: dict[SourceKey, LastOffer] = {}
        self._tended_now: set[SourceKey] = set()
        self._members_changed = anyio.Event()
        # Here and not in `run`, because the supervisor may call `run` again.
        ledgers.on_change(self._ledger_changed)
        sources.on_change(self.look_soon)
        settings.on_change(self.look_soon)
        members.on_change(self._look_at_all_soon)

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Tend sources for ever."""
        self._tending.clear()
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._follow_members)
            task_status.started()
            await self._tending.run(self._look)

    def look_soon(self, source: SourceKey) -> None:
        """Look at a source as soon as the look under way is over, if this node tends it or did."""
        if self._tends(source) or source in self._offered:
            self._tending.put(source)

    def _ledger_changed(self, source: SourceKey) -> None:
        """Look soon, unless a look is under way. That goes on from what it cut itself, and sees at its end whether
        anything else has changed."""
        if source not in self._tended_now:
            self.look_soon(source)

    def tended(self) -> list[SourceKey]:
        """Return the sources that this node tends now."""
        return [source for source in self._sources.known() if self._tends(source)]

    def _look_at_all_soon(self) -> None:
        self._members_changed.set()

    async def _follow_members(self, *, task_status: TaskStatus[None]) -> None:
        """Follow the ledgers while this node is one of those that tend sources. When nodes came or went, look at each
        source that this node tends now or did before. A source whose turn has not come may be tended by two nodes for a
        moment: compare-and-set decides. Started once the first looks are due."""
        is_started = False
        while True:
            is_tending = self._is_tending()
            async with self._ledgers.followed() if is_tending else nullcontext():
                while self._is_tending() is is_tending:
                    self._members_changed = anyio.Event()
                    async for source in in_pieces([*self._sources.known(), *self._offered]):
                        self.look_soon(source)
                    if not is_started:
                        is_started = True
                        task_status.started()
                    await self._members_changed.wait()

    def _is_tending(self) -> bool:
        """Return whether this node is one of those that tend sources."""
        return self._members.name in tending_nodes(self._members.live().values())

    def _tends(self, source: SourceKey) -> bool:
        return self._ledgers.is_followed and source in self._sources and self._is_ours(str(source))

    async def _look(self, source: SourceKey) -> int | None:
        if self._tends(source):
            self._tended_now.add(source)
            try:
                return await self._tend(source)
            finally:
                self._tended_now.discard(source)
        self._offered.pop(source, None)
        return None

    async def _tend(self, source: SourceKey) -> int | None:
        """Cut what may be cut, offer what nobody holds. Return when to look again."""
        settings = self._settings_of(source)
        if settings is None:
            return self._clock.now_ms() + SETTINGS_SOON_MS
        ledger = self._ledgers.peek(source)
        if ledger is None:
            raise MissingLedger(source)
        lengths = lengths_of(self._sources.adapter(source).declaration, settings)
        if cut(ledger, settings, self._clock.now_ms(), lengths) is not ledger:
            ledger = await self._ledgers.move(source, self._cutter(settings, lengths), tries=settings.claim_retries)
            reach("cut")
        offered = await self._offer(source, ledger, settings)
        if self._ledgers.peek(source) is not ledger:
            return self._clock.now_ms()
        now_ms = self._clock.now_ms()
        return at_a_turn(next_due_ms(ledger, settings, now_ms, offered, lengths), now_ms)

    def _settings_of(self, source: SourceKey) -> FetchSettings | None:
        """Return what is in force for the source, with at least the settle time of its adapter. `None`: the settings
        that it was added with have not arrived. A window must never be cut by another settle time."""
        if not self._settings.has_seen(source.platform, source.source, self._sources.settings_revision(source)):
            return None
        settings = self._settings.current(source.platform, source.source)
        declared = self._sources.adapter(source).declaration
        return with_declared(settings, declared)

    def _cutter(self, settings: FetchSettings, lengths: Lengths) -> Callable[[Ledger], tuple[Ledger, Ledger]]:
        def move(ledger: Ledger) -> tuple[Ledger, Ledger]:
            after = cut(ledger, settings, self._clock.now_ms(), lengths)
            return after, after

        return move

    async def _offer(self, source: SourceKey, ledger: Ledger, settings: FetchSettings) -> Mapping[OfferKey, int]:
        """Offer what is due and was not offered lately. Return when each open slice was offered."""
        now_ms, last = self._clock.now_ms(), self._offered.get(source, LastOffer())
        known = last.at_ms if last.place == settings.place else NOTHING_OFFERED  # offers in other lanes do not count
        due = offers_due(ledger, now_ms, known, settings.reoffer_ms)
        fresh: dict[OfferKey, int] = {}
        if due:
            told = self._ledgers.to_tell(source, ledger) if len(ledger.open) == 1 else NOTHING_TOLD
            told = told if len(told[1]) <= MOST_TOLD else NOTHING_TOLD
            offers = [self._offer_of(source, piece, settings.place, now_ms, told) for piece in due]
            answers = await self._publisher.publish_many(offers)
            reach("offer")
            for answer in answers:
                if isinstance(answer, Refused) and not isinstance(answer, RevisionConflict):
                    raise answer
            offered = zip((offer_key(ledger, piece) for piece in due), answers, strict=True)
            # A message still in the queue may be an earlier offer that is just being acknowledged. So look again soon,
            # once.
            soon_ms = now_ms - settings.reoffer_ms + AGAIN_MS
            fresh = {
                key: soon_ms if isinstance(answer, Refused) and key not in known else now_ms for key, answer in offered
            }
        waiting = [offer_key(ledger, piece) for piece in ledger.open if not piece.is_taken]
        at_ms = {key: fresh.get(key) or known[key] for key in waiting if key in fresh or key in known}
        self._offered[source] = LastOffer(settings.place, at_ms)
        return at_ms

    def _offer_of(
        self, source: SourceKey, piece: OpenSlice, place: str, now_ms: int, told: tuple[int, bytes]
    ) -> Outgoing:
        """Return the offer. Its id lets the publisher repeat an offer whose receipt was lost. It contains the moment,
        since the same slice may rightly be offered again. `told`: the ledger that it carries. Where slices are open
        beside this one, it would have changed before the offer is taken."""
        lane = lane_name(piece.lane, place)
        subject = self._namespace.slice_offer(source.platform, lane, source.source, piece.slice_id)
        revision, raw = told
        offer = SliceOffer(
            platform=source.platform,
            source=source.source,
            slice_id=piece.slice_id,
            revision=revision,
            ledger=Raw(raw) if revision else NO_LEDGER,
        )
        offer_id = message_id("offer", self._members.name, str(source), lane, piece.slice_id, str(now_ms))
        return Outgoing(subject, encode(offer), offer_id, MUST_NOT_EXIST)
