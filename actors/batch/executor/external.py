"""Items that an external program of any language runs: requested by JSON, over HTTP or on a NATS subject.

Request: {"instance": "…", "items": [{"index": 7, "attempt": 1, "item": …}, …]}

Reply: {"outcomes": [{"index": 7, "status": "ok" | "failed" | "again" | "skipped", "info": …}, …]}

Headers, over HTTP and NATS alike: `Penstock-Task`, `Penstock-Instance`, and `Penstock-Signature` if the nodes have a
secret. The signature is as that of a callback, with a key of the task.

An item that the reply leaves out, or names more than once, runs again in another round. So do all items if there is no
reliable reply: no connection, no subscriber, no end in time, 5xx, 408, 425, 429, a redirect, other JSON. Any other 4xx
fails all items, with its body as the reason. On NATS the header `Nats-Service-Error-Code` stands for the status.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import aiohttp
import msgspec
from msgspec import Raw

from actors.batch.executor.contexts import ItemContext
from actors.batch.executor.handler import NextRound, Reject, Skip, TaskHandler
from actors.batch.tasks import TaskRecord
from actors.runtime.actor import FATAL
from actors.runtime.secrets import BadReference
from actors.runtime.tracing import traces
from streams.errors import StreamError
from streams.link.connection import Connection
from streams.messages.batch import NOTHING

MOST_BYTES = 16 * 1024 * 1024
MOST_REASON = 300
MOST_NAMED = 5
RETRIED_STATUSES = (408, 425, 429)


class Rejected(Exception):
    """The program refused the items for good."""


SendRequest = Callable[[bytes, Mapping[str, str], float], Awaitable[bytes]]
"""Sends a request with its headers, and returns its reply within so many seconds. Raises NextRound, Rejected."""
Sign = Callable[[str, bytes], str]
"""Returns the signature of a request of a task. Empty: the nodes have no secret. Raises BadReference."""


class _Outcome(msgspec.Struct, frozen=True):
    index: int
    status: Literal["ok", "failed", "again", "skipped"]
    info: Raw = NOTHING


class _Answer(msgspec.Struct, frozen=True):
    outcomes: tuple[_Outcome, ...]


class ExternalCall(NamedTuple):
    """One request: the items, and the context of each."""

    items: Sequence[Any]
    contexts: Sequence[ItemContext]


def written_request(call: ExternalCall) -> bytes:
    """Return the request's JSON."""
    pairs = zip(call.items, call.contexts, strict=True)
    items = [{"index": at.index, "attempt": at.attempt, "item": item} for item, at in pairs]
    return msgspec.json.encode({"instance": call.contexts[0].instance_id, "items": items})


