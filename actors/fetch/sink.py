"""Sink: carries every order into the user's database or function, each version's effect once.

In: orders on `orders.>`, by the durable consumer `sink_<name>`; several nodes may share one.
Out: rows in a store; dead letters on `dead.sink.<name>.<sequence>`; SinkDown, SinkUp and OrderBuried as events.
State: none of its own. What is stored says itself which version it is, and what is not acknowledged comes again.
Under redelivery: an order is acknowledged after the commit, and a store changes a row for a higher version only; so a
commit of unknown outcome, a lost acknowledgement or a kill -9 ends in the same orders again, without effect.
When it cannot go on: while a store is down, the batch in hand is tried again for ever and the consumer is told that it
is in work; the backlog grows in the stream, which holds up the fetching, not the node. An order that the store refuses
by itself is looked for by halves and set aside as a dead letter; the others go on.
"""

import logging
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
from actors.runtime.rules.texts import printable
from streams.backoff import Backoff
from streams.clock import SYSTEM, Clock
from streams.connection import Connection
from streams.errors import ConnectionLost, Disconnected, MalformedMessage, StreamError, TooLarge
from streams.fetch_messages import (
    DeadLetter,
    FetchEvent,
    Order,
    OrderBuried,
    SinkDown,
    SinkUp,
    decode_orders,
    encode,
)
from streams.message_ids import dead_letter_message_id, event_message_id, event_names
from streams.publisher import Publisher
from streams.puller import Delivery, Puller
from streams.specs import sink_consumer
from streams.subjects import Namespace, token_of

log = logging.getLogger(__name__)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a sink batches. `name` is a token, and part of its consumer's name."""

    name: str
    batch: Annotated[int, Meta(ge=1, le=5_000)] = 16
    """Messages a transaction, at most, each a page of up to some hundred orders: beyond that a commit's own cost no
    longer shows."""
    wait_ms: Annotated[int, Meta(ge=0, le=10_000)] = 200
    """How long an order may wait for others to share its transaction."""


KEEP_ALIVE_S = 5.0
"""How often what is in hand is extended: well below half the consumer's ack wait."""
PARTS_EVERY = 3
"""Which tries of a batch go by halves, should the error blame nobody, to see whether some of it passes."""
TOLD_FROM = 4
"""The failure in a row from which an outage is told, 0.7 s after the first: when going by halves has not helped either.
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
        """How long to leave the store alone."""
        return AGAIN.wait_s(self.failures)

    @property
    def wants_parts(self) -> bool:
        """True if the next try may go by halves, should the failure blame nobody."""
        return self.failures % PARTS_EVERY == PARTS_EVERY - 1

    def failed_again(self) -> "StoreOutage":
        return msgspec.structs.replace(self, failures=self.failures + 1)


class PageDelivery:
    """A message's delivery, shared by its orders: settled with the last of them."""

    __slots__ = ("delivery", "left", "size")

    def __init__(self, delivery: Delivery, orders: int) -> None:
        self.delivery = delivery
        self.size = self.left = orders

    async def settle_one(self) -> None:
        """One of the orders is stored or buried; with the last one the message is acknowledged."""
        self.left -= 1
        if self.left == 0:
            await _settle_quietly(self.delivery)


def order_dead_letter(sink: str, page: PageDelivery, order: Order | None, reason: str) -> DeadLetter:
    """Return the dead letter of a message, or of one order out of a page, as it would be sent again alone."""
    letter = dead_letter("sink", sink, page.delivery, reason)
    if order is None or page.size == 1:
        return letter
    own = token_of(f"{page.delivery.seq}-{order.order_key}")
    return msgspec.structs.replace(letter, id=own, body=Raw(encode(order)), is_base64=False)


class InHand(NamedTuple):
    order: Order
    page: PageDelivery


class Bad(NamedTuple):
    """To be buried: an order of a page, or with None a message that cannot be read."""

    page: PageDelivery
    order: Order | None
    reason: str


class Sink:
    """One consumer's orders into one store. The puller and the publisher are open; the store is opened and closed."""

    def __init__(
        self,
        settings: Settings,
        *,
        puller: Puller,
        publisher: Publisher,
        namespace: Namespace,
        store: Store,
        clock: Clock,
    ) -> None:
        self._settings = settings
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
        """Orders acknowledged, for measures."""
        self.buried = 0

    async def serve(self, stop: anyio.Event, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Store orders until `stop` is set; then finish what is in hand if the store takes it, and give back the rest.
        Cancelled (the drain deadline has passed), all that is in hand is given back. Raises FATAL errors."""
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
        """Have a store that cannot be opened told at start, not with the first order."""
        try:
            await self._store.open()
        except StoreDown as error:
            await self._failed(error)

    async def _receive(self) -> None:
        """Fill the hand. What is in it from a failure does not wait for more, but is joined by what has come: some of
        that may pass, and so tell whose fault it was. (A receive that is cancelled loses nothing.)"""
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
        """Store what is in hand, acknowledge what is stored, bury what cannot be; wait after a failure."""
        await self._bury_bad()
        if not self._hand:
            return
        try:
            await self._store_hand()
        except (StoreDown, StoreUncertain) as error:
            outage = await self._failed(error)
            with anyio.move_on_after(outage.pause_s):
                await stop.wait()
        else:
            await self._passed()

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
        """Acknowledge what is stored, or older than that. An older version of an order that was refused stays in hand:
        it may be the one to store."""
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
        """Publish the dead letter, then settle: the other way round a crash in between would lose the order.
        Where dead letters are refused (their stream is full), the page goes back, and comes again later."""
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
        await self._tell(OrderBuried(sink=letter.name, id=letter.id, at_ms=self._clock.now_ms(), reason=reason))

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
            await self._tell(down)
        else:
            log.warning("sink.failed", extra=facts)
        return outage

    async def _passed(self) -> None:
        outage, self._outage = self._outage, None
        if outage is not None and outage.is_told:
            log.warning("sink.up", extra=fields(sink=self._settings.name, failures=outage.failures))
            now_ms = self._clock.now_ms()
            await self._tell(SinkUp(sink=self._settings.name, at_ms=now_ms, down_ms=outage.since_ms))

    async def _tell(self, event: FetchEvent) -> None:
        """Publish an event. One that cannot be told is logged already; the orders go on."""
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
    """Acknowledge, or with `again_s` give back. Without a link neither can be said: the ack wait brings the message
    again, and a repeat is harmless."""
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
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Run a sink until `stop` is set; its consumer (`topology.sink_consumer`) exists. See Sink.serve.

    It holds at most two batches: one in the store, one waiting."""
    namespace, capacity = connection.namespace, 2 * settings.batch
    spec = sink_consumer(namespace, settings.name)
    async with Puller(connection, spec.stream, spec.name, capacity=capacity, keep_alive_s=KEEP_ALIVE_S) as puller:
        sink = Sink(settings, puller=puller, publisher=publisher, namespace=namespace, store=store, clock=clock)
        await sink.serve(stop, task_status=task_status)
