"""Sink: carries every order into the user's database or function. Each version has its effect once.

In: orders on `orders.>`, by the durable consumer `sink_<name>`, which several nodes may share. Out: rows in a store,
dead letters on `dead.sink.<name>.<sequence>`, and SinkDown, SinkUp and OrderBuried as events. State: none of its own.
Stored rows carry their version, and messages without an ack come again.

Under redelivery: an order is acknowledged after the commit, and a store changes a row for a higher version only. So
after a commit of unknown outcome, a lost ack or a kill -9 the same orders come again, without effect. When it cannot go
on: while a store is down, the batch in hand is tried again for ever and the sink extends its ack wait. The backlog
grows in the stream, and that slows the fetching, not the node. To find an order that the store refuses, the sink halves
the batch. It makes a dead letter of the order, and the others go on.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, NamedTuple

import anyio
import msgspec
from anyio.abc import TaskStatus
from msgspec import Meta, Raw

from actors.fetch.stores.batches import Key, Refusal, fold, key_of, parts, poison_among, store_by_halves
from actors.fetch.stores.store import Store, StoreDown, StoreUncertain
from actors.runtime.actor import FATAL, dead_letter
from actors.runtime.failpoints import reach
from actors.runtime.logs import fields
from actors.runtime.rules.notices import Notice
from actors.runtime.rules.texts import printable, time_text
from actors.runtime.rules.traceparents import traceparent_of
from actors.runtime.tracing import traces
from streams.backoff import Backoff
from streams.clock import SYSTEM, Clock
from streams.errors import ConnectionLost, Disconnected, MalformedMessage, StreamError, TooLarge
from streams.link.connection import Connection
from streams.messages.fetch import (
    DeadLetter,
    FetchEvent,
    Order,
    OrderBuried,
    SinkDown,
    SinkUp,
    decode_orders,
    encode,
)
from streams.messages.ids import dead_letter_message_id, event_message_id, event_names
from streams.publish.publisher import Publisher
from streams.pull.puller import Delivery, Puller
from streams.subjects import Namespace, token_of
from streams.topology.specs import sink_consumer

log = logging.getLogger(__name__)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a sink batches. `name` is a token, and part of its consumer's name."""

    name: str
    batch: Annotated[int, Meta(ge=1, le=5_000)] = 16
    """Messages in a transaction at most, each a page of up to some hundred orders. Larger batches do not make commits
    noticeably cheaper."""
    wait_ms: Annotated[int, Meta(ge=0, le=10_000)] = 200
    """How many ms an order may wait for others to share its transaction."""


KEEP_ALIVE_S = 5.0
"""How often the ack wait of messages in hand is extended: well below half the consumer's ack wait."""
PARTS_EVERY = 3
"""Every third try of a batch may go by halves if the error blames no order, to see whether some of it passes."""
TOLD_FROM = 4
"""The failure in a row from which an outage is reported, 0.7 s after the first: halving has not helped either by then.
One failed commit (a deadlock, a dropped connection) is no outage."""
BURY_AGAIN_S = 30.0
TELL_S = 5.0
CLEAN_UP_S = 1.0
AGAIN = Backoff(growth="exponential", base_ms=100, cap_ms=10_000, spread=0.0)


class StoreOutage(msgspec.Struct, frozen=True):
    """A store's failures in a row."""

    since_ms: int
    failures: int = 1

    @property
    def is_told(self) -> bool:
        return self.failures >= TOLD_FROM

    @property
    def pause_s(self) -> float:
        """Return for how many seconds to leave the store alone."""
        return AGAIN.wait_s(self.failures)

    @property
    def wants_parts(self) -> bool:
        """Return whether the next try may go by halves if the failure blames no order."""
        return self.failures % PARTS_EVERY == PARTS_EVERY - 1

    def failed_again(self) -> "StoreOutage":
        return msgspec.structs.replace(self, failures=self.failures + 1)


