"""The desk of zones: what people and programs ask of the shard map, the same at every door.

In: requests. Out: next maps, by compare-and-set, and views. State: none. A change that is asked for twice makes one
epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import anyio
from msgspec import Struct
from msgspec.structs import replace

from actors.runtime.logs import fields
from actors.runtime.rules.pages import MOST_LINES, PAGE_BYTES, page_of
from actors.runtime.rules.setting_values import BadSetting, duration_text, span_ms
from actors.runtime.rules.texts import some_of
from actors.zone.offsets import Stored, records_of
from actors.zone.routing import Routing, change_map, map_history
from actors.zone.rules.hub import ZoneRecord, above_all, is_behind, map_of_zone
from actors.zone.rules.offsets import Handover, start_of
from actors.zone.rules.plan import ChangePlan, plan
from actors.zone.rules.report import MoveReport, report_of
from actors.zone.rules.routing import (
    DRAIN_MS,
    BadMap,
    ShardMap,
    balanced,
    check_lasting,
    check_weights,
    drained,
    made,
    moved,
    moves,
    next_map,
    restored,
    takers_of,
)
from actors.zone.rules.shards import Function, in_order, text_of
from streams.bucket import Bucket
from streams.calls import mark_of
from streams.clock import Clock
from streams.connection import Connection

log = logging.getLogger(__name__)

LONGEST_MS = 86_400_000
MOST_MOVES = 1_000
LONGEST_WAIT_MS = 20_000
"""For which a question about shards waits for a change."""
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


class UnknownZone(Exception):
    """The map does not know this zone."""

    def __init__(self, zone: str, known: Sequence[str]) -> None:
        there = f"there are {', '.join(known)}" if known else "there is no map; see `penstock routing apply --help`"
        super().__init__(f"no zone {zone[:40]!a}; {there}")


class KnownOffsets(Protocol):
    """How far each job is."""

    async def of_all(self) -> dict[str, Stored]:
        """Return the records of all jobs."""
        ...


class AtHub(Protocol):
    """What a zone with a server of its own knows of itself and of the hub."""

    @property
    def zone(self) -> str:
        """The zone itself."""
        ...

    @property
    def is_linked(self) -> bool:
        """Whether the hub answered last time."""
        ...

    async def own_map(self) -> ShardMap | None:
        """Return the zone's own map."""
        ...

    async def records(self) -> Mapping[str, ZoneRecord]:
        """Return the zones as the hub knows them."""
        ...


