"""Rows of databases and of a search index, read page by page, and nothing else done to them."""

from __future__ import annotations

import datetime
import decimal
import json
import sqlite3
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
from aiohttp import web

import penstock
from penstock import batch_sources
from streams.connection import Connection
from tests.support.batches import plant
from tests.support.postgres import PostgresServer, find_programs, postgres_server

COUNT = 2_500


@pytest.fixture
def shop_db(tmp_path: Path) -> Path:
    path = tmp_path / "a shop?.db"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE products (sku TEXT, price REAL, shop INTEGER)")
        rows = [(f"SKU-{number}", number / 4, number % 2) for number in range(COUNT)]
        database.executemany("INSERT INTO products VALUES (?, ?, ?)", rows)
    database.close()
    return path


def url_of(path: Path) -> str:
    return f"sqlite:///{str(path).replace('?', '%3F')}"


async def pages(rows: AsyncIterator[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    return [page async for page in rows]


# ---- SQLite


async def test_a_sqlite_files_rows_come_by_page(shop_db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_DB", url_of(shop_db))
    query = "SELECT sku, price FROM products WHERE shop = :shop ORDER BY rowid"
    found = await pages(penstock.sql_rows("env:SHOP_DB", query, {"shop": 1}, page=400))
    assert [len(page) for page in found] == [400, 400, 400, 50]
    assert found[0][0] == {"sku": "SKU-1", "price": 0.25}
    assert [row["sku"] for page in found for row in page] == [f"SKU-{number}" for number in range(1, COUNT, 2)]


async def test_nothing_is_written_into_a_sqlite_file(shop_db: Path) -> None:
    for query in ("DELETE FROM products RETURNING sku", "INSERT INTO products VALUES ('x', 1, 1) RETURNING sku"):
        with pytest.raises(penstock.SourceFailed, match="readonly"):
            await pages(penstock.sql_rows(url_of(shop_db), query))
    assert await pages(penstock.sql_rows(url_of(shop_db), "SELECT count(*) AS n FROM products")) == [[{"n": COUNT}]]


async def test_a_reader_that_leaves_early_closes_the_file(shop_db: Path) -> None:
    async with aclosing(penstock.sql_rows(url_of(shop_db), "SELECT * FROM products", page=10)) as rows:
        async for page in rows:
            assert len(page) == 10
            break
    with sqlite3.connect(shop_db) as database:
        database.execute("DROP TABLE products")
    database.close()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sqlite:////nowhere/shop.db", "no such SQLite file"),
        ("sqlite://", "no such SQLite file"),
        ("mysql://root@shop/orders", "no rows from 'mysql'"),
        ("postgresql://me:hunter2@shop/orders", "never written down"),
        ("nonsense", "not a database URL"),
        ("env:PENSTOCK_NO_SUCH", "not set"),
    ],
)
async def test_a_url_that_is_none_is_told(url: str, told: str) -> None:
    with pytest.raises(penstock.UsageError, match=told) as refused:
        await pages(penstock.sql_rows(url, "SELECT 1"))
    assert "hunter2" not in str(refused.value)


async def test_a_query_that_is_wrong_is_told(shop_db: Path) -> None:
    with pytest.raises(penstock.SourceFailed, match="no such column"):
        await pages(penstock.sql_rows(url_of(shop_db), "SELECT colour FROM products"))
    with pytest.raises(penstock.UsageError, match="page 0"):
        await pages(penstock.sql_rows(url_of(shop_db), "SELECT 1", page=0))


# ---- PostgreSQL


@pytest.fixture(scope="module")
def postgres() -> Any:
    programs = find_programs()
    if programs is None:
        pytest.skip("no PostgreSQL is installed")
    with postgres_server(programs) as running:
        yield running


async def test_a_postgres_querys_rows_come_by_page(postgres: PostgresServer) -> None:
    query = (
        "SELECT n, n / 4.0 AS price, now() AS at, gen_random_uuid() AS id FROM generate_series(1, :count) n ORDER BY n"
    )
    found = await pages(penstock.sql_rows(postgres.url, query, {"count": COUNT}))
    assert [len(page) for page in found] == [1_000, 1_000, 500]
    assert [row["n"] for page in found for row in page] == list(range(1, COUNT + 1))
    first = found[0][0]
    assert isinstance(first["at"], datetime.datetime)
    assert isinstance(first["price"], decimal.Decimal)
    assert isinstance(first["id"], uuid.UUID)
    assert json.loads(msgspec.json.encode(first))["id"] == str(first["id"])


async def test_nothing_is_written_into_postgres(postgres: PostgresServer) -> None:
    connection = await asyncpg.connect(postgres.url)
    await connection.execute("CREATE TABLE IF NOT EXISTS products (sku text)")
    with pytest.raises(penstock.SourceFailed, match="read-only transaction"):
        await pages(penstock.sql_rows(postgres.url, "INSERT INTO products VALUES ('x') RETURNING sku"))
    assert await connection.fetchval("SELECT count(*) FROM products") == 0
    await connection.close()


async def test_a_postgres_that_is_not_there_is_told() -> None:
    with pytest.raises(penstock.SourceFailed, match="orders: "):
        await pages(penstock.sql_rows("postgresql://me@127.0.0.1:1/orders", "SELECT 1"))


# ---- OpenSearch


class Index:
    """An OpenSearch with one index, as strict as the real one: a search is of a point in time that is open, has no
    index in its path, and goes on after the sort values of the last hit. Each page renews the point's id."""

    def __init__(self, count: int) -> None:
        self.documents = [{"sku": f"SKU-{number}"} for number in range(count)]
        self.points: dict[str, list[dict[str, str]]] = {}
        self.opened = 0
        self.searches: list[dict[str, Any]] = []
        self.troubles: list[web.Response] = []

    async def open(self, request: web.Request) -> web.Response:
        if request.match_info["index"] != "products-*" or request.query.get("keep_alive") != "5m":
            return web.json_response({"error": "index_not_found_exception"}, status=404)
        return web.json_response({"pit_id": self._renewed(list(self.documents)), "_shards": {"failed": 0}})

    def _renewed(self, documents: list[dict[str, str]]) -> str:
        self.opened += 1
        point = f"pit-{self.opened}"
        self.points[point] = documents
        return point

    async def search(self, request: web.Request) -> web.Response:
        asked = await request.json()
        self.searches.append(asked)
        if self.troubles:
            return self.troubles.pop()
        if asked["pit"]["id"] not in self.points or not asked["pit"]["keep_alive"]:
            return web.json_response({"error": "search_context_missing_exception"}, status=404)
        if asked["sort"] != [{"_shard_doc": "asc"}] or not 1 <= asked["size"] <= 10_000 or "from" in asked:
            return web.json_response({"error": "illegal_argument_exception"}, status=400)
        documents = self.points.pop(asked["pit"]["id"])
        first = asked["search_after"][0] + 1 if "search_after" in asked else 0
        self.documents.insert(0, {"sku": "late"})  # whoever reads the index and not its point in time sees it
        hits = [
            {"_index": "products-1", "_id": f"id-{number}", "_score": None, "_source": document, "sort": [number]}
            for number, document in enumerate(documents[first : first + asked["size"]], first)
        ]
        told = {
            "pit_id": self._renewed(documents),
            "timed_out": False,
            "_shards": {"failed": 0},
            "hits": {"hits": hits},
        }
        return web.json_response(told)

    async def close(self, request: web.Request) -> web.Response:
        closed = [self.points.pop(point, None) is not None for point in (await request.json())["pit_id"]]
        return web.json_response(
            {"pits": [{"successful": each} for each in closed]}, status=200 if all(closed) else 404
        )


@asynccontextmanager
async def opensearch(index: Index, *, user: str = "") -> AsyncIterator[str]:
    @web.middleware
    async def check(request: web.Request, handler: Any) -> web.StreamResponse:
        if user and request.headers.get("Authorization") != user:
            return web.Response(status=401, text="Unauthorized")
        response: web.StreamResponse = await handler(request)
        return response

    app = web.Application(middlewares=[check])
    app.router.add_post("/{index}/_search/point_in_time", index.open)
    app.router.add_post("/_search", index.search)
    app.router.add_delete("/_search/point_in_time", index.close)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_an_indexs_documents_come_by_page_of_one_point_in_time() -> None:
    index = Index(COUNT)
    async with opensearch(index) as url:
        found = await pages(penstock.opensearch_rows(url, "products-*", {"term": {"shop": 1}}, page=1_000))
    assert [len(page) for page in found] == [1_000, 1_000, 500]
    assert found[0][0] == {"sku": "SKU-0", "_id": "id-0"}
    assert [row["sku"] for page in found for row in page] == [f"SKU-{number}" for number in range(COUNT)]
    assert index.points == {}
    assert index.searches[0]["query"] == {"term": {"shop": 1}}
    assert len(index.searches) == 4


async def test_the_point_in_time_is_closed_whoever_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_sources, "TRY_AGAIN_S", 0.001)
    index = Index(30)
    async with opensearch(index) as url:
        async with aclosing(penstock.opensearch_rows(url, "products-*", page=10)) as rows:
            assert len(await anext(rows)) == 10
        assert index.points == {}
        index.troubles = [web.json_response({"error": "parsing_exception"}, status=400)]
        with pytest.raises(penstock.SourceFailed, match=r"400: .*parsing_exception"):
            await pages(penstock.opensearch_rows(url, "products-*", {"nonsense": {}}))
        assert index.points == {}
        partial = {"hits": {"hits": []}, "_shards": {"failed": 1}}
        index.troubles = [web.json_response(partial)]
        with pytest.raises(penstock.SourceFailed, match="1 shards failed"):
            await pages(penstock.opensearch_rows(url, "products-*"))
        index.troubles = [web.Response(text="<html>")]
        with pytest.raises(penstock.SourceFailed, match="no answer of an OpenSearch"):
            await pages(penstock.opensearch_rows(url, "products-*"))
        assert index.points == {}
        index.troubles = [web.Response(status=429), web.Response(status=503)]
        assert len(await pages(penstock.opensearch_rows(url, "products-*", page=10))) >= 3
    assert index.points == {}