def read_answer(raw: bytes, call: ExternalCall) -> list[object]:
    """Return the reply's outcome of each item, as a `map_many` would. Raises NextRound if it is no valid reply."""
    try:
        answer = msgspec.json.decode(raw, type=_Answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NextRound(f"the answer is not {{'outcomes': [...]}}: {error}") from error
    by_index: defaultdict[int, list[_Outcome]] = defaultdict(list)
    for outcome in answer.outcomes:
        by_index[outcome.index].append(outcome)
    return [_end(by_index[context.index]) for context in call.contexts]


def _end(told: Sequence[_Outcome]) -> object:
    if not told:
        return NextRound("the answer left it out")
    if len(told) > 1:
        ends = ", ".join(each.status for each in told[:MOST_NAMED])
        return NextRound(f"the answer names it {len(told)} times: {ends}")
    [outcome] = told
    match outcome.status:
        case "ok":
            return None if bytes(outcome.info) == b"null" else Raw(bytes(outcome.info))
        case "skipped":
            return Skip(_reason(outcome.info))
        case "failed":
            return Reject(_reason(outcome.info) or "the program reported a failure")
        case "again":
            return NextRound(_reason(outcome.info) or "the program requested another round")


def _reason(info: Raw) -> str:
    text = bytes(info).decode("utf-8", "replace")  # not every program writes UTF-8
    if text == "null":
        return ""
    return (msgspec.json.decode(text, type=str) if text.startswith('"') else text)[:MOST_REASON]


async def run_external(
    send: SendRequest, sign: Sign, record: TaskRecord, items: Sequence[Any], contexts: Sequence[ItemContext]
) -> Sequence[object]:
    """Send the items, and return an outcome for each, as a `map_many` does."""
    call = ExternalCall(items, contexts)
    request = written_request(call)
    try:
        headers = _headers(record.task, call, sign(record.task, request))
        return read_answer(await send(request, headers, record.item_timeout_ms / 1000), call)
    except Rejected as error:
        return [Reject(str(error))] * len(items)
    except NextRound as error:
        return [error] * len(items)
    except BadReference as error:
        return [NextRound(f"callback_secret: {error}"[:MOST_REASON])] * len(items)


def _headers(task: str, call: ExternalCall, signature: str) -> dict[str, str]:
    signed = {"Penstock-Signature": signature} if signature else {}
    return {"Penstock-Task": task, "Penstock-Instance": call.contexts[0].instance_id, **signed, **traces.headers()}


@asynccontextmanager
async def open_external(
    handlers: Sequence[TaskHandler], connection: Connection, sign: Sign
) -> AsyncIterator[list[TaskHandler]]:
    """Yield the handlers. Those whose items an external program runs get a connection to it. Others do not change."""
    async with AsyncExitStack() as stack:
        session: aiohttp.ClientSession | None = None
        bound = []
        for handler in handlers:
            kind, _, place = handler.record.executor.partition(":")
            if kind == "http":
                if session is None:
                    session = await stack.enter_async_context(aiohttp.ClientSession(auto_decompress=False))
                bound.append(_bound(handler, partial(_post, session, place), sign))
            elif kind == "nats":
                bound.append(_bound(handler, partial(_request, connection, place), sign))
            else:
                bound.append(handler)
        yield bound


def _bound(handler: TaskHandler, send: SendRequest, sign: Sign) -> TaskHandler:
    return replace(handler, run=None, run_many=partial(run_external, send, sign, handler.record))


async def _post(
    session: aiohttp.ClientSession, url: str, payload: bytes, headers: Mapping[str, str], timeout_s: float
) -> bytes:
    """Post to a URL. No redirect is followed: a POST loses its body on the way."""
    try:
        async with session.post(
            url,
            data=payload,
            headers={"Content-Type": "application/json", "Accept-Encoding": "identity", **headers},
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            allow_redirects=False,
        ) as answer:
            body = await _body(answer)
    except TimeoutError:
        raise NextRound(f"no answer within {timeout_s:g} s") from None
    except aiohttp.ClientError as error:
        raise NextRound(f"no answer: {type(error).__name__}: {error}"[:MOST_REASON]) from error
    if answer.status != 200:
        raise _refusal(answer.status, body)
    return body


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in answer.content.iter_chunked(1 << 16):
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            raise NextRound(f"the answer is longer than {MOST_BYTES} bytes")
    return b"".join(parts)


async def _request(
    connection: Connection, subject: str, payload: bytes, headers: Mapping[str, str], timeout_s: float
) -> bytes:
    """Send a request on a subject. An error by the protocol of NATS services has a code like a status of HTTP."""
    try:
        answer = await connection.request(subject, payload, headers=dict(headers), timeout_s=timeout_s)
    except FATAL:
        raise
    except StreamError as error:
        raise NextRound(f"{subject}: {error}"[:MOST_REASON]) from error
    code = answer.headers.get("Nats-Service-Error-Code", "")
    if code:
        text = answer.headers.get("Nats-Service-Error", "").encode() or answer.payload
        raise _refusal(int(code) if code.isdecimal() and len(code) < 10 else 500, text)
    return answer.payload


def _refusal(status: int, body: bytes) -> NextRound | Rejected:
    text = " ".join(body[:MOST_REASON].decode("utf-8", "replace").split())
    reason = f"{status}: {text}" if text else f"{status}"
    return Rejected(reason) if 400 <= status < 500 and status not in RETRIED_STATUSES else NextRound(reason)
