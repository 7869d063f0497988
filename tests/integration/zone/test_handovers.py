"""Shards that change hands while processes die, stand still, or hear of it late: no row is left out."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import anyio
import pytest

from actors.runtime.membership import TTL_S
from penstock.errors import NotAccepted
from streams.clock import now_ms
from tests.support.command import penstock
from tests.support.sqlite import sqlite_file
from tests.support.zone_land import Land

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

BATCH = 50
TWO = {"shards": 10, "zones": {"a": "0-4", "b": "5-9"}, "takeover": "0s"}


@pytest.mark.parametrize("point", ["zone.claim", "zone.save", "zone.save:3", "zone.saved:2", "zone.free:2"])
async def test_a_zone_killed_at_any_step_is_taken_over_and_no_row_is_left_out(land: Land, point: str) -> None:
    """Rows that were handled and not saved come again: one batch of each of the zone's runs."""
    land.add(500)
    async with land.node("b1", "b") as second, land.node("a1", "a", PENSTOCK_CRASH_AT=point) as first:
        await second.logged("node.ready")
        await first.logged("node.ready")
        await land.zones.apply(map=TWO)
        if point == "zone.free:2":
            await land.zones.apply(moves={"0": "b"})
        assert await first.process.wait() == -signal.SIGKILL
        handled = await land.all_handled("sync")
        await land.owned({"a": "", "b": "0-9"})
        assert sum(handled.values()) - len(handled) <= BATCH
        assert not [each for each in (await land.zones.show("b")).handovers if each.skipped]


@pytest.mark.parametrize("successor", ["b", "a"])
async def test_an_owner_that_stood_still_past_its_lease_has_its_save_refused(land: Land, successor: str) -> None:
    """The successor is another zone, or another node of its own zone."""
    land.add(400)
    async with land.node("b1", "b") as second, land.node("a1", "a", ZONE_STOP_AT="2") as first:
        await second.logged("node.ready")
        await first.logged("node.ready")
        await land.zones.apply(map=TWO)
        second_batch = range(BATCH + 1, 2 * BATCH + 1)
        await land.until(lambda: land.by("long", second_batch), lambda zones: "a" in zones)
        async with land.node("x1", successor) as other:
            await other.logged("node.ready")
            await land.all_handled("long")
            stored = await land.offsets_reach("long", 400)
            os.kill(first.process.pid, signal.SIGCONT)
            with anyio.fail_after(60):
                while not land.refused():  # noqa: ASYNC110 # a file tells nobody that it changed
                    await anyio.sleep(0.05)
            assert await land.offsets.of_job("long") == stored
    assert land.refused() == [("long", 2 * BATCH, "a", 1)]


async def test_a_drained_zone_gives_its_shards_and_gets_them_back(land: Land, tmp_path: Path) -> None:
    where = ("--nats", land.url, "--namespace", land.connection.namespace.name)
    written, shown = tmp_path / "drill.json", tmp_path / "drill.txt"
    land.add(300)
    async with land.node("a1", "a") as first, land.node("b1", "b") as second:
        await first.logged("node.ready")
        await second.logged("node.ready")
        await land.zones.apply(map=TWO)
        await land.offsets_reach("sync", 300)
        await land.offsets_reach("long", 300)
        planned = await land.zones.drain("a", dry_run=True)
        assert [move.after for move in planned.plan.moves] == ["b"] * 5
        assert {(start.job, start.zone, start.start) for start in planned.plan.starts} >= {("sync", "b", 300)}
        assert (await land.zones.routing()).epoch == 1
        refused = await penstock("zones", "drain", "a", "--dry-run", "--report", str(written), *where)
        assert (refused.code, "nothing moves with --dry-run" in refused.err) == (2, True)
        nowhere = await penstock("zones", "drain", "a", "--report", str(tmp_path / "none" / "drill.json"), *where)
        assert (nowhere.code, "nothing was moved" in nowhere.err) == (2, True)
        assert (await land.zones.routing()).epoch == 1
        (tmp_path / "empty.toml").touch()
        empty = await penstock("routing", "plan", str(tmp_path / "empty.toml"), *where)
        assert (empty.code, "missing required field `zones`" in empty.err) == (2, True)
        renamed = await land.zones.plan(map={"shards": 10, "zones": {"a2": "0-4", "b": "5-9"}})
        assert renamed.nodeless == ["a2"]
        assert (await land.zones.plan(weights={"c": 2.0})).nodeless == ["c"]
        assert planned.nodeless == []
        drilled = await penstock("zones", "drain", "a", "--report", str(written), *where)
        assert drilled.code == 0, drilled.err
        assert max(map(len, drilled.out.splitlines())) <= 80
        told = json.loads(written.read_text())
        assert {(each["job"], each["start"]) for each in told["plan"]["starts"]} >= {("sync", 300), ("long", 300)}
        report = told["report"]
        assert (report["epoch"], report["shards"], report["is_over"], report["skipped"]) == (2, 5, True, 0)
        assert {(each["job"], each["zone"], each["taken"], each["forced"]) for each in report["taken"]} == {
            (job, "b", 5, 0) for job in ("sync", "long", "tick")
        }
        assert 0 < report["took_ms"] < 60_000
        last = land.add(200)
        await land.offsets_reach("sync", last)
        assert land.by("sync", range(301, last + 1)) == {"b"}
        came = [each for each in (await land.zones.show("b")).handovers if each.job == "sync"]
        assert {(each.before, each.offset, each.start, each.skipped, each.is_forced) for each in came} == {
            ("a", 300, 300, 0, False)
        }
        assert (await penstock("zones", "restore", "a", "--report", str(shown), *where)).code == 0
        text = shown.read_text()
        assert "epoch 3 is in force: 5 shards move" in text
        assert "restore of a" in text
        waited = await penstock("routing", "report", "--epoch", "2", "--wait", "5s", "--json", *where)
        assert [(each["taken"], each["moved_on"]) for each in waited.json()["taken"]] == [(0, 5)] * 3
        last = land.add(200)
        await land.offsets_reach("sync", last)
        assert land.by("sync", [row for row in range(501, last + 1) if row % 10 < 5]) == {"a"}
        assert [each.why for each in await land.zones.history()] == ["restore of a", "drain of a", "a new map"]
        assert set(land.handled("sync").values()) == {1}


