"""Asks a service of the nodes and turns its answer, or what became of the question, into the client's terms.

A question whose answer was lost, or which nobody took, is asked again until the caller's time is over: so only what may
be done twice is asked here.
"""

import secrets
from collections.abc import Mapping
from typing import NamedTuple

import anyio
import msgspec

from penstock.errors import NotAccepted, PenstockError, Stale, Timeout, Unavailable
from streams.clock import monotonic_s
from streams.connection import Connection
from streams.errors import (
    ConnectionLost,
    Disconnected,
    NoStream,
    OutcomeUnknown,
    PermissionDenied,
    StoreFailed,
    StoreFull,
    StreamError,
)
from streams.frames import Message
from streams.job_messages import AGE_HEADER, MEMORY_HEADER

__all__ = ["Answered", "Asker", "told"]

TRY_S = 5.0
"""How long one try waits for its answer, beyond what the question itself may wait."""
SHORTEST_TRY_S = 0.05
PAUSE_S = (0.02, 1.0)
"""First and longest wait before asking again, doubled each time and spread."""


class Answered(NamedTuple):
    """An answer. `is_repeated`: an earlier try may have been done, and its answer lost."""

    payload: bytes
    is_repeated: bool


class _Refusal(msgspec.Struct):
    """What an error's payload says."""

    code: str | int = ""
    reason: str = ""
    field: str = ""


class _Told(msgspec.Struct):
    error: _Refusal = msgspec.field(default_factory=_Refusal)


class Asker:
    """Asks one service, and asks again where that is harmless."""

    def __init__(self, connection: Connection, service: str, timeout_s: float) -> None:
        self._connection = connection
        self._service = service
        self._timeout_s = timeout_s

    @property
    def max_payload(self) -> int:
        return self._connection.max_payload

    async def ask(
        self, endpoint: str, payload: bytes, *, wait_s: float = 0.0, timeout_s: float | None = None
    ) -> Answered:
        """Return the answer. `wait_s`: how long the service may take by our own wish.

        Raises NotAccepted, Stale, Timeout, Unavailable."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        began_s, memory = monotonic_s(), self._connection.memory
        deadline_s = began_s + limit_s + wait_s
        subject = self._connection.namespace.api(self._service, endpoint)
        is_repeated, pause_s = False, PAUSE_S[0]
        while True:
            now_s = monotonic_s()
            age = {AGE_HEADER: str(round((now_s - began_s) * 1000)), MEMORY_HEADER: memory}
            headers = age if is_repeated and memory else None
            try_s = min(deadline_s - now_s, TRY_S + wait_s)
            try:
                return Answered(await self._try(subject, payload, headers, try_s), is_repeated)
            except NotAccepted as refused:
                refused.is_repeated = is_repeated
                raise
            except Timeout as lost:
                is_repeated, failure = True, PenstockError(str(lost))
            except Unavailable as busy:
                failure = busy
            rest_s = pause_s * (0.5 + secrets.randbelow(1000) / 1000)
            if monotonic_s() + rest_s + SHORTEST_TRY_S >= deadline_s:
                if is_repeated:
                    raise Timeout(
                        f"{subject}: no answer within {limit_s + wait_s:g} s; it may have been done"
                    ) from failure
                raise failure
            await anyio.sleep(rest_s)
            pause_s = min(PAUSE_S[1], pause_s * 2)

    async def _try(self, subject: str, payload: bytes, headers: Mapping[str, str] | None, timeout_s: float) -> bytes:
        try:
            answer = await self._connection.request(subject, payload, headers=headers, timeout_s=timeout_s)
        except StreamError as error:
            raise told(error) from error
        if "Nats-Service-Error-Code" in answer.headers:
            raise _error_of(answer)
        return answer.payload


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


def told(error: StreamError) -> PenstockError:
    """Return the broker layer's error in the client's terms."""
    match error:
        case OutcomeUnknown():
            return Timeout(str(error))
        case NoStream():
            return Unavailable("no node answers; start one with the role `desk` (penstock up), in this namespace")
        case Disconnected() | ConnectionLost():
            return Unavailable(str(error))
        case StoreFailed():
            return Unavailable(f"{error.description}; nothing was done")
        case StoreFull():
            return Unavailable("the server's store is full, and nothing was stored: make room, or raise its limits")
        case PermissionDenied():
            return NotAccepted(str(error), code="forbidden")
        case _:
            return NotAccepted(str(error), code="bad")
