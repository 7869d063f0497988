"""The loop that actors with a mailbox share: receive, decide, apply, settle.

How an actor is written. Its file holds, from the top: what comes in, what goes out, what it keeps, how it decides.

- `decide(state, message, now_ms)` is a plain function. It returns the record's next state (the same object: nothing is
  stored) and a `Decision`: what to publish, and then either how to settle the message or which work to do in the world.
- `work(request)` is the only part that touches the world. It returns what happened as one more message, which goes to
  `decide` like the first one. Expected failures are such messages too; it raises only what nobody expected.
- `Mailbox` takes these two, `decode` (payload to message) and `home` (message to the key of the record that it
  concerns), and does the rest. So everything hard is tested without server, clock or mock.

The order is fixed: **store, publish, settle**. The store claims the decision by revision; publishes are confirmed next;
the message is settled last. A crash in between brings the message again, `decide` finds the claim, publishes the same
under the same ids, and settles. Hence `decide` has to be harmless when repeated.

What goes wrong:

- a lost race is news: the record's home reads again and decides again, a bounded number of times;
- the broker does not answer (`Disconnected`, `OutcomeUnknown`) or refuses: the message is given back and comes again;
- a payload that does not decode, or a message whose handling has crashed `MOST_CRASHES` times, becomes a dead letter
  and is terminated: it never blocks the lane;
- the connection is closed for good, or something is not permitted: raised, and the supervisor ends the process.

An actor without a mailbox is a loop over `ticks` or over a bucket's watch, and needs nothing from here but those.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, assert_never

import anyio
from anyio.abc import TaskGroup, TaskStatus

from actors.runtime.failpoints import reach
from actors.runtime.logs import fields
from streams.clock import Clock
from streams.errors import (
    ConnectionLost,
    MalformedMessage,
    PermissionDenied,
    Refused,
    RevisionConflict,
    StreamError,
    TopologyMismatch,
)
from streams.fetch_messages import DeadLetter, dead_body, encode
from streams.message_ids import dead_letter_message_id
from streams.publisher import Outgoing, Publisher
from streams.puller import Delivery, Puller
from streams.subjects import Namespace

log = logging.getLogger(__name__)

FATAL = (ConnectionLost, PermissionDenied, TopologyMismatch)
"""What no restart of an actor mends: the process ends with it."""
MOST_CRASHES = 5
"""Deliveries of one message that may end in an unexpected exception before it is buried."""
AGAIN_S = 1.0
CLEAN_UP_S = 1.0

K = TypeVar("K")
KeyT = TypeVar("KeyT", contravariant=True)
S = TypeVar("S")
M = TypeVar("M")
W = TypeVar("W")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Ack:
    """Done with the message. `is_sure` waits for the server's receipt: where a lost ack costs real work."""

    is_sure: bool = False


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Let it come again, to anybody, after `delay_s`."""

    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class BuryMessage:
    """Put it among the dead letters with `reason`, and never deliver it again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Say nothing about it: somebody else holds the message by now, and a late ack of ours would count for theirs."""


Settle = Ack | GiveBack | BuryMessage | Forget


@dataclass(frozen=True)  # no slots: with them `Work[X](…)` fails on Python 3.11
class Work(Generic[W]):
    """Something to do in the world; its outcome comes back as one more message."""

    request: W


@dataclass(frozen=True)
class Decision(Generic[W]):
    """What follows once the state is stored: first every publish, confirmed; then work, or the end of the message."""

    then: Settle | Work[W]
    publish: tuple[Outgoing, ...] = ()


class Home(Protocol[KeyT, S]):
    """Where the records live that an actor decides about."""

    async def move(self, key: KeyT, move: Callable[[S], tuple[S, R]], *, tries: int) -> R:
        """Apply `move` to the record, store what it returns if that is another object, and return its result.
        Applied again on what is stored after a lost race, up to `tries` times."""
        ...


@dataclass(frozen=True, kw_only=True)
class Actor(Generic[K, S, M, W]):
    """What makes one actor differ from another; see the module's text. `tries` is how often it may lose a race."""

    engine: str
    name: str
    decode: Callable[[Delivery], M]
    home: Callable[[M], K]
    decide: Callable[[S, M, int], tuple[S, Decision[W]]]
    work: Callable[[W], Awaitable[M]]
    tries: int = 10
    verdict: Callable[[Exception], Settle | None] = lambda _error: None
    """How to settle after one of the actor's own exceptions; None for those that it does not know."""