class ZoneDesk:
    """One node's desk. Many callers may use it at once. `changes`: the bucket where the map is changed. `hub`: if zones
    have servers of their own. `nodes`: the live nodes of each zone. `dead`: the zones whose shards a takeover deals to
    others. It raises BadMap, UnknownZone, MalformedMessage, and the broker's errors."""

    def __init__(
        self,
        *,
        routing: Routing,
        offsets: KnownOffsets,
        changes: Bucket[bytes],
        connection: Connection,
        nodes: Callable[[], Mapping[str, Sequence[str]]],
        dead: Callable[[], frozenset[str]],
        clock: Clock,
        hub: AtHub | None = None,
    ) -> None:
        self._routing = routing
        self._offsets = offsets
        self._changes = changes
        self._connection = connection
        self._nodes = nodes
        self._dead = dead
        self._clock = clock
        self._hub = hub

    # ---- looking

    async def zones(
        self, *, after: str = "", limit: int = MOST_LINES, most_bytes: int = PAGE_BYTES
    ) -> tuple[list[ZoneView], str]:
        """Return a page of the zones of the map, and those of live nodes that are not in it, and the name of the last
        one if there are more. `after`: such a name."""
        nodes, shards = self._nodes(), self._routing.current() or ShardMap()
        names = sorted(zone for zone in {*shards.zones(), *nodes} if zone > after)
        return page_of((self._zone(shards, zone, nodes) for zone in names), limit, most_bytes, lambda view: view.zone)

    async def zone(self, zone: str) -> ZoneShown:
        """Return a zone with its jobs and hand-overs."""
        nodes, shards = self._nodes(), self._routing.current() or ShardMap()
        if zone not in shards.zones() and zone not in nodes:
            raise UnknownZone(zone, shards.zones())
        stored = await self._offsets.of_all()
        moves = [move for job, each in stored.items() for move in _handovers(job, each) if move.after == zone]
        return ZoneShown(
            zone=self._zone(shards, zone, nodes),
            jobs=[_job(shards, zone, job, each) for job, each in sorted(stored.items())],
            handovers=sorted(moves, key=lambda move: -move.taken_ms)[:MOST_MOVES],
        )

    def _zone(self, shards: ShardMap, zone: str, nodes: Mapping[str, Sequence[str]]) -> ZoneView:
        live = sorted(nodes.get(zone, ()))
        return ZoneView(
            zone=zone,
            state=self._cut(zone) or ("drained" if zone in shards.drained else "live" if live else "dead"),
            shards=shards.shards_text(zone),
            count=len(shards.shards_of(zone)),
            weight=shards.weight(zone) if zone in shards.zones() else 0.0,
            had=text_of(shards.drained.get(zone, ()), shards.function),
            nodes=live,
        )

    def _cut(self, zone: str) -> str:
        """Return the state of a zone while the hub does not answer: what is known of it may be old."""
        if self._hub is None or self._hub.is_linked:
            return ""
        return "cut off" if zone == self._hub.zone else "unknown"

    async def shards(self, zone: str, *, after: int | None = None, wait_ms: int = 0) -> ZoneShards:
        """Return the shards of a zone. With `after`, wait up to `wait_ms` for a map of a later epoch than that."""
        changed = anyio.Event()
        forget = self._routing.on_change(lambda: changed.set())
        try:
            with anyio.move_on_after(min(wait_ms, LONGEST_WAIT_MS) / 1000):
                while after is not None and (self._routing.current() or ShardMap()).epoch <= after:
                    await changed.wait()
                    changed = anyio.Event()
        finally:
            forget()
        shards = self._routing.current() or ShardMap()
        names = in_order(shards.shards_of(zone))
        own: list[int | str] = [*names] if shards.function == "region" else [int(name) for name in names]
        return ZoneShards(zone=zone, epoch=shards.epoch, function=shards.function, count=shards.count, shards=own)

    async def routing(self) -> MapView:
        """Return the map in force."""
        shards = await self._routing.fresh()
        if shards is None:
            raise BadMap(NO_MAP)
        return map_view(shards)

    async def history(
        self, *, before: int | None = None, limit: int = MOST_LINES, most_bytes: int = PAGE_BYTES
    ) -> tuple[list[MapView], str]:
        """Return a page of the kept maps, the newest first, and the epoch of the last one if there are more. `before`:
        such an epoch."""
        maps = await map_history(self._connection, self._changes)
        views = (map_view(shards) for shards in maps if before is None or shards.epoch < before)
        return page_of(views, limit, most_bytes, lambda view: str(view.epoch))

    async def report(self, epoch: int | None = None) -> MoveReport:
        """Return how a change of the map went, by default the last one. Raises BadMap if its maps are not kept."""
        maps = await map_history(self._connection, self._changes)
        at = next((at for at, shards in enumerate(maps) if epoch in (None, shards.epoch)), None)
        if at is None:
            raise _not_kept(epoch)
        after, before = maps[at], maps[at + 1] if at + 1 < len(maps) else None
        offsets = await self._offsets.of_all()
        return report_of(before, after, maps[0], {job: records_of(each) for job, each in offsets.items()})

    # ---- changing

    async def drain(self, zone: str, *, by: str = "", is_dry: bool = False) -> ChangeView:
        """Deal the zone's shards to the others. `is_dry`: only say what it would do."""
        dead = self._dead()
        return await self._change(lambda shards: _if_owning(shards, zone, dead), f"drain of {zone}", by, is_dry)

    async def restore(self, zone: str, *, by: str = "", is_dry: bool = False) -> ChangeView:
        """Give a drained zone its shards back."""
        return await self._change(lambda shards: restored(_some(shards), zone), f"restore of {zone}", by, is_dry)

    async def plan(self, change: RoutingChange) -> ChangeView:
        """Say what a change would do."""
        return await self.apply(change, is_dry=True)

    async def apply(self, change: RoutingChange, *, by: str = "", is_dry: bool = False) -> ChangeView:
        """Change the map. Values that no map can have are refused first: all else is read, and that may take long."""
        _check_values(change)
        earlier = await self._earlier(change.epoch) if change.epoch is not None else None
        whole = _document(change.map) if change.map is not None else None
        if change.from_zone:
            if self._hub is None:
                raise BadMap("from_zone: the zones are on one cluster; there is no hub to make again")
            there = await self._routing.fresh()
            whole = map_of_zone(await self._hub.own_map(), there, await self._hub.records())

        def make(shards: ShardMap | None) -> ShardMap:
            if change.if_epoch is not None and change.if_epoch != (0 if shards is None else shards.epoch):
                now = "there is no map" if shards is None else f"the map is at {shards.epoch} now"
                raise BadMap(f"epoch {change.if_epoch}: {now}; plan again, and apply that")
            return _wanted(shards, whole, change, earlier)

        return await self._change(make, _why(change), by, is_dry, change)

    async def _earlier(self, epoch: int) -> ShardMap:
        for shards in await map_history(self._connection, self._changes):
            if shards.epoch == epoch:
                return shards
        raise _not_kept(epoch)

    async def _change(
        self,
        make: Callable[[ShardMap | None], ShardMap],
        why: str,
        by: str,
        is_dry: bool,
        what: RoutingChange | None = None,
    ) -> ChangeView:
        offsets = await self._offsets.of_all()
        records = {job: records_of(each) for job, each in offsets.items()}
        known = {record.epoch for each in records.values() for record in each.values()}
        own = None
        if self._hub is not None:
            own = await self._hub.own_map()
            known |= {record.taken for record in (await self._hub.records()).values()}
            known |= {own.epoch} if own is not None else set()
        told: list[ChangePlan] = []
        nodeless: list[str] = []
        dead = self._dead()

        def change(shards: ShardMap | None) -> ShardMap:
            wanted = make(shards)
            check_lasting(shards, wanted, dead)
            told[:] = [plan(shards, wanted, records)]
            nodeless[:] = _nodeless(shards, wanted, self._nodes())
            if shards is not None and _same(shards, wanted):
                return shards
            least = max({0 if shards is None else shards.epoch, *known})
            if self._hub is not None:
                least = above_all((least,), is_lost=is_behind(shards, own))
            return next_map(shards, wanted, at_ms=self._clock.now_ms(), by=by, why=why, above=least)

        if is_dry:
            after = change(await self._routing.fresh())
        else:
            after = await change_map(self._changes, change, mark_of((why, what)))
            told = told or [plan(after, after, records)]  # a late try of the call changes nothing
            log.info("zone.map_changed", extra=fields(epoch=after.epoch, by=by, why=why, moves=len(told[0].moves)))
        return ChangeView(plan=told[0], map=map_view(after), is_applied=not is_dry, nodeless=nodeless)


