"""The application behind the door: it finds the operation of a path, carries it out, and sends the answer.

`door.py` has read the body already, and msgspec decodes it for the operation.
"""

import logging
import re
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

import msgspec

from actors.jobs.rules.job_rules import BadJob
from actors.runtime.logs import fields
from actors.runtime.tracing import traces
from penstock.api.http.calls import GatewayState, HttpAnswer, HttpCall, Stream
from penstock.api.http.connections import WHOLE
from penstock.api.http.door import FAULT, App, Send, send_problem
from penstock.api.http.openapi import document
from penstock.api.http.problems import RefusedRequest, refused, shown, trouble_of
from penstock.api.http.router import Routes
from penstock.api.operations import OPERATIONS, Operation
from streams.errors import Disconnected, MalformedSubject, StreamError

log = logging.getLogger(__name__)

__all__ = ["build_app"]

Handle = Callable[[HttpCall, list[str], Send], Awaitable[None]]
"""Answers a call. The list holds the parts of its path that match the braces."""

_encode = msgspec.json.Encoder().encode
TRACED = ("addJobs", "submitBatch", "command")
"""Operations with a span of their own: what they make is traced."""


def build_app(shared: GatewayState) -> App:
    """Return the ASGI application. Its requests must have come through the door."""
    routes = Routes[Handle]()
    for operation in OPERATIONS:
        for method in (operation.method, "HEAD") if operation.is_public else (operation.method,):
            routes.add(method, operation.path, _handler(shared, operation))
    for path in ("/schema", "/schema/openapi.json"):
        for method in ("GET", "HEAD"):
            routes.add(method, path, _schema)

    async def app(scope: Any, _receive: Any, send: Send) -> None:
        methods, parts = routes.find(scope["path"])
        handle = methods.get(scope["method"])
        if handle is not None:
            await handle(scope["state"]["call"], parts, send)
        else:
            await _refuse(scope, sorted(methods), send)

    return app


async def _refuse(scope: Any, methods: list[str], send: Send) -> None:
    """Answer for an unknown path, or a method that it does not have."""
    if not methods:
        told = refused(404, "not_found", "there is nothing at this path", hint="GET /schema tells what is")
        await send_problem(send, told.problem, scope["path"])
    elif scope["method"] == "OPTIONS":
        allow = ", ".join(sorted([*methods, "OPTIONS"])).encode()
        await send({"type": "http.response.start", "status": 204, "headers": [(b"allow", allow)]})
        await send({"type": "http.response.body", "body": b""})
    else:
        use = ", ".join(methods)
        told = refused(405, "method", "this path has other methods", hint=f"use {use}")
        await send_problem(send, told.problem, scope["path"], (b"allow", use.encode()))


def _handler(shared: GatewayState, operation: Operation) -> Handle:
    names = re.findall(r"\{(\w+)\}", operation.path)

    async def handle(call: HttpCall, parts: list[str], send: Send) -> None:
        call.operation, call.values = operation.name, dict(zip(names, parts, strict=True))
        try:
            answer = await _carry_out(shared, operation, call)
            body = b"" if answer.stream else _encode(answer.value)
        except RefusedRequest as told:
            is_read = call.upload is None or call.upload.is_read  # what still comes is not read
            await send_problem(send, told.problem, operation.path, closes=told.closes or not is_read)
        except Exception as error:  # the gateway's own end of an operation
            log.error("gateway.failed", exc_info=error, extra=fields(operation=operation.name))
            await send_problem(send, FAULT, operation.path)
        else:
            await (
                _send_bits(answer.stream, operation.path, send) if answer.stream else _send(body, answer.status, send)
            )

    return handle


async def _carry_out(shared: GatewayState, operation: Operation, call: HttpCall) -> HttpAnswer:
    if operation.verb is not None:
        call.caller.check(operation.verb)
    if not operation.is_public and not shared.is_connected():
        raise trouble_of(Disconnected("not now"))  # at once: waiting for it, calls would pile up here
    try:
        if operation.name not in TRACED:
            return await operation.do(shared, call)
        with traces.span(operation.name, "server", {}, parent=call.traceparent):
            return await operation.do(shared, call)
    except BadJob as bad:
        raise refused(422, "bad", bad.what, what=bad.field, value=bad.value, hint=bad.hint) from None
    except MalformedSubject as bad:
        raise refused(422, "bad", shown(str(bad))) from None
    except StreamError as error:
        log.debug("gateway.trouble", extra=fields(operation=operation.name, error=str(error)))
        raise trouble_of(error, is_read=operation.method == "GET") from error


async def _send(body: bytes, status: int, send: Send) -> None:
    await send({"type": WHOLE, "status": status, "body": body})


async def _send_bits(stream: Stream, path: str, send: Send) -> None:
    """Stream an answer until the client disconnects."""
    try:
        await stream(send)
    except RefusedRequest as told:
        await send_problem(send, told.problem, path)


async def _schema(_call: HttpCall, _parts: list[str], send: Send) -> None:
    await _send(_document(), 200, send)


@cache
def _document() -> bytes:
    return _encode(document())
