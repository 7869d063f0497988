"""How zones on servers of their own agree through the hub (ADR 46). Pure: no I/O, no clock.

Each zone has a record at the hub. It says whether the zone is *in*, which map it has *taken*, and which shards it has
not stopped yet although that map gives them to others. A zone takes a map in two steps. First it gives up what it
loses, and says so in its record. It starts what it gains only when every other zone has taken this same map, and holds
none of these shards, or is out. A zone that comes back does so for all its shards. So two zones never run a shard at
once, however late a copy of anything arrives.

The maps of the hub have even epochs. A zone's own map has the odd epoch before, as long as only the first step is done.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from actors.zone.rules.offsets import OffsetRecord, Records, freed, to_free
from actors.zone.rules.routing import BadMap, ShardMap

EPOCHS = 2
"""How far apart the epochs of two maps of the hub are: a zone's first step stands between them."""
LEAP = 1_000
"""How much higher the epoch is when a map is made for a hub that was lost: above that of a zone that nobody hears."""


class ZoneRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A zone, as the hub knows it. Its nodes write it, and another zone that finds it silent.

    `state`: `in`, or `out` after a silence, or `joining` while it looks at the map again. `lease_ms`: how long a node
    may act after it has sent a renewal, and how long a zone may be silent. `taken`: the epoch of the newest map that it
    has taken. `held`: shards that this map gives to others, and that it has not stopped. `beat`: grows with each
    renewal."""

    state: Literal["in", "joining", "out"] = "joining"
    lease_ms: int = 0
    taken: int = 0
    held: tuple[str, ...] = ()
    beat: int = 0
    node: str = ""


Zones = Mapping[str, ZoneRecord]


def renewed(record: ZoneRecord | None, node: str) -> ZoneRecord | None:
    """Return the record after a node's renewal. `None`: the zone is not in, so the node may not act."""
    if record is None or record.state != "in":
        return None
    return replace(record, beat=record.beat + 1, node=node)


def joining(record: ZoneRecord | None, node: str, *, lease_ms: int) -> ZoneRecord:
    """Return the record of a zone that is about to look at the map. From here on the others wait for it."""
    before = record or ZoneRecord()
    return replace(before, state="joining", lease_ms=lease_ms, beat=before.beat + 1, node=node)


def taken(record: ZoneRecord, epoch: int, held: Collection[str] = ()) -> ZoneRecord:
    """Return the record of a zone that has stopped all it loses by a map, but for `held`."""
    return replace(record, taken=epoch, held=tuple(sorted(held)), beat=record.beat + 1)


def joined(record: ZoneRecord) -> ZoneRecord:
    """Return the record of a zone that is in."""
    return replace(record, state="in", beat=record.beat + 1)


def put_out(record: ZoneRecord) -> ZoneRecord:
    """Return the record of a zone that was silent for longer than its lease."""
    return replace(record, state="out", beat=record.beat + 1)


# ---- a hub that was lost


def is_behind(there: ShardMap | None, own: ShardMap | None) -> bool:
    """Return whether the hub has an older map than a zone: its store was lost, or put back to an earlier state. Then
    what it knows of the zones is not true, and no zone works until a person has made the map again."""
    return own is not None and (there is None or there.epoch < own.epoch)


def is_met_first(record: ZoneRecord | None, own: ShardMap | None) -> bool:
    """Return whether a hub meets a zone that has worked before for the first time, so it is a new hub."""
    return own is not None and (record is None or not record.taken)


