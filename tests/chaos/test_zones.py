"""Zones under attack: maps that change every second, a zone that is cut off, and deaths in the middle of a hand-over.

On servers of their own the sink compares the epoch of each shard, as docs/howto/clusters.md writes it. Then each row
has its effect once, whichever zones worked, and none is left out. On one cluster of three servers no row is left out,
and no save under an old epoch is stored. The last, and a minute of each, come with `--long`.
"""

from __future__ import annotations

import signal
from pathlib import Path

import anyio
import msgspec
import pytest
from anyio.abc import TaskStatus

from actors.zone.rules.offsets import OffsetRecord
from penstock.errors import PenstockError
from streams.buckets.bucket import Bucket
from streams.buckets.entries import Synced
from streams.clock import monotonic_s
from streams.errors import StreamError
from streams.link.connection import connect
from streams.publish.publisher import Publisher
from streams.subjects import kv_stream
from tests.support.chaos import Form
from tests.support.processes import cluster, urls_of
from tests.support.server import fresh_namespace, leading
from tests.support.zone_hub_land import LEASE_S, HubLand, hub_land
from tests.support.zone_land import Land

LONG_S = 60.0
CUT_S = LEASE_S + 3
CHANGES_S = 3.0
STANDS_S = 10.0
"""For how long a zone may handle nothing while the map changes every second."""
ROWS = 10
"""Each tenth of a second."""
BATCH = "1000"
"""More rows a batch than the load: the job of the ticks has one batch a second."""


async def _load(land: HubLand, *, task_status: TaskStatus[None]) -> None:
    """Add rows all the time, until cancelled."""
    land.rows.add(ROWS)
    task_status.started()
    while True:
        await anyio.sleep(0.1)
        land.rows.add(ROWS)


async def _change_every_second(land: HubLand, seconds: float) -> None:
    zones, until_s, step = land.lands["west"].zones, monotonic_s() + seconds, 0
    while monotonic_s() < until_s:
        step += 1
        again_s = monotonic_s() + 1
        await zones.apply(moves={str(shard): ("east", "west")[(shard + step) % 2] for shard in range(10)})
        with anyio.move_on_after(again_s - monotonic_s()):
            await anyio.sleep_forever()
        await land.works(within_s=STANDS_S)


async def test_zones_whose_map_changes_and_that_are_cut_off_have_each_effect_once(
    form: Form, binary: Path, tmp_path: Path
) -> None:
    async with (
        hub_land(tmp_path) as land,
        land.node("west", ZONE_BATCH=BATCH) as west,
        land.node("east", ZONE_BATCH=BATCH) as east,
    ):
        await land.told("east", "routing", "apply", str(land.map))
        await land.holds("east", "01234")
        async with anyio.create_task_group() as tasks:
            await tasks.start(_load, land)
            await _change_every_second(land, LONG_S if form.is_long else CHANGES_S)
            await land.told("east", "routing", "apply", "--epoch", "2")
            await land.holds("east", "01234")

            for node in (east, west):
                node.lines.clear()  # a busy machine may have stopped a zone before
            land.servers.cut("east")
            cut_s = monotonic_s()
            await land.works("east")  # it goes on with its shards
            stops = await east.logged("zone.stops")
            stopped_s = monotonic_s() - cut_s
            out = await west.logged("zone.out", zone="east")
            assert stops["at"] < out["at"]
            await land.holds("west", "0123456789")
            took_s = monotonic_s() - cut_s
            with anyio.move_on_after(cut_s + (LONG_S if form.is_long else CUT_S) - monotonic_s()):
                await anyio.sleep_forever()

            land.servers.heal("east")
            await land.comes_in("east")
            await land.told("west", "zones", "restore", "east")
            report = await land.told("west", "routing", "report", "--wait", "30s")
            assert (report["is_over"], report["skipped"]) == (True, 0)
            await land.works("east")
            tasks.cancel_scope.cancel()
        await land.all_done()
        land.epochs_never_go_back()
        print(f"cut off: stopped after {stopped_s:.2f} s, taken over after {took_s:.2f} s, lease {LEASE_S} s")
        assert stopped_s < LEASE_S + 1
        assert took_s < LEASE_S + 2


