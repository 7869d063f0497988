"""Sends requests to a service of the nodes, and returns replies and errors in the client's terms.

If a reply is lost, or no node takes the request, the client sends it again until the caller's time is over. A request
that does more when it is repeated is sent again only if no node has begun it.

One of several nodes may be paused while the server still routes requests to it. So after a moment of silence the client
asks all nodes which of them has the request. If a node works on it, the client waits for its reply. If none does, the
client sends the request to a live node, and the first reply to any try counts. A node that wakes does not begin
requests that were sent to others meanwhile (streams/micro.py).
"""

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from itertools import count
from typing import NamedTuple, TypeVar

import anyio
import msgspec

from penstock.errors import NotAccepted, PenstockError, Stale, Timeout, Unavailable
from penstock.sdk.client_forms import decode, encode
from streams.backoff import Backoff
from streams.calls import CALL_HEADER
from streams.chance import chance
from streams.clock import monotonic_s
from streams.errors import (
    ConnectionLost,
    Disconnected,
    NoStream,
    OutcomeUnknown,
    PermissionDenied,
    StoreFailed,
    StoreFull,
    StreamError,
    no_responders,
)
from streams.link.connection import Connection
from streams.link.frames import Message
from streams.link.store_health import RESTART
from streams.messages.jobs import AGE_HEADER, MEMORY_HEADER
from streams.micro import QUESTION_HEADER, WHO, Has

__all__ = ["Answered", "JudgedByDesk", "ServiceClient", "client_error"]

_T = TypeVar("_T")

TRY_S = 5.0
"""Seconds that one try waits for its reply, beyond the wait that the request itself names."""
SHORTEST_TRY_S = 0.05
SILENT_S = 0.4
"""Seconds of silence after which the client asks which node has the request."""
AT_IT_S = 5.0
"""The same after a node has answered that it works on the request."""
PREFERRED_S = 10.0
"""Seconds for which the node that answered is preferred to the node that was silent."""
READS = {"check", "count", "export", "history", "items", "list", "peek", "plan", "report"} | {
    *("routing", "shards", "sheet", "show", "tasks", "topics", "why")
}
"""Endpoints that change nothing, of all services. If no reply came, there is nothing that may have been done. The table
of operations says the same, but a client would load every door with it. `test_operations.py` compares the two."""
NOBODY = 503
"""The server's status if no client subscribes to the subject."""
LATE_S = 30.0
"""Seconds for which a late reply is awaited, if it has to be taken back."""
AGAIN = Backoff(growth="exponential", base_ms=10, cap_ms=1_500, spread=2.0)
"""The waits between two tries."""


class JudgedByDesk(Exception):
    """A client that stores jobs by itself cannot judge one of these, and has stored none: a desk adds them."""


class Answered(NamedTuple):
    """A reply. `is_repeated`: an earlier try may have been done, and its reply was lost."""

    payload: bytes
    is_repeated: bool


class _Refusal(msgspec.Struct):
    """The payload of an error."""

    code: str | int = ""
    reason: str = ""
    field: str = ""


class _Told(msgspec.Struct):
    error: _Refusal = msgspec.field(default_factory=_Refusal)


