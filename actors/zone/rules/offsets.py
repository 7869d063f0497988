"""The offset of a job in a shard: who may write it, and from where a run starts. Pure.

A run of a job in a zone *claims* the records of its shards before it reads a row: it writes its epoch, its zone and its
number into each. Each write is a compare-and-set on the record's revision, so a claim is a fence: after it, no save of
an earlier run can be stored, however late it comes. A run under an older map cannot claim what a newer one has, for the
record names the newer epoch (ADR 47).

A run starts at the smallest offset of its shards. A save advances all its shards to what was scanned, kept or not. A
shard that is ahead of the others stays where it is, and its rows up to there are skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from actors.zone.rules.routing import ShardMap


class Handover(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a shard came to its present owner. `offset`: the shard's when it was claimed. `start`: where the run then
    began. `repeated`: rows of this shard that came again up to `offset`, and were given to the job. `passed`: those
    that were left out because the shard had passed them. `asked_ms`: when the map was changed; `taken_ms`: when the
    shard was claimed. `is_forced`: the former owner had not given it up."""

    before: str
    after: str
    epoch: int
    offset: int = 0
    start: int = 0
    repeated: int = 0
    passed: int = 0
    asked_ms: int = 0
    taken_ms: int = 0
    is_forced: bool = False


class OffsetRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a job has scanned a shard. `epoch`, `zone` and `run`: who may write it. `is_free`: its owner has given it
    up, so another zone may claim it at once."""

    offset: int = 0
    epoch: int = 0
    zone: str = ""
    run: int = 0
    is_free: bool = False
    came: Handover | None = None


Refusal = Literal["old_map", "other_run", "held"]
Records = Mapping[str, OffsetRecord]


def refusal(record: OffsetRecord | None, *, epoch: int, zone: str, run: int, is_forced: bool) -> Refusal | None:
    """Return why a run may not claim a shard. `None`: it may. `run`: a number that grows with each run of a job in a
    zone. `is_forced`: the former owner is dead, or has had its time."""
    if record is None or not record.zone:
        return None
    if record.epoch > epoch:
        return "old_map"
    if record.zone == zone:
        return "other_run" if record.run > run else None
    if record.epoch == epoch:
        return "old_map"
    return None if record.is_free or is_forced else "held"


def claimed(
    record: OffsetRecord | None, *, epoch: int, zone: str, run: int, start: int, asked_ms: int, now_ms: int
) -> OffsetRecord:
    """Return the record to store for a claim that is not refused."""
    before = record or OffsetRecord()
    came = before.came
    if before.zone not in ("", zone):
        came = Handover(
            before=before.zone,
            after=zone,
            epoch=epoch,
            offset=before.offset,
            start=start,
            asked_ms=asked_ms,
            taken_ms=now_ms,
            is_forced=not before.is_free,
        )
    return replace(before, epoch=epoch, zone=zone, run=run, is_free=False, came=came)


def saved(record: OffsetRecord, offset: int) -> OffsetRecord:
    """Return the record after a save of what was scanned. A shard that is ahead stays."""
    return replace(record, offset=max(record.offset, offset))


def freed(record: OffsetRecord) -> OffsetRecord:
    """Return the record that the next owner may claim at once."""
    return replace(record, is_free=True)


def start_of(records: Records, shards: Collection[str]) -> int:
    """Return where a run over these shards starts: the smallest of their offsets, 0 for a shard without one."""
    return min((records[shard].offset if shard in records else 0 for shard in shards), default=0)


def is_passed(records: Records, shard: str, offset: int) -> bool:
    """Return whether the shard was scanned beyond this row before."""
    return shard in records and offset <= records[shard].offset


def runnable(
    shards: ShardMap, zone: str, records: Records, *, dead: Collection[str], overdue: Collection[str]
) -> frozenset[str]:
    """Return the shards over which a run of the zone may begin now: its own by the map, without those that a former
    owner still has. `dead`: zones whose lease is over. `overdue`: shards whose
    former owner has had its time."""
    return frozenset(
        shard
        for shard in shards.shards_of(zone)
        if refusal(
            records.get(shard),
            epoch=shards.epoch,
            zone=zone,
            run=_ANY_RUN,
            is_forced=shard in overdue or _owner(records, shard) in dead,
        )
        is None
    )


_ANY_RUN = 2**63


def _owner(records: Records, shard: str) -> str:
    return records[shard].zone if shard in records else ""


def to_free(shards: ShardMap, zone: str, records: Records) -> list[str]:
    """Return the shards that the zone has, and by the map owns no more."""
    return [
        shard
        for shard, record in records.items()
        if record.zone == zone
        and not record.is_free
        and record.epoch <= shards.epoch
        and shards.owners.get(shard) != zone
    ]