async def test_a_region_that_no_zone_has_for_a_while_has_none_of_its_rows_left_out(land: Land) -> None:
    """The code is taken out while rows of it are scanned, and is given to the other zone later."""

    def add(count: int) -> int:
        last = land.add(count)
        with sqlite_file(land.path) as db:
            db.execute("UPDATE rows SET key = 1 + id % 2 WHERE id > ?", (last - count,))
        return last

    async with land.node("a1", "a") as first, land.node("b1", "b") as second:
        await first.logged("node.ready")
        await second.logged("node.ready")
        land.shards = 2
        await land.zones.apply(map={"function": "region", "zones": {"a": "1", "b": "2"}})
        add(400)
        await land.until(lambda: land.handled("sync"), lambda found: len(found) >= 100)
        without = await land.zones.apply(map={"function": "region", "zones": {"a": "1", "b": ""}})
        assert [(move.shard, move.before, move.after) for move in without.plan.moves] == [("2", "b", "")]
        last = add(400)
        await land.until(lambda: land.handled("sync"), lambda found: {*range(2, last + 1, 2)} <= found.keys())
        await first.logged("zone.region_unknown", region="2")
        await land.zones.apply(map={"function": "region", "zones": {"a": "1,2", "b": ""}})
        await land.all_handled("sync")
        await land.all_handled("long")
        assert set(land.handled("sync").values()) == {1}
        report = await land.zones.report()
        assert (report.shards, report.skipped) == (1, 0)


async def test_zones_whose_shards_stay_do_not_stop(land: Land) -> None:
    three = {"shards": 9, "zones": {"a": "0-2", "b": "3-5", "c": "6-8"}}
    land.shards = 9
    async with land.node("a1", "a") as first, land.node("b1", "b") as second, land.node("c1", "c") as third:
        for each in (first, second, third):
            await each.logged("node.ready")
        await land.zones.apply(map=three)
        for each in (first, second, third):  # a shard that no zone has claimed is not taken from one
            await each.logged("zone.run_begins", job="sync")
        told = await land.zones.apply(moves={"0": "b"}, if_epoch=1)
        assert told.plan.goes_on == ["c"]
        await second.logged("zone.shard_taken", job="sync", shard="0")
        last = land.add(300)
        await land.offsets_reach("sync", last)
        assert not [line for line in third.lines if line["event"] == "zone.run_stops"]


async def test_a_map_that_changes_every_second_leaves_no_row_out(land: Land) -> None:
    async with land.node("a1", "a") as first, land.node("b1", "b") as second:
        await first.logged("node.ready")
        await second.logged("node.ready")
        await land.zones.apply(map=TWO)
        until_ms, step = now_ms() + 12_000, 0
        while now_ms() < until_ms:
            step += 1
            land.add(100)
            await land.zones.apply(moves={str(shard): "ab"[(shard + step) % 2] for shard in range(10)})
            with anyio.move_on_after(1):
                await anyio.sleep_forever()
        for job in ("sync", "long", "tick"):
            await land.all_handled(job)
        assert set(land.handled("sync").values()) == {1}


async def test_a_zone_that_is_killed_whole_is_taken_over_within_its_lease_and_two_seconds(land: Land) -> None:
    """A zone is dead `TTL_S` after its last heartbeat."""
    async with land.node("b1", "b") as second, land.node("a1", "a") as first, land.node("a2", "a") as other:
        for each in (second, first, other):
            await each.logged("node.ready")
        await land.zones.apply(map=TWO)
        await land.offsets_reach("sync", 0)
        killed_ms = now_ms()
        first.process.kill()
        other.process.kill()
        last = land.add(100)
        await land.all_handled("sync")
        came = [each for each in (await land.zones.show("b")).handovers if each.job == "sync"]
        assert last == 100
        assert len(came) == 5
        took_ms = max(each.taken_ms for each in came) - killed_ms
        assert took_ms < TTL_S * 1000 + 2_000 + 20_000  # and what a busy machine adds
        with pytest.raises(NotAccepted, match="zone a: is dead, and by the map's takeover"):
            await land.zones.restore("a")
