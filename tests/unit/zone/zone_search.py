"""An exhaustive search: two zones, three shards, two changes of the map and one crash, with writes that are late or
lost.

Each zone knows some map, perhaps an old one. It reads the records, claims its shards one by one, handles a batch of
rows, and saves shard by shard. Between any two steps anything else may happen: the map is changed, the other zone acts,
a zone hears of a newer map, its process dies, or its lease is over although it lives. A save may be stored, or lost, or
stored after the zone took it for lost. Row `p` is the one at position `p`, and is in shard `p mod 3`.

What must hold at every step:

- a shard's offset is never beyond a row of it that nobody handled (no row is skipped);
- a save is stored only while nobody has claimed the shard under a newer epoch or by a newer run;
- one shard has one committer in one epoch, and within it its offset does not go back;
- a run begins at the smallest offset of its shards, and rows that were handled and are not saved are one batch at most;
- a save advances beyond all that the batch scanned.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from msgspec.structs import replace

from actors.zone.rules.offsets import (
    OffsetRecord,
    Records,
    claimed,
    freed,
    is_passed,
    refusal,
    runnable,
    saved,
    start_of,
    to_free,
)
from actors.zone.rules.routing import ShardMap
from tests.support.collector import no_collector

SHARDS = ("0", "1", "2")
ZONES = ("a", "b")


class ZoneRules:
    """The rules that are searched. A variant overrides one."""

    batch = 2
    has_fence = True
    is_conditional = True

    def refusal(self, record: OffsetRecord | None, *, epoch: int, zone: str, run: int, is_forced: bool) -> str | None:
        return refusal(record, epoch=epoch, zone=zone, run=run, is_forced=is_forced)

    def runnable(self, shards: ShardMap, zone: str, records: Records, *, is_overdue: bool) -> Collection[str]:
        return runnable(shards, zone, records, dead=(), overdue=SHARDS if is_overdue else ())

    def start_of(self, records: Records, shards: Collection[str]) -> int:
        return start_of(records, shards)

    def is_passed(self, records: Records, shard: str, offset: int) -> bool:
        return is_passed(records, shard, offset)

    def scanned(self, rows: Collection[int], kept: Collection[int], start: int) -> int:
        """Return what is saved after a batch."""
        return max(rows, default=start)

    def shards_to_save(self, run: Run, shards: ShardMap) -> tuple[str, ...]:
        return run.shards


class Run(NamedTuple):
    """A run: its map, its number, its shards and the records as it knows them. `claimed`: how many shards are claimed.
    `saving`: of the batch, what is saved, and how many shards are written. -1: none."""

    epoch: int
    number: int
    shards: tuple[str, ...]
    records: tuple[OffsetRecord, ...]
    revisions: tuple[int, ...]
    claimed: int = 0
    at: int = 0
    saving: int = -1
    to_save: tuple[str, ...] = ()
    written: int = 0
    is_ended: bool = False

    def known(self) -> dict[str, OffsetRecord]:
        return dict(zip(self.shards, self.records, strict=True))


class Late(NamedTuple):
    """A save on its way, that its run takes for lost."""

    shard: str
    record: OffsetRecord
    revision: int


class SearchedZones(NamedTuple):
    """All that there is. `maps`: the owners of each epoch. `handled`: per shard, the highest row that was handled."""

    maps: tuple[tuple[str, ...], ...]
    seen: tuple[int, int]
    runs: tuple[Run | None, Run | None]
    records: tuple[OffsetRecord, ...]
    revisions: tuple[int, ...]
    handled: tuple[int, ...]
    number: int = 1
    crashes: int = 0
    forces: int = 0
    late: Late | None = None
    fault: str = ""


@functools.cache
def _map(epoch: int, owners: tuple[str, ...]) -> ShardMap:
    return ShardMap(epoch=epoch, count=3, owners=dict(zip(SHARDS, owners, strict=True)))


class ZonesFound(NamedTuple):
    states: int
    violation: list[str]


class ZoneSearch:
    """What may happen. `after`: the maps to which it may be changed, one after the other."""

    def __init__(
        self,
        rules: ZoneRules,
        first: str,
        after: tuple[tuple[str, ...], ...],
        offsets: tuple[int, int, int],
        *,
        last: int,
        crashes: int = 1,
        forces: int = 1,
    ) -> None:
        self.rules = rules
        self.after = after
        self.runnable = functools.cache(self._runnable)
        self.last = last
        self.crashes = crashes
        self.forces = forces
        self.first = SearchedZones(
            maps=(tuple(first),),
            seen=(1, 1),
            runs=(None, None),
            records=tuple(
                OffsetRecord(offset=offset, epoch=1, zone=zone) for offset, zone in zip(offsets, first, strict=True)
            ),
            revisions=(1, 1, 1),
            handled=offsets,
        )  # fmt: skip

    def map_of(self, world: SearchedZones, epoch: int) -> ShardMap:
        return _map(epoch, world.maps[epoch - 1])

    def _runnable(
        self, epoch: int, owners: tuple[str, ...], zone: str, records: tuple[OffsetRecord, ...], is_overdue: bool
    ) -> tuple[str, ...]:
        known = dict(zip(SHARDS, records, strict=True))
        return tuple(sorted(self.rules.runnable(_map(epoch, owners), zone, known, is_overdue=is_overdue)))

    def moves(self, world: SearchedZones) -> Iterator[tuple[str, SearchedZones]]:
        changes = len(world.maps) - 1
        if changes < len(self.after):
            for owners in self.after[changes]:
                if tuple(owners) != world.maps[-1]:
                    yield f"the map is {owners}", world._replace(maps=(*world.maps, tuple(owners)))
        if world.late is not None:
            yield f"the late save of {world.late.shard} arrives", self._arrived(world._replace(late=None), world.late)
            yield f"the late save of {world.late.shard} is lost", world._replace(late=None)
        for at, zone in enumerate(ZONES):
            yield from self._of_zone(world, at, zone)

    def _of_zone(self, world: SearchedZones, at: int, zone: str) -> Iterator[tuple[str, SearchedZones]]:
        run = world.runs[at]
        newer = range(world.seen[at] + 1, len(world.maps) + 1)
        if run is None:
            for epoch in (world.seen[at], *newer):
                yield from self._begins(world._replace(seen=_put(world.seen, at, epoch)), at, zone)
            return
        if world.crashes < self.crashes:
            yield f"{zone} dies", world._replace(runs=_put(world.runs, at, None), crashes=world.crashes + 1)
        if run.claimed < len(run.shards):
            yield self._claims(world, at, zone, run)
        elif run.saving >= 0:
            yield from self._saves(world, at, zone, run)
        else:
            for epoch in newer:
                heard = world._replace(seen=_put(world.seen, at, epoch))
                yield f"{zone} hears of map {epoch}, and ends its run", self._ended(heard, at, zone)
            if run.at < self.last:
                yield self._handles(world, at, zone, run)

    def _begins(self, world: SearchedZones, at: int, zone: str) -> Iterator[tuple[str, SearchedZones]]:
        """Read the records, and begin. Former owners that still hold a shard are waited for, or have had their time."""
        shards = self.map_of(world, world.seen[at])
        records = dict(zip(SHARDS, world.records, strict=True))
        for is_overdue in (False, True):
            can = self.runnable(shards.epoch, world.maps[shards.epoch - 1], zone, world.records, is_overdue)
            forced = [shard for shard in can if records[shard].zone != zone and not records[shard].is_free]
            if is_overdue and (not forced or world.forces >= self.forces):
                continue
            if can and min(records[shard].offset for shard in can) < self.last:
                run = Run(
                    shards.epoch,
                    world.number,
                    can,
                    tuple(records[shard] for shard in can),
                    tuple(world.revisions[int(shard)] for shard in can),
                )
                told = f"{zone} reads {list(can)}{' by force' if forced else ''} under map {shards.epoch}"
                new = world._replace(runs=_put(world.runs, at, run), number=world.number + 1)
                yield told, new._replace(forces=new.forces + bool(forced))

    def _claims(self, world: SearchedZones, at: int, zone: str, run: Run) -> tuple[str, SearchedZones]:
        shard, record = run.shards[run.claimed], run.records[run.claimed]
        why = self.rules.refusal(record, epoch=run.epoch, zone=zone, run=run.number, is_forced=True)
        is_current = world.revisions[int(shard)] == run.revisions[run.claimed]
        if why or not is_current:
            return f"{zone} may not claim {shard}", world._replace(runs=_put(world.runs, at, None))
        started = self.rules.start_of(run.known(), run.shards)
        new = claimed(record, epoch=run.epoch, zone=zone, run=run.number, start=started, asked_ms=0, now_ms=0)
        new = replace(new, came=None)
        if world.records[int(shard)].epoch > new.epoch:
            world = world._replace(fault=f"a claim under epoch {new.epoch} is stored in shard {shard} of a newer one")
        if self.rules.has_fence:
            world = self._stored(world, shard, new)
        run = run._replace(
            claimed=run.claimed + 1,
            records=_put(run.records, run.claimed, new),
            revisions=_put(run.revisions, run.claimed, world.revisions[int(shard)]),
            at=started,
        )
        if run.claimed == len(run.shards):
            world = self._check_start(world, run)
        return f"{zone} claims {shard}", world._replace(runs=_put(world.runs, at, run))

    def _check_start(self, world: SearchedZones, run: Run) -> SearchedZones:
        for shard in run.shards:
            ahead = [
                row for row in _rows(shard, self.last) if run.known()[shard].offset < row <= world.handled[int(shard)]
            ]
            if len(ahead) > self.rules.batch:
                return world._replace(fault=f"{ahead} of shard {shard} are handled and not saved: more than a batch")
        return world

    def _handles(self, world: SearchedZones, at: int, zone: str, run: Run) -> tuple[str, SearchedZones]:
        rows = range(run.at + 1, min(self.last, run.at + self.rules.batch) + 1)
        known = run.known()
        kept = [row for row in rows if str(row % 3) in run.shards]
        new = [row for row in kept if not self.rules.is_passed(known, str(row % 3), row)]
        for row in new:
            world = world._replace(handled=_put(world.handled, row % 3, max(row, world.handled[row % 3])))
        saving = self.rules.scanned(rows, kept, run.at)
        fault = "" if saving > run.at else f"a batch of {list(rows)} does not advance"
        to_save = self.rules.shards_to_save(run, self.map_of(world, world.seen[at]))
        run = run._replace(saving=saving, to_save=to_save, written=0)
        told = f"{zone} handles {new} of {list(rows)}"
        return told, world._replace(runs=_put(world.runs, at, run), fault=world.fault or fault)

    def _saves(self, world: SearchedZones, at: int, zone: str, run: Run) -> Iterator[tuple[str, SearchedZones]]:
        """Save the batch in the next shard. The save is stored, or refused, or its answer does not come."""
        shard = run.to_save[run.written]
        if shard not in run.shards:  # a variant saves in a shard that it did not claim
            record = saved(replace(world.records[int(shard)], zone=zone), run.saving)
            new = self._stored(world, shard, record)
            yield f"{zone} saves {shard}", new._replace(runs=_put(new.runs, at, _written(run)))
            return
        place = run.shards.index(shard)
        record = saved(run.records[place], run.saving)
        late = Late(shard, record, run.revisions[place])
        after = self._arrived(world, late)
        if after is world:
            yield f"{zone} may not save {shard}", world._replace(runs=_put(world.runs, at, None))
        else:
            known = _written(run)._replace(
                records=_put(run.records, place, record),
                revisions=_put(run.revisions, place, after.revisions[int(shard)]),
            )
            yield f"{zone} saves {shard} at {run.saving}", after._replace(runs=_put(after.runs, at, known))
        if world.crashes < self.crashes:
            told = f"{zone} has no answer to its save of {shard}, and ends its run"
            yield told, world._replace(runs=_put(world.runs, at, None), late=late, crashes=world.crashes + 1)

    def _arrived(self, world: SearchedZones, save: Late) -> SearchedZones:
        """Store a save if the record is at its revision, and check that it may be stored."""
        at = int(save.shard)
        if self.rules.is_conditional and world.revisions[at] != save.revision:
            return world
        there = world.records[at]
        fault = world.fault
        claims = [run.epoch for run in world.runs if run and save.shard in run.shards[: run.claimed]]
        if save.record.epoch < max([there.epoch, *claims]):
            fault = f"a save under epoch {save.record.epoch} is stored in shard {at} of a newer one"
        if there.epoch == save.record.epoch and save.record.offset < there.offset:
            fault = f"the offset of shard {at} goes back from {there.offset} to {save.record.offset}"
        owner = world.maps[save.record.epoch - 1][at]
        if save.record.zone != owner:
            fault = f"{save.record.zone} saves in shard {at}, which is {owner}'s under epoch {save.record.epoch}"
        return self._stored(world, save.shard, save.record)._replace(fault=fault)

    def _stored(self, world: SearchedZones, shard: str, record: OffsetRecord) -> SearchedZones:
        at = int(shard)
        return world._replace(
            records=_put(world.records, at, record), revisions=_put(world.revisions, at, world.revisions[at] + 1)
        )

    def _ended(self, world: SearchedZones, at: int, zone: str) -> SearchedZones:
        """End a run after its batch, and free the shards that are not the zone's any more."""
        run = world.runs[at]
        assert run is not None
        world = world._replace(runs=_put(world.runs, at, None))
        for shard in to_free(self.map_of(world, world.seen[at]), zone, run.known()):
            if world.revisions[int(shard)] == run.revisions[run.shards.index(shard)]:
                world = self._stored(world, shard, freed(run.known()[shard]))
        return world

    def fault_of(self, world: SearchedZones) -> str:
        for shard, record, handled in zip(SHARDS, world.records, world.handled, strict=True):
            if handled < record.offset and any(handled < row <= record.offset for row in _rows(shard, self.last)):
                return f"shard {shard} is at {record.offset}, and nobody handled what is beyond {handled}"
        return world.fault


