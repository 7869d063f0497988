"""What a change of the map will do: who stops and starts, from which offset, and how much is repeated. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from actors.zone.rules.offsets import Records, start_of
from actors.zone.rules.routing import ShardMap, ShardMove, moves
from actors.zone.rules.shards import text_of


class ZonePlan(Struct, frozen=True, kw_only=True):
    """What a zone gives and gets, as people write shards. A zone that does neither goes on without a stop."""

    zone: str
    has: str
    gives: str = ""
    gets: str = ""
    shards: int = 0


class StartPlan(Struct, frozen=True, kw_only=True):
    """Where a job starts in a zone that gets shards. `repeated`: the offsets between there and the shard that is ahead
    of all, which are scanned again."""

    job: str
    zone: str
    start: int
    repeated: int


class ChangePlan(Struct, frozen=True, kw_only=True):
    """A change of the map. `epoch`: of the map that it starts from. `restarts`: zones whose runs end and begin anew.
    `goes_on`: zones that notice nothing."""

    epoch: int
    moves: list[ShardMove]
    zones: list[ZonePlan]
    starts: list[StartPlan]
    restarts: list[str]
    goes_on: list[str]


def plan(before: ShardMap | None, after: ShardMap, offsets: Mapping[str, Records]) -> ChangePlan:
    """Return what the change does. `offsets`: of each job, the records of its shards."""
    changed = moves(before, after)
    zones = sorted({*after.zones(), *(before.zones() if before is not None else ())})
    plans = [
        ZonePlan(
            zone=zone,
            has=text_of(after.shards_of(zone), after.function),
            gives=text_of((move.shard for move in changed if move.before == zone), after.function),
            gets=text_of((move.shard for move in changed if move.after == zone), after.function),
            shards=len(after.shards_of(zone)),
        )
        for zone in zones
    ]
    return ChangePlan(
        epoch=0 if before is None else before.epoch,
        moves=changed,
        zones=plans,
        starts=[
            _start(job, each, after, records) for job, records in sorted(offsets.items()) for each in plans if each.gets
        ],
        restarts=[each.zone for each in plans if each.gives or each.gets],
        goes_on=[each.zone for each in plans if each.has and not each.gives and not each.gets],
    )


def _start(job: str, zone: ZonePlan, after: ShardMap, records: Records) -> StartPlan:
    owned = after.shards_of(zone.zone)
    start = start_of(records, owned)
    ahead = max((records[shard].offset for shard in owned if shard in records), default=start)
    return StartPlan(job=job, zone=zone.zone, start=start, repeated=ahead - start)
