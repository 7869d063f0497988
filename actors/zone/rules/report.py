"""How a change of the map went: which shards were taken, how fast, and how many rows came again. Pure.

All is read from what is stored: the two maps, and in each offset how its shard came to its owner. So a report can be
made of any change whose maps are kept, by whoever made it: a person, or the takeover of a dead zone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct

from actors.zone.rules.offsets import Handover, Records, start_of
from actors.zone.rules.routing import ShardMap, moves
from actors.zone.rules.shards import text_of


class TakenReport(Struct, frozen=True, kw_only=True):
    """What a zone got of a job. `taken`: shards that a run of it has claimed. `waiting`: those that it has not.
    `moved_on`: how many a later change has moved again. `start`: where its run began. `took_ms`: from the change of the
    map to the last claim. `repeated`: rows that came again and were handled. `passed`: those that were left out because
    the shard had passed them. `skipped`: offsets that nobody scanned. `forced`: shards whose former owner had not given
    them up. `is_caught_up`: no more rows come again."""

    job: str
    zone: str
    taken: int
    waiting: str
    moved_on: int
    start: int
    took_ms: int
    repeated: int
    passed: int
    skipped: int
    forced: int
    is_caught_up: bool


class MoveReport(Struct, frozen=True, kw_only=True):
    """A change of the map, and what came of it. `shards`: how many got another owner. `is_over`: all were taken, by
    each job that has saved an offset, and no more rows come again."""

    epoch: int
    why: str
    by: str
    changed_ms: int
    shards: int
    is_over: bool
    took_ms: int
    repeated: int
    passed: int
    skipped: int
    taken: list[TakenReport]


def report_of(
    before: ShardMap | None, after: ShardMap, current: ShardMap, offsets: Mapping[str, Records]
) -> MoveReport:
    """Return the report of the change from `before` to `after`. `current`: the map in force now. `offsets`: of each
    job, the records of its shards."""
    changed = moves(before, after)
    gains = {zone: [move.shard for move in changed if move.after == zone] for zone in after.zones()}
    taken = [
        _taken(job, zone, shards, after, current, records)
        for job, records in sorted(offsets.items())
        for zone, shards in gains.items()
        if shards
    ]
    return MoveReport(
        epoch=after.epoch,
        why=after.why,
        by=after.by,
        changed_ms=after.changed_ms,
        shards=len(changed),
        is_over=all(each.is_caught_up for each in taken),
        took_ms=max((each.took_ms for each in taken), default=0),
        repeated=sum(each.repeated for each in taken),
        passed=sum(each.passed for each in taken),
        skipped=sum(each.skipped for each in taken),
        taken=taken,
    )


def _taken(
    job: str, zone: str, shards: Collection[str], after: ShardMap, current: ShardMap, records: Records
) -> TakenReport:
    still = [shard for shard in shards if current.owners.get(shard) == zone and current.since.get(shard) == after.epoch]
    claimed = {
        shard: records[shard] for shard in still if shard in records and _is_claimed(records, shard, zone, after)
    }
    came = [each.came for each in claimed.values() if each.came is not None and _is_of(each.came, zone, after)]
    waiting = [shard for shard in still if shard not in claimed]
    reached = start_of(records, current.shards_of(zone))
    return TakenReport(
        job=job,
        zone=zone,
        taken=len(claimed),
        waiting=text_of(waiting, after.function),
        moved_on=len(shards) - len(still),
        start=min((each.start for each in came), default=0),
        took_ms=max((max(0, each.taken_ms - each.asked_ms) for each in came), default=0),
        repeated=sum(each.repeated for each in came),
        passed=sum(each.passed for each in came),
        skipped=sum(max(0, each.start - each.offset) for each in came),
        forced=sum(each.is_forced for each in came),
        is_caught_up=not waiting and all(reached >= each.offset for each in came),
    )


def _is_claimed(records: Records, shard: str, zone: str, after: ShardMap) -> bool:
    return records[shard].zone == zone and records[shard].epoch >= after.epoch


def _is_of(came: Handover, zone: str, after: ShardMap) -> bool:
    return came.after == zone and came.epoch >= after.epoch
