"""A zoned job in a program that is no node: it learns its shards, stops, and goes on, by the rules of managed jobs."""

from __future__ import annotations

import os

import anyio
import pytest

import penstock
from penstock.errors import UsageError
from tests.support.sqlite import sqlite_file
from tests.support.zone_land import Land

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

TWO = {"shards": 10, "zones": {"a": "0-4", "b": "5-9"}, "drain": "60s"}


class Program:
    """Handles rows as `sync` of tests/support/zone_app.py does."""

    def __init__(self, land: Land) -> None:
        self.land = land
        self.runs: list[tuple[tuple[int | str, ...], int]] = []
        """The shards and the epoch of each run."""

    async def sync(self, ctx: penstock.ZoneContext) -> None:
        found = ctx.shards, ctx.epoch
        if not self.runs or self.runs[-1] != found:
            self.runs.append(found)
        with sqlite_file(self.land.path) as db:
            query = "SELECT id, key FROM rows WHERE id > ? ORDER BY id LIMIT 50"
            rows = db.execute(query, (ctx.start_offset,)).fetchall()
            mine = ctx.mine(rows, key=1, offset=0)
            assert all(ctx.owns(key) for _, key in mine)
            written = [(ctx.job, row, ctx.zone, ctx.epoch, os.getpid()) for row, _ in mine]
            db.executemany("INSERT INTO handled VALUES (?, ?, ?, ?, ?)", written)
        if rows:
            await ctx.save(rows[-1][0])


async def test_a_program_shares_a_job_with_a_node_of_another_zone(land: Land) -> None:
    program = Program(land)
    async with land.node("a1", "a") as node, anyio.create_task_group() as tasks:
        await node.logged("node.ready")

        async def run() -> None:
            await land.zones.run("sync", program.sync, zone="b", pause="20ms", name="own-b")

        tasks.start_soon(run)
        await land.zones.apply(map=TWO)
        land.add(300)
        await land.all_handled("sync")
        assert land.by("sync", [row for row in range(1, 301) if row % 10 < 5]) == {"a"}
        assert land.by("sync", [row for row in range(1, 301) if row % 10 >= 5]) == {"b"}

        known = await land.zones.shards("b")
        assert (known.shards, known.epoch, known.function, known.count) == ([5, 6, 7, 8, 9], 1, "number", 10)
        asked: list[list[int | str]] = []

        async def wait() -> None:
            asked.append((await land.zones.shards("b", after=known.epoch, wait="20s")).shards)

        tasks.start_soon(wait)
        await land.zones.apply(moves={"0": "b", "7": "a"})
        last = land.add(300)
        await land.offsets_reach("sync", last)
        assert land.by("sync", [row for row in range(301, last + 1) if row % 10 == 0]) == {"b"}
        assert land.by("sync", [row for row in range(301, last + 1) if row % 10 == 7]) == {"a"}
        assert set(land.handled("sync").values()) == {1}
        assert asked == [[0, 5, 6, 8, 9]]
        assert program.runs[0] == ((5, 6, 7, 8, 9), 1)
        assert program.runs[-1] == ((0, 5, 6, 8, 9), 2)
        assert {each.zone: each.nodes for each in await land.zones.list()} == {"a": ["a1"], "b": ["own-b"]}
        shown = await land.zones.show("b")
        assert [(each.shard, each.before, each.skipped, each.is_forced) for each in shown.handovers] == [
            ("0", "a", 0, False)
        ]
        tasks.cancel_scope.cancel()


async def test_a_program_whose_zone_has_no_name_is_refused(land: Land) -> None:
    with pytest.raises(UsageError, match="zone 'a b'"):
        await land.zones.run("sync", Program(land).sync, zone="a b")
