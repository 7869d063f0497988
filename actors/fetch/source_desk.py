"""The desk of sources: how each stands, and why a source, or a slice of it, is not read.

In: requests. Out: views. State: none. It reads what is stored, and asks the live nodes for the rates that are spent.
Everything here is harmless to repeat.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from msgspec import DecodeError
from msgspec.structs import replace

from actors.fetch.budget import BudgetLimit, inflow_of, limits_of
from actors.fetch.look_desk import LookDesk, LookView
from actors.fetch.overview import Overview, SliceWorld, SourceWhy, SpentRate, in_the_way, overview, source_why, waits_of
from actors.fetch.rules.ledger import Ledger
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.rules.sink_backlogs import SinkBacklog, sink_backlog, usual_size
from actors.fetch.rules.slices import parse_slice_id
from actors.fetch.settings.desk import Desk, read_levels
from actors.fetch.settings.levels import PREFIX, LevelName, Levels
from actors.fetch.settings.watch import LiveSettings
from actors.fetch.slice_allocator import lane_name, tending_nodes
from actors.fetch.slice_why import SliceWhy, slice_why
from actors.fetch.source_import import Importer, SourceRow, cursor, row_of
from actors.fetch.sources import SourceKey, SourceRecord, UnknownSource
from actors.fetch.stored import Broken, stored_adapter, stored_ledgers, stored_names, stored_sources
from actors.runtime.broker.unmade import unmade_by_all
from actors.runtime.membership import NodeRecord, living
from actors.runtime.pieces import in_pieces
from actors.runtime.rates.counts import gather_begun
from actors.runtime.rules.bounds import nobody_text
from actors.runtime.rules.placement import serves
from platforms.adapter import Declaration
from platforms.errors import BadDeclaration
from streams.buckets.bucket import Bucket
from streams.clock import Clock
from streams.errors import MalformedSubject
from streams.link.connection import Connection
from streams.pull.backlog import consumers_pending
from streams.subjects import check_token
from streams.topology.specs import fetch_consumer

T = TypeVar("T")
ZoneOf = Callable[[str], Awaitable[str | None]]
"""Returns the zone that a bound means now (actors/runtime/rules/bounds.py)."""


MOST_RATES = 2_000
"""Rates of one list. With more of them waiting the last sources do not say that theirs is spent."""


class _Stored(NamedTuple):
    """What one request reads once. `declared`: what each adapter declares, or why it cannot be used."""

    levels: Levels
    sources: Mapping[SourceKey, SourceRecord | Broken]
    ledgers: Mapping[SourceKey, Ledger | Broken]
    nodes: Sequence[NodeRecord]
    declared: dict[str, Declaration | str]


class _Look(NamedTuple):
    key: SourceKey
    shown: Overview
    ledger: Ledger | Broken | None


class SourceDesk:
    """One desk, for many callers at once. It raises UnknownSource, MalformedSliceId, and the broker's errors. `looks`,
    `live`: those of a node. Commands have none."""

    def __init__(
        self,
        connection: Connection,
        settings: Desk,
        *,
        ledgers: Bucket[bytes],
        nodes: Bucket[bytes],
        zone_of: ZoneOf,
        clock: Clock,
        looks: LookDesk | None,
        live: LiveSettings | None,
    ) -> None:
        self.importer = Importer(connection, settings, ledgers, clock)
        self._look_desk = looks
        self._live = live
        self._connection = connection
        self._settings = settings
        self._ledgers = ledgers
        self._nodes = nodes
        self._zone_of = zone_of
        self._clock = clock

    async def overviews(self, pattern: str = ">", *, after: str = "", limit: int | None = None) -> list[Overview]:
        """Return the sources whose keys match, each at one look, by name, with what keeps it from being read. Many
        sources take no more requests than one, but for their adapters and zones. `after`: those that follow this
        source. `limit`: at most so many, `None`: all. Of the others only the names are read then."""
        stored = await self._read(pattern, after=after, limit=limit)
        looks = await self._looks(stored)
        running = [one for one in looks if one.shown.state == "running"]
        waiting = [one.key for one in running if one.shown.open or _fault_of(stored, one.shown.adapter)]
        worlds = await self._worlds(stored, waiting)
        return [
            replace(one.shown, waits=in_the_way(worlds[one.key])[1]) if one.key in worlds else one.shown
            for one in looks
        ]

    async def rows(self, *, after: str = "", limit: int | None = None) -> list[SourceRow]:
        """Return the sources as a file has them, by name. Records that do not decode are left out. `after` and `limit`:
        as in `overviews`."""
        stored = await self._read(">", after=after, limit=limit, is_of_rows=True)
        return [
            row_of(key, record, stored.levels, stored.ledgers.get(key))
            for key, record in sorted(stored.sources.items(), key=lambda found: found[0])
            if isinstance(record, SourceRecord)
        ]

    async def look(
        self, platform: str, source: str, *, start_ms: int | None = None, end_ms: int | None = None
    ) -> LookView:
        """Have a source looked at now. Raises BadLook, UnusableSource, MissingLedger as well."""
        assert self._look_desk is not None
        key = _named(platform, source)
        return await self._look_desk.look(key, start_ms=start_ms, end_ms=end_ms)

    async def why(self, platform: str, source: str) -> SourceWhy:
        """Return why a source is not read."""
        key = _named(platform, source)
        stored = await self._read(key.key)
        for one in await self._looks(stored):
            return source_why(one.shown, (await self._worlds(stored, [key]))[key])
        raise UnknownSource(f"no source {key}; `penstock sources list` shows all")

    async def why_slice(self, platform: str, source: str, slice_id: str) -> SliceWhy:
        """Return why a slice of a source is not read. `slice_id`: as in the ledger, such as `t1-60000-90000`."""
        key, piece = _named(platform, source), parse_slice_id(slice_id)
        stored = await self._read(key.key)
        for _, shown, ledger in await self._looks(stored):
            if isinstance(ledger, Broken):
                return SliceWhy(id=f"{key}/{piece.slice_id}", state="broken", code="broken", reason=ledger.why)
            if ledger is not None:
                world = (await self._worlds(stored, [key]))[key]
                return slice_why(shown, ledger, piece, world, self._clock.now_ms())
        raise UnknownSource(f"no source {key} with a ledger; `penstock sources list` shows all")

    async def _read(
        self, pattern: str, *, after: str = "", limit: int | None = None, is_of_rows: bool = False
    ) -> _Stored:
        """Read the sources behind `after` until there are `limit` to show. A ledger alone is shown, and is no row."""
        bucket = self._settings.bucket
        sources, ledgers = dict[SourceKey, SourceRecord | Broken](), dict[SourceKey, Ledger | Broken]()
        if limit is None:
            sources = _behind(await stored_sources(bucket, pattern), after)
            ledgers = _behind(await stored_ledgers(self._ledgers, pattern), after)
        else:
            names = await stored_names(bucket, self._ledgers, pattern)
            first = bisect_right(names, cursor(after)) if after else 0
            missing = limit
            while first < len(names) and missing > 0:  # some of the names were deleted
                some = names[first : first + missing]
                sources |= await stored_sources(bucket, names=some)
                ledgers |= await stored_ledgers(self._ledgers, names=some)
                first += missing
                rows = sum(isinstance(record, SourceRecord) for record in sources.values())
                missing = limit - (rows if is_of_rows else len({*sources, *ledgers}))
        return _Stored(await self._levels(), sources, ledgers, await living(self._nodes), {})

    async def _levels(self) -> Levels:
        """Return the levels in force: those that the node follows, unless it has not heard of the last change yet."""
        live = self._live
        if live is not None and live.seen >= await self._settings.bucket.last_revision(f"{PREFIX}.>"):
            return live.levels
        return await read_levels(self._settings)

    async def _worlds(self, stored: _Stored, wanted: Sequence[SourceKey]) -> dict[SourceKey, SliceWorld]:
        """Return what is around the slices of each of these sources."""
        if not wanted:
            return {}
        nodes, waiting = stored.nodes, await self._before_sinks(stored.nodes)
        settings = {key: stored.levels.settings(LevelName(key.platform, key.source)) for key in wanted}
        zones = {bound: await self._zone_of(bound) for bound in {each.zone for each in settings.values()} if bound}
        worlds, limits = dict[SourceKey, SliceWorld](), dict[SourceKey, list[BudgetLimit]]()
        for key, own in settings.items():
            record, settle_ms = stored.sources.get(key), await self._settle_ms(stored, key)
            declaration = stored.declared.get(record.adapter) if isinstance(record, SourceRecord) else None
            limits[key] = limits_of(key, own, declaration.rate if isinstance(declaration, Declaration) else ())
            limits[key] += [inflow_of(key, own)] if own.inflow > 0 else []
            able = [one for one in nodes if one.has_role("fetcher") and serves(one.labels, one.node, own.pin)]
            elsewhere = ""
            if able and own.zone:
                elsewhere = nobody_text(own.zone, zones[own.zone])
                able = [one for one in able if zones[own.zone] and one.zone == zones[own.zone]]
            names = sorted(one.node for one in able)
            fault = _fault_of(stored, record.adapter) if isinstance(record, SourceRecord) else ""
            unmade = self._unmade(able, key.platform, own.place)
            sink = _full_sink(waiting, own)
            worlds[key] = SliceWorld(settle_ms, own.pin, names, sink, elsewhere, adapter=fault, unmade=unmade)
        spent = await self._spent_rates(limits, [one.node for one in nodes])
        return {key: world._replace(spent=spent.get(key)) for key, world in worlds.items()}

    def _unmade(self, nodes: Sequence[NodeRecord], platform: str, place: str) -> str:
        """Return why none of these nodes gets slices from the server, empty if one does."""
        lanes = (lane_name(lane, place) for lane in ("tail", "back"))
        specs = [fetch_consumer(self._connection.namespace, platform, lane) for lane in lanes]
        return next(filter(None, (unmade_by_all(nodes, spec.name) for spec in specs)), "")

    async def _looks(self, stored: _Stored) -> list[_Look]:
        nodes, found = tending_nodes(stored.nodes), list[_Look]()
        async for key in in_pieces(sorted({*stored.sources, *stored.ledgers})):
            record, ledger = stored.sources.get(key), stored.ledgers.get(key)
            settle_ms = await self._settle_ms(stored, key)
            now_ms = self._clock.now_ms()
            shown = overview(key, record, ledger, settle_ms=settle_ms, nodes=nodes, now_ms=now_ms)
            found.append(_Look(key, shown, ledger))
        return found

    async def _declaration(self, adapter: str) -> Declaration | str:
        """Return what an adapter declares, or why it cannot be used."""
        try:
            return (await stored_adapter(self._settings.bucket, adapter)).declaration
        except (BadDeclaration, MalformedSubject, DecodeError) as error:
            why = str(error).partition(" (known")[0]
            return f"its adapter {adapter} cannot be used: {why}; `penstock sources set` gives it another one"

    async def _settle_ms(self, stored: _Stored, source: SourceKey) -> int:
        """Return how long the source's windows wait: its setting, or more if its adapter asks for more."""
        own_ms = stored.levels.settings(LevelName(source.platform, source.source)).settle_ms
        record = stored.sources.get(source)
        if not isinstance(record, SourceRecord):
            return own_ms
        if record.adapter not in stored.declared:
            stored.declared[record.adapter] = await self._declaration(record.adapter)
        declaration = stored.declared[record.adapter]
        return max(own_ms, declaration.settle_ms) if isinstance(declaration, Declaration) else own_ms

    async def _before_sinks(self, nodes: Sequence[NodeRecord]) -> SinkBacklog:
        """Return how many orders wait before the slowest sink."""
        pending = await consumers_pending(self._connection, self._connection.namespace.stream("ORDERS"))
        return sink_backlog(pending, usual_size(one.page_orders for one in nodes if one.has_role("fetcher")))

    async def _spent_rates(
        self, limits: Mapping[SourceKey, Sequence[BudgetLimit]], nodes: Sequence[str]
    ) -> dict[SourceKey, SpentRate]:
        """Ask the nodes once for which rate requests to each source wait longest. Those that wait for none are left
        out."""
        keys = dict.fromkeys(limit.wanted.key for each in limits.values() for limit in each)
        until_s = self._clock.now_ms() // 1000 - 1
        told = await gather_begun(self._connection, lambda: nodes, list(keys)[:MOST_RATES], until_s=until_s, seconds=1)
        waiting, spent = waits_of(told.nodes), dict[SourceKey, SpentRate]()
        for source, each in limits.items():
            found = [(waiting[limit.wanted.key], limit) for limit in each if limit.wanted.key in waiting]
            if found:
                free_ms, limit = max(found, key=lambda one: (one[0], one[1].wanted.key))
                spent[source] = SpentRate(limit.name, limit.wanted.rate.per_s, free_ms)
        return spent


def _behind(found: Mapping[SourceKey, T], after: str) -> dict[SourceKey, T]:
    first = cursor(after)
    return {key: each for key, each in found.items() if key > first or not after}


def _fault_of(stored: _Stored, adapter: str) -> str:
    """Return why an adapter cannot be used. Empty: it can, or nobody looked."""
    declared = stored.declared.get(adapter)
    return declared if isinstance(declared, str) else ""


def _full_sink(waiting: SinkBacklog, settings: FetchSettings) -> str:
    """Return that orders pile up before a sink, in words. Empty: they do not."""
    if waiting.orders <= settings.sink_backlog:
        return ""
    return f"{waiting.orders} orders wait before {waiting.consumer}, more than sink_backlog allows"


def _named(platform: str, source: str) -> SourceKey:
    return SourceKey(check_token("platform", platform), check_token("source", source))
