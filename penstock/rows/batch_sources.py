"""Rows of a database or of a search index, for a split of your own: page by page, however many there are.

    async def split(self, ctx):
        query = "SELECT sku, price FROM products WHERE shop = :shop"
        async for rows in penstock.sql_rows("env:SHOP_DB", query, ctx.input):
            await ctx.commit(*rows)

Nothing is written: the transaction only reads, and a point in time is closed at the end. Give an address that holds a
password as `env:NAME` or `file:/path`. An error on the way raises SourceFailed. Then the split begins again from its
start, and rows may come in another order. Only one of the two runs counts, never a mixture.
"""

from __future__ import annotations

import sqlite3
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
import anyio
import asyncpg
import msgspec
from sqlalchemy import URL, make_url, text
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool
from yarl import URL as HttpUrl

from actors.runtime.secrets import BadReference, is_reference, resolve_reference
from penstock.errors import PenstockError, UsageError
from streams.backoff import Backoff

__all__ = ["SourceFailed", "opensearch_rows", "sql_rows"]

MOST_PAGE = 10_000
MOST_BYTES = 256 * 1024 * 1024
MOST_REASON = 300
SLASHES = "sqlite:///FILE begins in the working folder, and sqlite:////FOLDER/FILE is a whole path"
KEPT = "5m"
"""How long a point in time stays open between two pages: as long as the slowest commit of a page may take."""
MOST_PARTS = 1_024
"""The most slices a server takes (`index.max_slices_per_pit`), and the most shards of one index."""
TRIES = 5
AGAIN = Backoff(growth="exponential", base_ms=500, spread=0.0)
BUSY = (429, 502, 503, 504)
_DRIVERS = (sqlite3.Error, asyncpg.PostgresError, asyncpg.InterfaceError)
_T = TypeVar("_T")


class SourceFailed(PenstockError):
    """A database or an index did not give its rows. The message says which, and why."""


def _address(url: str) -> tuple[str, bool]:
    """Return the address of a URL or of a reference, and whether it was a reference. Raises UsageError."""
    if not is_reference(url):
        return url, False
    try:
        return resolve_reference(url).reveal(), True
    except BadReference as error:
        raise UsageError(str(error)) from error


def _check_page(page: int) -> None:
    if not 1 <= page <= MOST_PAGE:
        raise UsageError(f"page {page}: use 1 to {MOST_PAGE} rows")


# ---- SQL


async def sql_rows(
    url: str, query: str, params: Mapping[str, Any] | None = None, *, page: int = 1_000
) -> AsyncGenerator[list[dict[str, Any]], None]:
    """Yield the rows of a query, `page` at a time, each by column. `:name` in the query stands for a value of `params`.
    sqlite:///FILE or postgresql://USER@HOST/DATABASE. Raises UsageError, SourceFailed."""
    _check_page(page)
    parsed = _sql_url(*_address(url))
    try:
        async with _reading(parsed) as connection:
            async with connection.stream(text(query), dict(params or {})) as result:
                _check_names(list(result.keys()))
                async for rows in result.mappings().partitions(page):
                    yield [dict(row) for row in rows]
    except (SQLAlchemyError, OSError, *_DRIVERS) as error:  # of drivers too: SQLAlchemy lets some through in a fetch
        said = str(getattr(error, "orig", None) or error)
        raise SourceFailed(f"{parsed.database}: {said[:MOST_REASON]}") from error


def _check_names(columns: Sequence[str]) -> None:
    """Raise UsageError for two columns of one name, since a row would hold only one of them."""
    for column in columns:
        if columns.count(column) > 1:
            raise UsageError(f"{columns.count(column)} columns of the query are called {column[:80]!a}; use AS")


def _sql_url(url: str, is_reference: bool) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise UsageError("not a database URL: say sqlite:///FILE or postgresql://USER@HOST/DATABASE") from None
    if parsed.password is not None and not is_reference:
        raise UsageError("a password is never written down: put the whole URL behind env:NAME or file:/path")
    match parsed.get_backend_name():
        case "sqlite":
            path = Path(parsed.database or ":memory:").absolute()
            if not path.is_file():
                raise UsageError(f"{path}: there is no such SQLite file; {SLASHES}")
            asked = {"uri": "true", "mode": "rw"}  # not `ro`: a log that was left behind is to be read, too
            return parsed.set(drivername="sqlite+aiosqlite", database=f"file:{quote(str(path))}", query=asked)
        case "postgresql" | "postgres":
            return parsed.set(drivername="postgresql+asyncpg")
        case other:
            raise UsageError(f"no rows from {other!r}: say sqlite:///FILE or postgresql://USER@HOST/DATABASE")


