"""HTTP for adapters: one pooled client a node, bounded in time and size. It follows no redirect.

Trouble on the wire is raised as PlatformDown with the reason, a body over the limit as TooMuch. A response with any
status is returned, and the adapter judges it.
"""

from __future__ import annotations

import re
from codecs import lookup
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio

from actors.runtime.inflation import ENCODINGS, BadEncoding, Inflater
from platforms.adapter import Request, Response

if TYPE_CHECKING:
    import aiohttp
    import aiohttp.abc
    from yarl import URL

CHUNK = 1 << 16
LARGE = 8 << 20
"""In bytes. Of all responses of one host, only one at a time may grow beyond this."""
MOST_REASON = 200
_OF_EUROPE = ("iso8859", "cp125", "koi8")
_OF_ASIA = ("gb", "big5", "shift_jis", "cp932", "cp949", "cp950", "euc_", "iso2022", "utf-16", "utf-32")
"""Python's names of charsets that a platform may use, by how they begin. Its other codecs are no charsets."""
_JOINED = {"set-cookie": "\n", "link": ", "}
_QUERY = re.compile(r"[?#][^\s'\"]*")


class BadUrl(ValueError):
    """A URL that must not be called. The message says why, without user and query."""


class PlatformDown(Exception):
    """No usable response: refused, reset, cut off in the middle, TLS, name, or time."""


class TooMuch(Exception):
    """The response is larger than the adapter allows. It was not read to its end."""


class Transport:
    """Sends an adapter's requests. The caller limits concurrency. Connections are pooled by host."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._turns: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)
        """By host: the lock for reading beyond LARGE."""

    async def send(self, request: Request, *, timeout_s: float, most_bytes: int) -> Response:
        """Return the response. Raises PlatformDown, TooMuch, or BadUrl."""
        import aiohttp  # commands that send nothing need not import it

        try:
            async with self._session.request(
                request.method,
                check_url(request.url),
                params=request.params or None,
                headers=dict(request.headers) or None,
                data=request.body or None,
                timeout=_within(timeout_s),
                allow_redirects=False,
            ) as answer:
                body = await self._read(answer, most_bytes, timeout_s)
                return Response(answer.status, _headers(answer.headers), _in_utf8(body, answer.charset))
        except (aiohttp.ClientError, BadEncoding, TimeoutError, OSError) as error:
            raise PlatformDown(
                f"{request.method} {shown_url(request.url)}: {type(error).__name__} {_error_text(error)}"
            ) from None

    async def _read(self, answer: aiohttp.ClientResponse, most: int, timeout_s: float) -> bytes:
        """Read the body, decompressed, up to `most` bytes. Large bodies of one host are read one at a time, and wait
        for their turn up to `timeout_s`. The rest of the time is the session's."""
        if answer.content_length is not None and answer.content_length > most:
            raise TooMuch(f"{shown_url(str(answer.url))}: {answer.content_length} bytes announced, {most} allowed")
        encoding = answer.headers.get("Content-Encoding", "")
        if not encoding and answer.content_length is not None and answer.content_length <= LARGE:
            return await answer.read()  # the client reads no more than was announced
        parts, size, inflater = list[bytes](), 0, Inflater(encoding)
        turn: anyio.Lock | None = None
        try:
            async for raw in answer.content.iter_chunked(CHUNK):
                for part in inflater.steps(raw):
                    parts.append(part)
                    size += len(part)
                    if size > most:
                        raise TooMuch(f"{shown_url(str(answer.url))}: more than the {most} bytes allowed")
                    if size > LARGE and turn is None:
                        turn = await self._turn(answer.url.host or "", timeout_s)
        finally:
            if turn is not None:
                turn.release()
        inflater.end()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _turn(self, host: str, timeout_s: float) -> anyio.Lock:
        lock = self._turns[host]
        with anyio.fail_after(timeout_s):
            await lock.acquire()
        return lock


@lru_cache(maxsize=64)
def _within(timeout_s: float) -> aiohttp.ClientTimeout:
    import aiohttp

    return aiohttp.ClientTimeout(total=timeout_s)


def _in_utf8(body: bytes, charset: str | None) -> bytes:
    """Return the body in UTF-8, as JSON has to be, if its Content-Type names another charset and that is true. Many
    servers name one of Europe whatever they send, so there what is UTF-8 stays."""
    if not charset or charset.lower() in ("utf-8", "utf8"):
        return body
    try:
        name = lookup(charset).name
        is_other = name.startswith(_OF_ASIA) or (name.startswith(_OF_EUROPE) and not _is_utf8(body))
        return body.decode("cp1252" if name == "iso8859-1" else name).encode() if is_other else body
    except (LookupError, ValueError):  # no charset, or not that of the body
        return body


def _is_utf8(body: bytes) -> bool:
    try:
        str(body, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with names in lower case. Of several with one name the last one counts, unless `_JOINED` says
    how they are joined."""
    found = dict[str, str]()
    for name, value in headers.items():
        name = name.lower()
        found[name] = f"{found[name]}{_JOINED[name]}{value}" if name in found and name in _JOINED else value
    return found


@lru_cache(maxsize=1024)
def check_url(url: str) -> URL:
    """Return the URL if it may be called. Raises BadUrl unless it is http or https without a user, as logs show
    URLs."""
    from yarl import URL

    try:
        parsed = URL(url, encoded=False)
        host, has_user = parsed.host, bool(parsed.user or parsed.password)
    except ValueError:
        raise BadUrl(f"cannot call {shown_url(url)!r}: it is no URL") from None
    if parsed.scheme not in ("http", "https") or not host:
        raise BadUrl(f"cannot call {shown_url(url)!r}: the URL must begin with http:// or https:// and name a host")
    if has_user:
        raise BadUrl(f"cannot call {shown_url(url)!r}: put user and password into the account, not into the URL")
    return parsed


def shown_url(url: str) -> str:
    """Return the URL without user, query and fragment: those may be secret."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"
    except ValueError:
        return url.partition("?")[0].rpartition("@")[2]


def _error_text(error: BaseException) -> str:
    """Return the client's text without the query of any URL in it: queries hold signatures and tokens."""
    return _QUERY.sub("?…", str(error))[:MOST_REASON]


@asynccontextmanager
async def open_transport(
    *, connections: int = 200, resolver: aiohttp.abc.AbstractResolver | None = None
) -> AsyncIterator[Transport]:
    """Open the node's client. It closes with the block. With a `resolver`, every request uses it, and connects to one
    of the addresses that it returns."""
    import aiohttp

    own: dict[str, Any] = {"ttl_dns_cache": 60} if resolver is None else {"use_dns_cache": False, "force_close": True}
    connector = aiohttp.TCPConnector(limit=connections, resolver=resolver, **own)
    async with aiohttp.ClientSession(
        connector=connector,
        headers={"User-Agent": "penstock", "Accept-Encoding": ENCODINGS},
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        max_line_size=16384,
        max_field_size=16384,
    ) as session:
        yield Transport(session)
