"""Pulls offered slices for every platform that this node serves. Each lane has slots of its own.

In: offers on `slices.<platform>.<lane>.…`, one consumer a platform and lane. The existing sources and their pins decide
from which lanes a node pulls. A lane that goes finishes its slices in hand. A full sink closes the gate: the node pulls
nothing new until the sink has caught up, and other slices wait in the queue. State: only which lanes run. When it
cannot go on: a lane that cannot be served (no consumer, no server) is tried again, alone.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from actors.fetch.fetcher.decisions import Ended, Message, NotNow, Offered, ReadSlice, Standing, decide
from actors.fetch.fetcher.window import WindowReader
from actors.fetch.ledgers import LIKELY_S, BrokenLedger, Contended, Ledgers, MissingLedger
from actors.fetch.rules.ledger import Ledger
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.rules.sink_backlogs import is_worth_a_look, sink_backlog
from actors.fetch.settings.watch import LiveSettings
from actors.fetch.slice_allocator import lane_name
from actors.fetch.sources import SourceKey, Sources
from actors.runtime.actor import FATAL, Ack, Actor, Decision, GiveBack, Mailbox, Settle, ticks
from actors.runtime.bounds import WorkBounds
from actors.runtime.broker.unmade import Unmade
from actors.runtime.events import outgoing_event
from actors.runtime.logs import fields
from actors.runtime.rules.placement import serves
from actors.runtime.tracing import traces
from streams.clock import Clock, monotonic_s
from streams.errors import MalformedMessage, MalformedSubject, StreamError
from streams.link.connection import Connection
from streams.messages.fetch import decode_slice_offer
from streams.publish.publisher import Publisher
from streams.pull.backlog import consumers_pending
from streams.pull.puller import Delivery, Puller
from streams.subjects import check_token
from streams.topology.specs import ConsumerSpec, fetch_consumer
from streams.topology.topology import ensure_consumer

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 1.0
"""A third of the consumer's ack wait. Two may be lost before a live fetcher's slice goes to another node."""
GATE_PERIOD_S = 1.0
AGAIN_S = 1.0
CONSUMERS_PERIOD_S = 5.0
TRIES = 50
"""The limit of revision conflicts for a move. A conflict too many after the reading costs the whole reading."""
MOST_UNKNOWN = 20
"""Deliveries, a second apart, after which a source that is still unknown counts as removed."""


class Lane(msgspec.Struct, frozen=True, order=True):
    """The slices of one consumer."""

    platform: str
    name: str

    @property
    def is_tail(self) -> bool:
        return self.name.startswith("tail")


def lanes_of(settings: Iterable[tuple[str, FetchSettings]], may_read: Callable[[FetchSettings], bool]) -> set[Lane]:
    """Return the lanes that a node pulls from: the tail's and the back's of each platform and place of sources that it
    may read. `settings`: of the sources, each with its platform."""
    return {
        Lane(platform, lane_name(lane, each.place))
        for platform, each in settings
        if may_read(each)
        for lane in ("tail", "back")
    }


class _Reader(Protocol):
    async def read(self, work: ReadSlice) -> Ended: ...


class Readings:
    """The windows that this node reads now. A source goes to another zone only when none of its windows is read here.

    `may_read(source)`: whether the source is this node's to read. Between the offer of a slice and its reading, it
    is taken in the ledger. The source may go in that moment, so it is asked again. Then this node must not begin: the
    source's new zone has not waited for it."""

    def __init__(self, reader: _Reader, may_read: Callable[[SourceKey], bool]) -> None:
        self._reader = reader
        self._may_read = may_read
        self._count: Counter[SourceKey] = Counter()

    @property
    def sources(self) -> list[SourceKey]:
        """The sources of these windows."""
        return list(self._count)

    async def read(self, work: ReadSlice) -> Ended:
        """Read a window, or give its slice back."""
        self._count[work.source] += 1  # first: who asks after this waits
        try:
            if not self._may_read(work.source):
                return Ended(work.source, work.slice, NotNow("another zone has the source now", 0), work.settings, 0.0)
            if not traces.is_on:
                return await self._reader.read(work)
            facts = {"source": str(work.source), "slice": work.slice.slice_id, "attempt": work.slice.attempt}
            with traces.span(f"fetch {work.source.platform}", "producer", facts, parent=""):
                return await self._reader.read(work)
        finally:
            self._count[work.source] -= 1
            if not self._count[work.source]:
                del self._count[work.source]


class _Running:
    """One lane at work. It has a puller once its consumer exists. With `stop` set it takes nothing new."""

    def __init__(self) -> None:
        self.puller: Puller | None = None
        self.stop = anyio.Event()


