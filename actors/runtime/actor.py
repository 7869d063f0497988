"""The loop that actors with a mailbox share: receive, decide, apply, settle.

The file of an actor holds, from the top: the messages in, the messages out, the state, the decisions.

- `decide(state, message, now_ms)` is a plain function. It returns the record's next state and a `Decision`. The same
  state object means that nothing is stored. The decision names what to publish, and then either how to settle the
  message or which work to do.
- `work(request)` is the only part that does I/O. It returns the outcome as one more message, which goes to `decide`
  like the first one. Expected failures are such messages too. It raises only unexpected errors.
- `Mailbox` takes these two, `decode` (payload to message) and `home` (message to the key of its record), and does the
  rest. So tests of everything hard need no server, clock or mock.

The order is fixed: **store, publish, settle**. The store claims the decision by revision. The broker then confirms the
publishes. The message is settled last. After a crash in between the message comes again. `decide` finds the claim,
publishes the same messages under the same ids, and settles. So `decide` must be harmless when repeated.

What goes wrong:

- The record changed meanwhile: the record's home reads and decides again, a bounded number of times.
- The broker does not answer (`Disconnected`, `OutcomeUnknown`) or refuses: the message is given back and comes again.
- A payload does not decode, or handling a message has crashed `MOST_CRASHES` times: the message becomes a dead letter
  and is terminated. It never blocks the lane.
- The connection is closed for good, or an operation is not permitted: the error is raised, and the supervisor ends the
  process.

An actor without a mailbox is a loop over `ticks` or over a bucket's watch. It needs only `ticks` from here.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, assert_never

import anyio
from anyio.abc import TaskGroup, TaskStatus

from actors.runtime.failpoints import reach
from actors.runtime.logs import fields
from streams.clock import Clock, until_turn_s
from streams.errors import (
    ConnectionLost,
    MalformedMessage,
    PermissionDenied,
    Refused,
    RevisionConflict,
    StreamError,
    TopologyMismatch,
)
from streams.messages.fetch import DeadLetter, dead_body, encode
from streams.messages.ids import dead_letter_message_id
from streams.publish.publisher import Outgoing, Publisher
from streams.pull.puller import Delivery, Puller
from streams.subjects import Namespace

log = logging.getLogger(__name__)

FATAL = (ConnectionLost, PermissionDenied, TopologyMismatch)
"""Errors that no restart of an actor mends. They end the process."""
MOST_CRASHES = 5
"""How many deliveries of one message may end in an unexpected exception before it is buried."""
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
    """The message is done. `is_sure`: wait for the server's receipt, for work that is costly to repeat."""

    is_sure: bool = False


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Redeliver the message, to any consumer, after `delay_s`."""

    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class BuryMessage:
    """Store the message as a dead letter with `reason`, and never deliver it again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Do not settle the message. Another consumer holds it by now, and our late ack would settle theirs."""


Settle = Ack | GiveBack | BuryMessage | Forget


@dataclass(frozen=True)  # no slots: with them `Work[X](…)` fails on Python 3.11
class Work(Generic[W]):
    """Work that does I/O. Its outcome comes back as one more message."""

    request: W


@dataclass(frozen=True)
class Decision(Generic[W]):
    """What follows once the state is stored: first every publish, confirmed, then the work or the settling."""

    then: Settle | Work[W]
    publish: tuple[Outgoing, ...] = ()


class Home(Protocol[KeyT, S]):
    """Where the records live that an actor decides about."""

    async def move(self, key: KeyT, move: Callable[[S], tuple[S, R]], *, tries: int) -> R:
        """Apply `move` to the record, store the state that it returns if that is another object, and return its result.
        After a revision conflict, read the record and apply `move` again, up to `tries` times."""
        ...


@dataclass(frozen=True, kw_only=True)
class Actor(Generic[K, S, M, W]):
    """What differs between actors. See the module's text. `tries`: the limit of revision conflicts for one message."""

    engine: str
    name: str
    decode: Callable[[Delivery], M]
    home: Callable[[M], K]
    decide: Callable[[S, M, int], tuple[S, Decision[W]]]
    work: Callable[[W], Awaitable[M]]
    tries: int = 10
    verdict: Callable[[Exception], Settle | None] = lambda _error: None
    """How to settle after one of the actor's own exceptions. `None`: the exception is not one of them."""