class PageDelivery:
    """A message's delivery, shared by its orders. It is settled with the last of them."""

    __slots__ = ("delivery", "left", "size")

    def __init__(self, delivery: Delivery, orders: int) -> None:
        self.delivery = delivery
        self.size = self.left = orders

    async def settle_one(self) -> None:
        """One of the orders is stored or buried. With the last one the message is acknowledged."""
        self.left -= 1
        if self.left == 0:
            await _settle_quietly(self.delivery)


def order_dead_letter(sink: str, page: PageDelivery, order: Order | None, reason: str) -> DeadLetter:
    """Return the dead letter of a message, or of one order of a page, as it would be sent again alone."""
    letter = dead_letter("sink", sink, page.delivery, reason)
    if order is None or page.size == 1:
        return letter
    own = token_of(f"{page.delivery.seq}-{order.order_key}")
    return msgspec.structs.replace(letter, id=own, body=Raw(encode(order)), is_base64=False)


def sink_notice(event: SinkDown | SinkUp) -> Notice:
    """Return the notice that a store takes nothing, or takes orders again."""
    source = f"sink {event.sink}"
    if isinstance(event, SinkUp):
        text = f"over: its store takes orders again, after it took none since {time_text(event.down_ms)}"
        return Notice(kind="sink_up", source=source, text=text, what_to_do="")
    text = f"its store takes nothing since {time_text(event.at_ms)}: {event.reason}"
    do = "repair the store: orders wait in the stream for seven days, and go on by themselves"
    return Notice(kind="sink_down", source=source, text=text, what_to_do=do)


class InHand(NamedTuple):
    order: Order
    page: PageDelivery


class Bad(NamedTuple):
    """To be buried: an order of a page, or with `None` a message that cannot be read."""

    page: PageDelivery
    order: Order | None
    reason: str


