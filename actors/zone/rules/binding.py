"""Which shards a node may work on now, for work that is bound to them and keeps no offsets (ADR 52). Pure.

A shard that changes hands is for its new owner when every live node of the other zones has *taken* the map: it has
begun nothing new for the shards that its zone lost, and what it had begun has ended. Each node says so in its record,
by the epoch of the map. A node that says nothing for `drain_ms` is not waited for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from actors.runtime.rules.bounds import shard_in
from actors.zone.rules.routing import ShardMap
from actors.zone.rules.shards import BadKey


def zone_of(shards: ShardMap | None, bound: str) -> str | None:
    """Return the zone that a bound means. `None`: it is bound to a shard that no zone owns."""
    shard = shard_in(bound)
    if not shard:
        return bound
    return None if shards is None else shards.owners.get(shard)


def usable(
    shards: ShardMap, zone: str, had: Mapping[str, int], *, taken: Collection[int], overdue: Collection[str]
) -> dict[str, int]:
    """Return the shards on which a node of the zone may work, each with the epoch since which it is the zone's. `had`:
    the same, as it was. `taken`: the epochs that the live nodes of the other zones have taken. One that has taken a
    later map than this one may have the shard again by that. `overdue`: the shards whose former owner has had its
    time."""
    least, is_known = min(taken, default=shards.epoch), max(taken, default=0) <= shards.epoch
    found: dict[str, int] = {}
    for shard in shards.shards_of(zone):
        since = shards.since.get(shard, 0)
        if had.get(shard) == since or (is_known and since <= least) or shard in overdue:
            found[shard] = since
    return found


def has_given_up(shards: ShardMap, zone: str, held: Iterable[str]) -> bool:
    """Return whether none of the work under way is bound to a shard that the zone does not own. `held`: its bounds."""
    return all(shards.owners.get(shard) == zone for shard in map(shard_in, held) if shard)


def is_left(kind: str, revision: int, settled: Iterable[Mapping[str, int]]) -> bool:
    """Return whether nodes have left what the record of this revision has bound to another zone. `settled`: what each
    says, by kind. A node that says nothing is of an earlier version, and one that does not name the kind runs none."""
    return all(said and said.get(kind, revision) >= revision for said in settled)


def stray(shards: ShardMap, zone: str, key: str) -> str:
    """Return why a record with this key does not belong to the zone. Empty: it does."""
    try:
        shard = shards.shard_of(key)
    except BadKey as error:
        return str(error)
    owner, named = shards.owners.get(shard, ""), "region" if shards.function == "region" else "shard"
    if owner == zone:
        return ""
    belongs = f"belongs to zone {owner}" if owner else "belongs to no zone"
    return f"{named} {shard[:40]!a} {belongs}, not to zone {zone}"
