"""Databases that are away for a while: what waits for them is stored later, once."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio
import asyncpg
import pytest

from tests.chaos.conftest import AssertWhole
from tests.support.chaos import Form, World, eventually, open_world
from tests.support.chaos_history import Rows
from tests.support.postgres import PostgresServer, postgres_server


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


async def outages(world: World) -> dict[str, int]:
    """Return how often the nodes have said that the sink was down, and failed."""
    lines = [line["event"] for node in world.nodes.values() for line in node.lines("sink.failed", "sink.down")]
    return {"failed": lines.count("sink.failed"), "down": lines.count("sink.down")}


@pytest.mark.timeout(1800)
async def test_locked_sqlite_file_loses_nothing(tmp_path: Path, form: Form, assert_whole: AssertWhole) -> None:
    async with open_world(tmp_path) as world:
        for name in ("n1", "n2"):
            await world.node(name)
        rounds = form.pick(1, 5)
        await world.add_mall(history_ms=20_000, live_ms=form.pick(3_000, rounds * 8_000), live_share=0.8)
        for _ in range(rounds):
            await world.nodes["n1"].logged("node.ready")
            before = (await outages(world))["failed"]

            async def is_met(before: int = before) -> bool:
                return (await outages(world))["failed"] > before

            with closing(sqlite3.connect(world.database, timeout=10, isolation_level=None)) as other:
                other.execute("BEGIN EXCLUSIVE")
                await eventually(is_met, 30, "no sink has met the lock")
            await anyio.sleep(0.5)
        verdict = await world.verdict("sqlite locked", form)
        world.facts |= await outages(world)
        assert_whole(verdict)


@pytest.mark.timeout(1800)
async def test_stopped_postgresql_loses_nothing(
    tmp_path: Path, form: Form, assert_whole: AssertWhole, postgres: PostgresServer
) -> None:
    async def rows() -> Rows:
        database = await asyncpg.connect(postgres.url)
        try:
            stored = await database.fetch("SELECT platform, source, order_key, version FROM orders")
            changes = await database.fetch("SELECT platform, source, order_key, version FROM order_changes")
        finally:
            await database.close()
        return {(row[0], row[1], row[2]): row[3] for row in stored}, [tuple(row) for row in changes]

    async with open_world(tmp_path) as world:
        world.sink, world.rows = postgres.url, rows
        for name in ("n1", "n2"):
            await world.node(name)
        stops = form.pick(2, 20)
        await world.add_mall(history_ms=20_000, live_ms=form.pick(1_500, stops * 2_500), live_share=0.8)
        for _ in range(stops):
            await anyio.sleep(0.7)
            await anyio.to_thread.run_sync(postgres.stop)
            world.kills += 1
            await anyio.sleep(0.7)
            await anyio.to_thread.run_sync(postgres.start)
        verdict = await world.verdict("postgresql stopped", form)
        world.facts |= await outages(world)
        assert_whole(verdict)
        assert world.facts["failed"] > 0