def map_of_zone(own: ShardMap | None, there: ShardMap | None, zones: Zones) -> ShardMap:
    """Return a zone's map as the one with which a lost hub is made again. `there`: the hub's. Raises BadMap if another
    zone has, or may have, a later one."""
    if own is None:
        raise BadMap("this zone has no map: type this at a terminal of a zone that has worked before")
    if there is not None and there.epoch >= own.epoch:
        raise BadMap(f"the hub has a map, of epoch {there.epoch}: there is nothing to make again")
    for zone, record in sorted(zones.items()):
        if record.taken > own.epoch:
            raise BadMap(f"zone {zone} has a later map, of epoch {record.taken}, than this zone: type this there")
    silent = [zone for zone in own.zones() if own.shards_of(zone) and (zone not in zones or not zones[zone].taken)]
    if silent:
        raise BadMap(
            f"the hub has not heard of these zones yet: {', '.join(silent)}. They may have a later map, so wait for"
            " them. If they are lost, apply a whole map, as a FILE"
        )
    return own


def above_all(epochs: Iterable[int], *, is_lost: bool) -> int:
    """Return what the epoch of the next map must be above, given those that are known. `is_lost`: the hub does not have
    its map any more, so there may be zones whose epochs are not known."""
    least = max(epochs, default=0) + (LEAP if is_lost else 0)
    return least + least % EPOCHS + EPOCHS - 1


# ---- taking a map


def without_gains(shards: ShardMap, own: ShardMap | None, zone: str) -> ShardMap | None:
    """Return the map of the first step: the zone has lost what `shards` takes from it, and gained nothing. `own`: the
    zone's map so far. `None`: it has none, so it loses nothing and there is no first step."""
    if own is None:
        return None
    waiting = gains(shards, own, zone)
    owners, since = dict(shards.owners), dict(shards.since)
    for shard in waiting:
        del owners[shard]
        since.pop(shard, None)
        if shard in own.owners:
            owners[shard] = own.owners[shard]
            since[shard] = own.since.get(shard, own.epoch)
    return replace(shards, epoch=shards.epoch - 1, owners=owners, since=since)


def gains(shards: ShardMap, own: ShardMap | None, zone: str) -> frozenset[str]:
    """Return the shards that the zone gets by a map of the hub."""
    return shards.shards_of(zone) - (own.shards_of(zone) if own is not None else frozenset())


def are_free(shards: Collection[str], epoch: int, zones: Zones, zone: str) -> bool:
    """Return whether every other zone that is not out has stopped these shards, by the map of this epoch. A zone that
    has taken a later map may own them again by that."""
    return all(
        record.taken == epoch and not set(shards) & set(record.held)
        for other, record in zones.items()
        if other != zone and record.state != "out"
    )


def given_up(record: OffsetRecord, epoch: int) -> OffsetRecord:
    """Return the record of a shard that the zone has lost by the map of this epoch. No run under an older map can claim
    it any more. The epoch stays below that of any later owner."""
    return replace(freed(record), epoch=max(record.epoch, epoch - 1))


def still_held(own: ShardMap, zone: str, records: Mapping[str, Records]) -> frozenset[str]:
    """Return the shards that the zone has lost, and has not freed in each job. `records`: by job and shard."""
    return frozenset(shard for of_job in records.values() for shard in to_free(own, zone, of_job))


# ---- copies of offsets


def is_later(record: OffsetRecord, copy: OffsetRecord | None) -> bool:
    """Return whether a record of a zone is later than the copy of it at the hub, which must not go back."""
    return copy is None or _order(record) > _order(copy)


def latest(records: Iterable[OffsetRecord]) -> OffsetRecord | None:
    """Return, of what several zones wrote for one shard, that of its last owner."""
    return max(records, key=lambda record: (record.epoch, record.offset), default=None)


def imported(own: OffsetRecord | None, copy: OffsetRecord | None, zone: str) -> OffsetRecord | None:
    """Return what a zone stores for a shard that it gets, before it may claim it. `None`: what it has is as late."""
    if copy is None or (own is not None and (own.epoch, own.offset) >= (copy.epoch, copy.offset)):
        return None
    if copy.zone == zone:  # its own store was lost, and runs are counted anew
        return replace(copy, run=0)
    return copy


def _order(record: OffsetRecord) -> tuple[int, int, int, bool]:
    return record.epoch, record.run, record.offset, record.is_free
