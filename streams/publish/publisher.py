"""Publishes into streams, pipelined, and returns the outcome of each message.

Every publish ends in one of four ways: stored (a Receipt), stored before (a Receipt with `is_duplicate`), refused (a
Refused of some kind), or unknown (OutcomeUnknown). Unknown is no failure: a server that hangs may have stored the
message. So a message with an id is sent again under that id until `deadline_s`: after a reconnect, a silence of
`attempt_timeout_s`, or the answer that no server takes it. The stream drops the repeats within its duplicate window,
which has to be longer than the deadline. A message with neither id nor expected sequence is sent once. A message with
nothing but its id to fence it (`is_unfenced`) is not sent again to a restarted server, which may have forgotten ids.

All receipts come to one wildcard inbox. A number names the message for all its tries, and the first answer counts. At
most `window` messages and `WINDOW_BYTES` are on their way. Beyond that callers wait, so that a slow server slows its
callers. Messages are sent in the order of the calls, but a repeat may overtake.

No task runs behind it: answers arrive while the socket is read, and a timer looks after unanswered messages.
"""

import asyncio
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count, repeat
from types import TracebackType
from typing import Self

from streams.clock import monotonic_s
from streams.errors import (
    ConnectionLost,
    Disconnected,
    PermissionDenied,
    Refused,
    RevisionConflict,
    StreamError,
    TooLarge,
    no_responders,
)
from streams.link.connection import Connection
from streams.link.frames import check_size, check_subject, publish_frame, status_of
from streams.publish.flights import Alone, Flight, Waiting
from streams.publish.outcomes import Outgoing as Outgoing
from streams.publish.outcomes import Receipt as Receipt
from streams.publish.outcomes import block_of, outcome_of

WINDOW_BYTES = 8 * 1024 * 1024
TICK_S = 0.05
NOBODY_WAIT_S = 0.1
"""Wait before a message is sent again that no server took. A stream without a leader answers so at once."""
LINE = 512
"""Bytes of a message's first line, at most about."""
STRIDE = 128
"""Messages with their own headers that are prepared in one go. Other calls may send in between."""
_NOT_AVAILABLE = 10008
"""JetStream is temporarily unavailable: the message is not stored, and another answer comes soon."""
_IN_PROCESS = 10158
"""A message of this id is on its way to the other servers. A moment later it is known what has become of it."""
_LINK_BROKE = suppress(Disconnected, ConnectionLost)
"""Around a send. The reconnect, or the failure, handles it."""