POINTS = ("zone.save:3", "zone.claim", "zone.saved:2", "zone.free:5")
TWO = {"shards": 10, "zones": {"a": "0-4", "b": "5-9"}, "takeover": "0s"}


class _Stored:
    """The offsets as they were stored, one after the other."""

    def __init__(self) -> None:
        self.records: dict[str, OffsetRecord] = {}
        self.went_back: list[tuple[str, OffsetRecord, OffsetRecord]] = []

    async def follow(self, bucket: Bucket[bytes], *, task_status: TaskStatus[None]) -> None:
        async with bucket.watch() as changes:
            async for change in changes:
                if isinstance(change, Synced):
                    task_status.started()
                    break
            async for change in changes:
                if not isinstance(change, Synced) and change.entry is not None:
                    self._take(change.key, msgspec.json.decode(change.entry.raw, type=OffsetRecord))

    def _take(self, key: str, record: OffsetRecord) -> None:
        before = self.records.get(key, OffsetRecord())
        is_old_run = (record.zone, record.epoch) == (before.zone, before.epoch) and record.run < before.run
        if record.epoch < before.epoch or record.offset < before.offset or is_old_run:
            self.went_back.append((key, before, record))
        self.records[key] = record


async def test_deaths_in_a_hand_over_on_three_servers_leave_no_row_out(
    form: Form, binary: Path, tmp_path: Path
) -> None:
    """A node dies at each step of the hand-over, and then the server that leads the offsets. What the short form has of
    it is in tests/integration/zone/test_handovers.py."""
    if not form.is_long:
        pytest.skip("a node dies and is waited for four times: --long")
    async with cluster(tmp_path) as servers:
        url, namespace, stored = urls_of(servers), fresh_namespace(), _Stored()
        async with connect(url, name="test", namespace=namespace) as connection, Publisher(connection) as publisher:
            land = Land(connection, publisher, url, tmp_path)
            await land.open()
            async with anyio.create_task_group() as tasks, land.node("b1", "b") as second:
                await tasks.start(stored.follow, land.bucket)
                await second.logged("node.ready")
                for at, point in enumerate(POINTS):
                    async with land.node(f"a{at}", "a", PENSTOCK_CRASH_AT=point) as first:
                        await first.logged("node.ready")
                        land.add(200)
                        await (land.zones.restore("a") if at else land.zones.apply(map=TWO))
                        if point.startswith("zone.free"):
                            await land.zones.apply(moves={"0": "b"})
                        assert await first.process.wait() == -signal.SIGKILL
                    await land.owned({"a": "", "b": "0-9"})
                    await land.all_handled("sync")
                async with land.node("a9", "a") as first:
                    await first.logged("node.ready")
                    await land.zones.restore("a")
                    last = land.add(200)
                    await land.offsets_reach("sync", last)
                    leader = await leading(servers, connection, f"STREAM.INFO.{kv_stream(land.bucket.name)}")
                    leader.kill()
                    land.add(200)
                    await _moved(land, {str(shard): "b" for shard in range(4)})
                    for job in ("sync", "long", "tick"):
                        await land.all_handled(job)
                    await land.offsets_reach("sync", land.add(0))
                    shown = await land.zones.show("b")
                tasks.cancel_scope.cancel()
        assert not [each for each in shown.handovers if each.skipped]
        assert stored.went_back == []


async def _moved(land: Land, moves: dict[str, str]) -> None:
    """Change the map, while the servers may elect a leader."""
    with anyio.fail_after(30):
        while True:
            try:
                await land.zones.apply(moves=moves)
                return
            except (StreamError, PenstockError):
                await anyio.sleep(0.1)