@no_collector()
def search(zones: ZoneSearch, *, most: int = 1_000_000) -> ZonesFound:
    """Look at all worlds, the nearest first. Return how many there are, and the way to the first fault. A world in
    which more has gone wrong so far than in one that is the same otherwise is left out: what may follow may follow
    there, too."""
    seen: dict[object, tuple[object, str] | None] = {_frozen(zones.first): None}
    waiting = deque([zones.first])
    wrong: dict[object, set[tuple[int, int]]] = {}
    while waiting and len(seen) < most:
        world = waiting.popleft()
        key = _frozen(world)
        for told, new in zones.moves(world):
            fault = zones.fault_of(new)
            if fault:
                return ZonesFound(len(seen), [*_way(seen, key), told, fault])
            after, much = _frozen(new), (new.crashes, new.forces)
            before = wrong.setdefault(after, set())
            if not any(crashes <= much[0] and forces <= much[1] for crashes, forces in before):
                before.add(much)
                seen.setdefault(after, (key, told))
                waiting.append(new)
    return ZonesFound(len(seen), ["not all searched"] if waiting else [])


def _frozen(world: SearchedZones) -> object:
    """Return what makes two worlds the same. Of revisions only this counts: whether a run knows the latest one. Numbers
    of runs do not count, since each run of a zone has a higher one than those before."""
    revisions, late = world.revisions, world.late
    return (
        world.maps,
        world.seen,
        tuple(run and _run(run, revisions) for run in world.runs),
        tuple((record.offset, record.epoch, record.zone, record.is_free) for record in world.records),
        world.handled,
        late and (late.shard, late.record.offset, late.revision == revisions[int(late.shard)]),
        world.fault,
    )


def _run(run: Run, revisions: tuple[int, ...]) -> object:
    known = tuple(
        (record.offset, revisions[int(shard)] == revision)
        for shard, record, revision in zip(run.shards, run.records, run.revisions, strict=True)
    )
    return run.epoch, run.shards, run.claimed, run.at, run.saving, run.to_save, run.written, known


def _written(run: Run) -> Run:
    """Return the run after one more of the saves of its batch."""
    if run.written + 1 < len(run.to_save):
        return run._replace(written=run.written + 1)
    return run._replace(at=run.saving, saving=-1, to_save=(), written=0)


@functools.cache
def _rows(shard: str, last: int) -> list[int]:
    return [row for row in range(1, last + 1) if row % 3 == int(shard)]


def _put(values: tuple[Any, ...], at: int, value: object) -> Any:
    return (*values[:at], value, *values[at + 1 :])


def _way(seen: dict[object, tuple[object, str] | None], key: object) -> list[str]:
    lines: list[str] = []
    while (before := seen[key]) is not None:
        key, told = before
        lines.append(told)
    return lines[::-1]
