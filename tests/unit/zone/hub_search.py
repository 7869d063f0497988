"""An exhaustive search of the agreement at the hub: two zones, one shard, two changes of the map, and zones that are
cut off, put out and come back, in any order.

The rules are those of `actors/zone/rules/hub.py`. A zone's keeper may be between any two of its writes while anything
else happens, and what it knows of the map may be old. Time is in one rule: a zone is put out only when its lease is
over by the clocks of its nodes, for the others count longer.

What must hold at every step: no shard has a run in two zones whose nodes may act.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from actors.zone.rules.hub import (
    ZoneRecord,
    are_free,
    gains,
    is_behind,
    is_met_first,
    joined,
    joining,
    put_out,
    renewed,
    taken,
    without_gains,
)
from actors.zone.rules.routing import ShardMap
from tests.support.collector import no_collector

ZONES = ("a", "b")
SHARD = "0"


class HubRules:
    """The agreement as it is. A variant overrides one rule."""

    changes = 2
    losses = 0
    """How often the hub loses its store, and a person makes its map again, as any map and at any moment. After that
    the map is not changed any more."""
    looks_back = False
    """Whether a keeper trusts what it once read of the zones."""

    def are_free(self, gained: frozenset[str], epoch: int, zones: dict[str, ZoneRecord], zone: str) -> bool:
        return are_free(gained, epoch, zones, zone)

    def asked(self, world: World, place: Place) -> dict[str, ZoneRecord]:
        """Return the zones' records that a keeper looks at before it gains."""
        return dict(zip(ZONES, world.records, strict=True))

    def joins_at(self, world: World, place: Place) -> int:
        """Return the epoch of the map with which a zone comes back."""
        return _epoch(len(world.owners))

    def may_put_out(self, place: Place) -> bool:
        return not place.may_act

    def may_join(self, world: World, place: Place) -> bool:
        """Return whether a zone that comes back may have what it has by its own map."""
        owned = frozenset((SHARD,) if place.owner == place.zone else ())
        return self.are_free(owned, place.joins, self.asked(world, place), place.zone)

    def held(self, place: Place) -> tuple[str, ...]:
        """Return what a zone says that it still holds."""
        return (SHARD,) if place.runs and place.owner != place.zone else ()

    def may_meet(self, world: World) -> bool:
        """Return whether a zone has waited long enough at a new hub: as long as a lease, so all leases at the one
        before are over."""
        return not any(place.may_act for place in world.places)

    def may_join_without_map(self) -> bool:
        return not is_behind(None, _map(1, "a"))

    def comes_back(self, record: ZoneRecord) -> ZoneRecord:
        return joining(record, "n", lease_ms=1)


class Place(NamedTuple):
    """A zone. `epoch`, `owner`: of its own map. `seen`: the newest map of the hub that its keeper has seen. `gaining`:
    the map that it has found free to take, and has not written. `joins`, `may_join`: the map with which it comes back,
    and whether it has found that free. `view`: the zones' records as it saw them once."""

    zone: str
    epoch: int = 0
    owner: str = "a"
    seen: int = 0
    gaining: int = 0
    joins: int = 0
    may_join: bool = False
    may_act: bool = False
    runs: bool = False
    view: tuple[ZoneRecord, ...] = ()


class World(NamedTuple):
    """`owners`: of the shard, in each map of the hub."""

    owners: tuple[str, ...]
    records: tuple[ZoneRecord, ...]
    places: tuple[Place, ...]
    losses: int = 0
    is_lost: bool = False
    """Whether the hub has no map."""


UNKNOWN = ZoneRecord(state="out")
"""What a new hub knows of a zone: nothing. Others do not wait for it."""


def _epoch(changes: int) -> int:
    return 2 * changes


@functools.cache
def _map(epoch: int, owner: str) -> ShardMap:
    return ShardMap(epoch=epoch, count=1, owners={SHARD: owner})


def start(rules: HubRules) -> World:
    """Return a world whose shard is in zone `a`, and runs there."""
    records = tuple(ZoneRecord(state="in", lease_ms=1, taken=_epoch(1)) for _ in ZONES)
    places = tuple(
        Place(
            zone,
            epoch=_epoch(1),
            seen=_epoch(1),
            may_act=True,
            runs=zone == "a",
            view=records if rules.looks_back else (),
        )
        for zone in ZONES
    )
    return World(("a",), records, places)


@no_collector()
def search(rules: HubRules, *, most: int = 1_000_000) -> tuple[int, str]:
    """Return how many worlds there are, and what is wrong in the first bad one. Empty: nothing is in the nearest
    `most`."""
    first = start(rules)
    known, waiting = {first}, deque([first])
    while waiting and len(known) < most:
        world = waiting.popleft()
        acting = [place.zone for place in world.places if place.runs and place.may_act]
        if len(acting) > 1:
            return len(known), f"the shard runs in {acting}: {world}"
        for after in _steps(rules, world):
            if after not in known:
                known.add(after)
                waiting.append(after)
    return len(known), ""