class Fetcher:
    """A node's fetcher. Ends by itself, its work finished, once `stop` is set."""

    def __init__(
        self,
        *,
        node: str,
        labels: tuple[str, ...],
        connection: Connection,
        publisher: Publisher,
        ledgers: Ledgers,
        sources: Sources,
        settings: LiveSettings,
        reader: WindowReader,
        clock: Clock,
        stop: anyio.Event,
        bounds: WorkBounds,
    ) -> None:
        self._node = node
        self._labels = labels
        self._connection = connection
        self._publisher = publisher
        self._ledgers = ledgers
        self._sources = sources
        self._settings = settings
        self._reader = reader
        self._clock = clock
        self._stop = stop
        self._bounds = bounds
        self._readings = Readings(reader, self._is_ours)
        self._running: dict[Lane, _Running] = {}
        self._changed = anyio.Event()
        self._is_gate_closed = False
        self._unmade = Unmade("fetcher")
        # Here and not in `run`, because the supervisor may call `run` again.
        sources.on_change(self._look_again)
        settings.on_change(self._look_again)
        self._bounds.on_change(lambda: self._changed.set())
        self._bounds.watch(self._read_bounds)

    @property
    def platforms(self) -> tuple[str, ...]:
        """Return the platforms that this node serves now."""
        return tuple(sorted({lane.platform for lane in self._running}))

    @property
    def unmade(self) -> dict[str, str]:
        """Why consumers could not be made at the last try, by their names."""
        return self._unmade.reasons

    @property
    def page_orders(self) -> float:
        """Return how many orders a page of this node has, on average."""
        return round(self._reader.orders_a_message, 1)

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Pull and read until `stop` is set and the slices in hand are finished."""
        self._running.clear()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_sinks)
            tasks.start_soon(self._watch_consumers)
            tasks.start_soon(self._end_on_stop)
            task_status.started()
            while not self._stop.is_set():
                self._changed = anyio.Event()
                self._follow(tasks)
                await self._changed.wait()

    def _look_again(self, _source: SourceKey) -> None:
        self._changed.set()

    async def _end_on_stop(self) -> None:
        await self._stop.wait()
        for running in self._running.values():
            running.stop.set()
        self._changed.set()

    def _follow(self, tasks: TaskGroup) -> None:
        """Start new lanes, stop those that are not wanted any more, and set all slots as the settings say."""
        known = ((key.platform, self._settings.current(key.platform, key.source)) for key in self._sources.known())
        wanted = lanes_of(known, self._may_read)
        for lane in set(self._running) - wanted:
            self._running.pop(lane).stop.set()
        for lane in sorted(wanted - set(self._running)):
            running = self._running[lane] = _Running()
            tasks.start_soon(self._serve, lane, running)
        self._set_slots()

    def _set_slots(self) -> None:
        for lane, running in self._running.items():
            if running.puller is not None and not running.stop.is_set():
                running.puller.set_capacity(self._slots(lane))

    def _slots(self, lane: Lane) -> int:
        settings = self._settings.current(lane.platform, "")
        if self._is_gate_closed:
            return 0
        return settings.concurrency if lane.is_tail else max(1, settings.concurrency // 4)

    async def _serve(self, lane: Lane, running: _Running) -> None:
        """Serve one lane until its stop is set. After trouble with the broker `_follow` starts it anew."""
        spec = self._consumer(lane)
        try:
            if not await self._unmade.make(spec.name, ensure_consumer(self._connection, spec)):
                with anyio.move_on_after(AGAIN_S):
                    await running.stop.wait()
                return
            puller = Puller(
                self._connection, spec.stream, spec.name, capacity=self._slots(lane), keep_alive_s=KEEP_ALIVE_S
            )
            async with puller:
                running.puller = puller
                await self._mailbox(puller).serve(running.stop)
        except FATAL:
            raise
        except StreamError as error:
            log.warning("fetcher.lane_failed", extra=fields(consumer=spec.name, error=str(error)))
            with anyio.move_on_after(AGAIN_S):
                await running.stop.wait()
        finally:
            if running.stop.is_set():
                self._unmade.forget(spec.name)
            if self._running.get(lane) is running:
                del self._running[lane]
                self._changed.set()

    def _consumer(self, lane: Lane) -> ConsumerSpec:
        return fetch_consumer(self._connection.namespace, lane.platform, lane.name)

    def _mailbox(self, puller: Puller) -> Mailbox[SourceKey, Ledger, Message, ReadSlice]:
        actor: Actor[SourceKey, Ledger, Message, ReadSlice] = Actor(
            engine="fetch",
            name="slices",
            decode=self._offered,
            home=lambda message: message.source,
            decide=self._decide,
            work=self._readings.read,
            tries=TRIES,
            verdict=_verdict,
        )
        return Mailbox(
            actor,
            puller,
            records=self._ledgers,
            publisher=self._publisher,
            namespace=self._connection.namespace,
            clock=self._clock,
        )

    def _offered(self, delivery: Delivery) -> Offered:
        offer = decode_slice_offer(delivery.payload)
        try:
            source = SourceKey(check_token("platform", offer.platform), check_token("source", offer.source))
        except MalformedSubject as error:
            raise MalformedMessage(str(error)) from error
        if offer.revision and self._clock.now_ms() < delivery.stored_ms + LIKELY_S * 1000:
            self._ledgers.told(source, offer.revision, bytes(offer.ledger))
        settings = self._settings.current(source.platform, source.source)
        standing = self._standing(source, settings, delivery.delivered)
        return Offered(source, offer.slice_id, self._node, settings, standing)

    def _standing(self, source: SourceKey, settings: FetchSettings, delivered: int) -> Standing:
        """Return what the offer is to this node. A source that stays unknown for long was removed."""
        revision = self._sources.settings_revision(source)
        if source not in self._sources or not self._settings.has_seen(source.platform, source.source, revision):
            return "unknown" if delivered < MOST_UNKNOWN else "elsewhere"
        return "ours" if self._is_ours(source) else "elsewhere"

    def _is_ours(self, source: SourceKey) -> bool:
        """Return whether this node may read the source now."""
        settings = self._settings.current(source.platform, source.source)
        return self._may_read(settings) and self._bounds.may_run(settings.zone, "sources", source.key)

    def _may_read(self, settings: FetchSettings) -> bool:
        """Return whether this node may read sources with these settings."""
        return serves(self._labels, self._node, settings.pin) and self._bounds.may_run(settings.zone)

    def _read_bounds(self) -> list[str]:
        return [self._settings.current(each.platform, each.source).zone for each in self._readings.sources]

    def _decide(self, ledger: Ledger, message: Message, now_ms: int) -> tuple[Ledger, Decision[ReadSlice]]:
        after, step = decide(ledger, message, now_ms)
        namespace = self._connection.namespace
        return after, Decision(step.then, tuple(outgoing_event(namespace, event) for event in step.events))

    # ---- sinks and consumers

    async def _watch_sinks(self) -> None:
        """Close the gate while orders pile up in front of the slowest sink or the store is full, and open it after
        that. While the server does not answer, the gate stays as it is. A node that sends few orders seldom looks."""
        orders = self._connection.namespace.stream("ORDERS")
        pending, room, sent, looked_s = dict[str, int](), 0, 0, -math.inf
        async for _ in ticks(lambda: GATE_PERIOD_S, self._stop):
            now_s, now_sent = monotonic_s(), self._reader.orders_sent
            if self._is_gate_closed or is_worth_a_look(now_sent - sent, room, now_s - looked_s):
                try:
                    pending = await consumers_pending(self._connection, orders)
                except FATAL:
                    raise
                except StreamError as error:
                    log.debug("fetcher.gate_unknown", extra=fields(error=str(error)))
                    continue
                sent, looked_s = now_sent, now_s
            room = self._judge_gate(pending)

    def _judge_gate(self, pending: Mapping[str, int]) -> int:
        """Open or close the gate, by this node's usual size of a page. Return how many more orders may wait."""
        slowest, backlog = sink_backlog(pending, self._reader.orders_a_message)
        most = self._settings.current("", "").sink_backlog
        trouble = self._connection.store.trouble
        if (backlog > most or bool(trouble)) != self._is_gate_closed:
            self._is_gate_closed = not self._is_gate_closed
            log.warning(
                "fetcher.gate_closed" if self._is_gate_closed else "fetcher.gate_opened",
                extra=fields(consumer=slowest, backlog=backlog, sink_backlog=most, store=trouble or "well"),
            )
            self._set_slots()
        return most - backlog

    async def _watch_consumers(self) -> None:
        """Create a deleted consumer anew: its puller can only wait for it."""
        async for _ in ticks(lambda: CONSUMERS_PERIOD_S, self._stop):
            try:
                present = await consumers_pending(self._connection, self._connection.namespace.stream("SLICES"))
                for lane in [lane for lane, running in self._running.items() if running.puller is not None]:
                    spec = self._consumer(lane)
                    if spec.name not in present:
                        log.warning("fetcher.consumer_missing", extra=fields(consumer=spec.name))
                        await self._unmade.make(spec.name, ensure_consumer(self._connection, spec))
            except FATAL:
                raise
            except StreamError as error:
                log.debug("fetcher.consumers_unknown", extra=fields(error=str(error)))


def _verdict(error: Exception) -> Settle | None:
    """Give the slice back for a moment after too many revision conflicts, and when a person must mend the ledger. Drop
    a slice without a ledger."""
    if isinstance(error, Contended | BrokenLedger):
        return GiveBack(AGAIN_S)
    return Ack() if isinstance(error, MissingLedger) else None
