"""1,000 moves of shards between three zones, under 2,000 rows a second: none is skipped, and few come again.

Each change of the map moves ten of 100 shards, and the next one follows when all ten were taken. `skipped`: rows that
no zone handled. `repeated`: rows that came again. `bound`: what may come again, by what each run found: the rows
between its start and the shard that was ahead, and one batch for each run. `old_saves`: records that were stored with a
lower epoch, or with a lower offset, than the one before. `ZONE_MOVES=100` is the short form.

At the end one zone is killed whole. `taken_over_s`: until the others have claimed its shards. A zone is dead five
seconds after its last heartbeat, which is its lease.
"""

from __future__ import annotations

import os
import random
import statistics
from collections import Counter
from pathlib import Path

import anyio
import msgspec
from anyio.abc import TaskStatus

from actors.runtime.membership import TTL_S
from actors.zone.rules.offsets import OffsetRecord
from bench._fetch import Bench, fetch_bench
from bench._zone_app import BATCH, FROM, RATE, SHARDS
from bench.harness import Result
from penstock.sdk.calls import ServiceClient
from penstock.sdk.client_zones import ZoneCalls
from streams.buckets.entries import Synced
from streams.clock import monotonic_s

NAME = "zone"
LIMIT_S = 230
MOVES = int(os.environ.get("ZONE_MOVES", "1000"))
AT_ONCE = 10
ZONES = "abc"
ROLES = ("--roles", "worker,desk,conductor,timer", "--sink", "none", "--http", "off", "--app", "bench._zone_app")
MAP = {"shards": SHARDS, "zones": {"a": "0-33", "b": "34-66", "c": "67-99"}, "takeover": "0s"}


class Seen:
    """The offsets as they were stored, one after the other."""

    def __init__(self) -> None:
        self.records: dict[str, OffsetRecord] = {}
        self.moves = 0
        self.old_saves = 0
        self.took_ms: list[int] = []
        self.changed = anyio.Event()

    def take(self, shard: str, record: OffsetRecord) -> None:
        before = self.records.get(shard)
        if before is not None:
            self.old_saves += record.epoch < before.epoch or record.offset < before.offset
            if record.came is not None and (before.came is None or before.came.epoch < record.came.epoch):
                self.moves += 1
                self.took_ms.append(record.came.taken_ms - record.came.asked_ms)
        self.records[shard] = record
        self.changed.set()
        self.changed = anyio.Event()

    async def follow(self, bench: Bench, *, task_status: TaskStatus[None]) -> None:
        async with bench.bucket("OFFSETS").watch("bench.*") as changes:
            async for change in changes:
                if isinstance(change, Synced):
                    task_status.started()
                elif change.entry is not None:
                    record = msgspec.json.decode(change.entry.raw, type=OffsetRecord)
                    self.take(change.key.partition(".")[2], record)

    async def until_owned(self, owners: dict[str, str]) -> None:
        """Wait until each of these shards was claimed by its owner."""
        while any(shard not in self.records or self.records[shard].zone != zone for shard, zone in owners.items()):
            await self.changed.wait()

    async def until_without(self, zone: str) -> None:
        """Wait until a zone has no shard any more."""
        while any(record.zone == zone for record in self.records.values()):
            await self.changed.wait()


async def run() -> Result:
    """Move shards until there were enough moves, and count what was handled."""
    seen, chance = Seen(), random.Random(7)
    async with fetch_bench() as bench, anyio.create_task_group() as tasks:
        os.environ["ZONE_BENCH"] = str(bench.folder)
        nodes = {zone: await bench.node(f"{zone}1", "--zone", zone, *ROLES) for zone in ZONES}
        await tasks.start(seen.follow, bench)
        zones = ZoneCalls(ServiceClient(bench.connection, "zones", 30.0))
        from_s = monotonic_s()
        (bench.folder / FROM).write_text(str(from_s))
        await zones.apply(map=MAP)
        owners = {str(shard): "a" if shard < 34 else "b" if shard < 67 else "c" for shard in range(SHARDS)}
        await seen.until_owned(owners)
        began_s, epoch = monotonic_s(), 1
        while (epoch - 1) * AT_ONCE < MOVES:
            moved = chance.sample(sorted(owners), AT_ONCE)
            change = {shard: chance.choice([zone for zone in ZONES if zone != owners[shard]]) for shard in moved}
            epoch = (await zones.apply(moves=change)).map.epoch
            owners |= change
            await seen.until_owned(change)
        took_s, moves, took_ms = monotonic_s() - began_s, seen.moves, list(seen.took_ms)
        killed_s = monotonic_s()
        nodes["c"].end()
        await seen.until_without("c")
        taken_over_s = monotonic_s() - killed_s
        last = int((monotonic_s() - from_s) * RATE)
        while any(record.offset < last for record in seen.records.values()):
            await seen.changed.wait()
        behind_s = monotonic_s() - from_s - last / RATE
        tasks.cancel_scope.cancel()
        handled, bound = _handled(bench.folder, last)
    skipped = last - len(handled)
    repeated = handled.total() - len(handled)
    is_ok = skipped == 0 and repeated <= bound and seen.old_saves == 0 and moves >= MOVES
    return Result(
        what=f"{MOVES:,} moves of shards over three zones, under {RATE:,} rows a second",
        ours=round(moves / took_s, 1),
        unit=" moves/s",
        target="0 rows skipped, 0 old saves, repeated rows within the bound, a dead zone taken over in 7 s",
        ok=is_ok and taken_over_s <= TTL_S + 2,
        more={
            "moves": moves,
            "skipped": skipped,
            "repeated": repeated,
            "bound": bound,
            "seconds": round(took_s, 1),
            "old_saves": seen.old_saves,
            "rows": last,
            "handover_ms_p50": round(statistics.median(took_ms)),
            "handover_ms_p99": round(statistics.quantiles(took_ms, n=100)[98]),
            "taken_over_s": round(taken_over_s, 2),
            "caught_up_s": round(behind_s, 2),
        },
    )


def _handled(folder: Path, last: int) -> tuple[Counter[int], int]:
    """Return how often each row was handled, and how many may come again."""
    handled: Counter[int] = Counter()
    runs: set[tuple[str, str]] = set()
    bound = 0
    for file in folder.glob("*.batches"):
        for line in file.read_text().splitlines():
            zone, epoch, _, start, end, ahead, rows = line.split(",")
            handled.update(row for row in map(int, rows.split()) if row <= last)
            bound += max(0, min(int(end), int(ahead)) - int(start))
            runs.add((zone, epoch))
    return handled, bound + BATCH * len(runs)
