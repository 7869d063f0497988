"""What people and programs ask of the shard map: the documents that they write, and the map that these make. Pure."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from actors.runtime.rules.setting_values import BadSetting, duration_text, span_ms
from actors.runtime.rules.texts import some_of
from actors.zone.rules.routing import DRAIN_MS, BadMap, ShardMap, balanced, check_weights, made, moved
from actors.zone.rules.shards import Function

LONGEST_MS = 86_400_000
MOST_NAMED = 5
NO_MAP = "there is no shard map; make one with `penstock routing apply FILE`"


class RoutingDocument(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A map as a person writes it. `zones`: the shards of each, as `0-32,40` or `DE,FR`. `drain`: how long a zone waits
    for the former owner of a shard. `takeover`: how long after a zone died its shards are dealt to the others. `None`:
    a person decides that."""

    zones: dict[str, str | list[str | int]]
    shards: int = 0
    function: Function = "number"
    weights: dict[str, float] = {}
    drain: str = duration_text(DRAIN_MS)
    takeover: str | None = None


class RoutingChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of the map: a whole `map`, or the owners of an earlier `epoch`, or parts. `from_zone`: the map that the
    zone has which is asked, to make a lost hub again. `moves`: new owners of shards.
    `weights`, `drain`, `takeover`: as in a document; `never` is no takeover. `balance`: deal the shards anew by weight,
    with as few moves as that needs. `if_epoch`: only if this is the epoch in force."""

    map: RoutingDocument | None = None
    epoch: int | None = None
    from_zone: bool = False
    moves: dict[str, str] = {}
    weights: dict[str, float] = {}
    drain: str | None = None
    takeover: str | None = None
    balance: bool = False
    if_epoch: int | None = None


def some_map(shards: ShardMap | None) -> ShardMap:
    """Return the map. Raises BadMap if there is none."""
    if shards is None:
        raise BadMap(NO_MAP)
    return shards


def wanted(
    shards: ShardMap | None, whole: ShardMap | None, change: RoutingChange, earlier: ShardMap | None
) -> ShardMap:
    """Return the map that a change makes of the one in force. `whole`: the map that it brings. `earlier`: the map of
    its epoch. Raises BadMap."""
    if whole is not None:
        return whole
    after = some_map(shards)
    if earlier is not None:
        after = replace(after, owners=earlier.owners, drained=earlier.drained)
    if change.weights:
        after = replace(after, weights={**after.weights, **change.weights})
    if change.drain is not None:
        after = replace(after, drain_ms=_span("drain", change.drain))
    if change.takeover is not None:
        after = replace(after, takeover_ms=_takeover(change.takeover))
    if change.moves:
        after = moved(after, change.moves)
    return balanced(after) if change.balance else after


def check_values(change: RoutingChange) -> None:
    """Refuse values that no map can have. Raises BadMap."""
    check_weights(change.weights)
    if change.drain is not None:
        _span("drain", change.drain)
    _takeover(change.takeover)


def map_of(document: RoutingDocument) -> ShardMap:
    """Return the map that a document describes. Raises BadMap."""
    return made(
        document.zones,
        function=document.function,
        count=document.shards,
        weights=document.weights,
        drain_ms=_span("drain", document.drain),
        takeover_ms=_takeover(document.takeover),
    )


def _takeover(text: str | None) -> int | None:
    return None if text in (None, "never") else _span("takeover", text)


def _span(name: str, value: Any) -> int:
    try:
        found = span_ms(name, value)
    except BadSetting as error:
        raise BadMap(str(error)) from error
    if not 0 <= found <= LONGEST_MS:
        raise BadMap(f"{name}: {str(value)[:40]!a}: use 0s to 1d")
    return found


def why_of(change: RoutingChange) -> str:
    """Return what the history says of a change."""
    if change.from_zone:
        return "the map of a zone, for a hub that was lost"
    if change.map is not None:
        return "a new map"
    parts = [f"the owners of epoch {change.epoch}"] if change.epoch is not None else []
    if change.moves:
        parts.append(f"move of {some_of([f'{shard} to {zone}' for shard, zone in change.moves.items()], MOST_NAMED)}")
    parts += ["balance"] if change.balance else []
    return ", ".join(parts) or "settings"


def is_same(before: ShardMap, after: ShardMap) -> bool:
    """Return whether two maps differ in their epoch, time and reason alone."""
    names = ("owners", "weights", "drained", "drain_ms", "takeover_ms", "function", "count")
    return all(getattr(before, name) == getattr(after, name) for name in names)