def _steps(rules: HubRules, world: World) -> Iterator[World]:
    if world.losses < rules.losses:
        places = tuple(place._replace(joins=0, may_join=False) for place in world.places)
        yield World(world.owners, (UNKNOWN, UNKNOWN), places, world.losses + 1, is_lost=True)
    if world.is_lost:
        for zone in ZONES:
            yield world._replace(owners=(*world.owners, zone), is_lost=False)
    elif len(world.owners) <= rules.changes and not world.losses:
        for zone in ZONES:
            if zone != world.owners[-1]:
                yield world._replace(owners=(*world.owners, zone))
    for at, place in enumerate(world.places):
        record = world.records[at]

        def now(place: Place = place, record: ZoneRecord | None = None, at: int = at) -> World:
            places = (*world.places[:at], place, *world.places[at + 1 :])
            records = world.records
            if record is not None:
                records = (*records[:at], replace(record, beat=0, node=""), *records[at + 1 :])
            return world._replace(records=records, places=places)

        yield from _node_steps(place, record, now)
        if rules.may_put_out(place) and record.state != "out":
            yield now(record=put_out(record))
        if rules.looks_back and place.view != world.records:
            yield now(place._replace(view=world.records))
        if place.seen < _epoch(len(world.owners)) and not world.is_lost:
            yield now(place._replace(seen=_epoch(len(world.owners))))
        if record.state == "in":
            yield from _taking(rules, world, place, record, now)
        else:
            yield from _joining(rules, world, place, record, now)


def _node_steps(place: Place, record: ZoneRecord, now) -> Iterator[World]:  # type: ignore[no-untyped-def] # a closure
    if place.may_act:
        yield now(place._replace(may_act=False))  # its lease is over
    if renewed(record, "n") is not None:
        yield now(place._replace(may_act=True))
    if place.runs:
        yield now(place._replace(runs=False))
    elif place.may_act and place.owner == place.zone:
        yield now(place._replace(runs=True))


def _taking(rules: HubRules, world: World, place: Place, record: ZoneRecord, now) -> Iterator[World]:  # type: ignore[no-untyped-def] # a closure
    shards = _map(place.seen, world.owners[place.seen // 2 - 1])
    own = _map(place.epoch, place.owner)
    first = without_gains(shards, own, place.zone)
    assert first is not None
    if own.epoch < first.epoch:
        yield now(place._replace(epoch=first.epoch, owner=first.owners[SHARD]))
        return
    held = rules.held(place)
    if own.epoch <= shards.epoch and (record.taken, record.held) != (shards.epoch, held):
        yield now(record=taken(record, shards.epoch, held))
    if own.epoch < shards.epoch and not place.gaining:
        gained = gains(shards, own, place.zone)
        if rules.are_free(gained, shards.epoch, rules.asked(world, place), place.zone):
            yield now(place._replace(gaining=shards.epoch))
    if place.gaining:
        owner = world.owners[place.gaining // 2 - 1]
        is_newer = place.gaining > place.epoch
        after = place._replace(epoch=place.gaining, owner=owner) if is_newer else place
        yield now(after._replace(gaining=0))


def _joining(rules: HubRules, world: World, place: Place, record: ZoneRecord, now) -> Iterator[World]:  # type: ignore[no-untyped-def] # a closure
    if record.state == "out" or not place.joins:
        if place.joins:
            yield now(place._replace(joins=0, may_join=False))
        elif record.state == "out":
            yield now(record=rules.comes_back(record))
        elif is_met_first(record, _map(place.epoch, place.owner)) and not rules.may_meet(world):
            return
        elif world.is_lost:
            if rules.may_join_without_map():
                yield now(record=joined(taken(record, place.epoch)))
            elif record.taken != place.epoch:
                yield now(record=taken(record, place.epoch))
        else:
            yield now(place._replace(joins=rules.joins_at(world, place)))
        return
    shards = _map(place.joins, world.owners[place.joins // 2 - 1])
    first = without_gains(shards, _map(place.epoch, place.owner), place.zone)
    assert first is not None
    if place.epoch < first.epoch:
        place = place._replace(epoch=first.epoch, owner=first.owners[SHARD])
        yield now(place)
    if place.owner != place.zone and place.runs:
        yield now(place._replace(runs=False))
    elif record.taken != place.joins:
        yield now(place, taken(record, place.joins))
    elif rules.may_join(world, place):
        yield now(place._replace(may_join=True))
    if place.may_join:
        yield now(place._replace(may_join=False, joins=0), joined(record))
