"""Rows of databases and of a search index, read page by page, and nothing else done to them."""

from __future__ import annotations

import datetime
import decimal
import json
import os
import re
import uuid
from base64 import urlsafe_b64decode
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import msgspec
import pytest
from aiohttp import web

import penstock
from penstock.rows import batch_sources
from streams.backoff import Backoff
from streams.link.connection import Connection
from tests.support.batches import plant
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.sqlite import sqlite_file

COUNT = 2_500


@pytest.fixture
def shop_db(tmp_path: Path) -> Path:
    path = tmp_path / "a shop?.db"
    with sqlite_file(path) as database:
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
    with sqlite_file(shop_db) as database:
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
    with pytest.raises(penstock.UsageError, match="2 columns of the query are called 'a'; use AS"):
        await pages(penstock.sql_rows(url_of(shop_db), "SELECT 1 AS a, 2 AS b, 3 AS a"))


# ---- PostgreSQL


@pytest.fixture(scope="module")
def postgres() -> Any:
    with postgres_server() as running:
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
    """An OpenSearch with one index of three shards, which answers as the real ones do (2.19, 3.8): a search is of a
    point in time that is open, has no index in its path, and goes on after what the last hit sorts by; hits that sort
    alike are lost between two pages. A shard that is not there is missing without a word, if that is allowed."""

    def __init__(self, count: int) -> None:
        self.shards = [[{"sku": f"SKU-{number}"} for number in range(shard, count, 3)] for shard in range(3)]
        self.points: dict[str, list[list[dict[str, str]]]] = {}
        self.opened = 0
        self.lost = 0
        self.searches: list[dict[str, Any]] = []
        self.troubles: list[web.Response] = []

    async def open(self, request: web.Request) -> web.Response:
        index, asked = request.match_info["index"], request.query
        if not asked.get("keep_alive"):
            return refused(
                400, "action_request_validation_exception", "Validation Failed: 1: keep alive not specified;"
            )
        if index != "products-*":
            if "*" in index and asked.get("allow_no_indices") != "false":
                return refused(400, "illegal_argument_exception", "invalid id: [null]")
            return refused(404, "index_not_found_exception", f"no such index [{index}]")
        if self.lost and asked.get("allow_partial_pit_creation") == "false":
            reason = f"Search rejected due to missing shards [[products-1][{self.lost}]]."
            return refused(503, "search_phase_execution_exception", reason)
        self.opened += 1
        point = f"pit-{self.opened}"
        self.points[point] = [list(shard) for shard in self.shards[: 3 - self.lost]]
        told = {"total": 3, "successful": 3 - self.lost, "skipped": 0, "failed": 0}
        return web.json_response({"pit_id": point, "_shards": told, "creation_time": 1})

    async def search(self, request: web.Request) -> web.Response:
        asked = await request.json()
        self.searches.append(asked)
        if self.troubles:
            return self.troubles.pop()
        if unknown := sorted(asked["query"].keys() - {"match_all", "term"}):
            return refused(400, "parsing_exception", f"unknown query [{unknown[0]}]")
        shards = self.points.get(asked["pit"]["id"])
        if shards is None:
            cause = ("search_context_missing_exception", "No search context found for id [1]")
            return refused(404, "search_phase_execution_exception", "all shards failed", cause)
        if asked["size"] > 10_000:
            reason = "Result window is too large, from + size must be less than or equal to: [10000]"
            return refused(
                400, "search_phase_execution_exception", "all shards failed", ("illegal_argument_exception", reason)
            )
        part = asked.get("slice")
        if part and part["max"] < 2:
            return refused(400, "x_content_parse_exception", "[1:33] [slice] failed to parse field [max]")
        chosen = shards[part["id"] :: part["max"]] if part else shards
        self.shards[0].insert(0, {"sku": "late"})  # whoever reads the index and not its point in time sees it
        found = [each for shard in chosen for each in enumerate(shard)]
        hits = [
            hit
            for place, each in found
            if (hit := self._hit(place, each, asked))["sort"] > asked.get("search_after", [])
        ]
        told: dict[str, Any] = {"max_score": None, "hits": sorted(hits, key=itemgetter("sort"))[: asked["size"]]}
        if asked["track_total_hits"]:
            told["total"] = {"value": len(found), "relation": "eq"}
        return web.json_response(
            {
                "pit_id": asked["pit"]["id"],
                "took": 1,
                "timed_out": False,
                "_shards": {"total": len(shards), "successful": len(shards), "skipped": 0, "failed": 0},
                "hits": told,
            }
        )

    def _hit(self, place: int, document: dict[str, str], asked: dict[str, Any]) -> dict[str, Any]:
        known = {"_doc": place, "_index": "products-1", **document}
        by = [known[field] for each in asked["sort"] for field in each]
        return {"_index": "products-1", "_id": f"id-{document['sku']}", "_score": None, "_source": document, "sort": by}

    async def close(self, request: web.Request) -> web.Response:
        points = (await request.json())["pit_id"]
        for point in points:
            self.points.pop(point, None)
        return web.json_response({"pits": [{"successful": True, "pit_id": point} for point in points]})


