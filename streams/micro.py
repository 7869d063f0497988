"""A discoverable service: requests in, answers out, by the protocol of NATS micro services (ADR-32 of NATS).

Each instance answers `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS`, requested from all, by name, or by name and id, so that
`nats micro ls`, `info` and `stats` show it. All instances listen to an endpoint's subject in the queue group `q`: one
of them gets each request. So more nodes serve more requests, and no client has to know how many there are.

Each request in hand has a task, so a request that waits long delays no other. At most `Endpoint.most` of
an endpoint and `MOST_BYTES` of all are in hand. A request beyond that gets an error (`BUSY`) at once, and is certainly
not done. An error carries the headers `Nats-Service-Error` and `Nats-Service-Error-Code`, and the same in JSON as its
payload, for people at `nats req`.

**Who has a request.** One instance of several may stand still while the server goes on giving it requests. So a request
may carry a name (`QUESTION_HEADER`). A client that gets no answer asks all instances on `who` which of them has that
request. The instance that works on it says so at once. The others say a moment later that they live, and the client can
send the request to each alone on `<subject>.<id>`. An instance that has said this, or was asked while it stood still,
no longer begins that request: for it the request is over (ADR 33).

**Which requests are answered.** We answer with our own rights, so a forged reply subject could have us write into a
stream, or ack another client's message. So we answer only to inboxes, subjects that start with `_`. A request with
another reply subject, or with none, is not done, and counts as an error.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from streams.calls import CALL_HEADER, serving
from streams.clock import monotonic_s
from streams.errors import StreamError, TooLarge
from streams.link.connection import Connection
from streams.link.frames import Message, check_subject, publish_frame
from streams.subjects import check_token

log = logging.getLogger(__name__)

QUEUE = "q"
MOST_BYTES = 64 * 1024 * 1024
"""Bytes of requests in hand, all endpoints together: 64 of the largest that the server lets through."""
BUSY = 503
QUESTION_HEADER = "Penstock-Question"
"""Header with the name of a request. No other request has it, and each try of a request has a name of its own."""
WHO = "who"
"""The last token of the subject on which clients ask all instances."""
ANYBODY = "?"
"""In place of a request's name: whoever lives answers at once."""
LIVES_AFTER_S = 0.2
"""Seconds by which the other instances answer later than the one that has the request."""
LONGEST_QUESTION = 64
MOST_RESTING = 64
"""Tasks that wait for the next request. To begin one costs more than most requests need."""
MOST_OVER = 10_000
"""Names of requests that are no longer begun: so many are remembered, the latest."""
_LEAVE_S = 1.0
_LONGEST_REASON = 400


