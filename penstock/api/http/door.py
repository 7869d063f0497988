"""Admits requests: checks each, finds its caller, reads it whole, and only then passes it on. A plain ASGI application.

It checks in this order, cheap before expensive: the head, the address's rate, the token, the token's rate, and the
body, up to its limit. So the gateway decodes nothing, and sends nothing to the broker, before it knows the caller.
"""

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from functools import lru_cache
from ipaddress import ip_address
from math import ceil
from typing import Any

from actors.runtime.logs import fields
from penstock.api.http.callers import ANYBODY, Caller
from penstock.api.http.calls import GatewayState, HttpCall
from penstock.api.http.heads import Head, check_head, is_form, is_json, is_local
from penstock.api.http.limits import (
    ADDRESS_BURST,
    ADDRESS_RATE,
    FAILED_BURST,
    FAILED_RATE,
    LARGEST_BODY,
    MOST_BODY_BYTES,
    Rates,
    TokenBucket,
)
from penstock.api.http.live_tokens import LiveTokens
from penstock.api.http.multipart import boundary_of
from penstock.api.http.problems import Problem, RefusedRequest, refused, written
from penstock.api.http.replies import is_queue
from penstock.api.http.uploads import FORM, SHEETS, Upload, charset_of, is_upload_path
from streams.calls import serving
from streams.clock import monotonic_s

log = logging.getLogger(__name__)

__all__ = ["FAULT", "App", "Door", "Send", "send_problem"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]

PUBLIC = frozenset({"/health", "/ready", "/schema", "/schema/openapi.json"})
"""Paths that show no client's data. Clients without a token request them."""
FAULT = refused(500, "internal", "this is a fault of ours; it is in the node's log").problem
BURST_S = 2
"""Seconds of its rate that a token may use at once."""


