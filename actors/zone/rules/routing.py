"""The shard map: which zone owns which shard. Each change makes a new map with the next epoch. Pure.

A map is sound if every shard has exactly one owner. `checked` refuses any other, so a map with a hole or an overlap is
never stored. The number of shards, and the function by which a row finds its shard, stay for good: offsets are kept per
shard, and mean nothing for shards that are cut otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from actors.zone.rules.shards import MOST_SHARDS, Function, in_order, numbered, shard_of, text_of

ZONE = re.compile(r"[A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*")
"""A name of a zone. It is a part of subjects, where two underscores part it from the name of a job."""
LONGEST_ZONE = 24
JOB = ZONE
LONGEST_JOB = 32
"""Characters of a zoned job's key, which is a part of subjects beside the zone."""
REGION = re.compile(r"[A-Za-z0-9_-]{1,64}")
DRAIN_MS = 10_000
MOST_WEIGHT = 1_000_000


class BadMap(ValueError):
    """A shard map, or a change of one, that is refused. The text says what is wrong, and what to do."""


class ShardMap(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which zone owns which shard, since which epoch. `count`: of shards, 0 for regions, whose shards are the codes
    that have an owner. `since`: the epoch in which a shard last got another owner. `weights`: how much a zone takes
    when shards are dealt, 1 if it has none. `drained`: the shards that a zone had before it was drained.

    `drain_ms`: how long a zone waits for the former owner of a shard to finish its batch. `takeover_ms`: how long after
    a zone died its shards are dealt to the others. `None`: a person decides that. `changed_ms`, `by`, `why`: of this
    epoch."""

    epoch: int = 0
    function: Function = "number"
    count: int = 0
    owners: dict[str, str] = {}
    since: dict[str, int] = {}
    weights: dict[str, float] = {}
    drained: dict[str, tuple[str, ...]] = {}
    drain_ms: int = DRAIN_MS
    takeover_ms: int | None = None
    changed_ms: int = 0
    by: str = ""
    why: str = ""

    def zones(self) -> list[str]:
        """Return the zones that the map knows, sorted."""
        return sorted({*self.owners.values(), *self.weights, *self.drained})

    def shards_of(self, zone: str) -> frozenset[str]:
        """Return the shards that the zone owns."""
        return frozenset(shard for shard, owner in self.owners.items() if owner == zone)

    def weight(self, zone: str) -> float:
        """Return how much the zone takes when shards are dealt."""
        return self.weights.get(zone, 1.0)

    def shard_of(self, key: object) -> str:
        """Return the shard of a row's key. Raises BadKey. A region that has no owner is returned as it is."""
        return shard_of(key, self.function, self.count)

    def shards_text(self, zone: str) -> str:
        """Return the zone's shards as a person writes them."""
        return text_of(self.shards_of(zone), self.function)


class ShardMove(Struct, frozen=True):
    """A shard that gets another owner. Empty: it had none, or will have none."""

    shard: str
    before: str
    after: str


def made(
    zones: Mapping[str, str | Sequence[str | int]],
    *,
    function: Function = "number",
    count: int = 0,
    weights: Mapping[str, float] | None = None,
    drain_ms: int = DRAIN_MS,
    takeover_ms: int | None = None,
) -> ShardMap:
    """Return the map that a person wrote: the shards of each zone, as `0-32,40`, `DE,FR` or a list. Raises BadMap that
    names the shards of no zone, of two zones, and those that there are not."""
    owners: dict[str, str] = {}
    for zone, text in zones.items():
        for shard in _shards(zone, text, function):
            if owners.setdefault(shard, zone) != zone:
                raise BadMap(f"shard {shard}: is in zones {owners[shard]} and {zone}; give it one owner")
    names = set(zones)
    return checked(
        ShardMap(
            function=function,
            count=0 if function == "region" else count,
            owners={shard: owners[shard] for shard in in_order(owners)},
            weights=dict.fromkeys(sorted(names), 1.0) | dict(weights or {}),
            drain_ms=drain_ms,
            takeover_ms=takeover_ms,
        )
    )


def _shards(zone: str, text: str | Sequence[str | int], function: Function) -> list[str]:
    parts = [part.strip() for part in text.split(",")] if isinstance(text, str) else [str(part) for part in text]
    found: list[str] = []
    for part in filter(None, parts):
        if function == "region":
            found.append(part)
            continue
        first, dash, last = part.partition("-")
        if not first.isdecimal() or not (last.isdecimal() if dash else True) or len(part) > 12:
            raise BadMap(f"zone {zone}: {part[:40]!a} is no shard; write numbers and ranges, as 0-32,40")
        low, high = int(first), int(last or first)
        if high < low:
            raise BadMap(f"zone {zone}: {part}: the range goes from the lower to the higher shard, as 0-32")
        if high >= MOST_SHARDS:
            raise BadMap(f"zone {zone}: {part}: there are at most {MOST_SHARDS} shards, 0 to {MOST_SHARDS - 1}")
        found += [str(number) for number in range(low, high + 1)]
    return found


def checked(shards: ShardMap) -> ShardMap:
    """Return the map if it is sound. Raises BadMap."""
    for zone in shards.zones():
        if not ZONE.fullmatch(zone) or len(zone) > LONGEST_ZONE:
            raise BadMap(f"zone {zone[:40]!a}: use 1 to {LONGEST_ZONE} of A-Z a-z 0-9 - and single _ inside")
    check_weights(shards.weights)
    if shards.function == "region":
        _check_regions(shards)
    else:
        _check_numbers(shards)
    return shards


def check_weights(weights: Mapping[str, float]) -> None:
    """Raise BadMap for a weight that no zone can have."""
    for zone, weight in weights.items():
        if not 0 <= weight <= MOST_WEIGHT:
            raise BadMap(f"zone {zone[:40]}: weight {weight:g}: use 0 to {MOST_WEIGHT}; 0 takes no shards of others")


def _check_regions(shards: ShardMap) -> None:
    if not shards.owners:
        raise BadMap("regions: no zone has one; write codes, as eu = 'DE,FR'")
    if len(shards.owners) > MOST_SHARDS:
        raise BadMap(f"regions: {len(shards.owners)} are more than {MOST_SHARDS}")
    for code in shards.owners:
        if not REGION.fullmatch(code):
            raise BadMap(f"region {code[:40]!a}: use 1 to 64 of A-Z a-z 0-9 _ -")


def _check_numbers(shards: ShardMap) -> None:
    count = shards.count
    if not 1 <= count <= MOST_SHARDS:
        raise BadMap(f"shards: {count}: use 1 to {MOST_SHARDS}")
    known = set(numbered(count))
    if foreign := in_order(set(shards.owners) - known):
        raise BadMap(f"shard {foreign[0]}: there are {count} shards, 0 to {count - 1}")
    if missing := known - set(shards.owners):
        raise BadMap(f"shards {text_of(missing, shards.function)}: have no zone; give each of the {count} an owner")


# ---- changes


def next_map(before: ShardMap | None, after: ShardMap, *, at_ms: int, by: str, why: str, above: int = 0) -> ShardMap:
    """Return `after` as the map of the next epoch. `above`: the epoch is higher than this, too. Raises BadMap if the
    shards would be cut in another way."""
    checked(after)
    if before is not None and (before.function, before.count) != (after.function, after.count):
        raise BadMap(
            f"shards: {_cut(before)} cannot become {_cut(after)}: offsets are kept per shard, and would mean nothing;"
            " use another namespace for the new cut"
        )
    epoch = max(above, 0 if before is None else before.epoch) + 1
    owners = {} if before is None else before.owners
    since = {} if before is None else before.since
    return replace(
        after,
        epoch=epoch,
        since={shard: since.get(shard, epoch) if owners.get(shard) == owner else epoch
               for shard, owner in after.owners.items()},
        changed_ms=at_ms,
        by=by,
        why=why,
    )  # fmt: skip


def _cut(shards: ShardMap) -> str:
    return "regions" if shards.function == "region" else f"{shards.count} by {shards.function}"


def moves(before: ShardMap | None, after: ShardMap) -> list[ShardMove]:
    """Return the shards that get another owner."""
    old = {} if before is None else before.owners
    changed = (shard for shard in old.keys() | after.owners.keys() if old.get(shard) != after.owners.get(shard))
    return [ShardMove(shard, old.get(shard, ""), after.owners.get(shard, "")) for shard in in_order(changed)]


def moved(shards: ShardMap, wanted: Mapping[str, str]) -> ShardMap:
    """Return the map with other owners of these shards. One shard is a canary. Raises BadMap for an unknown shard, or
    for a zone that the map does not know."""
    for shard, zone in wanted.items():
        if shard not in shards.owners:
            raise BadMap(f"shard {shard[:40]!a}: there is none; see `penstock routing show`")
        _check_known(shards, zone)
    return replace(shards, owners={**shards.owners, **wanted})


def drained(shards: ShardMap, zone: str, *, without: Iterable[str] = ()) -> ShardMap:
    """Return the map in which the zone owns nothing, and the others have its shards by their weights, but for those in
    `without`. Raises BadMap if there is no zone to take them."""
    _check_known(shards, zone)
    given = shards.shards_of(zone)
    kept = {**shards.drained, zone: tuple(in_order({*shards.drained.get(zone, ()), *given}))}
    return replace(dealt(shards, given, without={zone, *shards.drained, *without}), drained=kept)


def restored(shards: ShardMap, zone: str) -> ShardMap:
    """Return the map in which a drained zone has again the shards that it had. Raises BadMap if it is not drained."""
    _check_known(shards, zone)
    if zone not in shards.drained:
        raise BadMap(f"zone {zone}: is not drained; there is nothing to restore")
    back = {shard: zone for shard in shards.drained[zone] if shard in shards.owners}
    kept = {name: had for name, had in shards.drained.items() if name != zone}
    return replace(shards, owners={**shards.owners, **back}, drained=kept)


def dealt(shards: ShardMap, given: Iterable[str], *, without: Iterable[str]) -> ShardMap:
    """Return the map in which the shards `given` are dealt by weight to the zones that are not among `without`. No
    other shard moves. Raises BadMap if no zone takes any."""
    given, takers = in_order(given), takers_of(shards, without=without)
    if given and not takers:
        raise BadMap(f"shards {text_of(given, shards.function)}: no other zone takes them; restore one, or add one")
    held = {zone: len(shards.shards_of(zone) - set(given)) for zone in takers}
    owners = dict(shards.owners)
    for shard in given:
        owners[shard] = min(takers, key=lambda zone: ((held[zone] + 1) / shards.weight(zone), zone))
        held[owners[shard]] += 1
    return replace(shards, owners=owners)


def takers_of(shards: ShardMap, *, without: Iterable[str]) -> list[str]:
    """Return the zones that take shards when some are dealt: they have a weight, and are not among `without`."""
    refused = set(without)
    return [zone for zone in shards.zones() if zone not in refused and shards.weight(zone) > 0]


def check_lasting(before: ShardMap | None, after: ShardMap, dead: Collection[str]) -> None:
    """Raise BadMap if a dead zone gets shards that a takeover would deal to the others again at once."""
    if after.takeover_ms is None or not takers_of(after, without={*dead, *after.drained}):
        return
    for zone in sorted({move.after for move in moves(before, after)} & set(dead)):
        raise BadMap(
            f"zone {zone}: is dead, and by the map's takeover its shards would be dealt to the others again at once;"
            " start its nodes first, or set takeover to never"
        )


def balanced(shards: ShardMap) -> ShardMap:
    """Return the map in which each zone has shards by its weight, with as few moves as that needs."""
    takers = takers_of(shards, without=shards.drained)
    if not takers:
        raise BadMap("weights: no zone takes shards; give one a weight above 0")
    target = _targets(shards, takers)
    surplus = [
        shard
        for zone in shards.zones()
        for shard in in_order(shards.shards_of(zone))[target.get(zone, 0) :]
    ]  # fmt: skip
    owners, held = dict(shards.owners), {zone: len(shards.shards_of(zone)) for zone in takers}
    for zone in takers:
        while held[zone] < target[zone] and surplus:
            owners[surplus.pop(0)] = zone
            held[zone] += 1
    return replace(shards, owners=owners)


def _targets(shards: ShardMap, takers: Sequence[str]) -> dict[str, int]:
    """Return how many shards each zone should have. Of the zones with equal claims to a remainder, those that have more
    shards now get it, so that fewer move."""
    total, weights = len(shards.owners), sum(map(shards.weight, takers))
    exact = {zone: total * shards.weight(zone) / weights for zone in takers}
    target = {zone: int(exact[zone]) for zone in takers}
    order = sorted(takers, key=lambda zone: (target[zone] - exact[zone], -len(shards.shards_of(zone)), zone))
    for zone in order[: total - sum(target.values())]:
        target[zone] += 1
    return target


def _check_known(shards: ShardMap, zone: str) -> None:
    if zone not in shards.zones():
        raise BadMap(f"zone {zone[:40]!a}: is not in the map; it has {', '.join(shards.zones())}")
