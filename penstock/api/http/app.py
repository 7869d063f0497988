"""The Litestar application: it finds the operation of a path, and everything else is ours.

Litestar's own reading of bodies and parameters is not used: `door.py` has read the body already, and msgspec makes of
the bytes what an operation wants. So a request costs one handler and no middleware.
"""

import itertools
import logging
import re
from collections.abc import Sequence
from typing import Any, cast

import msgspec
from litestar import Litestar, Response
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from actors.jobs.rules.job_rules import BadJob
from actors.runtime.logs import fields
from penstock.api.http.calls import Answer, Call, Shared, Stream
from penstock.api.http.door import FAULT, problem_headers, send_problem
from penstock.api.http.openapi import document
from penstock.api.http.problems import Problem, RefusedRequest, refused, shown, trouble_of, written
from penstock.api.operations import OPERATIONS, Operation
from streams.errors import Disconnected, MalformedSubject, StreamError

log = logging.getLogger(__name__)

__all__ = ["build_app"]

Header = tuple[bytes, bytes]

_encode = msgspec.json.Encoder().encode


def build_app(shared: Shared) -> Litestar:
    """Return the application. Its requests must have come through the door."""
    return Litestar(
        [*(_handler(shared, one) for one in OPERATIONS), _schema()],
        openapi_config=None,
        logging_config=None,
        exception_handlers={Exception: _failed},
    )


def _handler(shared: Shared, operation: Operation) -> HTTPRouteHandler:
    names = re.findall(r"\{(\w+)\}", operation.path)

    async def handle(scope: Scope) -> ASGIResponse:
        problem = FAULT
        try:
            answer = await _carry_out(shared, operation, names, cast(Any, scope))
            if answer.stream is not None:
                return _Streamed(answer.stream, operation.path)
            return _Sent(_encode(answer.value), answer.status)
        except RefusedRequest as told:
            problem = told.problem
            upload = cast(Call, cast(Any, scope)["state"]["call"]).upload
            if told.closes or (upload is not None and not upload.is_read):
                return _problem(problem, operation.path, (b"connection", b"close"))  # what still comes is not read
        except Exception as error:  # the gateway's own end of an operation
            log.error("gateway.failed", exc_info=error, extra=fields(operation=operation.name))
        return _problem(problem, operation.path)

    return HTTPRouteHandler(
        _path(operation.path), http_method=cast(Any, _methods(operation)), status_code=200, name=operation.name
    )(handle)


async def _carry_out(shared: Shared, operation: Operation, names: Sequence[str], scope: Any) -> Answer:
    call: Call = scope["state"]["call"]
    call.values = {name: scope["path_params"][f"p{at}"] for at, name in enumerate(names)}
    if operation.verb is not None:
        call.caller.check(operation.verb)
    if not operation.is_public and not shared.is_connected():
        raise trouble_of(Disconnected("not now"))  # at once: waiting for it, calls would pile up here
    try:
        return await operation.do(shared, call)
    except BadJob as bad:
        raise refused(422, "bad", bad.what, what=bad.field, value=bad.value, hint=bad.hint) from None
    except MalformedSubject as bad:
        raise refused(422, "bad", shown(str(bad))) from None
    except StreamError as error:
        log.debug("gateway.trouble", extra=fields(operation=operation.name, error=str(error)))
        raise trouble_of(error) from error


class _Sent(ASGIResponse):
    """An answer whose bytes are there already: nothing of Litestar's own is needed, and half its time is saved."""

    def __init__(self, body: bytes, status: int = 200, kind: bytes = b"application/json", *more: Header) -> None:
        length = b"%d" % len(body)
        self._start = {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", kind), (b"content-length", length), *more],
        }
        self._body = {"type": "http.response.body", "body": body}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(cast(Any, self._start))
        await send(cast(Any, self._body))


def _problem(problem: Problem, path: str, *more: Header) -> _Sent:
    body, kind = written(problem, path)
    return _Sent(body, problem.status, kind, *problem_headers(problem), *more)


class _Streamed(ASGIResponse):
    """An answer that is sent bit by bit, until the client goes."""

    def __init__(self, stream: Stream, path: str) -> None:
        super().__init__()
        self._stream = stream
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._stream(cast(Any, send))
        except RefusedRequest as told:
            await send_problem(cast(Any, send), told.problem, self._path)


def _schema() -> HTTPRouteHandler:
    text: list[bytes] = []

    async def schema() -> ASGIResponse:
        if not text:
            text.append(_encode(document()))
        return _Sent(text[0])

    return HTTPRouteHandler(["/schema", "/schema/openapi.json"], http_method=["GET", "HEAD"], name="schema")(schema)


def _path(path: str) -> str:
    """Return the path as the router has it: by place, since it wants one name for what stands at one place."""
    places = itertools.count()
    return re.sub(r"\{\w+\}", lambda _: f"{{p{next(places)}:str}}", path)


def _failed(request: Any, error: Exception) -> Response[bytes]:
    """Answer for the router: there is no such path, no such method on it, or a fault that no operation had."""
    problem, hint, path, headers = FAULT, "GET /schema tells what is", request.scope["path"], {}
    match getattr(error, "status_code", 500):
        case 404:
            problem = refused(404, "not_found", "there is nothing at this path", hint=hint).problem
        case 405:
            methods = ", ".join(methods_of(path))
            headers = {"Allow": methods}
            problem = refused(405, "method", "this path has other methods", hint=f"use {methods}").problem
        case status if 400 <= status < 500:
            problem = refused(status, "malformed", "not a request as it should be").problem
        case _:
            log.error("gateway.failed", exc_info=error)
    body, kind = written(problem, path)
    return Response(body, status_code=problem.status, media_type=kind.decode(), headers=headers)


def methods_of(path: str) -> list[str]:
    """Return the methods that a path is called with."""
    found = {method for operation in OPERATIONS if _fits(operation.path, path) for method in _methods(operation)} or {
        "GET",
        "HEAD",
    }  # /schema
    return sorted(found)


def _methods(operation: Operation) -> list[str]:
    return [operation.method, "HEAD"] if operation.is_public else [operation.method]


def _fits(pattern: str, path: str) -> bool:
    return re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", pattern), path) is not None
