"""The desk of zones: what people and programs ask of the shard map, the same at every door.

In: requests. Out: next maps, by compare-and-set, and views. State: none. A change that is asked for twice makes one
epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import anyio

from actors.runtime.logs import fields
from actors.runtime.rules.pages import MOST_LINES, PAGE_BYTES, page_of
from actors.zone.offsets import Stored, records_of
from actors.zone.routing import Routing, change_map, map_history
from actors.zone.rules.changes import (
    NO_MAP,
    RoutingChange,
    check_values,
    is_same,
    map_of,
    some_map,
    wanted,
    why_of,
)
from actors.zone.rules.hub import ZoneRecord, above_all, is_behind, map_of_zone
from actors.zone.rules.plan import ChangePlan, plan
from actors.zone.rules.report import MoveReport, report_of
from actors.zone.rules.routing import (
    BadMap,
    ShardMap,
    check_lasting,
    drained,
    moves,
    next_map,
    restored,
    takers_of,
)
from actors.zone.rules.shards import in_order, text_of
from actors.zone.views import (
    ChangeView,
    MapView,
    ZoneShards,
    ZoneShown,
    ZoneView,
    handovers_of,
    job_view,
    map_view,
)
from streams.buckets.bucket import Bucket
from streams.calls import mark_of
from streams.clock import Clock
from streams.link.connection import Connection

log = logging.getLogger(__name__)

MOST_MOVES = 1_000
LONGEST_WAIT_MS = 20_000
"""For which a question about shards waits for a change."""


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
        moves = [move for job, each in stored.items() for move in handovers_of(job, each) if move.after == zone]
        return ZoneShown(
            zone=self._zone(shards, zone, nodes),
            jobs=[job_view(shards, zone, job, each) for job, each in sorted(stored.items())],
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
        """Return the shards of a zone. With `after`, wait up to `wait_ms` for a map of a later epoch than that.
        Before the first map any zone has none."""
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
        if shards.epoch and zone not in shards.zones() and zone not in self._nodes():
            raise UnknownZone(zone, shards.zones())
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
        return await self._change(lambda shards: restored(some_map(shards), zone), f"restore of {zone}", by, is_dry)

    async def plan(self, change: RoutingChange) -> ChangeView:
        """Say what a change would do."""
        return await self.apply(change, is_dry=True)

    async def apply(self, change: RoutingChange, *, by: str = "", is_dry: bool = False) -> ChangeView:
        """Change the map. Values that no map can have are refused first: all else is read, and that may take long."""
        check_values(change)
        earlier = await self._earlier(change.epoch) if change.epoch is not None else None
        whole = map_of(change.map) if change.map is not None else None
        if change.from_zone:
            if self._hub is None:
                raise BadMap("from_zone: the zones are on one cluster; there is no hub to make again")
            there = await self._routing.fresh()
            whole = map_of_zone(await self._hub.own_map(), there, await self._hub.records())

        def make(shards: ShardMap | None) -> ShardMap:
            if change.if_epoch is not None and change.if_epoch != (0 if shards is None else shards.epoch):
                now = "there is no map" if shards is None else f"the map is at {shards.epoch} now"
                raise BadMap(f"epoch {change.if_epoch}: {now}; plan again, and apply that")
            return wanted(shards, whole, change, earlier)

        return await self._change(make, why_of(change), by, is_dry, change)

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
            asked = make(shards)
            check_lasting(shards, asked, dead)
            told[:] = [plan(shards, asked, records)]
            nodeless[:] = _nodeless(shards, asked, self._nodes())
            if shards is not None and is_same(shards, asked):
                return shards
            least = max({0 if shards is None else shards.epoch, *known})
            if self._hub is not None:
                least = above_all((least,), is_lost=is_behind(shards, own))
            return next_map(shards, asked, at_ms=self._clock.now_ms(), by=by, why=why, above=least)

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


def _if_owning(shards: ShardMap | None, zone: str, dead: frozenset[str]) -> ShardMap:
    """Dead zones take none of the shards, unless no other zone is left."""
    known = some_map(shards)
    if zone in known.drained and not known.shards_of(zone):
        return known
    is_any_left = takers_of(known, without={zone, *known.drained, *dead})
    return drained(known, zone, without=dead if is_any_left else ())