def refused(status: int, type_: str, reason: str, cause: tuple[str, str] | None = None) -> web.Response:
    root_type, root_reason = cause or (type_, reason)
    error = {"root_cause": [{"type": root_type, "reason": root_reason}], "type": type_, "reason": reason}
    return web.json_response({"error": error, "status": status}, status=status)


@asynccontextmanager
async def opensearch(index: Index, *, user: str = "") -> AsyncIterator[str]:
    @web.middleware
    async def check(request: web.Request, handler: Any) -> web.StreamResponse:
        if user and request.headers.get("Authorization") != user:
            return web.Response(status=401, text="Unauthorized")
        response: web.StreamResponse = await handler(request)
        return response

    app = web.Application(middlewares=[check])
    app.router.add_post("/{index:[^/]+}/_search/point_in_time", index.open)
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
        found = await pages(penstock.opensearch_rows(url, "products-*", {"term": {"shop": 1}}, page=417))
    assert [len(page) for page in found] == [417, 417, 417, 416, 417, 416]
    assert found[0][0] == {"sku": "SKU-0", "_id": "id-SKU-0"}
    assert sorted(row["sku"] for page in found for row in page) == sorted(f"SKU-{number}" for number in range(COUNT))
    assert index.points == {}
    assert index.searches[0]["query"] == {"term": {"shop": 1}}
    assert len(index.searches) == 7


async def test_documents_come_in_the_order_of_a_field_that_no_two_share() -> None:
    index = Index(30)
    async with opensearch(index) as url:
        found = await pages(penstock.opensearch_rows(url, "products-*", page=12, sort="sku"))
        assert [row["sku"] for page in found for row in page] == sorted(f"SKU-{number}" for number in range(30))
        assert [len(page) for page in found] == [12, 12, 6]
        index.shards = [[{"sku": f"SKU-{number}"} for number in range(10)] for shard in range(3)]
        with pytest.raises(penstock.SourceFailed, match="26 of 30 documents: some have the same 'sku', or none"):
            await pages(penstock.opensearch_rows(url, "products-*", page=10, sort="sku"))
    assert index.points == {}


async def test_the_point_in_time_is_closed_whoever_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_sources, "AGAIN", Backoff(base_ms=1))
    index = Index(30)
    async with opensearch(index) as url:
        async with aclosing(penstock.opensearch_rows(url, "products-*", page=10)) as rows:
            assert len(await anext(rows)) == 10
        assert index.points == {}
        with pytest.raises(penstock.SourceFailed, match=r"400: .*unknown query \[nonsense\]"):
            await pages(penstock.opensearch_rows(url, "products-*", {"nonsense": {}}))
        assert index.points == {}
        partial = {"hits": {"hits": []}, "timed_out": False, "_shards": {"total": 3, "failed": 1}}
        index.troubles = [web.json_response(partial)]
        with pytest.raises(penstock.SourceFailed, match="1 shards failed"):
            await pages(penstock.opensearch_rows(url, "products-*"))
        index.troubles = [web.json_response({**partial, "timed_out": True})]
        with pytest.raises(penstock.SourceFailed, match="the search timed out"):
            await pages(penstock.opensearch_rows(url, "products-*"))
        index.troubles = [web.Response(text="<html>")]
        with pytest.raises(penstock.SourceFailed, match="no answer of an OpenSearch"):
            await pages(penstock.opensearch_rows(url, "products-*"))
        assert index.points == {}
        index.troubles = [web.Response(status=429), web.Response(status=503)]
        assert len(await pages(penstock.opensearch_rows(url, "products-*", page=10))) >= 3
    assert index.points == {}


