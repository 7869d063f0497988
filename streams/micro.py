"""A discoverable service: requests in, answers out, by the protocol of NATS micro services (ADR-32 of NATS).

Each instance answers `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS`, asked of all, by name, or by name and id, so that
`nats micro ls`, `info` and `stats` show it. An endpoint's subject is listened to in the queue group `q`: of all
instances one gets each request, so nodes add up, and nobody has to know how many there are.

Requests are answered at the same time as they come, each in a task of its own, so that one that waits long holds up no
other. At most `Endpoint.most` of an endpoint and `MOST_BYTES` of all are in hand; what comes beyond is answered at once
with an error (`BUSY`), certainly not done. An error carries the headers `Nats-Service-Error` and
`Nats-Service-Error-Code`, and the same in JSON as its payload, for people at `nats req`.

**Who has a question.** One instance of several may stand still, and the server goes on giving it questions. So a
question may carry a name (`QUESTION_HEADER`), and whoever hears nothing asks all instances on `who` which of them has
that one. The instance that is at it says so at once. The others say a moment later that they live, and each can be
asked by itself on `<subject>.<id>`. Who has said so, or was asked while it stood still, does not begin with that
question any more: it is over (ADR 33).

**Who is answered.** We answer with our own rights, so a forged reply subject could have us write into a stream, or ack
somebody's message. So only inboxes are answered, subjects that start with `_`; what asks to be answered elsewhere, or
not at all, is not done, and counted as an error.
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

from streams.clock import monotonic_s
from streams.connection import Connection
from streams.errors import StreamError, TooLarge
from streams.frames import Message, check_subject, publish_frame
from streams.standstill import Standstill
from streams.subjects import check_token

log = logging.getLogger(__name__)

QUEUE = "q"
MOST_BYTES = 64 * 1024 * 1024
"""Of requests in hand, all endpoints together: 64 of the largest that the server lets through."""
BUSY = 503
QUESTION_HEADER = "Penstock-Question"
"""Carries the name of a question: the same in no other question, nor in another try of it."""
WHO = "who"
"""The last token of the subject on which all instances are asked."""
LIVES_AFTER_S = 0.2
"""How much later than the one that has the question the others answer."""
LONGEST_QUESTION = 64
MOST_OVER = 10_000
"""Names of questions that are not begun any more, the latest."""
_LEAVE_S = 1.0
_LONGEST_REASON = 400


class RequestRefused(Exception):
    """What an endpoint raises to answer with an error. `code` as in HTTP; `payload` in place of the usual JSON."""

    def __init__(self, code: int, reason: str, payload: bytes | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.payload = payload


Answer = Callable[[Message], Awaitable[bytes]]
"""Returns the answer's payload, or raises RequestRefused. What else it raises is answered with code 500 and logged."""


class Has(msgspec.Struct, frozen=True):
    """An instance lives, and whether it is at the question."""

    id: str
    is_at_it: bool = False


class Endpoint(NamedTuple):
    """One subject that is answered. `most`: requests in hand at a time; each one that waits counts. `is_undone`: when
    it is cancelled, nothing was done."""

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
    """One instance of a service. `name` is shared by all instances and a token; `version` is semantic (`1.2.3`). `who`:
    the subject on which all are asked who has a question."""

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
        self._hands: TaskGroup | None = None
        self._whose = who
        self._at_it: dict[str, anyio.CancelScope | None] = {}
        self._over: dict[str, None] = {}
        self._is_leaving = False
        self._standstill = Standstill()

    async def serve(self, stop: anyio.Event, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Answer until `stop` is set and what is in hand is answered. Started once the server sends us requests.

        After `stop` the server sends what comes to other instances. Cancelled in the middle, what is in hand stays
        without an answer: its outcome is unknown to whoever asked."""
        sids: list[int] = []
        who = [self._connection.listen(self._whose, self._asked_who)] if self._whose else []
        self._is_leaving = False
        try:
            with self._standstill.watching():
                async with anyio.create_task_group() as hands:
                    self._hands = hands
                    sids += self._listen()
                    await self._connection.flush()
                    task_status.started()
                    await stop.wait()
                    self._is_leaving = True
                    await self._hear_the_rest(sids)
        finally:
            self._hands = None
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
        """Have the server send nothing more; what it has sent us already is ours to answer."""
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
        """Say that we are at a question. If we are not, it is over for us, and we say that we live."""
        if not is_inbox(reply) or not 0 < len(payload) <= LONGEST_QUESTION:
            return
        question, to = payload.decode("ascii", "replace"), reply.decode()
        is_at_it, scope = question in self._at_it, self._at_it.get(question)
        if scope is not None and self._standstill.lasted_s():
            scope.cancel()  # by now another has been asked
            is_at_it = False
        if is_at_it:
            self._send_now(to, msgspec.json.encode(Has(self.id, is_at_it=True)))
            return
        self._over[question] = None
        if len(self._over) > MOST_OVER:
            del self._over[next(iter(self._over))]
        if not self._is_leaving:
            lives = msgspec.json.encode(Has(self.id))
            asyncio.get_running_loop().call_later(LIVES_AFTER_S, self._send_now, to, lives)

    async def _is_over(self, question: str) -> bool:
        """Return whether a question is not to be begun. What was read after a standstill may be: whoever asked it has
        asked who has it, and that is read before the server's answer to us."""
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
        """Begin with a request, or say at once why not. Called while the socket is read."""
        if desk.in_hand >= desk.endpoint.most or self._bytes > MOST_BYTES:
            name = desk.endpoint.name
            reason = f"{name}: {desk.in_hand} requests are in hand already; not done, ask again later"
            self._send_now(request.reply, *desk.error(RequestRefused(BUSY, reason)))
            return
        assert self._hands is not None
        desk.in_hand += 1
        self._bytes += len(request.payload)
        self._hands.start_soon(self._handle, desk, request)

    async def _handle(self, desk: _Desk, request: Message) -> None:
        began_s = monotonic_s()
        question = request.headers.get(QUESTION_HEADER, "")
        try:
            if await self._is_over(question):
                return
            self._at_it[question] = None
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
        except Exception as error:  # the service's loop: one request must not end it
            log.error("service.crashed", exc_info=error, extra={"fields": {"endpoint": desk.endpoint.name}})
            reason = f"{desk.endpoint.name}: failed inside ({type(error).__name__}); whether it was done is unknown"
            await self._send(request.reply, *desk.error(RequestRefused(500, reason)))

    async def _send(self, reply: str, payload: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send an answer. Where the link is gone, whoever asked finds out by themselves. Raises TooLarge."""
        try:
            await self._connection.publish_core(reply, payload, headers=headers)
        except TooLarge:
            raise
        except StreamError as error:
            log.debug("service.not_answered", extra={"fields": {"reply": reply, "error": str(error)}})

    def _send_now(self, reply: str, payload: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send an answer from where nobody can wait; dropped while so much waits already that memory would grow."""
        client = self._connection.client
        if client.is_clogged:
            return
        with suppress(StreamError):
            client.send(
                publish_frame(check_subject(reply), "", self._connection.checked(reply, payload, headers), payload)
            )


def is_inbox(reply: bytes) -> bool:
    """Say whether a reply subject may be answered: `_INBOX.…`, `_R_.…` and the like."""
    return reply.startswith(b"_") and reply.isascii()


def header_text(reason: str) -> str:
    """Return a reason as a header can carry it: printable ASCII, bounded, no blanks at the ends."""
    text = "".join(sign if sign.isascii() and sign.isprintable() else "?" for sign in reason[:_LONGEST_REASON])
    return text.strip() or "no reason given"
