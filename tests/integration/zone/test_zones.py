"""Zoned jobs in node processes of several zones: every row handled, whoever has its shard."""

from __future__ import annotations

import pytest

from tests.support.zone_land import Land

pytestmark = [pytest.mark.asyncio(loop_factories=["asyncio"]), pytest.mark.three_servers]

TWO = {"shards": 10, "zones": {"a": "0-4", "b": "5-9"}}


async def test_each_zone_handles_the_rows_of_its_own_shards(land: Land) -> None:
    land.add(400)
    async with land.node("a1", "a") as first, land.node("b1", "b") as second:
        await first.logged("node.ready")
        await second.logged("node.ready")
        await land.zones.apply(map=TWO)
        for job in ("sync", "long", "tick"):
            handled = await land.all_handled(job)
            assert set(handled.values()) == {1}, job
            assert land.by(job, [row for row in handled if row % 10 < 5]) == {"a"}
            assert land.by(job, [row for row in handled if row % 10 >= 5]) == {"b"}


async def test_shards_that_move_under_load_lose_no_row(land: Land) -> None:
    async with land.node("a1", "a") as first, land.node("b1", "b") as second:
        await first.logged("node.ready")
        await second.logged("node.ready")
        await land.zones.apply(map=TWO)
        for step in range(6):
            land.add(200)
            await land.zones.apply(moves={str(step): "b" if step % 2 == 0 else "a", str(9 - step): "a"})
        for job in ("sync", "long", "tick"):
            await land.all_handled(job)
        assert set(land.handled("sync").values()) == {1}
        assert land.refused() == []
