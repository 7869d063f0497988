"""Pulls messages when a caller needs some: one request, one answer, nothing fetched ahead.

A request waits on the server for the first message, takes the others that are there with it, and ends: `no_wait` beside
`expires` means this (2.15.1). It lasts `PIECE_S` at most and is made again until the caller's time is up, because a
request dies silently with the link, or with the consumer's leader.

Each request ends with a status, or with its last message if no bytes were limited. On one server the status comes last.
With three replicas it does not: a message waits until two servers have written that it was delivered, and most statuses
do not wait with it. Seen on 2.15.1, of a request for 100 with `max_bytes`:

| status | one server | three | messages still on their way |
| --- | --- | --- | --- |
| 409 Batch Completed | after 100 | before all 100 | what was requested, less `Nats-Pending-Messages`, which is 0 |
| 409 Message Size Exceeds MaxBytes | after those that fit | before them | the same, or none if the first is too large |
| 408 Request Timeout | after them | after them | the same: it waits for the last one |
| 404 No Messages | after them (30 of 100) | only if there were none | none |
| 408 Requests Pending, 409 Exceeded MaxWaiting, 400, 503 | refused | refused | none |
| 409 Leadership Change, Consumer Deleted | at once | at once | not reported: some may be |
| 409 Server Shutdown | at once | not sent | the same as the first |
| none, the bytes being used up to the last one | after them | after them | none |

So the puller believes the count in a status and waits for the rest. If there is no count, it gives late messages back.

Each request has an inbox of its own. A caller that leaves gives it up. The server drops a request that nobody listens
to, and messages on their way are given back at once, so that no message waits for a caller that has gone.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

import anyio

from streams.clock import monotonic_s
from streams.errors import ConnectionLost, Disconnected, PermissionDenied, Refused, StreamError, no_responders
from streams.link.connection import Connection
from streams.link.frames import Message, check_subject, publish_frame, status_of
from streams.pull.delivery import Delivery, is_delivery
from streams.pull.inbox import left_over_of

PIECE_S = 5.0
GRACE_S = 1.0
"""Seconds after its expiry in which the end of a request may arrive. After that the request counts as lost."""
LAG_S = 0.05
"""Seconds that a consumer of three servers may be behind its stream's acknowledgements, when nothing is wrong."""
LINK_S = 2.0
"""Seconds without a link, or without an answer to a request that waits for nothing, before the pull fails."""
PAUSE_S = 0.2
NOBODY_S = 3.0
"""Seconds in which no server may answer for a consumer, since it may be electing its leader."""
LINGER_S = 0.1
"""Seconds of silence after which a caller gets what came. At its limit of messages in hand a consumer delivers no
more."""
COMING_S = 2.0
"""The same for messages that the server has announced: two servers record each before it comes."""
LATE_S = 5.0
"""Seconds that a closed request still waits for messages on their way, to give them back."""
_EXPIRED, _NOBODY, _BAD, _TAKEN_BACK = 408, 503, 400, 409
_SILENT, _FULL, _BROKEN, _CUT = -1, 0, -2, -3
_OPEN_ENDS = (_SILENT, _BROKEN, _CUT)
"""Ends after which messages may still come."""


class _Request:
    """One request on its way, and its deliveries. `ended`: its last status. `most`: how many messages can come in
    all."""

    __slots__ = ("deliveries", "ended", "is_over", "most", "patience_s", "sid", "subject", "watchdog")
    watchdog: asyncio.TimerHandle

    def __init__(self, subject: str, most: int, ended: "asyncio.Future[int]") -> None:
        self.subject = subject
        self.most = most
        self.ended = ended
        self.deliveries: list[Delivery] = []
        self.is_over = False
        self.patience_s = LINGER_S
        self.sid = 0

    def end(self, status: int) -> None:
        if not self.ended.done():
            self.ended.set_result(status)


