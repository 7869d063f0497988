"""The desk of sources: how each stands, and why a source, or a slice of it, is not read.

In: requests. Out: views. State: none. It reads what is stored, and asks the live nodes for the rates that are spent.
Everything here is harmless to repeat.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from msgspec import DecodeError

from actors.fetch.budget import inflow_of, limits_of
from actors.fetch.fetcher.lanes import SINK
from actors.fetch.look_desk import LookDesk, LookView
from actors.fetch.overview import Overview, SourceWhy, overview, source_why
from actors.fetch.rules.ledger import Ledger
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.rules.slices import parse_slice_id
from actors.fetch.settings_desk import Desk, read_stored
from actors.fetch.settings_levels import LevelName, Levels
from actors.fetch.slice_why import SliceWhy, SliceWorld, SpentRate, slice_why
from actors.fetch.sources import SourceKey, SourceRecord, UnknownSource
from actors.fetch.stored import Broken, stored_adapter, stored_ledgers, stored_sources
from actors.runtime.membership import living
from actors.runtime.rate_counts import gather_begun
from actors.runtime.rules.bounds import nobody_text
from actors.runtime.rules.placement import serves
from platforms.adapter import Declaration
from platforms.errors import BadDeclaration
from streams.backlog import consumers_pending
from streams.bucket import Bucket
from streams.clock import Clock
from streams.connection import Connection
from streams.errors import MalformedSubject
from streams.subjects import check_token

ZoneOf = Callable[[str], Awaitable[str | None]]
"""Returns the zone that a bound means now (actors/runtime/rules/bounds.py)."""


class SourceDesk:
    """One desk, for many callers at once. It raises UnknownSource, MalformedSliceId, and the broker's errors. `looks`:
    that of a node. Commands have none."""

    def __init__(
        self,
        connection: Connection,
        settings: Desk,
        *,
        ledgers: Bucket[bytes],
        nodes: Bucket[bytes],
        zone_of: ZoneOf,
        clock: Clock,
        looks: LookDesk | None = None,
    ) -> None:
        self._look_desk = looks
        self._connection = connection
        self._settings = settings
        self._ledgers = ledgers
        self._nodes = nodes
        self._zone_of = zone_of
        self._clock = clock

    async def overviews(self, pattern: str = ">") -> list[Overview]:
        """Return the sources whose keys match, each at one look."""
        return [shown for shown, _ in await self._looks(pattern)]

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
        for shown, _ in await self._looks(key.key):
            return source_why(shown)
        raise UnknownSource(f"no source {key}; `penstock sources list` shows all")

    async def why_slice(self, platform: str, source: str, slice_id: str) -> SliceWhy:
        """Return why a slice of a source is not read. `slice_id`: as in the ledger, such as `t1-60000-90000`."""
        key, piece = _named(platform, source), parse_slice_id(slice_id)
        for shown, ledger in await self._looks(key.key):
            if isinstance(ledger, Broken):
                return SliceWhy(id=f"{key}/{piece.slice_id}", state="broken", code="broken", reason=ledger.why)
            if ledger is not None:
                return slice_why(shown, ledger, piece, await self.slice_world(key), self._clock.now_ms())
        raise UnknownSource(f"no source {key} with a ledger; `penstock sources list` shows all")

    async def slice_world(self, source: SourceKey) -> SliceWorld:
        """Return what is around a source's slices: who may fetch them, and whether the sink takes their orders."""
        levels = await self._levels()
        settings = levels.settings(LevelName(source.platform, source.source))
        record = (await stored_sources(self._settings.bucket, source.key)).get(source)
        settle_ms = await self._settle_ms(levels, source, record, {})
        nodes = await living(self._nodes)
        able = [one for one in nodes if one.has_role("fetcher") and serves(one.labels, one.node, settings.pin)]
        elsewhere = ""
        if able and settings.zone:
            zone = await self._zone_of(settings.zone)
            elsewhere = nobody_text(settings.zone, zone)
            able = [one for one in able if zone and one.zone == zone]
        spent = await self._spent_rate(source, record, settings, [one.node for one in nodes])
        names = sorted(one.node for one in able)
        return SliceWorld(settle_ms, settings.pin, names, await self._full_sink(settings), elsewhere, spent)

    async def _looks(self, pattern: str) -> list[tuple[Overview, Ledger | Broken | None]]:
        levels = await self._levels()
        sources = await stored_sources(self._settings.bucket, pattern)
        ledgers = await stored_ledgers(self._ledgers, pattern)
        nodes = [node.node for node in await living(self._nodes) if node.has_role("allocator")]
        declared, found = dict[str, Declaration | None](), []
        for key in sorted({*sources, *ledgers}):
            record, ledger = sources.get(key), ledgers.get(key)
            settle_ms = await self._settle_ms(levels, key, record, declared)
            now_ms = self._clock.now_ms()
            found.append((overview(key, record, ledger, settle_ms=settle_ms, nodes=nodes, now_ms=now_ms), ledger))
        return found

    async def _levels(self) -> Levels:
        return (await read_stored(self._settings)).levels

    async def _declaration(self, adapter: str) -> Declaration | None:
        """Return what an adapter declares, None if it cannot be used."""
        with suppress(BadDeclaration, MalformedSubject, DecodeError):
            return (await stored_adapter(self._settings.bucket, adapter)).declaration
        return None

    async def _settle_ms(
        self,
        levels: Levels,
        source: SourceKey,
        record: SourceRecord | Broken | None,
        declared: dict[str, Declaration | None],
    ) -> int:
        """Return how long the source's windows wait: its setting, or more if its adapter asks for more."""
        own_ms = levels.settings(LevelName(source.platform, source.source)).settle_ms
        if not isinstance(record, SourceRecord):
            return own_ms
        if record.adapter not in declared:
            declared[record.adapter] = await self._declaration(record.adapter)
        declaration = declared[record.adapter]
        return own_ms if declaration is None else max(own_ms, declaration.settle_ms)

    async def _full_sink(self, settings: FetchSettings) -> str:
        """Return that orders pile up before a sink, in words. Empty: they do not."""
        pending = await consumers_pending(self._connection, self._connection.namespace.stream("ORDERS"))
        waiting = {name: count for name, count in pending.items() if name.startswith(SINK)}
        slowest = max(waiting, key=waiting.__getitem__, default="")
        if waiting.get(slowest, 0) <= settings.sink_backlog:
            return ""
        return f"{waiting[slowest]} messages of orders wait before {slowest}, more than sink_backlog allows"

    async def _spent_rate(
        self, source: SourceKey, record: SourceRecord | Broken | None, settings: FetchSettings, nodes: Sequence[str]
    ) -> SpentRate | None:
        """Ask the nodes for which rate requests to the source wait longest. None: for none, or no node replies."""
        declaration = await self._declaration(record.adapter) if isinstance(record, SourceRecord) else None
        declared = declaration.rate if declaration is not None else ()
        limits = [
            *limits_of(source, settings, declared),
            *([inflow_of(source, settings)] if settings.inflow > 0 else []),
        ]
        by_key = {limit.wanted.key: limit for limit in limits}
        until_s = self._clock.now_ms() // 1000 - 1
        told = await gather_begun(self._connection, lambda: nodes, list(by_key), until_s=until_s, seconds=1)
        waiting = [(key.free_ms, key.key) for node in told.nodes for key in node.keys if key.is_waiting]
        if not waiting:
            return None
        free_ms, key = max(waiting)
        return SpentRate(by_key[key].name, by_key[key].wanted.rate.per_s, free_ms)


def _named(platform: str, source: str) -> SourceKey:
    return SourceKey(check_token("platform", platform), check_token("source", source))
