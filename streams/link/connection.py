"""The one link to the server: requests, plain publishes, subscriptions, and the report that the link has ended for
good.

The client library reconnects for ever, but it does not report everything. A request to a forbidden subject just times
out, and some errors (a control line that is too long, an expired login) close the client for good. `failure()` raises
both. The application runs it beside its work.

While the link is down, messages written before may or may not have arrived. Requests in flight then end at once with
OutcomeUnknown. New requests wait for the reconnect within their own time, and otherwise end with Disconnected, which
means that they were not sent.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Never

import anyio
import msgspec

from streams.clock import monotonic_s
from streams.errors import (
    ConnectionLost,
    Disconnected,
    MalformedMessage,
    NoStream,
    OutcomeUnknown,
    PermissionDenied,
    StreamError,
    no_responders,
    refusal,
    unreachable,
)
from streams.link.callbacks import Callbacks, EachSecond
from streams.link.contact import NOBODY_S, Contact
from streams.link.credentials import Credentials, shown_url
from streams.link.frames import Message, check_pattern, check_size, check_subject, header_block, publish_frame
from streams.link.library import MADE_FOR, other_version
from streams.link.pending_replies import PendingReplies, expire
from streams.link.standstill import Standstill
from streams.link.store_health import StoreState
from streams.link.wire import CLUSTER, WireClient
from streams.link.wire_parser import Deliver
from streams.subjects import Namespace, api_prefix

log = logging.getLogger(__name__)

Reply = Message
PING_INTERVAL_S = 2
"""A server that hangs, or a link that went silent, is given up after four to six seconds, with two missed pings. So
there is time to repeat acknowledgements at another server within the ack wait of three servers (ADR 38). The library's
default takes over four minutes."""
RECONNECT_S = (0.1, 0.3)
"""Seconds between two tries to reconnect. Each connection draws its own, so that nodes do not come back in step."""
CLOSE_S = 2.0


class Subscription:
    """A subscription to a subject. `unsubscribe` ends it."""

    def __init__(self, connection: "Connection", sid: int) -> None:
        self._connection = connection
        self._sid = sid

    async def unsubscribe(self) -> None:
        """Stop at once: messages on their way are not delivered. A repeat does nothing."""
        self._connection.unlisten(self._sid)


class Connection:
    """A connection as `connect` opens it. `client`, `listen`, `send` and the like are for this package only."""

    def __init__(self, client: WireClient, *, name: str, namespace: Namespace) -> None:
        self.client = client
        self.name = name
        self.namespace = namespace
        self._up = asyncio.Event()
        self._failed = asyncio.Event()
        self._failure: StreamError | None = None
        self.is_open = False
        self._is_closing = False
        self._told = ""
        self._on_reconnect = Callbacks[Callable[[], None]]()
        self._on_disconnect = Callbacks[Callable[[], None]]()
        self._on_failure = Callbacks[Callable[[StreamError], None]]()
        self._each_second = EachSecond(self._call)
        self._answers = PendingReplies("")
        self._risked: list[str] = []
        self.standstill = Standstill()
        self.store = StoreState()
        """The state of the server's store, as this process knows it."""
        self._memory, self._memory_since_s = "", 0.0
        self.is_clustered = False
        """Whether the server is one of a cluster. Read for each delivery."""
        self.contact = Contact(most_s=NOBODY_S)
        """What requests to nodes have told of the server, whichever service they were for."""

    # ---- what callers use

    @property
    def is_connected(self) -> bool:
        return self._up.is_set() and not self.client.is_closed

    @property
    def memory(self) -> str:
        """Return a name of the server's memory of message ids. Under another name, the server has forgotten older
        ids."""
        return self._memory

    @property
    def can_leave(self) -> bool:
        """Whether the server is one of a cluster of which another one is known."""
        return self.is_connected and self.is_clustered and self.client.knows_another

    @property
    def memory_age_s(self) -> float:
        """Return the seconds for which this memory has certainly not been lost."""
        return monotonic_s() - self._memory_since_s

    @property
    def max_payload(self) -> int:
        """Bytes of headers and payload that the server takes."""
        return self.client.max_payload

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 5.0,
    ) -> Message:
        """Send a request and return the first reply.

        Raises Disconnected (not sent), OutcomeUnknown (no reply in time, or the link broke), NoStream if no client
        subscribes, PermissionDenied, and for what cannot be sent MalformedSubject, MalformedHeader, TooLarge.
        """
        deadline_s = monotonic_s() + timeout_s
        answer = await self.send_request(subject, payload, headers=headers, deadline_s=deadline_s)
        end = asyncio.get_running_loop().call_later(deadline_s - monotonic_s(), expire, answer, subject, timeout_s)
        try:
            message = await answer
        finally:
            end.cancel()
            answer.cancel()
        if message.status == 503:
            raise no_responders(subject)
        return message

    async def send_request(
        self, subject: str, payload: bytes, *, headers: Mapping[str, str] | None = None, deadline_s: float
    ) -> "asyncio.Future[Message]":
        """Send a request and return the future of its reply. A caller that no longer waits cancels the future. A
        `status` of 503 means that no client subscribes. Raises what `request` raises before it waits."""
        await self.connected_by(deadline_s)
        return self.send_request_now(subject, payload, headers=headers)

    def send_request_now(
        self, subject: str, payload: bytes, *, headers: Mapping[str, str] | None = None
    ) -> "asyncio.Future[Message]":
        """Do as `send_request`, without waiting for the link."""
        block = self.checked(check_subject(subject), payload, headers)
        reply, answer = self._answers.expect(subject)
        try:
            self.client.send(publish_frame(subject, reply, block, payload))
        except BaseException:
            answer.cancel()
            raise
        return answer

    def expect_reply(self, subject: str) -> "tuple[str, asyncio.Future[Message]]":
        """Return a subject for one more reply to a request to `subject`, and the future of that reply. A caller that no
        longer waits cancels the future."""
        return self._answers.expect(subject)

    async def api(
        self, subject_suffix: str, body: object | None = None, *, timeout_s: float = 5.0, domain: str = ""
    ) -> dict[str, Any]:
        """Send a request to the JetStream API and return its reply. `domain`: of another domain than the server's own.
        Raises the Refused that fits its `err_code`, and what `request` raises. Raises Disconnected if the domain cannot
        be reached."""
        subject = f"{api_prefix(domain)}{subject_suffix}"
        payload = b"" if body is None else msgspec.json.encode(body)
        try:
            answer = await self.request(subject, payload, timeout_s=timeout_s)
        except NoStream as nobody:
            raise unreachable(domain, nobody) from nobody
        return _decoded(subject, answer)

    async def api_each(self, suffixes: Sequence[str], *, timeout_s: float = 5.0) -> list[dict[str, Any] | StreamError]:
        """Send requests without a body to the JetStream API, all at once, and return the reply to each, or the Refused,
        NoStream or MalformedMessage that `api` raises. One after the other, each would wake the process. Raises
        Disconnected, OutcomeUnknown if any reply is missing."""
        deadline_s, subjects = monotonic_s() + timeout_s, [api_prefix() + suffix for suffix in suffixes]
        await self.connected_by(deadline_s)
        replies: list[asyncio.Future[Message]] = []
        try:
            replies.extend(self.send_request_now(subject, b"") for subject in subjects)
            async with asyncio.timeout(max(0.0, deadline_s - monotonic_s())):
                messages = [await reply for reply in replies]
        except TimeoutError:
            raise OutcomeUnknown(f"no answer within {timeout_s} s", subject=subjects[-1]) from None
        finally:
            for reply in replies:
                reply.cancel()
        return [_outcome(subject, message) for subject, message in zip(subjects, messages, strict=True)]

    def send_core(
        self, subject: str, payload: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Send as `publish_core` does, however much waits for the socket: for few and small messages."""
        block = self.checked(check_subject(subject), payload, headers)
        self.client.send(publish_frame(subject, reply and check_subject(reply), block, payload))

    async def publish_core(
        self, subject: str, payload: bytes = b"", *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Send without a receipt. While the link is down, up to 2 MiB wait for it. Above that it raises
        Disconnected."""
        self.send_core(subject, payload, reply=reply, headers=headers)
        if self.client.is_clogged:
            await self.client.unclog()

    async def subscribe(self, subject: str, callback: Callable[[Message], None]) -> Subscription:
        """Call `callback` for each message, in order, from now on and over reconnects.

        The call happens while the socket is read, so it must be short and must not wait. If it raises, the connection
        fails with its error. There is no queue and nothing is dropped: a slow callback slows the reading.
        """

        def deliver(subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
            callback(Message(subject, reply, payload, block))

        return Subscription(self, self.listen(check_pattern(subject), deliver))

    @contextmanager
    def risking(self, subject: str) -> Iterator[None]:
        """Have a refusal of this subject end the request alone, and not the connection."""
        self._risked.append(subject)
        try:
            yield
        finally:
            self._risked.remove(subject)

    async def leave(self, why: str) -> None:
        """Leave the server for another one of its cluster. It is as if the link broke: requests in flight end with
        OutcomeUnknown."""
        left = {"name": self.name, "server": self.client.server, "why": why}
        log.warning("connection.leaves", extra={"fields": left})
        await self.client.leave(why)

    def new_inbox(self) -> str:
        """Return a subject of our own for replies. No other client knows it."""
        return self.client.new_inbox()

    def on_reconnect(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback`, short and sync, after each reconnect. Return the function that removes it."""
        return self._on_reconnect.add(callback)

    async def flush(self, timeout_s: float = 5.0) -> None:
        """Wait until the server has processed what was sent before. Raises Disconnected if it does not answer in
        time."""
        if not await self.client.round_trip(timeout_s):
            raise Disconnected(f"no answer to a ping within {timeout_s} s")

    async def failure(self) -> Never:
        """Wait until the connection is closed for good or something is forbidden, and raise that.

        Raises ConnectionLost, PermissionDenied, or the error of a subscriber's callback. The application runs this
        beside its work, so that it ends with a clear message instead of waiting for ever.
        """
        await self._failed.wait()
        assert self._failure is not None
        raise self._failure

    # ---- for this package

    def checked(self, subject: str, payload: bytes, headers: Mapping[str, str] | None) -> bytes:
        """Return the header block of a message that may be sent. Raises MalformedHeader or TooLarge."""
        block = header_block(headers) if headers else b""
        check_size(subject, block, payload, self.client.max_payload)
        return block

    async def connected_by(self, deadline_s: float) -> None:
        """Wait for the link until `deadline_s` of the monotonic clock. Raises Disconnected if it is not there by
        then."""
        self._raise_if_closed()
        if self._up.is_set():
            return
        try:
            async with asyncio.timeout(max(0.0, deadline_s - monotonic_s())):
                await self._up.wait()
        except TimeoutError:
            raise Disconnected("no connection to the server within the time given") from None
        self._raise_if_closed()

    def listen(self, subject: str, deliver: Deliver, queue: str = "") -> int:
        """Subscribe with a callback that takes the raw message. Return the number for `unlisten`."""

        def guarded(subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
            try:
                deliver(subject, reply, payload, block)
            except Exception as error:  # else it would end the parser's loop, and the link would hang
                self.fail(StreamError(f"a subscriber of {subject!a} failed: {error!r}"), cause=error)

        self._raise_if_closed()
        return self.client.listen(subject, guarded, queue)

    def unlisten(self, sid: int) -> None:
        """End the subscription at once."""
        self.client.stop_listening(sid)
        self.client.forget(sid)

    def on_disconnect(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback`, short and sync, when the link breaks. Return the function that removes it."""
        return self._on_disconnect.add(callback)

    def each_second(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once a second. All share one timer: of a thousand pullers each needs next to nothing. Return
        a function that removes it."""
        return self._each_second.add(callback)

    def on_failure(self, callback: Callable[[StreamError], None]) -> Callable[[], None]:
        """Call `callback` with the error that `failure` raises. Return the function that removes it."""
        return self._on_failure.add(callback)

    def fail(self, failure: StreamError, *, cause: BaseException | None = None) -> None:
        """Make `failure()` raise. It raises the first failure. Callbacks get each one."""
        failure.__cause__ = cause
        if self._failure is None:
            self._failure = failure
            log.error("connection.failed", extra={"fields": {"name": self.name, "reason": str(failure)}})
        self._failed.set()
        for callback in self._on_failure:
            callback(failure)

    # ---- what the client library tells us

    async def heard_error(self, error: Exception) -> None:
        """Take an error that the library could not raise anywhere."""
        text = str(error)
        if "permissions violation" in text:
            denial = PermissionDenied(f"{text.removeprefix('nats: ')}; check this user's permissions")
            self._answers.denied(denial)
            if not any(map(denial.is_about, self._risked)):
                self.fail(denial)
        elif self._told != (reason := text or repr(error)):  # the library reports each failed try
            self._told = reason
            log.warning("connection.troubled", extra={"fields": {"name": self.name, "reason": reason}})

    async def heard_disconnect(self) -> None:
        self._up.clear()
        self._answers.link_broke()
        self._call(self._on_disconnect)
        task = asyncio.current_task()
        # the library reconnects in this task: if it dies, the link never comes back
        if task is not None and not self._is_closing:
            task.add_done_callback(self._reconnecting_ended)

    async def heard_reconnect(self) -> None:
        self._told = ""
        self._take_memory()
        self._up.set()
        log.info("connection.resumed", extra={"fields": {"name": self.name}})
        self._call(self._on_reconnect)

    async def heard_close(self) -> None:
        self._up.clear()
        if self._is_closing:
            return
        reason = self.client.last_error or "no reason given"
        self.fail(ConnectionLost(f"the client closed the connection for good: {reason}; restart the process"))
        self._up.set()  # a task that waits for the link must learn that it will not come

    def opened(self) -> None:
        """Take the link into use after the first connect."""
        self._answers = answers = PendingReplies(self.new_inbox())
        self.listen(answers.pattern, lambda *raw: answers.heard(Message(*raw)))
        self.is_open = True
        self._told = ""
        self._take_memory()
        self._up.set()

    async def close(self) -> None:
        """Flush and close. Requests in flight end with OutcomeUnknown."""
        self._is_closing = True
        with anyio.move_on_after(CLOSE_S, shield=True):
            await self.client.close()

    def _take_memory(self) -> None:
        if self.client.memory != self._memory:
            self._memory, self._memory_since_s = self.client.memory, monotonic_s()
            self.is_clustered = self._memory.startswith(CLUSTER)

    def _call(self, callbacks: Iterable[Callable[[], None]]) -> None:
        for callback in callbacks:
            try:
                callback()
            except Exception as error:  # else it would end the library's reconnecting
                self.fail(StreamError(f"a callback of the connection failed: {error!r}"), cause=error)

    def _reconnecting_ended(self, task: "asyncio.Task[Any]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._is_closing:
            self.fail(ConnectionLost(f"reconnecting failed: {error!r}; restart the process"), cause=error)

    def _raise_if_closed(self) -> None:
        if self.client.is_closed:
            raise ConnectionLost("the connection is closed")


@asynccontextmanager
async def connect(
    url: str,
    *,
    name: str,
    namespace: Namespace | None = None,
    credentials: Credentials | None = None,
    connect_timeout_s: float = 10.0,
) -> AsyncIterator[Connection]:
    """Connect, and close at the end of the block. `url` may list several servers of one cluster, separated by commas.

    Raises Disconnected if no server answers in time, PermissionDenied if the server refuses the login.
    """
    if version := other_version():
        log.warning("connection.other_library", extra={"fields": {"nats_py": version, "made_for": MADE_FOR}})
    client = WireClient()
    connection = Connection(client, name=name, namespace=namespace or Namespace())
    low_s, high_s = RECONNECT_S
    troubles: list[Exception] = []

    async def heard_error(error: Exception) -> None:
        if not connection.is_open:
            troubles.append(error)
            _raise_if_login_refused(error, url)
        await connection.heard_error(error)

    try:
        try:
            async with asyncio.timeout(connect_timeout_s):
                await client.connect(
                    url.split(","),
                    name=name,
                    error_cb=heard_error,
                    disconnected_cb=connection.heard_disconnect,
                    reconnected_cb=connection.heard_reconnect,
                    closed_cb=connection.heard_close,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=low_s + (high_s - low_s) * secrets.randbelow(1000) / 1000,  # type: ignore[arg-type] # seconds to sleep, a float works
                    ping_interval=PING_INTERVAL_S,
                    **(credentials or Credentials()).options(),
                )
        except TimeoutError:
            raise Disconnected(_unreachable(url, connect_timeout_s, troubles)) from None
        if not client.is_connected:  # the library takes any line but PONG or -ERR for a welcome
            raise Disconnected(_unreachable(url, connect_timeout_s, troubles))
        connection.opened()
        yield connection
    finally:
        await connection.close()


def _raise_if_login_refused(error: Exception, url: str) -> None:
    if "authorization" in str(error).lower() or "authentication" in str(error).lower():
        raise PermissionDenied(f"{shown_url(url)} refused the login: {error}; check the credentials") from error


def _unreachable(url: str, waited_s: float, troubles: list[Exception]) -> str:
    last = f": {troubles[-1]}" if troubles and str(troubles[-1]) else ""
    return f"no connection to {shown_url(url)} within {waited_s} s{last}; is a server running there?"


def _decoded(subject: str, answer: Message) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(answer.payload, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise MalformedMessage(f"{subject}: the answer is no JSON object: {error}") from error
    if "error" in decoded:
        raise refusal(decoded["error"], subject=subject)
    return decoded


def _outcome(subject: str, answer: Message) -> dict[str, Any] | StreamError:
    if answer.status == 503:
        return no_responders(subject)
    try:
        return _decoded(subject, answer)
    except StreamError as error:
        return error