class PullOnce:
    """An async context manager over a connection. Many callers may pull at once, from any consumers. `returned`: gives
    back what no caller got, where a second delivery counts as an attempt."""

    def __init__(self, connection: Connection, *, returned: Callable[[Sequence[Delivery]], None] | None = None) -> None:
        self._connection = connection
        self._returned = returned
        self._open: set[_Request] = set()
        self.asked = 0
        """Requests so far. A long wait makes several."""

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._removers = [
            self._connection.on_disconnect(self._link_broke),
            self._connection.on_failure(self._failed),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for remove in self._removers:
            remove()
        self._returned = None
        for request in tuple(self._open):
            _fail(request, Disconnected("the puller is closed"))

    async def pull(
        self, stream: str, consumer: str, *, most: int, wait_s: float = 0.0, most_bytes: int = 0
    ) -> list[Delivery]:
        """Return up to `most` messages, as soon as there is one. Empty: none came within `wait_s`.

        `most_bytes`: of all messages with headers and subjects, 0 for no limit. A larger message is delivered to
        nobody. Settle each of them. Raises NoStream (no such consumer), Disconnected (no link, or no answer), Refused.
        """
        subject = check_subject(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}")
        give_up_s = monotonic_s() + wait_s
        bear_until_s = min(give_up_s, monotonic_s() + NOBODY_S)
        while True:
            await self._connection.connected_by(max(give_up_s, monotonic_s() + LINK_S))
            left_s = max(0.0, give_up_s - monotonic_s())
            deliveries, status = await self._ask(subject, most, most_bytes, min(PIECE_S, left_s))
            if deliveries:
                return deliveries
            now_s = monotonic_s()
            if status != _NOBODY:
                bear_until_s = min(give_up_s, now_s + NOBODY_S)
            if now_s >= (bear_until_s if status == _NOBODY else give_up_s) or status == _BAD:
                _raise_if_unanswered(subject, status)
                return []
            if status != _EXPIRED:  # no leader just now, or too many requests
                await anyio.sleep(min(PAUSE_S, give_up_s - now_s))

    @property
    def lag_s(self) -> float:
        """Return how long to wait for what was acknowledged just before."""
        return LAG_S if self._connection.is_clustered else 0.0

    @property
    def waiting(self) -> int:
        """Callers that wait for a message now."""
        return len(self._open)

    # ---- for its deliveries

    def send(self, frame: bytes) -> None:
        self._connection.client.send(frame)

    async def ask(self, subject: str, payload: bytes, timeout_s: float) -> Message:
        return await self._connection.request(subject, payload, timeout_s=timeout_s)

    def settled(self, delivery: Delivery) -> None:
        """Do nothing: this puller counts no deliveries."""

    # ---- one request

    async def _ask(self, subject: str, most: int, most_bytes: int, piece_s: float) -> tuple[list[Delivery], int]:
        """Return the deliveries of one request, and how it ended."""
        request = _Request(subject, most, self._loop.create_future())
        inbox = self._connection.new_inbox()
        request.sid = self._connection.listen(inbox, partial(self._heard, request))
        request.watchdog = self._loop.call_later(piece_s + (GRACE_S if piece_s else LINK_S), request.end, _SILENT)
        self._open.add(request)
        self.asked += 1
        expires = b',"expires":%d' % int(piece_s * 1e9) if piece_s else b""
        limit = b',"max_bytes":%d' % most_bytes if most_bytes else b""
        body = b'{"batch":%d,"no_wait":true%b%b}' % (most, limit, expires)
        status = _BROKEN
        try:
            self._connection.client.send(publish_frame(subject, inbox, b"", body))
            status = await request.ended
        except BaseException:
            self._give_back(request)
            raise
        finally:
            self._close(request, status)
        return request.deliveries, status

    def _heard(self, request: _Request, subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
        if is_delivery(reply):
            request.deliveries.append(Delivery(self, subject, reply, payload, block))
            if request.is_over:
                self._give_back(request)
            elif len(request.deliveries) == request.most:
                request.end(_FULL)
            elif len(request.deliveries) == 1:
                self._linger(request)
        else:
            self._heard_status(request, block)

    def _heard_status(self, request: _Request, block: bytes | None) -> None:
        status, text = status_of(block)
        if status == 100:
            return
        left_over = left_over_of(block)
        if left_over is not None:
            request.most -= left_over
            if len(request.deliveries) < request.most:
                request.patience_s = COMING_S
                self._linger(request)
                return
        elif status == _TAKEN_BACK and not text.startswith("Exceeded"):
            status = _CUT
        request.end(status)

    def _linger(self, request: _Request) -> None:
        """End the request once nothing has come for a while."""
        before = len(request.deliveries)

        def look() -> None:
            if len(request.deliveries) == before:
                request.end(_SILENT)
            else:
                self._linger(request)

        request.watchdog.cancel()
        request.watchdog = self._loop.call_later(request.patience_s, look)

    def _close(self, request: _Request, status: int) -> None:
        """Stop listening. If the server may not know this yet, listen a little longer to give late messages back."""
        request.is_over = True
        request.watchdog.cancel()
        self._open.discard(request)
        client = self._connection.client
        client.stop_listening(request.sid)
        if status in _OPEN_ENDS and self._connection.is_connected:
            self._loop.call_later(LATE_S, client.forget, request.sid)
        else:
            client.forget(request.sid)

    def _give_back(self, request: _Request) -> None:
        if self._returned is not None and request.deliveries:
            unwanted, request.deliveries = request.deliveries, []
            self._returned(unwanted)
        with suppress(Disconnected, ConnectionLost):  # then the ack wait gives them back
            while request.deliveries:
                self.send(request.deliveries.pop().frame(b"-NAK"))

    def _link_broke(self) -> None:
        for request in self._open:
            request.end(_BROKEN)

    def _failed(self, failure: StreamError) -> None:
        for request in tuple(self._open):
            if not isinstance(failure, PermissionDenied) or failure.is_about(request.subject):
                _fail(request, failure)


def _fail(request: _Request, failure: StreamError) -> None:
    if not request.ended.done():
        request.ended.set_exception(failure)


def _raise_if_unanswered(subject: str, status: int) -> None:
    """Return if the server said that there is nothing. Otherwise raise the reason why we cannot know."""
    if status == _NOBODY:
        raise no_responders(subject)
    if status == _BAD:
        raise Refused("the server does not understand the request", subject=subject, code=status)
    if status in _OPEN_ENDS:
        raise Disconnected(f"{subject}: no answer")
