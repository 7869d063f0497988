"""Zones, the shard map and hand-overs as people see them."""

from __future__ import annotations

from msgspec import Struct

from actors.runtime.rules.setting_values import duration_text
from actors.zone.offsets import Stored, records_of
from actors.zone.rules.offsets import Handover, start_of
from actors.zone.rules.plan import ChangePlan
from actors.zone.rules.routing import ShardMap
from actors.zone.rules.shards import Function, in_order, text_of


class MapView(Struct, frozen=True, kw_only=True):
    """A map as people see it."""

    epoch: int
    function: Function
    shards: int
    zones: dict[str, str]
    weights: dict[str, float]
    drained: dict[str, str]
    drain: str
    takeover: str | None
    changed_ms: int
    by: str
    why: str


class ChangeView(Struct, frozen=True, kw_only=True):
    """What a change does, or did. `map`: after it. `is_applied`: it is in force. `nodeless`: zones that get shards, or
    that are new in the map, and of which no node lives. What they get waits for one."""

    plan: ChangePlan
    map: MapView
    is_applied: bool
    nodeless: list[str] = []


class ZoneView(Struct, frozen=True, kw_only=True):
    """A zone. `state`: `live`, `dead` (no node of it lives), or `drained`. While the hub does not answer: `cut off` is
    the zone that tells this, and the others are `unknown`. `shards`: what it owns. `had`: what it gets back when it is
    restored. `nodes`: the live ones."""

    zone: str
    state: str
    shards: str
    count: int
    weight: float
    had: str
    nodes: list[str]


class ZoneJobView(Struct, frozen=True, kw_only=True):
    """A job in a zone. `start`: where a run would start now. `ahead`: the offset of the shard that is ahead of all.
    `waiting`: shards that a former owner still has."""

    job: str
    shards: int
    start: int
    ahead: int
    waiting: str


class HandoverView(Struct, frozen=True, kw_only=True):
    """How a shard came to its owner. `took_ms`: from the change of the map to the claim."""

    job: str
    shard: str
    before: str
    after: str
    epoch: int
    offset: int
    start: int
    repeated: int
    passed: int
    skipped: int
    took_ms: int
    taken_ms: int
    is_forced: bool


class ZoneShown(Struct, frozen=True, kw_only=True):
    """A zone with its jobs, and how its shards came, the latest first."""

    zone: ZoneView
    jobs: list[ZoneJobView]
    handovers: list[HandoverView]


class ZoneShards(Struct, frozen=True, kw_only=True):
    """What a zone owns now. `shards`: numbers, or region codes. `epoch`: of the map."""

    zone: str
    epoch: int
    function: Function
    count: int
    shards: list[int | str]


def map_view(shards: ShardMap) -> MapView:
    """Return a map as people see it."""
    return MapView(
        epoch=shards.epoch,
        function=shards.function,
        shards=len(shards.owners),
        zones={zone: shards.shards_text(zone) for zone in shards.zones()},
        weights={zone: shards.weight(zone) for zone in shards.zones()},
        drained={zone: text_of(had, shards.function) for zone, had in shards.drained.items()},
        drain=duration_text(shards.drain_ms),
        takeover=None if shards.takeover_ms is None else duration_text(shards.takeover_ms),
        changed_ms=shards.changed_ms,
        by=shards.by,
        why=shards.why,
    )


def job_view(shards: ShardMap, zone: str, job: str, stored: Stored) -> ZoneJobView:
    """Return a job in a zone as people see it."""
    owned, records = shards.shards_of(zone), records_of(stored)
    start = start_of(records, owned)
    held = (shard for shard in owned if shard in records and records[shard].zone not in ("", zone))
    return ZoneJobView(
        job=job,
        shards=len(owned),
        start=start,
        ahead=max((records[shard].offset for shard in owned if shard in records), default=start),
        waiting=text_of(held, shards.function),
    )


def handovers_of(job: str, stored: Stored) -> list[HandoverView]:
    """Return how a job's shards came to their owners, for those that were handed over."""
    return [
        _handover(job, shard, came)
        for shard in in_order(stored)
        if (came := stored[shard].record.came) is not None
    ]  # fmt: skip


def _handover(job: str, shard: str, came: Handover) -> HandoverView:
    return HandoverView(
        job=job,
        shard=shard,
        before=came.before,
        after=came.after,
        epoch=came.epoch,
        offset=came.offset,
        start=came.start,
        repeated=came.repeated,
        passed=came.passed,
        skipped=max(0, came.start - came.offset),
        took_ms=max(0, came.taken_ms - came.asked_ms),
        taken_ms=came.taken_ms,
        is_forced=came.is_forced,
    )
