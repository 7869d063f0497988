"""One client's connection: uvicorn's own, with limits on its cost before the request is checked.

This class limits what uvicorn does not: the number of connections, in all and from one address, the time for a head or
a body to arrive and for an answer to be read, the length of the URL, the number and size of the headers, and the
pipeline. It refuses trailers, which would be taken for headers, absolute URLs and CONNECT. The path stays
percent-encoded, so that an id may contain any character, a slash too. The operation decodes it.

A request that is refused before it was read whole ends the connection gently. The node closes its own side first, and
discards input for a moment. Otherwise the client would see a reset in place of the answer.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from actors.runtime.logs import fields
from penstock.api.http.limits import (
    IDLE_S,
    LARGEST_HEAD,
    LONGEST_URL,
    MOST_HEADERS,
    MOST_PIPELINED,
    READ_S,
    READ_STEP,
    UNREAD,
    UPLOAD_STEP,
    WRITE_S,
    Census,
)
from penstock.api.http.problems import refused, title_of, written
from penstock.api.http.uploads import is_upload_path

log = logging.getLogger(__name__)

__all__ = ["WHOLE", "BoundedConnection", "connection_class"]

WHOLE = "penstock.whole"
"""The type of the message that is a whole answer."""
LINGER_S = 1.0
"""How long the node still reads from a refused client, so that the client can read the reason."""
NEVER_S = float("inf")
SLACK = 2
"""The factor on LARGEST_HEAD for an unfinished head, since its size does not count bytes between the headers."""


class BoundedConnection(HttpToolsProtocol):
    """See the module. `connection_class` sets `census`."""

    census: Census

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self._is_counted = self.census.enter(self._address)
        self._is_deaf = False
        self.url = b""
        self.is_shut = False
        self._is_in_head = False
        self._is_fresh = False
        self._is_lingering = self._is_reading = not self._is_counted and self.census.linger()
        self._is_upload = False
        self._step_bytes = 0
        self._head_bytes = 0
        self._loose_bytes = 0
        self._due_s = self._write_due_s = NEVER_S
        self._reader, self._large, self._held, self._left = "", 0, 0, 0
        self._then = self.transport.close
        self._gently = _Gently(self)
        if self._is_counted:
            self._within(IDLE_S, self.transport.close)
        else:
            self._end(503, "too many connections", retry_after_s=5)

    def connection_lost(self, exc: Exception | None) -> None:
        self._hold(0)
        if self._is_counted:
            self._is_counted = False
            self.census.leave(self._address)
        if self._is_lingering:
            self._is_lingering = False
            self.census.end_linger()
        super().connection_lost(exc)

    # ---- reading

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._no_upgrade(len(data) - upgrade.args[0])
        except httptools.HttpParserError as error:
            why = cast(Exception, error).__context__  # the exception of our callback
            status, detail = (why.status, why.detail) if isinstance(why, _Refused) else (400, "not HTTP")
            self._end(status, detail)
        if self._is_in_head and not self._is_deaf:
            self._count_head(len(data))

    def _count_head(self, size: int) -> None:
        """Limit a head that does not end: the parser keeps a header until it is whole."""
        self._loose_bytes += 0 if self._is_fresh else size
        self._is_fresh = False
        if self._loose_bytes > LARGEST_HEAD * SLACK:
            self._end(431, f"headers above {LARGEST_HEAD} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = self._is_fresh = self._is_reading = True
        self._head_bytes = self._loose_bytes = 0
        self._within(READ_S, self._too_slow)

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > LONGEST_URL:
            raise _Refused(414, f"the URL is longer than {LONGEST_URL} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_in_head:
            raise _Refused(400, "trailers are not taken")
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > LARGEST_HEAD:
            raise _Refused(431, f"headers above {LARGEST_HEAD} bytes")
        if len(self.headers) >= MOST_HEADERS:
            raise _Refused(431, f"more than {MOST_HEADERS} headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request, or queue it behind the current one. Replaces uvicorn's method, which decodes the path."""
        self._is_in_head = False
        method, version = self.parser.get_method().decode("ascii"), self.parser.get_http_version()
        if method == "CONNECT" or not self.url.startswith((b"/", b"*")):
            raise _Refused(400, "a path on this host is needed, not another address")
        if not self.url.isascii():
            raise _Refused(400, "a URL is ASCII; write other signs as percent escapes")
        if len(self.pipeline) >= MOST_PIPELINED:
            raise _Refused(400, f"more than {MOST_PIPELINED} requests ahead of their answers")
        raw_path, _, query = self.url.partition(b"?")
        self.scope["method"], self.scope["http_version"] = method, version
        self.scope["path"], self.scope["raw_path"] = raw_path.decode("ascii"), raw_path
        self.scope["query_string"] = query
        self.scope["query_string"] = query
        self._is_upload, self._step_bytes = is_upload_path(method, raw_path), 0
        self._within(READ_S, self._too_slow)
        before = self.cycle
        self.cycle = _Cycle(
            scope=self.scope,
            transport=cast(asyncio.Transport, self._gently),
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        self.scope["state"]["cycle"] = self.cycle
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def on_body(self, body: bytes) -> None:
        """Take a part of a body. A file may take long as long as it keeps arriving."""
        self._step_bytes += len(body)
        if self._is_upload and self._step_bytes >= UPLOAD_STEP:
            self._step_bytes = 0
            self._within(READ_S, self._too_slow)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_reading = False
        if self._is_busy:
            self._due_s = NEVER_S
        else:
            self._within(IDLE_S, self.transport.close)  # it was answered before it was read whole
        super().on_message_complete()

    @property
    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _no_upgrade(self, left: int) -> None:
        """Ignore further input: the request was read as plain HTTP, and the rest would be of another protocol."""
        if left and self.cycle is not None:
            self.cycle.keep_alive = False
            self._is_deaf = True

    # ---- writing

    def on_response_complete(self) -> None:
        """Start the next request of the pipeline, or wait for one. Replaces uvicorn's method, which sets a timer."""
        self._gently.flush()
        self._large = 0
        if self._is_deaf or self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif not self._is_reading:
            self._within(IDLE_S, self.transport.close)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_due_s = self.loop.time() + WRITE_S
        self._left = self.transport.get_write_buffer_size()
        self._hold(max(self._left, self._large))  # an answer is kept whole until all of it is written

    def resume_writing(self) -> None:
        self._write_due_s = NEVER_S
        self._hold(0)
        super().resume_writing()

    def may_hold(self, name: str, size: int) -> bool:
        """Return whether a large answer may wait until the client reads it. `name`: of the client's token."""
        if not self._held:
            self._reader, self._large = name, size
        return self.census.has_room(name, size)

    def _hold(self, size: int) -> None:
        self.census.hold(self._reader, size - self._held)
        self._held = size

    def _is_read_slowly(self, now_s: float) -> None:
        """The time to read a step is over. A client that has read one has as long for the next one."""
        before, self._left = self._left, self.transport.get_write_buffer_size()
        if self._left > before - READ_STEP:
            self._not_fetched()
        else:
            self._write_due_s = now_s + WRITE_S

    def _not_fetched(self) -> None:
        log.debug("gateway.not_fetched", extra=fields(address=self._address, within_s=WRITE_S))
        self.transport.abort()

    # ---- ends

    def _too_slow(self) -> None:
        if self._is_upload and self.flow.read_paused:
            self._within(READ_S, self._too_slow)  # this node has paused reading: the object store is slow
            return
        self._end(408, f"the request took longer than {READ_S:.0f} s to arrive")

    def _end(self, status: int, detail: str, *, retry_after_s: int = 0) -> None:
        """Answer in place of the application if it has not begun an answer, and close."""
        cycle, self._is_deaf = self.cycle, True
        is_mine = cycle is None or cycle.response_complete or not (cycle.response_started or self.pipeline)
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        if is_mine and not self.transport.is_closing():
            path = self.url.partition(b"?")[0].decode("latin-1")
            self.transport.write(_answer(path, status, detail, retry_after_s, self.server_state.default_headers))
        self.close_gently()

    def close_gently(self) -> None:
        """Close. If the client is still sending, let it read the answer first."""
        self._due_s = NEVER_S
        self.is_shut = True
        if not self._is_reading or not self.transport.can_write_eof() or self.transport.is_closing():
            self.transport.close()
            return
        self._is_deaf = True
        self.transport.write_eof()
        self.flow.resume_reading()
        self._within(LINGER_S, self.transport.abort)

    def eof_received(self) -> None:
        if self._is_deaf:
            self.transport.close()

    def look(self, now_s: float) -> None:
        """Act on what is due by the loop's clock. Called regularly: own timers would cost each request five."""
        if now_s >= self._write_due_s:
            self._is_read_slowly(now_s)
        elif now_s >= self._due_s:
            self._due_s = NEVER_S
            self._then()

    def _within(self, wait_s: float, then: Callable[[], None]) -> None:
        self._due_s, self._then = self.loop.time() + wait_s, then


def connection_class(census: Census) -> type[BoundedConnection]:
    """Return the class of the connections that `census` counts. uvicorn makes them itself, without our arguments."""
    return cast(type[BoundedConnection], type("CountedConnection", (BoundedConnection,), {"census": census}))


class _Refused(Exception):
    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class _Cycle(RequestResponseCycle):
    """uvicorn's own, with a short way for an answer that is whole: uvicorn checks each header of each answer."""

    async def send(self, message: Any) -> None:
        """Send a message of ASGI, or a `WHOLE` answer: JSON, with its status."""
        if message["type"] != WHOLE:
            await super().send(message)
            return
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        self.response_started = self.response_complete = True
        self.waiting_for_100_continue = False
        status, body, kind, close = message["status"], message["body"], b"application/json", b""
        if not self.may_hold(len(body)) and self.scope["method"] == "GET":
            status, body, kind, close = 503, *self._busy(), b"retry-after: 1\r\n"
        close += b"" if self.keep_alive else b"connection: close\r\n"
        head = b"%b%bcontent-type: %b\r\ncontent-length: %d\r\n%b\r\n" % (
            STATUS_LINE[status],
            _lines(tuple(self.default_headers)),
            kind,
            len(body),
            close,
        )
        self.transport.write(head + body if self.scope["method"] != "HEAD" else head)
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    def may_hold(self, size: int) -> bool:
        """Return whether an answer of so many bytes may wait until the client reads it."""
        if size <= READ_STEP:
            return True
        call = self.scope["state"].get("call")
        return cast(_Gently, self.transport).may_hold(call.caller.key if call is not None else "", size)

    def _busy(self) -> tuple[bytes, bytes]:
        """Return the body in place of an answer that cannot wait for its client, and its type."""
        problem = refused(503, "busy", UNREAD).problem
        return written(problem, self.scope["path"])


@lru_cache(4)
def _lines(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    return b"".join(b"%b: %b\r\n" % each for each in headers)


class _Gently:
    """The transport as an answer sees it: it closes gently, and drops later writes. An answer's head waits for the
    first part of its body, or for its end, so that both are one system call, and one packet."""

    __slots__ = ("_connection", "_head", "may_hold")

    def __init__(self, connection: BoundedConnection) -> None:
        self._connection = connection
        self._head = b""
        self.may_hold = connection.may_hold

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 1"):
            self._head = data
            return
        if not self._connection.is_shut and not self.is_closing():  # several requests of one client may run then
            self._connection.transport.write(data)

    def flush(self) -> None:
        if self._head:
            self.write(b"")

    def is_closing(self) -> bool:
        return self._connection.transport.is_closing()

    def close(self) -> None:
        self.flush()
        self._connection.close_gently()


def _answer(path: str, status: int, detail: str, retry_after_s: int, more: list[tuple[bytes, bytes]]) -> bytes:
    code = {400: "malformed", 408: "too_slow", 503: "busy"}.get(status, "too_large")
    body, kind = written(refused(status, code, detail).problem, path)  # type: ignore[arg-type]  # one of the codes
    head = [f"HTTP/1.1 {status} {title_of(status)}".encode()]
    head += [name + b": " + value for name, value in more]
    head += [b"content-type: " + kind, b"content-length: %d" % len(body), b"connection: close"]
    if retry_after_s:
        head.append(b"retry-after: %d" % retry_after_s)
    return b"\r\n".join([*head, b"", body])