class Door:
    """The ASGI application that uvicorn calls. It passes admitted requests to `app`."""

    def __init__(
        self, app: App, shared: GatewayState, tokens: LiveTokens, *, is_open: bool, behind_proxy: bool
    ) -> None:
        """`is_open`: while there are no tokens every client may call, since only this machine can connect."""
        self._app = app
        self._shared = shared
        self._tokens = tokens
        self._is_open = is_open
        self._behind_proxy = behind_proxy
        self._addresses = Rates()
        self._failures = Rates()
        self._rates = Rates()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request. Raises only if cancelled, or to have uvicorn close a connection with a begun answer."""
        call, status = None, 0

        async def tell(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            call = await self._admit(scope, receive)
            if call is None:
                return
            scope["state"]["call"] = call
            with serving(call.key and f"{call.caller.key}/{call.key}"):
                await self._app(scope, receive, tell)
        except RefusedRequest as told:
            await send_problem(tell, told.problem, scope["path"], closes=told.closes)
        except Exception as error:  # the outermost place of a request: one bad request must not end the connection
            log.error("gateway.failed", exc_info=error, extra=fields(path=scope["path"]))
            if scope["state"]["cycle"].response_started:
                raise  # uvicorn closes the connection: the client can get no other error now
            await send_problem(tell, FAULT, scope["path"], closes=True)
        finally:
            if status:
                self._shared.answered(call.operation if call is not None else "refused", status)

    async def _admit(self, scope: Message, receive: Receive) -> HttpCall | None:
        """Return the request to carry out, or None if its client disconnected while it was read."""
        head = check_head(scope["method"], scope["raw_path"], scope["query_string"], scope["headers"])
        address, now_s = self._address(scope, head), monotonic_s()
        self._check_address(address, now_s)
        caller = ANYBODY if scope["path"] in PUBLIC else self._caller(head, address, now_s)
        rate = self._token_rate(caller, now_s)
        upload = None
        if head.is_upload:
            kind = charset_of(head.media_type), boundary_of(head.media_type)
            upload = Upload(receive, head.length, head.file_name, *kind)
        body = b"" if head.length == 0 or upload is not None else await self._read(receive)
        if body is None:
            return None
        if upload is None and scope["method"] in ("POST", "PATCH") and not is_queue(scope["path"]):
            is_fine = is_json(head.media_type) if body else caller is not ANYBODY or not is_form(head.media_type)
            if not is_fine:
                raise _not_taken(scope, head.media_type)
        cycle = scope["state"]["cycle"]
        return HttpCall(
            caller,
            address=address,
            query=scope["query_string"],
            body=body,
            receive=receive,
            cycle=cycle,
            rate=rate,
            upload=upload,
            key=head.idempotency_key,
            traceparent=head.traceparent,
        )

    def _address(self, scope: Message, head: Head) -> str:
        peer = scope["client"][0] if scope["client"] else ""
        return head.forwarded.rpartition(",")[2].strip() or peer if self._behind_proxy else peer

    def _check_address(self, address: str, now_s: float) -> None:
        key = _rate_key(address)
        if key:
            wait_s = self._addresses.bucket(key, ADDRESS_RATE, ADDRESS_BURST, now_s).take(1, now_s)
            if wait_s:
                raise _too_many(f"more than {ADDRESS_RATE:.0f} requests a second from one address", wait_s)

    def _caller(self, head: Head, address: str, now_s: float) -> Caller:
        if self._is_open and not self._tokens.are_there:
            if not is_local(head.host):
                raise refused(421, "forbidden", "without tokens only this machine is answered", what="Host")
            return ANYBODY
        caller = self._tokens.find(head.token) if head.token else None
        if caller is not None:
            return caller
        if head.token:
            key = _rate_key(address) or "local"
            wait_s = self._failures.bucket(key, FAILED_RATE, FAILED_BURST, now_s).take(1, now_s)
            if wait_s:
                raise _too_many("too many tries", wait_s)
        if not self._tokens.is_any_live:
            raise refused(401, "unauthorized", "no token is valid; make one: penstock tokens add NAME")
        raise refused(401, "unauthorized", "a valid token is needed", hint="Authorization: Bearer TOKEN")

    def _token_rate(self, caller: Caller, now_s: float) -> TokenBucket | None:
        if not caller.rate:
            return None
        bucket = self._rates.bucket(caller.key, caller.rate, max(1.0, caller.rate * BURST_S), now_s)
        wait_s = bucket.take(1, now_s)
        if wait_s:
            raise _too_many(f"more than this token's {caller.rate:g} a second", wait_s)
        return bucket

    async def _read(self, receive: Receive) -> bytes | None:
        """Return the whole body, or None if the client disconnected. The connection limits the time."""
        chunks, size, load = list[bytes](), 0, self._shared.load
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                chunk = message.get("body", b"")
                chunks.append(chunk)
                size += len(chunk)
                load.body_bytes += len(chunk)
                if size > LARGEST_BODY:
                    raise refused(413, "too_large", f"a body has up to {LARGEST_BODY} bytes", what="body", closes=True)
                if not message.get("more_body"):
                    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
                if load.body_bytes > MOST_BODY_BYTES:
                    raise refused(503, "busy", "too many large bodies at once", retry_after_s=1, closes=True)
        finally:
            load.body_bytes -= size


async def send_problem(
    send: Send, problem: Problem, path: str, *more: tuple[bytes, bytes], closes: bool = False
) -> None:
    """Answer with a problem, and with `more` headers. Do not call it once an answer has begun."""
    body, kind = written(problem, path)
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *more]
    if problem.retry_after_s:
        headers.append((b"retry-after", b"%d" % problem.retry_after_s))
    if problem.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if closes:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _not_taken(scope: Message, media_type: str) -> RefusedRequest:
    kinds = (*SHEETS, FORM) if is_upload_path(scope["method"], scope["raw_path"]) else ()
    return refused(
        415,
        "media_type",
        "a body of this kind is not taken here",
        what="Content-Type",
        value=media_type,
        hint=f"send {', '.join(('application/json', *kinds))}",
    )


def _too_many(detail: str, wait_s: float) -> RefusedRequest:
    return refused(429, "too_many", detail, retry_after_s=max(1, ceil(wait_s)))


@lru_cache(4096)
def _rate_key(address: str) -> str:
    """Return the key that counts an address: the /64 of an IPv6 host, empty for this machine, which is not counted."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return "?"
    if parsed.is_loopback:
        return ""
    return str(parsed) if parsed.version == 4 else parsed.exploded[:19]