class Publisher:
    """An async context manager over a connection. Safe to share between tasks of one loop."""

    def __init__(
        self, connection: Connection, *, window: int = 1024, attempt_timeout_s: float = 2.0, deadline_s: float = 30.0
    ) -> None:
        self._connection = connection
        self._window = window
        self._attempt_timeout_s = attempt_timeout_s
        self._deadline_s = deadline_s
        self._flights: dict[int, Flight] = {}
        self._bytes = 0
        self._next_token = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = False

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._inbox = f"{self._connection.new_inbox()}."
        self._sid = self._connection.listen(f"{self._inbox}*", self._answered)
        self._removers = [self._connection.on_reconnect(self._resend_all), self._connection.on_failure(self._failed)]
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give up. Messages on their way may still be stored."""
        self._is_open = False
        for remove in self._removers:
            remove()
        self._connection.unlisten(self._sid)
        if self._timer is not None:
            self._timer.cancel()
        for token in tuple(self._flights):
            self._finish(token, self._flights[token].unknown("the publisher was closed"))

    # ---- what callers use

    @property
    def in_flight(self) -> int:
        """Messages sent and not yet answered. Never above the window."""
        return len(self._flights)

    async def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        expected_seq: int | None = None,
        ttl_s: int | None = None,
        timeout_s: float | None = None,
    ) -> Receipt:
        """Store a message and return its receipt.

        `message_id` makes repeats harmless. `expected_seq`: the sequence of the last message on this subject, 0 for
        none. Another sequence raises RevisionConflict. A repeat may conflict with our own first try, since the server
        checks the sequence before the id. Then the conflict says `is_after_retry`, and the caller reads back. `ttl_s`:
        seconds until the server removes the message (the stream must allow it). `timeout_s` replaces `deadline_s`.

        Raises a Refused (RevisionConflict, NoStream, TooLarge, StoreFull, …), OutcomeUnknown, Disconnected (never
        sent), PermissionDenied, MalformedSubject, MalformedHeader.
        """
        block = block_of(message_id, headers, expected_seq, ttl_s)
        is_repeatable = message_id is not None or expected_seq is not None
        limit_s = timeout_s if timeout_s is not None else self._deadline_s if is_repeatable else self._attempt_timeout_s
        deadline_s = monotonic_s() + limit_s
        token, frame = self._framed(check_subject(subject), payload, block)
        waiting = Alone(self._loop.create_future())
        if self._queue or not self._is_open or not self._has_room(len(frame)):
            await self._room(len(frame), deadline_s)
        self._launch(token, Flight(subject, message_id, frame, waiting, 0, is_repeatable), deadline_s)
        outcome = await waiting.known
        if isinstance(outcome, Receipt):
            return outcome
        raise outcome

    def start(self, message: Outgoing, *, until_s: float = math.inf) -> "asyncio.Future[Receipt | StreamError] | None":
        """Send a message that brings its headers, and return the future of its outcome. None: there is no room, no link
        or no time now, and nothing was sent. Messages of one turn of the loop leave with few writes."""
        connection, size = self._connection, len(message.payload) + len(message.block)
        if self._queue or not self._is_open or not self._has_room(size + LINE) or size > connection.max_payload:
            return None
        now_s = monotonic_s()
        if now_s > until_s:
            return None
        waiting = Alone(self._loop.create_future())
        deadline_s = min(until_s, now_s + self._deadline_s)
        frame = self._fly(message, waiting, 0, deadline_s, min(deadline_s, now_s + self._attempt_timeout_s))
        with _LINK_BROKE:
            connection.client.send(frame)
        return waiting.known

    async def publish_many(self, messages: Sequence[Outgoing]) -> list[Receipt | Refused]:
        """Store messages, sent without waiting for one another. Return their outcomes in the same order.

        The refusal of one message is its entry, and stops no other. If a subject or header is malformed, nothing is
        sent. Raises OutcomeUnknown if any outcome stays unknown, Disconnected if the link broke before all were sent,
        PermissionDenied. After those, repeat the whole list: message ids make that harmless.
        """
        return [_receipt_or_refusal(outcome) for outcome in await self.try_many(messages)]

    async def try_many(self, messages: Sequence[Outgoing], *, until_s: float = math.inf) -> list[Receipt | StreamError]:
        """Do as `publish_many`, but return each message's own outcome: OutcomeUnknown for one, Disconnected for those
        that were not sent, receipts for others. Nothing is sent after `until_s` of the monotonic clock, even if the
        process was paused."""
        waiting = Waiting(len(messages), self._loop)
        deadline_s = min(until_s, monotonic_s() + self._deadline_s)
        if not all(message.block for message in messages):
            flights = map(self._prepared, messages, repeat(waiting), count())
            await self._launch_each(iter(list(flights)), waiting, 0, deadline_s)  # raises before anything is sent
        else:
            for start in range(0, len(messages), STRIDE):
                some = messages[start : start + STRIDE]
                if not self._launch_all(some, waiting, start, deadline_s):
                    each = map(self._prepared, some, repeat(waiting), count(start))
                    if not await self._launch_each(each, waiting, start, deadline_s):
                        break
                if start + STRIDE < len(messages):
                    await asyncio.sleep(0)  # these go out, and the server begins, while the rest is prepared
        if waiting.left:
            await waiting.all_known
        return [outcome for outcome in waiting.outcomes if outcome is not None]

    # ---- sending

    async def _launch_each(
        self, flights: Iterator[tuple[int, Flight] | None], waiting: Waiting, start: int, deadline_s: float
    ) -> bool:
        """Send messages as there is room for them. Return False if the link broke, and the rest was not sent."""
        for at, prepared in enumerate(flights, start):
            if prepared is None:
                continue
            token, flight = prepared
            if self._queue or not self._is_open or not self._has_room(len(flight.frame)):
                try:
                    await self._room(len(flight.frame), deadline_s)
                except (Disconnected, ConnectionLost) as error:
                    self._give_up(waiting, at, error)
                    return False
            self._launch(token, flight, deadline_s)
        return True

    def _launch_all(self, messages: Sequence[Outgoing], waiting: Waiting, start: int, deadline_s: float) -> bool:
        """Send messages that bring their headers, with one write. Return False, and do nothing, if there is no room
        for all of them, or one is too large."""
        now_s, connection = monotonic_s(), self._connection
        sizes = [len(message.payload) + len(message.block) for message in messages]
        size = sum(sizes) + LINE * len(sizes)
        has_room = len(self._flights) + len(messages) <= self._window and self._bytes + size <= WINDOW_BYTES
        fits = has_room and max(sizes) <= connection.max_payload
        if self._queue or not self._is_open or not fits or not connection.is_connected or now_s > deadline_s:
            return False
        due_s = min(deadline_s, now_s + self._attempt_timeout_s)
        frames = [
            self._fly(message, waiting, index, deadline_s, due_s) for index, message in enumerate(messages, start)
        ]
        with _LINK_BROKE:
            connection.client.send(b"".join(frames))
        return True

    def _fly(self, message: Outgoing, waiting: Waiting | Alone, index: int, deadline_s: float, due_s: float) -> bytes:
        """Note a message that brings its headers as sent, and return its bytes."""
        self._next_token = token = self._next_token + 1
        subject, memory = message.subject, self._connection.memory if message.is_unfenced else ""
        frame = publish_frame(subject, f"{self._inbox}{token}", message.block, message.payload)
        flight = Flight(subject, message.message_id, frame, waiting, index, True, memory, deadline_s, due_s)
        self._flights[token] = flight
        self._bytes += len(frame)
        if self._timer is None:
            self._timer = self._loop.call_later(TICK_S, self._tick)
        return frame

    def _framed(self, subject: str, payload: bytes, block: bytes) -> tuple[int, bytes]:
        """Return the number and the bytes of a message whose subject and headers have been checked."""
        check_size(subject, block, payload, self._connection.max_payload)
        self._next_token = token = self._next_token + 1
        return token, publish_frame(subject, f"{self._inbox}{token}", block, payload)

    def _prepared(self, message: Outgoing, waiting: Waiting, index: int) -> tuple[int, Flight] | None:
        """Return the message ready to be sent. None: it is too large, and that is its outcome."""
        subject, message_id, block = message.subject, message.message_id, message.block
        is_repeatable = message_id is not None or block != b""
        try:
            if not block:
                check_subject(subject)
                block = block_of(message_id, message.headers, None, None)
            token, frame = self._framed(subject, message.payload, block)
        except TooLarge as refused:
            waiting.know(index, refused)
            return None
        memory = self._connection.memory if message.is_unfenced else ""
        return token, Flight(subject, message_id, frame, waiting, index, is_repeatable, memory)

    def _give_up(self, waiting: Waiting, start: int, error: StreamError) -> None:
        """Give the messages from `start` on the outcome that they were not sent."""
        for index in range(start, len(waiting.outcomes)):
            if waiting.outcomes[index] is None:
                waiting.know(index, error)

    def _has_room(self, size: int) -> bool:
        in_flight = len(self._flights)
        fits = not in_flight or (in_flight < self._window and self._bytes + size <= WINDOW_BYTES)
        return fits and self._connection.is_connected

    async def _room(self, size: int, deadline_s: float) -> None:
        """Wait, first come first served, until the link is there and the window has room."""
        is_new = True
        while True:
            await self._connection.connected_by(deadline_s)
            if not self._is_open:
                raise Disconnected("the publisher is closed")
            if self._has_room(size) and not (is_new and self._queue):
                return
            await self._turn(deadline_s, is_new=is_new)
            is_new = False

    async def _turn(self, deadline_s: float, *, is_new: bool) -> None:
        turn: asyncio.Future[None] = self._loop.create_future()
        (self._queue.append if is_new else self._queue.appendleft)(turn)
        try:
            async with asyncio.timeout(max(0.0, deadline_s - monotonic_s())):
                await turn
        except TimeoutError:
            raise Disconnected("the window stayed full; the message was not sent") from None
        finally:
            if turn in self._queue:
                self._queue.remove(turn)
            else:
                self._loop.call_soon(self._next_turn)  # after this one has taken its room, or was cancelled

    def _next_turn(self) -> None:
        if self._queue and self._has_room(0):
            turn = self._queue.popleft()
            if turn.done():
                self._next_turn()
            else:
                turn.set_result(None)

    def _launch(self, token: int, flight: Flight, deadline_s: float) -> None:
        flight.deadline_s = deadline_s
        self._flights[token] = flight
        self._bytes += len(flight.frame)
        self._send(token, flight)
        if self._timer is None:
            self._timer = self._loop.call_later(TICK_S, self._tick)

    def _send(self, token: int, flight: Flight) -> None:
        now_s = monotonic_s()
        if now_s > flight.deadline_s or (flight.is_unknown and flight.memory not in ("", self._connection.memory)):
            self._finish(token, flight.unknown("not asked again") if flight.is_unknown else _too_late())
            return
        if flight.memory and not flight.is_unknown:
            flight.memory = self._connection.memory
        flight.is_resting = False
        flight.due_s = flight.deadline_s
        if flight.is_repeatable:
            flight.due_s = min(flight.deadline_s, now_s + self._attempt_timeout_s)
        try:
            self._connection.client.send(flight.frame)
        except (Disconnected, ConnectionLost) as error:
            if not flight.is_repeatable:  # else the reconnect, or the failure, handles it
                self._finish(token, error)

    # ---- what becomes of it

    def _answered(self, subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
        token = int(subject[len(self._inbox) :])
        flight = self._flights.get(token)
        if flight is None:
            return  # the answer to another try came before
        if block and status_of(block)[0] == 503:
            self._not_taken(token, flight, no_responders(flight.subject))
            return
        outcome = outcome_of(payload, flight.subject)
        if type(outcome) is Receipt:
            pass
        elif isinstance(outcome, RevisionConflict):
            outcome.is_after_retry = flight.is_unknown
        elif isinstance(outcome, Refused) and outcome.err_code == _IN_PROCESS and flight.is_repeatable:
            flight.is_unknown = True
            self._rest(flight)
            return
        elif isinstance(outcome, Refused) and outcome.err_code == _NOT_AVAILABLE:
            self._not_taken(token, flight, outcome)
            return
        elif isinstance(outcome, Refused) and flight.is_unknown:  # an earlier try may be stored
            outcome = flight.unknown(f"a repeat was refused: {outcome}")
        self._finish(token, outcome)

    def _not_taken(self, token: int, flight: Flight, refused: Refused) -> None:
        """No server took this try: it is certainly not stored, and is worth another try."""
        if flight.is_repeatable:
            self._rest(flight)
        else:
            self._finish(token, refused)

    def _rest(self, flight: Flight) -> None:
        flight.is_resting = True
        flight.due_s = min(flight.deadline_s, monotonic_s() + NOBODY_WAIT_S)

    def _tick(self) -> None:
        self._timer = None
        now_s = monotonic_s()
        for token, flight in tuple(self._flights.items()):
            if flight.due_s <= now_s:
                self._overdue(token, flight, now_s)
        if self._flights:
            self._timer = self._loop.call_later(TICK_S, self._tick)

    def _overdue(self, token: int, flight: Flight, now_s: float) -> None:
        flight.is_unknown = flight.is_unknown or not flight.is_resting
        if now_s < flight.deadline_s:
            if self._connection.is_connected:
                self._send(token, flight)
        elif flight.is_unknown:
            self._finish(token, flight.unknown("no acknowledgement in time"))
        else:
            self._finish(token, no_responders(flight.subject))

    def _resend_all(self) -> None:
        """Send again after a reconnect, since the old link lost the answers."""
        for token, flight in tuple(self._flights.items()):
            if flight.is_repeatable:
                flight.is_unknown = flight.is_unknown or not flight.is_resting
                self._send(token, flight)

    def _failed(self, failure: StreamError) -> None:
        for token, flight in tuple(self._flights.items()):
            if isinstance(failure, PermissionDenied) and failure.is_about(flight.subject):
                self._finish(token, failure)
            elif isinstance(failure, ConnectionLost):
                self._finish(token, flight.unknown(str(failure)))

    def _finish(self, token: int, outcome: Receipt | StreamError) -> None:
        flight = self._flights.pop(token)
        self._bytes -= len(flight.frame)
        flight.waiting.know(flight.index, outcome)
        if not self._flights and self._timer is not None:  # else each message of an idle process wakes it once more
            self._timer.cancel()
            self._timer = None
        if self._queue:
            self._next_turn()


def _too_late() -> Disconnected:
    return Disconnected("its time was over before it could be sent; it is not stored")


def _receipt_or_refusal(outcome: Receipt | StreamError) -> Receipt | Refused:
    if isinstance(outcome, Receipt | Refused):
        return outcome
    raise outcome