@asynccontextmanager
async def _reading(url: URL) -> AsyncIterator[AsyncConnection]:
    """Open a connection that can only read."""
    engine = create_async_engine(url, poolclass=NullPool)
    try:
        async with engine.connect() as connection:
            if engine.dialect.name == "sqlite":
                await connection.exec_driver_sql("PRAGMA query_only = ON")
                yield connection
            else:
                yield await connection.execution_options(postgresql_readonly=True)
    finally:
        await engine.dispose()


# ---- OpenSearch


class _Hit(msgspec.Struct):
    id: str = msgspec.field(name="_id")
    source: dict[str, Any] = msgspec.field(name="_source", default_factory=dict)
    sort: msgspec.Raw = msgspec.Raw(b"")


class _Total(msgspec.Struct):
    value: int


class _Hits(msgspec.Struct):
    hits: list[_Hit]
    total: _Total | None = None


class _Shards(msgspec.Struct):
    total: int = 1
    failed: int = 0


class _Page(msgspec.Struct):
    hits: _Hits
    timed_out: bool = False
    shards: _Shards = msgspec.field(name="_shards", default_factory=_Shards)


class _Pit(msgspec.Struct):
    pit_id: str
    shards: _Shards = msgspec.field(name="_shards", default_factory=_Shards)


async def opensearch_rows(
    url: str, index: str, query: Mapping[str, Any] | None = None, page: int = 1_000, *, sort: str = ""
) -> AsyncGenerator[list[dict[str, Any]], None]:
    """Yield the documents of an index (or a pattern of some) that a query finds, at most `page` at a time, each as its
    fields and `_id`. All are of one point in time, whatever is written meanwhile. `query` is OpenSearch's own, by
    default all documents. `sort`: a field to order them by, which all documents have and no two share. Without it there
    is no order. OpenSearch 2.4 or later. Raises UsageError, SourceFailed."""
    _check_page(page)
    if not index:
        raise UsageError("no index: say its name, or a pattern such as products-*")
    address, headers = _http_url(*_address(url))
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=120)) as session:
        search = _Search(session, address, index)
        await search.open()
        try:
            asked = {"query": dict(query or {"match_all": {}}), "size": page}
            async with aclosing(search.sorted(asked, sort) if sort else search.sliced(asked)) as pages:
                async for hits in pages:
                    yield [{**hit.source, "_id": hit.id} for hit in hits]
        finally:
            with anyio.CancelScope(shield=True):
                await search.close()


def _http_url(url: str, is_reference: bool) -> tuple[HttpUrl, dict[str, str]]:
    try:
        parsed = HttpUrl(url)
    except ValueError:
        parsed = HttpUrl("")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise UsageError("not the address of an OpenSearch: say https://HOST:9200")
    if parsed.password is not None and not is_reference:
        raise UsageError("a password is never written down: put the whole URL behind env:NAME or file:/path")
    headers = {"Content-Type": "application/json"}
    if parsed.user is not None:
        pair = f"{parsed.user}:{parsed.password or ''}".encode()
        headers["Authorization"] = f"Basic {b64encode(pair).decode()}"
    return parsed.with_user(None).with_query(None), headers