async def test_what_is_no_opensearch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_sources, "TRY_AGAIN_S", 0.001)
    with pytest.raises(penstock.SourceFailed, match="ClientConnectorError"):
        await pages(penstock.opensearch_rows("http://127.0.0.1:1", "products"))
    for url in ("ftp://host", "nonsense", "http://me:hunter2@host"):
        with pytest.raises(penstock.UsageError) as refused:
            await pages(penstock.opensearch_rows(url, "products"))
        assert "hunter2" not in str(refused.value)
    async with opensearch(Index(1)) as url:
        with pytest.raises(penstock.SourceFailed, match="404"):
            await pages(penstock.opensearch_rows(url, "nothing"))


# ---- in a split


@penstock.batch("from-sources")
class FromSources:
    async def split(self, ctx: penstock.SplitContext) -> None:
        async for rows in penstock.sql_rows(ctx.input["db"], "SELECT sku FROM products ORDER BY rowid"):
            await ctx.commit(*rows)
        async for rows in penstock.opensearch_rows("env:SHOP_SEARCH", "products-*"):
            await ctx.commit(*rows)

    async def map_many(self, items: list[dict[str, str]]) -> None:
        assert all(item["sku"] for item in items)

    async def reduce(self, ctx: penstock.ReduceContext) -> dict[str, int]:
        found = [result.item["sku"] async for page in ctx.read() for result in page if result.status == "ok"]
        return {"items": len(found), "skus": len(set(found))}


async def test_a_split_commits_what_it_reads(
    connection: Connection, shop_db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index(1_200)
    user = "Basic bWU6aHVudGVyMg=="
    async with opensearch(index, user=user) as url, plant(connection, ["from-sources"]) as node:
        monkeypatch.setenv("SHOP_SEARCH", url.replace("//", "//me:hunter2@"))
        view = await node.run("from-sources", {"db": url_of(shop_db)})
    assert view.result == {"items": COUNT + 1_200, "skus": COUNT}
    assert index.points == {}