def _not_kept(epoch: int | None) -> BadMap:
    return BadMap(NO_MAP if epoch is None else f"epoch {epoch}: is not kept; see `penstock routing history`")


def _nodeless(before: ShardMap | None, after: ShardMap, nodes: Mapping[str, Sequence[str]]) -> list[str]:
    gaining = {move.after for move in moves(before, after) if move.after}
    new = {*after.zones()} - {*(before.zones() if before is not None else ())}
    return [zone for zone in sorted(gaining | new) if not nodes.get(zone)]


def _some(shards: ShardMap | None) -> ShardMap:
    if shards is None:
        raise BadMap(NO_MAP)
    return shards


def _if_owning(shards: ShardMap | None, zone: str, dead: frozenset[str]) -> ShardMap:
    """Dead zones take none of the shards, unless no other zone is left."""
    known = _some(shards)
    if zone in known.drained and not known.shards_of(zone):
        return known
    is_any_left = takers_of(known, without={zone, *known.drained, *dead})
    return drained(known, zone, without=dead if is_any_left else ())


def _wanted(
    shards: ShardMap | None, whole: ShardMap | None, change: RoutingChange, earlier: ShardMap | None
) -> ShardMap:
    if whole is not None:
        return whole
    after = _some(shards)
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


def _check_values(change: RoutingChange) -> None:
    check_weights(change.weights)
    if change.drain is not None:
        _span("drain", change.drain)
    _takeover(change.takeover)


def _document(document: RoutingDocument) -> ShardMap:
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


def _why(change: RoutingChange) -> str:
    if change.from_zone:
        return "the map of a zone, for a hub that was lost"
    if change.map is not None:
        return "a new map"
    parts = [f"the owners of epoch {change.epoch}"] if change.epoch is not None else []
    if change.moves:
        parts.append(f"move of {some_of([f'{shard} to {zone}' for shard, zone in change.moves.items()], MOST_NAMED)}")
    parts += ["balance"] if change.balance else []
    return ", ".join(parts) or "settings"


def _same(before: ShardMap, after: ShardMap) -> bool:
    names = ("owners", "weights", "drained", "drain_ms", "takeover_ms", "function", "count")
    return all(getattr(before, name) == getattr(after, name) for name in names)


# ---- views


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


def _job(shards: ShardMap, zone: str, job: str, stored: Stored) -> ZoneJobView:
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


def _handovers(job: str, stored: Stored) -> list[HandoverView]:
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
