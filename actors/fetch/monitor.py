"""Monitor: the node that holds its lease looks at every ledger, and acts on what no other actor would see.

In: a scan every `scan_every`. It leaves out the sources that have not changed and of which time alone changes nothing
yet, so thousands of quiet sources cost it next to nothing. Out:

- Overdue slices get their next attempt or are given up.
- Each new hole gets a dead letter.
- Notices report each parked source, each ledger that is missing or broken, the end of either, the holes of a platform
  within a minute, and the sources of a platform that went down, or came back, together.
- Notices report consumers that are stuck, refused settings and dead letters, and when none is left.
- Events report the same, but for dead letters, and a watermark that lags.

State: the ledger records that a hole or an outage was reported (`is_told`). Other reports are remembered while this
node leads, so a new leader sends them once more. Its writes are compare-and-set moves that change nothing when
repeated, so a leader that lost its lease in the middle does no harm. When it cannot go on: a source that fails is
skipped until the next scan. Notices are sent in the background and never delay a scan.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence

import anyio
import msgspec
from anyio.abc import TaskStatus

from actors.fetch import cluster_troubles
from actors.fetch.fetch_events import consumer_stuck, hole_made, ledger_unusable, slice_failed, watermark_lag
from actors.fetch.hole_notices import HoleNotices, hole_key, unreported
from actors.fetch.ledgers import LATEST_MS, BrokenLedger, Contended, Ledgers, MissingLedger
from actors.fetch.outage_notices import OutageNotices
from actors.fetch.progress import Progress
from actors.fetch.rules import holding, steering
from actors.fetch.rules.ledger import Hole, Ledger
from actors.fetch.rules.outages import is_down
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.settings.watch import LiveSettings
from actors.fetch.sources import SourceKey, Sources
from actors.runtime.actor import FATAL, until_stopped
from actors.runtime.dead_counts import DeadCounts
from actors.runtime.events import outgoing_event
from actors.runtime.logs import fields
from actors.runtime.measures import Measures, SourceFigures
from actors.runtime.notices.alerts import Alerts
from actors.runtime.notices.notify import Notifier
from actors.runtime.notices.standing import StandingNotices
from actors.runtime.pieces import in_pieces
from actors.runtime.rules.notices import Notice
from actors.runtime.tending import Agenda, Failures
from streams.buckets.bucket import Bucket
from streams.buckets.lease import Lease, lead
from streams.chance import chance
from streams.clock import Clock, monotonic_s
from streams.errors import MalformedMessage, Refused, RevisionConflict, StreamError
from streams.link.connection import Connection
from streams.messages.fetch import DeadLetter, FetchEvent, decode_dead_letter, encode
from streams.messages.ids import dead_letter_message_id
from streams.publish.publisher import Publisher
from streams.pull.backlog import consumer_states
from streams.reads.log import last_entries
from streams.subjects import token_of

log = logging.getLogger(__name__)

LEASE = "monitor"
LEASE_TTL_S = 5
STUCK_S = 30.0
"""Ten times the ack wait. A consumer that delivers nothing for so long in spite of pulls does not recover."""
LOOK_AT_CONSUMERS_S = 5.0
COUNT_DEAD_S = 60.0
"""What is given up within a minute is one notice."""
FORESEEN = (Contended, MissingLedger, StreamError)


def overdue(ledger: Ledger, settings: FetchSettings, now_ms: int) -> bool:
    """Return whether a holder has had a slice for `stale_after` or longer."""
    return any(held.is_taken and held.taken_ms + settings.stale_after_ms <= now_ms for held in ledger.open)


def lag_ms(ledger: Ledger, settings: FetchSettings, now_ms: int) -> int:
    """Return how many ms the watermark is behind where it could be if everything were read at once."""
    return max(0, now_ms - settings.settle_ms - ledger.watermark_ms)


def quiet_until_ms(ledger: Ledger, settings: FetchSettings) -> int:
    """Return up to when a look at an unchanged source does nothing. 0: the next look may do something."""
    if ledger.state == "parked" or ledger.outage is not None or ledger.holes or ledger.owes_end:
        return 0
    moments = [held.taken_ms + settings.stale_after_ms for held in ledger.open if held.is_taken]
    if ledger.state == "running":
        moments.append(ledger.watermark_ms + settings.settle_ms + settings.lag_alarm_ms)
    return min(moments, default=LATEST_MS)


def hole_dead_letter(source: SourceKey, hole: Hole) -> DeadLetter:
    """Return the dead letter of a hole: the window is its body, the slice its id."""
    window = {"slice_id": hole.slice_id, "start_ms": hole.start_ms, "end_ms": hole.end_ms}
    return DeadLetter(
        engine="fetch",
        name=source.platform,
        id=token_of(f"{source.source}_{hole.slice_id}"),
        reason=hole.reason,
        attempts=hole.attempts,
        first_ms=hole.since_ms,
        body=msgspec.Raw(msgspec.json.encode({"platform": source.platform, "source": source.source, **window})),
    )


def parked_notice(source: SourceKey, ledger: Ledger) -> Notice:
    """Return the notice of a source that waits for a person."""
    what_to_do = f"mend it, then: penstock sources resume {source}"
    return Notice(kind="parked", source=str(source), text=f"parked: {ledger.reason}", what_to_do=what_to_do)


def ledger_notice(source: SourceKey, reason: str) -> Notice:
    """Return the notice of a ledger that is missing or broken."""
    return Notice(kind="ledger", source=str(source), text="nothing of it is fetched", what_to_do=reason)


def over_notice(source: SourceKey, kind: str) -> Notice:
    """Return the notice that what a notice of this kind reported is over."""
    text = "over: it is read again" if kind == "parked" else "over: the ledger can be read again"
    return Notice(kind=f"{kind}_over", source=str(source), text=text, what_to_do="")


class Monitor:
    """A node's monitor. It scans only while it leads. `progress` knows how long a consumer may be stuck. `on_lead` is
    called when the node begins or ceases to lead."""

    def __init__(
        self,
        *,
        node: str,
        connection: Connection,
        leases: Bucket[bytes],
        ledgers: Ledgers,
        sources: Sources,
        settings: LiveSettings,
        publisher: Publisher,
        notifier: Notifier,
        measures: Measures,
        clock: Clock,
        stop: anyio.Event,
        on_lead: Callable[[], None] = lambda: None,
    ) -> None:
        self._node = node
        self._connection = connection
        self._namespace = connection.namespace
        self._leases = leases
        self._ledgers = ledgers
        self._sources = sources
        self._settings = settings
        self._publisher = publisher
        self._measures = measures
        self._clock = clock
        self._stop = stop
        self._on_lead = on_lead
        self._alerts = Alerts(notifier)
        self._holes = HoleNotices(ledgers, self._alerts, settings, clock)
        self._outages = OutageNotices(ledgers, self._alerts, settings, self._publish, clock)
        self._standing = StandingNotices(self._alerts, lambda: settings.current("", "").webhook)
        self._dead = DeadCounts(connection, is_left_out=cluster_troubles.is_hole_letter)
        self._counted_s = 0.0
        self.progress = Progress(STUCK_S)
        self.elected = anyio.Event()
        """Set while this node leads."""
        self._worth: set[Hashable] = set()
        self._buried: set[tuple[SourceKey, str, int]] = set()
        self._lagging: set[SourceKey] = set()
        self._parked: set[SourceKey] = set()
        self._ends: set[tuple[SourceKey, str, str]] = set()
        self._suspects: dict[SourceKey, str] = {}
        self._unusable: dict[SourceKey, str] = {}
        self._agenda: Agenda[SourceKey] = Agenda(clock)
        """When each source is looked at, unless it changes before. Kept while this node leads."""
        self._failures: Failures[SourceKey] = Failures(log, "monitor.look_failed", "source", FORESEEN)
        self._has_other_sources = True
        self._looked_s = 0.0
        self._hurry = anyio.Event()
        settings.on_change(self._settings_changed)
        measures.follow_monitor(lambda: self.is_leading)

    @property
    def is_leading(self) -> bool:
        return self.elected.is_set()

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Stand for election until the node stops."""
        await until_stopped(self._stop, self._campaign, task_status=task_status)

    async def _campaign(self) -> None:
        await lead(self._leases, LEASE, self._node, ttl_s=LEASE_TTL_S, body=self._lead)

    async def _lead(self, _lease: Lease) -> None:
        log.info("monitor.leads", extra=fields(node=self._node))
        async with self._ledgers.followed():
            await self._scan_for_ever()

    async def _scan_for_ever(self) -> None:
        self._begin_anew()
        removers = [self._ledgers.on_change(self._changed), self._sources.on_change(self._source_changed)]
        self.elected.set()
        self._on_lead()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._alerts.run)
                while True:
                    await self.scan()
                    with anyio.move_on_after(self._period_s()):
                        await self._hurry.wait()
                    self._hurry = anyio.Event()
        finally:
            for remove in removers:
                remove()
            self.elected = anyio.Event()
            self._on_lead()
            self._measures.forget_sources()

    def _begin_anew(self) -> None:
        """Forget what was reported: another node may have led meanwhile, and reported that it is over."""
        told = (self._buried, self._lagging, self._parked, self._ends, self._suspects, self._unusable)
        for memory in (*told, self._agenda):
            memory.clear()
        for source in self._sources.known():
            self._changed(source)
        self._failures.keep_only(())
        self._alerts.forget()
        self.progress.forget()
        self._outages.forget()
        self._holes.forget()
        self._standing.forget()
        self._counted_s = 0.0
        self._has_other_sources = True
        self._looked_s = 0.0

    def _changed(self, source: SourceKey) -> None:
        self._agenda.put(source, 0)

    def _source_changed(self, source: SourceKey) -> None:
        self._changed(source)
        self._has_other_sources = True

    def _settings_changed(self, source: SourceKey) -> None:
        """Scan now, so that a new period holds from now on and not from the end of the old one."""
        self._changed(source)
        if not source.platform:
            self._hurry.set()

    def _period_s(self) -> float:
        return self._settings.current("", "").scan_every_ms / 1000

    async def scan(self) -> None:
        """Look once at every source that may have something new, and sometimes at the consumers."""
        self._ends = {key for key in self._ends if not self._alerts.is_sent(key)}
        self._worth = {*self._ends}
        async for source in in_pieces([source for source in self._agenda.take_due() if source in self._sources]):
            self._agenda.put(source, await self._look(source))
        self._worth.update(await self._outages.tell())
        self._worth.update(await self._holes.tell(self._sources))
        refused = cluster_troubles.refused_settings(self._settings.refused())
        self._standing.see(cluster_troubles.REFUSED, refused, self._clock.now_ms())
        self._worth |= self._standing.on_the_way()
        self._alerts.keep_only(self._worth)
        self._buried &= self._worth
        if self._has_other_sources:
            self._has_other_sources = False
            self._forget_all_but(set(self._sources.known()))
        if monotonic_s() - self._looked_s >= min(LOOK_AT_CONSUMERS_S, self.progress.stuck_s):
            self._looked_s = monotonic_s()
            await self._look_at_consumers()
        if monotonic_s() - self._counted_s >= COUNT_DEAD_S:
            self._counted_s = monotonic_s()
            await self._look_at_dead_letters()

    def _forget_all_but(self, sources: set[SourceKey]) -> None:
        self._measures.keep_only([(source.platform, source.source) for source in sources])
        self._lagging &= sources
        self._parked &= sources
        self._failures.keep_only(sources)
        for memory in (self._suspects, self._unusable):
            for source in memory.keys() - sources:
                del memory[source]

    async def _look(self, source: SourceKey) -> int:
        """Look at the source. Return up to when the next look would do nothing. 0: it may do something."""
        try:
            until_ms = await self._look_if_usable(source)
        except FATAL:
            raise
        except Exception as error:  # the trouble of one source, foreseen or not, must not stop the others
            self._failures.tell(source, error)
            return 0
        self._failures.over(source)
        return until_ms

    async def _look_if_usable(self, source: SourceKey) -> int:
        """Look at a source whose ledger can be read and whose settings are known. Return as `_look`."""
        ledger, revision = await self._usable(source), self._sources.settings_revision(source)
        if ledger is None or not self._settings.has_seen(source.platform, source.source, revision):
            return 0
        await self._look_at(source, ledger)
        if self._unusable.get(source):
            return 0
        return quiet_until_ms(ledger, self._settings.current(source.platform, source.source))

    async def _look_at(self, source: SourceKey, ledger: Ledger) -> None:
        settings, now_ms = self._settings.current(source.platform, source.source), self._clock.now_ms()
        down_ms = now_ms - ledger.outage.since_ms if ledger.outage is not None and is_down(ledger) else 0
        figures = SourceFigures(
            lag_s=lambda: lag_ms(ledger, settings, self._clock.now_ms()) / 1000,
            down_s=max(0, down_ms) / 1000,
            slices=len(ledger.open),
            holes=sum(not hole.accepted_by for hole in ledger.holes),
            is_parked=ledger.state == "parked",
            is_paused=ledger.state == "paused",
        )
        self._measures.source(source.platform, source.source, figures)
        self._outages.see(source, ledger, settings)
        if ledger.state == "parked":
            self._parked.add(source)
            self._alert((source, "parked", ledger.reason), parked_notice(source, ledger))
        elif source in self._parked:
            self._parked.discard(source)
            self._alert_end(source, "parked")
        self._holes.see(source, ledger, settings.webhook)
        if overdue(ledger, settings, now_ms):
            await self._expire(source, settings)
        await self._look_at_lag(source, ledger, settings, now_ms)
        await self._close_unreported(source, unreported(ledger))

    # ---- missing and broken ledgers

    async def _usable(self, source: SourceKey) -> Ledger | None:
        """Return the ledger. `None`: it is missing or broken, which is reported once. Two scans in a row must find it
        so, since a source's record may arrive a moment before its ledger."""
        ledger, reason = self._peek(source)
        is_sure = reason == self._suspects.get(source, "")
        self._suspects[source] = reason
        if is_sure and reason:
            self._alert((source, "ledger", reason), ledger_notice(source, reason))
        if is_sure and reason != self._unusable.get(source, ""):
            event = ledger_unusable(source, reason, self._clock.now_ms(), is_over=not reason)
            await self._publish([event])
            if not reason:
                self._alert_end(source, "ledger")
            self._unusable[source] = reason
        return ledger

    def _peek(self, source: SourceKey) -> tuple[Ledger | None, str]:
        try:
            ledger = self._ledgers.peek(source)
        except BrokenLedger as error:
            return None, str(error)
        return ledger, "" if ledger is not None else str(MissingLedger(source))

    # ---- holders that vanished

    async def _expire(self, source: SourceKey, settings: FetchSettings) -> None:
        spread, now_ms = chance(), self._clock.now_ms()

        def move(ledger: Ledger) -> tuple[Ledger, tuple[FetchEvent, ...]]:
            held = {piece.slice_id: piece for piece in ledger.open}
            after, ended = holding.expire(ledger, settings, now_ms, chance=spread)
            return after, tuple(
                slice_failed(source, held[result.slice.slice_id], result.slice, now_ms)
                if isinstance(result, holding.Retried)
                else hole_made(source, result.hole, now_ms)
                for result in ended
            )

        await self._publish(await self._ledgers.move(source, move))

    # ---- reports to a person

    async def _close_unreported(self, source: SourceKey, holes: Sequence[Hole]) -> None:
        """Store the holes' dead letters, and mark the holes whose notice was sent. A crash in between repeats the
        notice and leaves one dead letter. If the stream of dead letters is full, the notice is sent all the same, and
        the hole stays unmarked until its dead letter is stored."""
        sent: list[str] = []
        for hole in holes:
            key = hole_key(source, hole)
            self._worth.add(key)
            if key not in self._buried:
                await self._bury(hole_dead_letter(source, hole))
                self._buried.add(key)
            if self._holes.is_sent(source, hole):
                sent.append(hole.slice_id)
        if sent:
            await self._ledgers.move(source, _marker(sent))

    async def _bury(self, letter: DeadLetter) -> None:
        """Store a hole's dead letter if it is not there. Another leader may have stored it before the server's
        deduplication window."""
        subject = self._namespace.dead(letter.engine, letter.name, letter.id)
        stored = await last_entries(self._connection, self._namespace.stream("DEAD"), [subject])
        if subject in stored and _first_ms(stored[subject].payload) == letter.first_ms:
            return
        message_id = dead_letter_message_id(letter, occurrence=letter.first_ms)
        await self._publisher.publish(subject, encode(letter), message_id=message_id)

    def _alert(self, key: Hashable, notice: Notice) -> None:
        platform, _, source = notice.source.partition("/")
        self._worth.add(key)
        self._alerts.submit(key, notice, lambda: self._settings.current(platform, source).webhook)

    def _alert_end(self, source: SourceKey, kind: str) -> None:
        key = (source, kind, "over")
        self._ends.add(key)
        self._alert(key, over_notice(source, kind))

    async def _look_at_lag(self, source: SourceKey, ledger: Ledger, settings: FetchSettings, now_ms: int) -> None:
        lag = lag_ms(ledger, settings, now_ms)
        is_lagging = ledger.state == "running" and lag > settings.lag_alarm_ms
        if is_lagging == (source in self._lagging):
            return
        event = watermark_lag(source, ledger.watermark_ms, lag, now_ms, is_over=not is_lagging)
        await self._publish([event])
        (self._lagging.add if is_lagging else self._lagging.discard)(source)

    async def _look_at_consumers(self) -> None:
        for stream in (self._namespace.stream("SLICES"), self._namespace.stream("ORDERS")):
            try:
                states = await consumer_states(self._connection, stream)
                for stuck in self.progress.look(stream, states, monotonic_s()):
                    log.warning("monitor.consumer_stuck", extra=fields(**stuck._asdict()))
                    await self._publish([consumer_stuck(stuck, self._clock.now_ms())])
            except FATAL:
                raise
            except StreamError as error:
                log.debug("monitor.consumers_unknown", extra=fields(stream=stream, error=str(error)))
        found = cluster_troubles.stuck_consumers(self.progress.stuck())
        self._standing.see(cluster_troubles.STUCK, found, self._clock.now_ms())

    async def _look_at_dead_letters(self) -> None:
        try:
            counts = await self._dead.look()
        except FATAL:
            raise
        except StreamError as error:
            log.debug("monitor.dead_letters_unknown", extra=fields(error=str(error)))
        else:
            dead = cluster_troubles.dead_letters(counts)
            self._standing.see(cluster_troubles.DEAD, dead, self._clock.now_ms())

    async def _publish(self, events: Sequence[FetchEvent]) -> None:
        messages = [outgoing_event(self._namespace, event) for event in events]
        for answer in await self._publisher.publish_many(messages) if messages else []:
            if isinstance(answer, Refused) and not isinstance(answer, RevisionConflict):
                raise answer


def _first_ms(payload: bytes) -> int | None:
    try:
        return decode_dead_letter(payload).first_ms
    except MalformedMessage:
        return None


def _marker(slice_ids: Sequence[str]) -> Callable[[Ledger], tuple[Ledger, None]]:
    def move(ledger: Ledger) -> tuple[Ledger, None]:
        for slice_id in slice_ids:
            ledger, _ = steering.mark_reported(ledger, slice_id)
        return ledger, None

    return move