async def handle_each(
    puller: Puller,
    handle: Callable[[Delivery], Coroutine[Any, Any, None]],
    stop: anyio.Event,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Call `handle` with each delivery, as many at once as the puller's capacity lets in, until `stop` is set and all
    calls have ended. What arrives after `stop` is given back at once. `handle` settles its delivery."""

    async def read(hands: TaskGroup) -> None:
        while True:
            delivery = await puller.receive()
            if stop.is_set():
                await _quietly_give_back(delivery)
            else:
                hands.start_soon(handle, delivery)

    async with anyio.create_task_group() as reading:
        async with anyio.create_task_group() as hands:
            reading.start_soon(read, hands)
            task_status.started()
            await stop.wait()
            puller.set_capacity(0)
        reading.cancel_scope.cancel()


class Mailbox(Generic[K, S, M, W]):
    """Runs one actor on one consumer. As many messages are in hand as the puller's capacity lets in."""

    def __init__(
        self,
        actor: Actor[K, S, M, W],
        puller: Puller,
        *,
        records: Home[K, S],
        publisher: Publisher,
        namespace: Namespace,
        clock: Clock,
    ) -> None:
        self._actor = actor
        self._puller = puller
        self._records = records
        self._publisher = publisher
        self._namespace = namespace
        self._clock = clock

    async def serve(self, stop: anyio.Event, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Handle messages until `stop` is set and what is in hand is finished.

        What still arrives after `stop` is given back at once. Cancelled in the middle (the drain deadline passed),
        what is in hand is given back too. Raises FATAL errors."""
        await handle_each(self._puller, self.handle, stop, task_status=task_status)

    async def handle(self, delivery: Delivery) -> None:
        """Take one message through decide, store, publish, work, to its end. Raises FATAL errors only."""
        try:
            settle = await self._outcome(delivery)
            await self._settle(delivery, settle)
            reach("ack")
        except FATAL:
            raise
        except StreamError as error:
            log.warning("actor.not_settled", extra=fields(subject=delivery.subject, error=str(error)))
        finally:
            if not delivery.is_settled:
                with anyio.move_on_after(CLEAN_UP_S, shield=True):
                    await _quietly_give_back(delivery)

    async def _outcome(self, delivery: Delivery) -> Settle:
        try:
            message = self._actor.decode(delivery)
        except MalformedMessage as error:
            return BuryMessage(f"malformed: {error}")
        try:
            return await self._act(message)
        except FATAL:
            raise
        except Exception as error:  # the loop's own place to catch all: one message must not stop the lane
            return self._verdict(error, delivery)

    async def _act(self, message: M) -> Settle:
        while True:
            decision = await self._decide(message)
            if decision.publish:
                await self._publish(decision.publish)
            if not isinstance(decision.then, Work):
                reach("complete")  # the record knows the end, the queue does not
                return decision.then
            reach("take")
            message = await self._actor.work(decision.then.request)

    async def _decide(self, message: M) -> Decision[W]:
        def move(state: S) -> tuple[S, Decision[W]]:
            return self._actor.decide(state, message, self._clock.now_ms())

        return await self._records.move(self._actor.home(message), move, tries=self._actor.tries)

    async def _publish(self, messages: tuple[Outgoing, ...]) -> None:
        """A conflict is no failure here: what must not exist yet was published before, perhaps by us."""
        for answer in await self._publisher.publish_many(messages):
            if isinstance(answer, Refused) and not isinstance(answer, RevisionConflict):
                raise answer

    def _verdict(self, error: Exception, delivery: Delivery) -> Settle:
        facts = fields(subject=delivery.subject, delivered=delivery.delivered, error=str(error))
        own = self._actor.verdict(error)
        if own is not None:
            return own
        if isinstance(error, StreamError):
            log.warning("actor.broker_trouble", extra=facts)
            return GiveBack(AGAIN_S)
        log.error("actor.crashed", exc_info=error, extra=facts)
        if delivery.delivered >= MOST_CRASHES:
            return BuryMessage(f"crashed {delivery.delivered} times: {type(error).__name__}: {error}")
        return GiveBack(AGAIN_S * delivery.delivered)

    async def _settle(self, delivery: Delivery, settle: Settle) -> None:
        match settle:
            case Ack(is_sure=True):
                await delivery.ack_sync()
            case Ack():
                await delivery.ack()
            case GiveBack(delay_s=delay_s):
                await delivery.nak(delay_s)
            case BuryMessage(reason=reason):
                await self._bury(delivery, reason)
            case Forget():
                delivery.forget()
            case _:
                assert_never(settle)

    async def _bury(self, delivery: Delivery, reason: str) -> None:
        """Publish the dead letter, then terminate: the other way round, a crash in between would lose the body.
        A full DEAD stream refuses the letter: then the message stays, and comes again."""
        letter = dead_letter(self._actor.engine, self._actor.name, delivery, reason)
        message_id = dead_letter_message_id(letter, occurrence=delivery.seq)
        subject = self._namespace.dead(letter.engine, letter.name, letter.id)
        try:
            await self._publisher.publish(subject, encode(letter), message_id=message_id)
        except FATAL:
            raise
        except StreamError as error:
            log.error("actor.not_buried", extra=fields(subject=delivery.subject, reason=reason, error=str(error)))
            await delivery.nak(AGAIN_S * delivery.delivered)
            return
        log.error("actor.buried", extra=fields(subject=delivery.subject, dead=subject, reason=reason))
        await delivery.term(reason)


def dead_letter(engine: str, name: str, delivery: Delivery, reason: str) -> DeadLetter:
    """Return the dead letter of a message that could not be handled, under the sequence that it had."""
    body, is_base64 = dead_body(delivery.payload)
    return DeadLetter(
        engine=engine,
        name=name,
        id=str(delivery.seq),
        reason=reason,
        attempts=delivery.delivered,
        first_ms=delivery.stored_ms,
        body=body,
        is_base64=is_base64,
    )


async def _quietly_give_back(delivery: Delivery) -> None:
    """Give it back now; where that cannot be said, the ack wait says it a little later. Let go of it in any case: the
    puller would extend it for ever, and nobody else would get it."""
    try:
        await delivery.nak()
    except StreamError as error:
        log.debug("actor.not_given_back", extra=fields(subject=delivery.subject, error=str(error)))
        delivery.forget()


async def ticks(period_s: Callable[[], float], stop: anyio.Event) -> AsyncIterator[None]:
    """Yield now, and then `period_s()` seconds after each turn is over, until `stop` is set.
    The period is asked for anew each time, so that it may be a live setting."""
    while not stop.is_set():
        yield
        with anyio.move_on_after(period_s()):
            await stop.wait()