class RequestRefused(Exception):
    """Raised by an endpoint to answer with an error. `code` as in HTTP. `payload` replaces the usual JSON."""

    def __init__(self, code: int, reason: str, payload: bytes | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.payload = payload


Answer = Callable[[Message], Awaitable[bytes]]
"""Returns the answer's payload, or raises RequestRefused. Any other error is answered with code 500 and logged."""


class Has(msgspec.Struct, frozen=True):
    """An instance lives. `is_at_it`: it works on the request. `memory` and `memory_age_s`: as its connection has them,
    for a client that was not there for so long."""

    id: str
    is_at_it: bool = False
    memory: str = ""
    memory_age_s: float = 0.0


class Endpoint(NamedTuple):
    """One subject that the service answers. `most`: requests in hand at a time, waiting ones included. `is_undone`:
    when it is cancelled, nothing was done."""

    name: str
    subject: str
    answer: Answer
    most: int = 256
    metadata: Mapping[str, str] = {}
    is_undone: bool = False


class _Desk:
    """An endpoint with its figures. The names are the protocol's."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.in_hand = 0
        self.requests = 0
        self.errors = 0
        self.last_error = ""
        self.took_ns = 0

    def error(self, refused: RequestRefused) -> tuple[bytes, Mapping[str, str]]:
        """Count an error, and return its payload and headers."""
        self.count_error(refused.reason)
        payload = refused.payload
        if payload is None:
            payload = msgspec.json.encode({"error": {"code": refused.code, "reason": refused.reason[:_LONGEST_REASON]}})
        return payload, {
            "Nats-Service-Error": self.last_error,
            "Nats-Service-Error-Code": str(refused.code),
        }

    def count_error(self, reason: str) -> None:
        self.errors += 1
        self.last_error = header_text(reason)

    def told(self) -> dict[str, object]:
        endpoint = self.endpoint
        return {"name": endpoint.name, "subject": endpoint.subject, "queue_group": QUEUE}

    def info(self) -> dict[str, object]:
        return {**self.told(), "metadata": dict(self.endpoint.metadata)}

    def stats(self) -> dict[str, object]:
        return {
            **self.told(),
            "num_requests": self.requests,
            "num_errors": self.errors,
            "last_error": self.last_error,
            "processing_time": self.took_ns,
            "average_processing_time": self.took_ns // max(1, self.requests),
            "data": {"in_hand": self.in_hand, "most": self.endpoint.most},
        }


class Service:
    """One instance of a service. `name` is a token that all instances share. `version` is semantic (`1.2.3`). `who`:
    the subject on which clients ask all instances who has a request."""

    def __init__(
        self,
        connection: Connection,
        *,
        name: str,
        version: str,
        about: str,
        endpoints: Sequence[Endpoint],
        metadata: Mapping[str, str] | None = None,
        who: str = "",
    ) -> None:
        self.id = secrets.token_hex(11)
        self._connection = connection
        self._name = check_token("service", name)
        self._about = about
        self._who = {"name": name, "id": self.id, "version": version, "metadata": dict(metadata or {})}
        self._desks = [_Desk(endpoint) for endpoint in endpoints]
        self._started = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        self._bytes = 0
        self._begun: asyncio.Queue[tuple[_Desk, Message] | None] = asyncio.Queue()
        self._resting: list[asyncio.Future[tuple[_Desk, Message] | None]] = []
        self._whose = who
        self._at_it: dict[str, anyio.CancelScope | None] = {}
        self._over: dict[str, None] = {}
        self._is_leaving = False
        self._standstill = connection.standstill

    async def serve(self, stop: anyio.Event, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Answer until `stop` is set and all requests in hand are answered. Started once the server sends us requests.

        After `stop` the server sends new requests to other instances. If it is cancelled, requests in hand stay without
        an answer, and their clients do not know the outcome."""
        sids: list[int] = []
        who = [self._connection.listen(self._whose, self._asked_who)] if self._whose else []
        self._is_leaving = False
        try:
            with self._standstill.watching():
                async with anyio.create_task_group() as hands:
                    hands.start_soon(self._begin, hands)
                    sids += self._listen()
                    await self._connection.flush()
                    task_status.started()
                    await stop.wait()
                    self._is_leaving = True
                    await self._hear_the_rest(sids)
                    self._begun.put_nowait(None)
                    for rest in self._resting:
                        rest.set_result(None)
        finally:
            self._begun, self._resting = asyncio.Queue(), []
            for sid in (*sids, *who):
                self._connection.unlisten(sid)

    def _listen(self) -> list[int]:
        verbs = {"PING": self._ping, "INFO": self._info, "STATS": self._stats}
        names = ("", f".{self._name}", f".{self._name}.{self.id}")
        listen = self._connection.listen
        return [
            *(listen(f"$SRV.{verb}{name}", self._told_by(tell)) for verb, tell in verbs.items() for name in names),
            *(listen(desk.endpoint.subject, self._taken_by(desk), QUEUE) for desk in self._desks),
            *(
                listen(f"{desk.endpoint.subject}.{self.id}", self._taken_by(desk))
                for desk in self._desks
                if self._whose
            ),
        ]

    async def _hear_the_rest(self, sids: Sequence[int]) -> None:
        """Have the server send nothing more, and answer what it has sent already."""
        for sid in sids:
            self._connection.client.stop_listening(sid)
        await self._connection.client.round_trip(_LEAVE_S)

    # ---- who is there

    def _told_by(self, tell: Callable[[], dict[str, object]]) -> Callable[[bytes, bytes, bytes, bytes | None], None]:
        def heard(_subject: bytes, reply: bytes, _payload: bytes, _block: bytes | None) -> None:
            if is_inbox(reply):
                self._send_now(reply.decode(), msgspec.json.encode(tell()))

        return heard

    def _ping(self) -> dict[str, object]:
        return {"type": "io.nats.micro.v1.ping_response", **self._who}

    def _info(self) -> dict[str, object]:
        endpoints = [desk.info() for desk in self._desks]
        return {
            "type": "io.nats.micro.v1.info_response",
            **self._who,
            "description": self._about,
            "endpoints": endpoints,
        }

    def _stats(self) -> dict[str, object]:
        endpoints = [desk.stats() for desk in self._desks]
        return {
            "type": "io.nats.micro.v1.stats_response",
            **self._who,
            "started": self._started,
            "endpoints": endpoints,
        }

    # ---- who has a question

    def _asked_who(self, _subject: bytes, reply: bytes, payload: bytes, _block: bytes | None) -> None:
        """Say that we work on a request. If not, the request is over for us, and we say that we live."""
        if not is_inbox(reply) or not 0 < len(payload) <= LONGEST_QUESTION:
            return
        question, to = payload.decode("ascii", "replace"), reply.decode()
        if question == ANYBODY:
            self._send_now(to, self._lives())
            return
        is_at_it, scope = question in self._at_it, self._at_it.get(question)
        if scope is not None and self._standstill.lasted_s():
            scope.cancel()  # by now the client has asked another instance
            is_at_it = False
        if is_at_it:
            self._send_now(to, msgspec.json.encode(Has(self.id, is_at_it=True)))
            return
        self._over[question] = None
        if len(self._over) > MOST_OVER:
            del self._over[next(iter(self._over))]
        if not self._is_leaving:
            asyncio.get_running_loop().call_later(LIVES_AFTER_S, self._send_now, to, self._lives())

    def _lives(self) -> bytes:
        memory, age_s = self._connection.memory, round(self._connection.memory_age_s, 1)
        return msgspec.json.encode(Has(self.id, memory=memory, memory_age_s=age_s))

    async def _is_over(self, question: str) -> bool:
        """Return whether a request must not be begun. One that was read after a standstill may be over: its client has
        asked who has it, and we read that before the server's answer to us."""
        if question and self._standstill.lasted_s():
            await self._connection.client.round_trip(_LEAVE_S)
        return question in self._over

    # ---- requests

    def _taken_by(self, desk: _Desk) -> Callable[[bytes, bytes, bytes, bytes | None], None]:
        def heard(subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
            desk.requests += 1
            if is_inbox(reply):
                self._take(desk, Message(subject, reply, payload, block))
            else:
                desk.count_error("a request that asks for no answer, or for one elsewhere than to an inbox; not done")

        return heard

    def _take(self, desk: _Desk, request: Message) -> None:
        """Begin a request, or answer at once why not. Called while the socket is read."""
        if desk.in_hand >= desk.endpoint.most or self._bytes > MOST_BYTES:
            name = desk.endpoint.name
            reason = f"{name}: {desk.in_hand} requests are in hand already; not done, ask again later"
            self._send_now(request.reply, *desk.error(RequestRefused(BUSY, reason)))
            return
        desk.in_hand += 1
        self._bytes += len(request.payload)
        taken, rest = (desk, request), self._resting.pop() if self._resting else None
        if rest is None or rest.done():  # done: the service is being cancelled
            self._begun.put_nowait(taken)
        else:
            rest.set_result(taken)

    async def _begin(self, hands: TaskGroup) -> None:
        """Start a task for each request that no resting task takes. The socket's callbacks start none: where sniffio is
        installed, anyio asks it for the loop, and it knows the loop in tasks alone."""
        while (taken := await self._begun.get()) is not None:
            hands.start_soon(self._work, taken)

    async def _work(self, taken: "tuple[_Desk, Message] | None") -> None:
        """Handle a request, and others after it."""
        while taken is not None:
            await self._handle(*taken)
            taken = None
            if len(self._resting) < MOST_RESTING and not self._is_leaving:
                rest = asyncio.get_running_loop().create_future()
                self._resting.append(rest)
                taken = await rest

    async def _handle(self, desk: _Desk, request: Message) -> None:
        began_s = monotonic_s()
        question = request.headers.get(QUESTION_HEADER, "")
        try:
            if await self._is_over(question):
                return
            self._at_it[question] = None
            with serving(request.headers.get(CALL_HEADER, question)):
                if not desk.endpoint.is_undone:
                    await self._answer(desk, request)
                    return
                with anyio.CancelScope() as self._at_it[question]:
                    await self._answer(desk, request)
        finally:
            self._at_it.pop(question, None)
            desk.in_hand -= 1
            self._bytes -= len(request.payload)
            desk.took_ns += round((monotonic_s() - began_s) * 1e9)

    async def _answer(self, desk: _Desk, request: Message) -> None:
        try:
            await self._send(request.reply, await desk.endpoint.answer(request))
        except RequestRefused as refused:
            await self._send(request.reply, *desk.error(refused))
        except TooLarge as error:
            reason = f"done, but the answer is too large: {error.description}; ask for less"
            await self._send(request.reply, *desk.error(RequestRefused(413, reason)))
        except Exception as error:  # one request must not end the service's loop
            log.error("service.crashed", exc_info=error, extra={"fields": {"endpoint": desk.endpoint.name}})
            reason = f"{desk.endpoint.name}: failed inside ({type(error).__name__}); whether it was done is unknown"
            await self._send(request.reply, *desk.error(RequestRefused(500, reason)))

    async def _send(self, reply: str, payload: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send an answer. If the link is gone, the client finds out by itself. Raises TooLarge."""
        try:
            await self._connection.publish_core(reply, payload, headers=headers)
        except TooLarge:
            raise
        except StreamError as error:
            log.debug("service.not_answered", extra={"fields": {"reply": reply, "error": str(error)}})

    def _send_now(self, reply: str, payload: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send an answer from code that cannot wait. It is dropped while so much waits already that memory would
        grow."""
        client = self._connection.client
        if client.is_clogged:
            return
        with suppress(StreamError):
            client.send(
                publish_frame(check_subject(reply), "", self._connection.checked(reply, payload, headers), payload)
            )


def is_inbox(reply: bytes) -> bool:
    """Return whether a reply subject may be answered: `_INBOX.…`, `_R_.…` and the like."""
    return reply.startswith(b"_") and reply.isascii()


def header_text(reason: str) -> str:
    """Return a reason as a header can carry it: printable ASCII, bounded, no blanks at the ends."""
    text = "".join(sign if sign.isascii() and sign.isprintable() else "?" for sign in reason[:_LONGEST_REASON])
    return text.strip() or "no reason given"