class Sink:
    """Brings one consumer's orders into one store. Puller and publisher are already open. The sink opens and closes the
    store. `tell` gets the notice of an outage, and of its end."""

    def __init__(
        self,
        settings: Settings,
        *,
        puller: Puller,
        publisher: Publisher,
        namespace: Namespace,
        store: Store,
        clock: Clock,
        tell: Callable[[Notice], None],
    ) -> None:
        self._settings = settings
        self._tell = tell
        self._puller = puller
        self._publisher = publisher
        self._namespace = namespace
        self._store = store
        self._clock = clock
        self._receiving: anyio.CancelScope | None = None
        self._hand: list[InHand] = []
        self._bad: list[Bad] = []
        self._outage: StoreOutage | None = None
        self._pending = 0
        self.stored = 0
        """How many orders were acknowledged, for metrics."""
        self.buried = 0

    async def serve(self, stop: anyio.Event, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Store orders until `stop` is set. Then finish the orders in hand if the store takes them, and give back the
        rest. If the drain deadline cancels this, give back all orders in hand. Raises FATAL errors."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._end_receiving, stop)
                await self._open()
                task_status.started()
                while not stop.is_set():
                    await self._receive()
                    await self._empty_hand(stop)
                while self._hand and not self._outage:
                    await self._empty_hand(stop)
        finally:
            with anyio.move_on_after(CLEAN_UP_S, shield=True):
                await self._give_back()
                await self._store.close()

    async def _end_receiving(self, stop: anyio.Event) -> None:
        await stop.wait()
        self._puller.set_capacity(0)
        if self._receiving is not None:
            self._receiving.cancel()

    async def _open(self) -> None:
        """Open the store. A failure is reported at the start, not with the first order."""
        try:
            await self._store.open()
        except StoreDown as error:
            await self._failed(error)

    async def _receive(self) -> None:
        """Fill the hand. Orders left from a failure do not wait for more. New orders join them: some of those may pass,
        and so show what was at fault. (A receive that is cancelled loses nothing.)"""
        room, is_fresh = self._settings.batch - len({id(item.page) for item in self._hand}), not self._hand
        if room > 0:
            with anyio.move_on_after(None if is_fresh else 0) as self._receiving:
                wait_s = self._settings.wait_ms / 1000 if is_fresh else 0.0
                self._take_in(await self._puller.receive_many(room, wait_s))
            self._receiving = None

    def _take_in(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            try:
                orders = decode_orders(delivery.payload)
            except MalformedMessage as error:
                self._bad.append(Bad(PageDelivery(delivery, 1), None, f"malformed: {error}"))
            else:
                page = PageDelivery(delivery, len(orders))
                self._hand.extend(InHand(order, page) for order in orders)
        self._pending = deliveries[-1].pending

    async def _empty_hand(self, stop: anyio.Event) -> None:
        """Store the orders in hand, acknowledge stored ones, bury bad ones. Wait after a failure."""
        await self._bury_bad()
        if not self._hand:
            return
        try:
            with self._spans() if traces.is_on else nullcontext():
                await self._store_hand()
        except (StoreDown, StoreUncertain) as error:
            outage = await self._failed(error)
            with anyio.move_on_after(outage.pause_s):
                await stop.wait()
        else:
            await self._passed()

    def _spans(self) -> AbstractContextManager[None]:
        """Return the spans of a try to store: one in the trace of each slice whose orders are in hand."""
        pages = dict.fromkeys(item.page for item in self._hand)
        parents = [traceparent_of(page.delivery.headers) for page in pages]
        return traces.spans(f"store {self._settings.name}", "consumer", {"sink": self._settings.name}, parents)

    async def _store_hand(self) -> None:
        newest = fold(item.order for item in self._hand)
        refusals: list[Refusal] = []
        for part in parts(newest):
            refusals += await store_by_halves(self._store, part, is_patient=not self._may_part())
        reach("sink.commit")
        poison = {key_of(refusal.order): refusal for refusal in poison_among(refusals, len(newest))}
        unsure = [refusal for refusal in refusals if key_of(refusal.order) not in poison]
        await self._settle(newest, refusals, poison)
        reach("sink.ack")
        await self._bury_bad()
        if unsure:
            raise StoreUncertain(unsure[0].reason)

    def _may_part(self) -> bool:
        return self._outage is not None and self._outage.wants_parts

    async def _settle(self, newest: list[Order], refusals: list[Refusal], poison: dict[Key, Refusal]) -> None:
        """Acknowledge stored orders, and older versions of them. An older version of a refused order stays in hand: it
        may be the one to store."""
        refused = {key_of(refusal.order) for refusal in refusals}
        versions = {key_of(order): order.version for order in newest}
        kept = []
        for item in self._hand:
            key = key_of(item.order)
            if key not in refused:
                await item.page.settle_one()
                self.stored += 1
            elif key in poison and item.order.version == versions[key]:
                self._bad.append(Bad(item.page, item.order, poison[key].reason))
            else:
                kept.append(item)
        self._hand = kept

    async def _bury_bad(self) -> None:
        while self._bad:
            await self._bury(*self._bad[-1])
            self._bad.pop()

    async def _bury(self, page: PageDelivery, order: Order | None, reason: str) -> None:
        """Publish the dead letter, then settle. In the other order a crash in between would lose the order.
        If dead letters are refused (their stream is full), the page is given back and comes again later."""
        reason = printable(reason)
        delivery, letter = page.delivery, order_dead_letter(self._settings.name, page, order, reason)
        try:
            await self._publish_letter(letter, delivery.seq)
        except FATAL:
            raise
        except StreamError as error:
            log.error("sink.not_buried", extra=fields(sink=letter.name, seq=delivery.seq, error=str(error)))
            await _settle_quietly(delivery, again_s=BURY_AGAIN_S)
            return
        reach("sink.bury")
        await (delivery.term(reason) if page.size == 1 else page.settle_one())
        self.buried += 1
        log.error("sink.buried", extra=fields(sink=letter.name, seq=delivery.seq, reason=reason))
        await self._publish_event(
            OrderBuried(sink=letter.name, id=letter.id, at_ms=self._clock.now_ms(), reason=reason)
        )

    async def _publish_letter(self, letter: DeadLetter, seq: int) -> None:
        subject = self._namespace.dead(letter.engine, letter.name, letter.id)
        message_id = dead_letter_message_id(letter, occurrence=seq)
        try:
            await self._publisher.publish(subject, encode(letter), message_id=message_id)
        except TooLarge:
            reason = f"{letter.reason} (too large to carry: the body is message {seq} of the stream of orders)"
            short = msgspec.structs.replace(letter, body=Raw(b"null"), is_base64=False, reason=reason)
            await self._publisher.publish(subject, encode(short), message_id=message_id)

    async def _failed(self, error: StoreDown | StoreUncertain) -> StoreOutage:
        now_ms = self._clock.now_ms()
        outage = self._outage.failed_again() if self._outage else StoreOutage(since_ms=now_ms)
        self._outage = outage
        facts = fields(sink=self._settings.name, failures=outage.failures, error=printable(str(error)))
        if outage.failures == TOLD_FROM:
            log.error("sink.down", extra=facts)
            reason = printable(str(error))
            down = SinkDown(sink=self._settings.name, at_ms=outage.since_ms, reason=reason, pending=self._pending)
            await self._publish_event(down)
            self._tell(sink_notice(down))
        else:
            log.warning("sink.failed", extra=facts)
        return outage

    async def _passed(self) -> None:
        outage, self._outage = self._outage, None
        if outage is not None and outage.is_told:
            log.warning("sink.up", extra=fields(sink=self._settings.name, failures=outage.failures))
            now_ms = self._clock.now_ms()
            up = SinkUp(sink=self._settings.name, at_ms=now_ms, down_ms=outage.since_ms)
            await self._publish_event(up)
            self._tell(sink_notice(up))

    async def _publish_event(self, event: FetchEvent) -> None:
        """Publish an event. If that fails, the log has it already, and the orders go on."""
        subject = self._namespace.event("fetch", *event_names(event))
        try:
            await self._publisher.publish(subject, encode(event), message_id=event_message_id(event), timeout_s=TELL_S)
        except FATAL:
            raise
        except StreamError as error:
            log.warning("sink.not_told", extra=fields(subject=subject, error=str(error)))

    async def _give_back(self) -> None:
        for page in [*(item.page for item in self._hand), *(bad.page for bad in self._bad)]:
            await _settle_quietly(page.delivery, again_s=0.0)
        self._hand, self._bad = [], []


async def _settle_quietly(delivery: Delivery, *, again_s: float | None = None) -> None:
    """Acknowledge, or with `again_s` give back. Without a link neither is possible. After the ack wait the message
    comes again, and a repeat is harmless."""
    try:
        await (delivery.ack() if again_s is None else delivery.nak(again_s))
    except (Disconnected, ConnectionLost):
        delivery.forget()


async def run(
    settings: Settings,
    *,
    connection: Connection,
    publisher: Publisher,
    store: Store,
    stop: anyio.Event,
    clock: Clock = SYSTEM,
    tell: Callable[[Notice], None] = lambda _notice: None,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Run a sink until `stop` is set. Its consumer (`topology.sink_consumer`) must exist. See Sink.serve.
    It holds at most two batches: one in the store, one waiting."""
    namespace, capacity = connection.namespace, 2 * settings.batch
    spec = sink_consumer(namespace, settings.name)
    async with Puller(connection, spec.stream, spec.name, capacity=capacity, keep_alive_s=KEEP_ALIVE_S) as puller:
        sink = Sink(
            settings, puller=puller, publisher=publisher, namespace=namespace, store=store, clock=clock, tell=tell
        )
        await sink.serve(stop, task_status=task_status)