class _Search:
    """One point in time, and the pages of a search in it.

    A page goes on after the last hit of the one before, so no two hits may sort alike. `_doc`, the number that a
    document has in its shard, is unique in one shard and costs no memory. `_shard_doc` is not unique over two indices
    (and servers before 3.3 do not know it). So the search is sliced: with as many slices as shards, no slice meets two
    shards of one index, and `_doc` and `_index` are enough in each."""

    def __init__(self, session: aiohttp.ClientSession, url: HttpUrl, index: str) -> None:
        self._session = session
        self._url = url
        self._index = index
        self._pit = _Pit("")

    async def open(self) -> None:
        """Take the point in time, of all the shards or of none."""
        path = self._url.joinpath(quote(self._index, safe=",*"), encoded=True) / "_search" / "point_in_time"
        asked = {"keep_alive": KEPT, "allow_partial_pit_creation": "false", "allow_no_indices": "false"}
        self._pit = self._decoded(await self._asked("POST", path % asked, None), _Pit)

    async def sliced(self, asked: dict[str, Any]) -> AsyncGenerator[list[_Hit], None]:
        """Yield the hits, slice after slice and page after page."""
        parts = min(self._pit.shards.total, MOST_PARTS)
        asked |= {"sort": [{"_doc": "asc"}, {"_index": "asc"}], "track_total_hits": False}
        for part in range(parts):
            only = {"slice": {"field": "_seq_no", "id": part, "max": parts}} if parts > 1 else {}
            async with aclosing(self._pages(asked | only)) as pages:
                async for page in pages:
                    yield page.hits

    async def sorted(self, asked: dict[str, Any], field: str) -> AsyncGenerator[list[_Hit], None]:
        """Yield the hits in the order of a field, and count them: hits that sort alike are lost between two pages."""
        found = total = 0
        async with aclosing(self._pages(asked | {"sort": [{field: "asc"}], "track_total_hits": True})) as pages:
            async for page in pages:
                found += len(page.hits)
                total = page.total.value if page.total else 0
                yield page.hits
        if found != total:
            raise SourceFailed(f"{self._index}: {found} of {total} documents: some have the same {field!r}, or none")

    async def _pages(self, asked: dict[str, Any]) -> AsyncGenerator[_Hits, None]:
        asked["pit"] = {"id": self._pit.pit_id, "keep_alive": KEPT}
        page = await self._page(asked)
        while page.hits:
            yield page
            if len(page.hits) < asked["size"]:
                return
            asked["search_after"] = page.hits[-1].sort
            page = await self._page(asked)

    async def _page(self, asked: dict[str, Any]) -> _Hits:
        page = self._decoded(await self._asked("POST", self._url / "_search", asked), _Page)
        if page.timed_out or page.shards.failed:
            why = "the search timed out" if page.timed_out else f"{page.shards.failed} shards failed"
            raise SourceFailed(f"{self._index}: {why}; some documents would be missing")
        return page.hits

    async def close(self) -> None:
        """Close the point in time. If the request does not reach the server, the server closes it later."""
        with anyio.move_on_after(5):
            try:
                await self._once("DELETE", self._url / "_search" / "point_in_time", {"pit_id": [self._pit.pit_id]})
            except (aiohttp.ClientError, TimeoutError):
                return

    async def _asked(self, method: str, url: HttpUrl, body: object) -> bytes:
        """Send a request and return the answer. Repeat it after a wait if the server is busy or away."""
        said = ""
        for number in range(TRIES):
            if number:
                await anyio.sleep(AGAIN.wait_s(number))
            try:
                status, raw = await self._once(method, url, body)
            except (aiohttp.ClientError, TimeoutError) as error:
                said = f"{type(error).__name__}: {error}"
                continue
            if status == 200:
                return raw
            said = f"{status}: {raw[:MOST_REASON].decode('utf-8', 'replace')}"
            if status not in BUSY:
                break
        raise SourceFailed(f"{self._index}: {url.path}: {said}"[: 2 * MOST_REASON])

    async def _once(self, method: str, url: HttpUrl, body: object) -> tuple[int, bytes]:
        payload = b"" if body is None else msgspec.json.encode(body)
        async with self._session.request(method, url, data=payload, allow_redirects=False) as answer:
            parts, size = [], 0
            async for part in answer.content.iter_chunked(1 << 18):
                parts.append(part)
                size += len(part)
                if size > MOST_BYTES:
                    raise SourceFailed(
                        f"{self._index}: a page of more than {MOST_BYTES} bytes; ask for fewer at a time"
                    )
            return answer.status, b"".join(parts)

    def _decoded(self, raw: bytes, type_: type[_T]) -> _T:
        try:
            return msgspec.json.decode(raw, type=type_)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise SourceFailed(f"{self._index}: this is no answer of an OpenSearch: {error}") from error
