"""Slice allocator: cuts the next slices of the sources that this node tends, and offers them to the fetchers.

In: a look at a source, when its ledger, its settings or the live nodes changed, or when time alone makes one due.
Out: an offer on `slices.<platform>.<lane>.<source>.<slice_id>` for each open slice that nobody holds.
State: none of its own; the ledger is the state, and what was offered when is a cache that spares repeats.
Who tends a source is rendezvous hashing over the live nodes that allocate; two that both believe they do meet at
compare-and-set.
Under redelivery: cutting twice conflicts, and offering twice is refused by the subject, which must not exist.
When it cannot go on: a source that fails is looked at again later, alone; the others go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

import anyio
from anyio.abc import TaskStatus
from msgspec import structs

from actors.fetch.ledgers import BrokenLedger, Contended, Ledgers, MissingLedger
from actors.fetch.rules.cutting import NOTHING_OFFERED, OfferKey, cut, next_due_ms, offer_key, offers_due
from actors.fetch.rules.ledger import Ledger, OpenSlice
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.settings_watch import LiveSettings
from actors.fetch.sources import SourceKey, Sources, UnknownSource, UnusableSource
from actors.runtime.actor import FATAL
from actors.runtime.agenda import Agenda
from actors.runtime.failpoints import reach
from actors.runtime.logs import fields
from actors.runtime.membership import Members
from actors.runtime.rules.placement import owner
from streams.clock import Clock
from streams.errors import Refused, RevisionConflict, StreamError
from streams.message_ids import message_id
from streams.messages import SliceOffer, encode
from streams.publisher import Outgoing, Publisher
from streams.subjects import Namespace

log = logging.getLogger(__name__)

__all__ = ["SliceAllocator", "lane_name"]

ROLE = "allocator"
MUST_NOT_EXIST = {"Nats-Expected-Last-Subject-Sequence": "0"}
AT_ONCE = 64
TRY_AGAIN_MS = 1_000
SETTINGS_SOON_MS = 50
"""Settings are in force a quarter of a second after they arrived; a new source waits for its own."""
FORESEEN = (Contended, MissingLedger, BrokenLedger, UnknownSource, UnusableSource, StreamError)


class LastOffer(NamedTuple):
    """When each open slice of a source was last offered, to the lanes of one pin. A memory only: what is forgotten is
    offered once more."""

    pin: str = ""
    at_ms: Mapping[OfferKey, int] = NOTHING_OFFERED


def lane_name(lane: str, pin: str) -> str:
    """Return the lane's token: a pinned source has lanes of its own, pulled only by nodes that carry the pin."""
    return f"{lane}_{pin}" if pin else lane