async def handle_each(
    puller: Puller,
    handle: Callable[[Delivery], Coroutine[Any, Any, None]],
    stop: anyio.Event,
    *,
    keeps_hands: bool = False,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Call `handle` with each delivery until `stop` is set and all calls have ended. The puller's capacity limits how
    many run at once. Deliveries that arrive after `stop` are given back at once. `handle` settles its delivery.
    `keeps_hands`: a task takes one delivery after the other. That is cheaper, but what a call leaves in its context is
    there in the next one."""
    loop, idle = asyncio.get_running_loop(), list[asyncio.Future[Delivery | None]]()

    async def take(delivery: Delivery | None) -> None:
        while delivery is not None:
            await handle(delivery)
            if not keeps_hands or stop.is_set():
                return
            idle.append(turn := loop.create_future())
            delivery = await turn

    async def read(hands: TaskGroup) -> None:
        while True:
            delivery = await puller.receive()
            if stop.is_set():
                await _quietly_give_back(delivery)
            elif (turn := _next_of(idle)) is not None:
                turn.set_result(delivery)
            else:
                hands.start_soon(take, delivery)

    async with anyio.create_task_group() as reading:
        async with anyio.create_task_group() as hands:
            reading.start_soon(read, hands)
            task_status.started()
            await stop.wait()
            puller.set_capacity(0)
            while (turn := _next_of(idle)) is not None:
                turn.set_result(None)
        reading.cancel_scope.cancel()


def _next_of(idle: list[asyncio.Future[Delivery | None]]) -> asyncio.Future[Delivery | None] | None:
    """Remove and return the last hand that waits, `None` if none does."""
    while idle:
        if not (turn := idle.pop()).done():
            return turn
    return None


class Mailbox(Generic[K, S, M, W]):
    """Runs one actor on one consumer. The puller's capacity limits how many messages it handles at once."""

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
        """Handle messages until `stop` is set and the messages in hand are finished.
        Messages that still arrive after `stop` are given back at once. If the drain deadline cancels this, the messages
        in hand are given back too. Raises FATAL errors."""
        await handle_each(self._puller, self.handle, stop, keeps_hands=True, task_status=task_status)

    async def handle(self, delivery: Delivery) -> None:
        """Take one message through decide, store, publish and work to its end. Raises FATAL errors only."""
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
        except Exception as error:  # the loop catches all: one message must not stop the lane
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
        """Publish all, confirmed. A conflict is no failure: the same message was published before, perhaps by us."""
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
        """Publish the dead letter, then terminate the message. In the other order a crash in between would lose the
        body.
        If a full DEAD stream refuses the dead letter, the message stays and comes again."""
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
    """Return the dead letter of a message that could not be handled. Its id is the message's stream sequence."""
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
    """Give the message back now. If the broker cannot be reached, its ack wait ends a little later. Forget the message
    in any case: otherwise the puller would extend it for ever, and no other consumer would get it."""
    try:
        await delivery.nak()
    except StreamError as error:
        log.debug("actor.not_given_back", extra=fields(subject=delivery.subject, error=str(error)))
        delivery.forget()


async def until_stopped(
    stop: anyio.Event, body: Callable[[], Coroutine[Any, Any, object]], *, task_status: TaskStatus[None]
) -> None:
    """Run `body` until the node stops. Then cancel it."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(body)
        task_status.started()
        await stop.wait()
        tasks.cancel_scope.cancel()


async def ticks(period_s: Callable[[], float], stop: anyio.Event) -> AsyncIterator[None]:
    """Yield now, and then at each turn of `period_s()` seconds, until `stop` is set.
    Each turn calls `period_s` anew, so it may read a live setting."""
    while not stop.is_set():
        yield
        with anyio.move_on_after(until_turn_s(period_s())):
            await stop.wait()