class ServiceClient:
    """Sends requests to one service, and repeats them."""

    def __init__(self, connection: Connection, service: str, timeout_s: float) -> None:
        self.connection = connection
        self.subject = cache(partial(connection.namespace.api, service))
        """Returns the subject of an endpoint."""
        self._timeout_s = timeout_s
        self._name, self._numbers = secrets.token_hex(8), count()
        self._preferred, self._preferred_until_s = "", 0.0

    @property
    def max_payload(self) -> int:
        return self.connection.max_payload

    async def request(
        self,
        endpoint: str,
        payload: bytes,
        *,
        wait_s: float = 0.0,
        timeout_s: float | None = None,
        on_late: Callable[[bytes], None] | None = None,
        begun: "BegunRequest | None" = None,
        is_once: bool = False,
    ) -> Answered:
        """Send a request and return its reply. `wait_s`: how long the request allows the service to wait. `on_late`
        gets the replies to other tries, if they come. `begun`: this request, begun before with the client's own time.
        `is_once`: it is not sent again once a node may have begun it.

        Raises NotAccepted, Stale, Timeout, Unavailable."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        question = begun or BegunRequest(self, self.subject(endpoint), payload, monotonic_s() + limit_s + wait_s)
        try:
            return Answered(await self._answer(question, limit_s, wait_s, is_once=is_once), question.is_repeated)
        finally:
            question.close(on_late)

    async def ask(
        self, endpoint: str, question: object, form: type[_T], *, wait_s: float = 0.0, is_once: bool = False
    ) -> _T:
        """Do as `request` with a question that JSON can hold, and return the reply in this form."""
        return decode((await self.request(endpoint, encode(question), wait_s=wait_s, is_once=is_once)).payload, form)

    def begin(self, endpoint: str, payload: bytes) -> "BegunRequest":
        """Send a request at once, if the link is there, for a `request` that follows and waits for its reply."""
        question = BegunRequest(self, self.subject(endpoint), payload, monotonic_s() + self._timeout_s)
        question.ask_now()
        return question

    async def _answer(self, question: "BegunRequest", limit_s: float, wait_s: float, *, is_once: bool) -> bytes:
        for failures in count(1):
            try:
                return await question.answer((limit_s if is_once else TRY_S) + wait_s)
            except NotAccepted as refused:
                refused.is_repeated = question.is_repeated
                raise
            except Timeout as lost:
                question.is_repeated, failure = True, PenstockError(str(lost))
            except Unavailable as busy:
                failure = busy
                if isinstance(busy.__cause__, NoStream):
                    await self._leave_if_alone()
            self._preferred = ""
            rest_s = AGAIN.wait_s(failures, chance=chance())
            is_over = monotonic_s() + rest_s + SHORTEST_TRY_S >= question.deadline_s
            if is_over or (is_once and question.is_repeated):
                if question.is_repeated:
                    why = f"{question.subject}: no answer within {limit_s + wait_s:g} s" if is_over else failure
                    may = "" if question.subject.rpartition(".")[2] in READS else "; it may have been done"
                    raise Timeout(f"{why}{may}") from failure
                raise failure
            await anyio.sleep(rest_s)
        raise AssertionError("count() does not end")

    async def _leave_if_alone(self) -> None:
        """Leave the server if no node has answered there for long: it may be cut off from those that have nodes."""
        if self.connection.contact.alone(monotonic_s()) and self.connection.can_leave:
            await self.connection.leave("no node answers there")

    # ---- for its questions, and for what is sent without waiting

    def fresh_name(self) -> str:
        """Return a name for one try of one request."""
        return f"{self._name}.{next(self._numbers)}"

    @property
    def preferred(self) -> str:
        """Return the instance that gets the next request first. Empty: any instance."""
        return self._preferred if monotonic_s() < self._preferred_until_s else ""

    def prefer(self, instance: str) -> None:
        self._preferred, self._preferred_until_s = instance, monotonic_s() + PREFERRED_S

    def post(self, endpoint: str, payload: bytes) -> None:
        """Send a request once, without waiting for the reply."""
        with suppress(StreamError):
            answer = self.connection.send_request_now(self.subject(endpoint), payload)
            asyncio.get_running_loop().call_later(LATE_S, answer.cancel)


class BegunRequest:
    """One request with all its tries. `is_repeated`: an earlier try may have been done, and its reply was lost."""

    def __init__(self, service: ServiceClient, subject: str, payload: bytes, deadline_s: float) -> None:
        self.subject = subject
        self.deadline_s = deadline_s
        self.is_repeated = False
        self._service = service
        self._connection = service.connection
        self._payload = payload
        self._began_s, self._memory = monotonic_s(), service.connection.memory
        self._tries: set[asyncio.Future[Message]] = set()
        self._name, self._call = "", ""

    def ask_now(self) -> None:
        """Send the first try, if the link is there. It does no harm if nobody waits for it."""
        with suppress(StreamError):  # what forbids it now is raised by `answer`
            if self._connection.is_connected:
                self._name = self._send(self._service.preferred)
                for each in self._tries:
                    each.add_done_callback(_look_at)

    async def answer(self, try_s: float) -> bytes:
        """Send the request and return the first reply. If the first instance has not got it, send it to another
        instance too. Raises the errors of `ServiceClient.request`, and Timeout after `try_s` or when the link broke."""
        until_s = min(self.deadline_s, monotonic_s() + try_s)
        try:
            name, self._name = self._name, ""
            name, silent_s = name or await self._ask(self._service.preferred), SILENT_S
            while (message := await self._heard(min(until_s, monotonic_s() + silent_s))) is None:
                if monotonic_s() >= until_s:
                    raise Timeout(f"{self.subject}: no answer within {try_s:g} s")
                has = await self._who(name)
                if has is not None:
                    self._connection.contact.answered()
                if has is not None and not has.is_at_it:
                    self.is_repeated = True
                    self._service.prefer(has.id)
                    name, silent_s = await self._ask(has.id), SILENT_S
                else:
                    silent_s = AT_IT_S if has is not None else min(AT_IT_S, 2 * silent_s)
        except StreamError as error:
            raise client_error(error) from error
        self._connection.contact.answered()  # by a refusal, too
        if "Nats-Service-Error-Code" in message.headers:
            raise _error_of(message)
        return message.payload

    def close(self, on_late: Callable[[bytes], None] | None) -> None:
        """Stop waiting for replies. Late ones go to `on_late`."""
        for each in self._tries:
            if on_late is not None:
                each.add_done_callback(partial(_tell_late, on_late))
                asyncio.get_running_loop().call_later(LATE_S, each.cancel)
            elif not each.cancel():
                each.exception()  # looked at, so that nobody complains

    async def _ask(self, instance: str) -> str:
        """Send one more try, to this instance or to any. Return the try's name."""
        await self._connection.connected_by(self.deadline_s)
        return self._send(instance)

    def _send(self, instance: str) -> str:
        name = self._service.fresh_name()
        headers = {QUESTION_HEADER: name}
        if self._call:
            headers[CALL_HEADER] = self._call
        self._call = self._call or name
        if self.is_repeated and self._memory:
            age_ms = round((monotonic_s() - self._began_s) * 1000)
            headers |= {AGE_HEADER: str(age_ms), MEMORY_HEADER: self._memory}
        subject = f"{self.subject}.{instance}" if instance else self.subject
        self._tries.add(self._connection.send_request_now(subject, self._payload, headers=headers))
        return name

    async def _heard(self, until_s: float) -> Message | None:
        """Return the first reply to any try, None if none came in time. Raises StreamError if a try failed."""
        left_s = max(0.0, until_s - monotonic_s())
        done, _ = await asyncio.wait(self._tries, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        failure: StreamError | None = None
        for each in done:
            self._tries.discard(each)
            error = each.exception()
            if error is None and each.result().status != NOBODY:
                self._tries |= done - {each}
                return each.result()
            failure = error if isinstance(error, StreamError) else failure or no_responders(self.subject)
        if failure is not None:
            raise failure
        return None

    async def _who(self, name: str) -> Has | None:
        """Return the instance that has the try of this name, otherwise a live instance. None: no instance answers, or a
        reply to a try came meanwhile."""
        subject = f"{self.subject.rpartition('.')[0]}.{WHO}"
        try:
            until_s = monotonic_s() + SILENT_S
            who = await self._connection.send_request(subject, name.encode(), deadline_s=until_s)
        except StreamError:
            return None
        try:
            await asyncio.wait({who, *self._tries}, timeout=2 * SILENT_S, return_when=asyncio.FIRST_COMPLETED)
            if not who.done() or any(each.done() for each in self._tries):
                return None
            return msgspec.json.decode(who.result().payload, type=Has)
        except (StreamError, msgspec.MsgspecError):
            return None  # the link broke, or nobody there knows this question
        finally:
            if not who.cancel():
                who.exception()


def _look_at(answer: "asyncio.Future[Message]") -> None:
    """Look at an error that nobody may wait for."""
    if not answer.cancelled():
        answer.exception()


def _tell_late(on_late: Callable[[bytes], None], answer: "asyncio.Future[Message]") -> None:
    if answer.cancelled() or answer.exception() is not None:
        return
    message = answer.result()
    if message.status != NOBODY and "Nats-Service-Error-Code" not in message.headers:
        on_late(message.payload)


def _error_of(answer: Message) -> PenstockError:
    """Return the exception for an error of the service."""
    headers = answer.headers
    try:
        refusal = msgspec.json.decode(answer.payload, type=_Told).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        refusal = _Refusal()
    number, reason = headers["Nats-Service-Error-Code"], refusal.reason or headers.get("Nats-Service-Error", "refused")
    if number in ("500", "504"):
        return Timeout(reason)
    if number == "503":
        return Unavailable(reason)
    if refusal.code == "stale":
        return Stale(reason)
    return NotAccepted(reason, code=str(refusal.code or number), field=refusal.field)


def client_error(error: StreamError) -> PenstockError:
    """Return the client's exception for an error of the broker layer."""
    match error:
        case OutcomeUnknown():
            return Timeout(str(error))
        case NoStream():
            return Unavailable("no node answers; start one with the role `desk` (penstock up), in this namespace")
        case Disconnected() | ConnectionLost():
            return Unavailable(str(error))
        case StoreFailed():
            return Unavailable(f"{error.description}; nothing was done: {RESTART}")
        case StoreFull():
            return Unavailable("the server's store is full, and nothing was stored: make room, or raise its limits")
        case PermissionDenied():
            return NotAccepted(str(error), code="forbidden")
        case _:
            return NotAccepted(str(error), code="bad")