class SliceAllocator:
    """Looks at each tended source exactly when there is something to do; sleeps otherwise."""

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
        self._agenda: Agenda[SourceKey] = Agenda(clock)
        self._tended: dict[SourceKey, bool] = {}
        self._offered: dict[SourceKey, LastOffer] = {}
        self._failures: dict[SourceKey, str] = {}
        # Here and not in `run`, which the supervisor may call again.
        ledgers.on_change(self.look_soon)
        sources.on_change(self.look_soon)
        settings.on_change(self.look_soon)
        members.on_change(self._look_at_all)

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Tend sources for ever."""
        self._agenda.clear()
        self._look_at_all()
        limiter = anyio.CapacityLimiter(AT_ONCE)
        task_status.started()
        async with anyio.create_task_group() as tasks:
            while True:
                source = await self._agenda.next()
                await limiter.acquire_on_behalf_of(source)
                tasks.start_soon(self._look, source, limiter)

    def look_soon(self, source: SourceKey) -> None:
        """Look at a source as soon as the look under way is over, if it is ours to tend or was."""
        if self._tends(source) or source in self._offered:
            self._agenda.put(source, 0)

    def tended(self) -> list[SourceKey]:
        """Return the sources that this node tends now."""
        return [source for source in self._sources.known() if self._tends(source)]

    def _look_at_all(self) -> None:
        """Forget whose the sources were, and look at each that is ours now."""
        self._tended.clear()
        for source in {*self._sources.known(), *self._offered}:
            self.look_soon(source)

    def _tends(self, source: SourceKey) -> bool:
        if source not in self._sources:
            self._tended.pop(source, None)
            return False
        found = self._tended.get(source)
        if found is None:
            live = self._members.live()
            nodes = [name for name, node in live.items() if node.has_role(ROLE)]
            found = self._tended[source] = owner(str(source), nodes) == self._members.name
        return found

    async def _look(self, source: SourceKey, limiter: anyio.CapacityLimiter) -> None:
        due_ms: int | None = None
        try:
            if self._tends(source):
                due_ms = await self._tend(source)
                self._failures.pop(source, None)
            else:
                self._forget(source)
        except FATAL:
            raise
        except Exception as error:  # one source's trouble, foreseen or not, must not stop the others
            due_ms = self._clock.now_ms() + TRY_AGAIN_MS
            self._tell(source, error)
        finally:
            limiter.release_on_behalf_of(source)
            self._agenda.done(source, due_ms)

    def _forget(self, source: SourceKey) -> None:
        self._offered.pop(source, None)
        self._failures.pop(source, None)

    def _tell(self, source: SourceKey, error: Exception) -> None:
        """Log a failure once, not at every look."""
        if self._failures.get(source) != str(error):
            self._failures[source] = str(error)
            trace = None if isinstance(error, FORESEEN) else error
            log.warning("allocator.look_failed", exc_info=trace, extra=fields(source=str(source), error=str(error)))

    async def _tend(self, source: SourceKey) -> int | None:
        """Cut what may be cut, offer what nobody holds; return when to look again."""
        settings = self._settings_of(source)
        if settings is None:
            return self._clock.now_ms() + SETTINGS_SOON_MS
        ledger = self._ledgers.peek(source)
        if ledger is None:
            raise MissingLedger(source)
        if cut(ledger, settings, self._clock.now_ms()) is not ledger:
            ledger = await self._ledgers.move(source, self._cutter(settings), tries=settings.claim_retries)
            reach("cut")
        offered = await self._offer(source, ledger, settings)
        return next_due_ms(ledger, settings, self._clock.now_ms(), offered)

    def _settings_of(self, source: SourceKey) -> FetchSettings | None:
        """Return what is in force for the source, no less settled than its adapter asks for; None while the settings
        that it was added with have not arrived: a window must never be cut by somebody else's settle."""
        if not self._settings.has_seen(source.platform, source.source, self._sources.settings_revision(source)):
            return None
        settings = self._settings.current(source.platform, source.source)
        settle_ms = self._sources.adapter(source).declaration.settle_ms
        return settings if settle_ms <= settings.settle_ms else structs.replace(settings, settle_ms=settle_ms)

    def _cutter(self, settings: FetchSettings) -> Callable[[Ledger], tuple[Ledger, Ledger]]:
        def move(ledger: Ledger) -> tuple[Ledger, Ledger]:
            after = cut(ledger, settings, self._clock.now_ms())
            return after, after

        return move

    async def _offer(self, source: SourceKey, ledger: Ledger, settings: FetchSettings) -> Mapping[OfferKey, int]:
        """Offer what is due and was not offered lately; return when each open slice was offered."""
        now_ms, last = self._clock.now_ms(), self._offered.get(source, LastOffer())
        known = last.at_ms if last.pin == settings.pin else NOTHING_OFFERED  # an offer in the other lanes is nobody's
        due = offers_due(ledger, now_ms, known, settings.reoffer_ms)
        fresh: dict[OfferKey, int] = {}
        if due:
            offers = [self._offer_of(source, piece, settings.pin, now_ms) for piece in due]
            answers = await self._publisher.publish_many(offers)
            reach("offer")
            for answer in answers:
                if isinstance(answer, Refused) and not isinstance(answer, RevisionConflict):
                    raise answer
            offered = zip((offer_key(ledger, piece) for piece in due), answers, strict=True)
            # What is still in the queue may be an earlier offer that is just being acknowledged: once, look soon again.
            soon_ms = now_ms - settings.reoffer_ms + TRY_AGAIN_MS
            fresh = {
                key: soon_ms if isinstance(answer, Refused) and key not in known else now_ms for key, answer in offered
            }
        waiting = [offer_key(ledger, piece) for piece in ledger.open if not piece.is_taken]
        at_ms = {key: fresh.get(key) or known[key] for key in waiting if key in fresh or key in known}
        self._offered[source] = LastOffer(settings.pin, at_ms)
        return at_ms

    def _offer_of(self, source: SourceKey, piece: OpenSlice, pin: str, now_ms: int) -> Outgoing:
        """The id makes the publisher repeat an offer whose answer was lost. It names the moment, since the same slice
        may rightly be offered again."""
        lane = lane_name(piece.lane, pin)
        subject = self._namespace.slice_offer(source.platform, lane, source.source, piece.slice_id)
        offer = SliceOffer(platform=source.platform, source=source.source, slice_id=piece.slice_id)
        offer_id = message_id("offer", self._members.name, str(source), lane, piece.slice_id, str(now_ms))
        return Outgoing(subject, encode(offer), offer_id, MUST_NOT_EXIST)