async def test_a_point_in_time_that_is_gone_is_told() -> None:
    index = Index(30)
    async with opensearch(index) as url, aclosing(penstock.opensearch_rows(url, "products-*", page=5)) as rows:
        assert len(await anext(rows)) == 5
        index.points.clear()
        with pytest.raises(penstock.SourceFailed, match="No search context found"):
            await anext(rows)


async def test_an_index_that_is_not_whole_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_sources, "AGAIN", Backoff(base_ms=1))
    index = Index(30)
    index.lost = 1
    async with opensearch(index) as url:
        with pytest.raises(penstock.SourceFailed, match=r"503: .*missing shards"):
            await pages(penstock.opensearch_rows(url, "products-*"))
        for name in ("nothing", "nothing-*", "<logs-{now/d}>", "../_cat"):
            with pytest.raises(penstock.SourceFailed, match=rf"404: .*no such index \[{re.escape(name)}\]"):
                await pages(penstock.opensearch_rows(url, name))
        with pytest.raises(penstock.UsageError, match="no index"):
            await pages(penstock.opensearch_rows(url, ""))


async def test_what_is_no_opensearch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_sources, "AGAIN", Backoff(base_ms=1))
    with pytest.raises(penstock.SourceFailed, match="ClientConnectorError"):
        await pages(penstock.opensearch_rows("http://127.0.0.1:1", "products"))
    for url in ("ftp://host", "nonsense", "http://me:hunter2@host"):
        with pytest.raises(penstock.UsageError) as refusal:
            await pages(penstock.opensearch_rows(url, "products"))
        assert "hunter2" not in str(refusal.value)


async def test_a_real_opensearchs_documents_come_once_each() -> None:
    """Of two indices that number their documents alike, while one is written to."""
    if (url := os.environ.get("PENSTOCK_TEST_OPENSEARCH")) is None:
        pytest.skip("PENSTOCK_TEST_OPENSEARCH does not say where a real OpenSearch is")
    pattern = f"penstock-{uuid.uuid4().hex}"
    async with aiohttp.ClientSession(url, headers={"Content-Type": "application/x-ndjson"}) as session:
        try:
            for index, shards in ((f"{pattern}-a", 3), (f"{pattern}-b", 2)):
                settings = {"settings": {"number_of_shards": shards, "number_of_replicas": 0}}
                await said(session.put(f"/{index}", json=settings, headers={"Content-Type": "application/json"}))
                await write(session, index, "index", range(COUNT))
            found = []
            async for page in penstock.opensearch_rows(url, f"{pattern}-*", page=300):
                found += [(row["_id"], row["sku"]) for row in page]
                assert len(page) <= 300
                await write(session, f"{pattern}-a", "index", range(COUNT + len(found), COUNT + len(found) + 9))
                await write(session, f"{pattern}-a", "delete", range(COUNT - len(found) % COUNT, COUNT))
            assert sorted(found) == sorted(2 * [(str(number), f"SKU-{number}") for number in range(COUNT)])
            with pytest.raises(penstock.SourceFailed, match=f"300 of {COUNT} documents: some have the same"):
                await pages(penstock.opensearch_rows(url, f"{pattern}-b", page=300, sort="_index"))
            ordered = await pages(penstock.opensearch_rows(url, f"{pattern}-b", page=300, sort="sku.keyword"))
            assert [row["sku"] for page in ordered for row in page] == sorted(
                f"SKU-{number}" for number in range(COUNT)
            )
            points = (await said(session.get("/_search/point_in_time/_all")))["pits"]
            assert not [each for each in points if pattern.encode() in urlsafe_b64decode(each["pit_id"])]
        finally:
            await said(session.delete(f"/{pattern}-a,{pattern}-b"))


async def write(session: aiohttp.ClientSession, index: str, action: str, numbers: range) -> None:
    lines: list[str] = []
    for number in numbers:
        lines.append(json.dumps({action: {"_id": str(number)}}))
        lines += [json.dumps({"sku": f"SKU-{number}"})] if action == "index" else []
    if lines:
        await said(session.post(f"/{index}/_bulk?refresh=true", data="\n".join([*lines, ""])))


async def said(asked: AbstractAsyncContextManager[aiohttp.ClientResponse]) -> Any:
    async with asked as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


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
