"""`penstock sources list` and `show`."""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penstock.admin.source_door import read_platform, read_source
from penstock.cli.call import CommandCall, command
from penstock.errors import UsageError
from penstock.times import span_text, time_text

if TYPE_CHECKING:
    from actors.fetch.rules.settings import FetchSettings
    from actors.fetch.settings_levels import Levels
    from actors.fetch.sources import SourceKey, SourceRecord
    from penstock.admin.records import Broken, Records
    from penstock.admin.slice_why import SliceWorld, SpentRate
    from penstock.admin.source_view import Overview

__all__ = ["add_to", "overviews", "slice_world"]

SourceName = Annotated[str, typer.Argument(metavar="PLATFORM/SOURCE", help="The source.", show_default=False)]


def add_to(group: typer.Typer) -> None:
    """Add the commands to the group."""
    command(group, "list")(_list)
    command(group, "show")(_show)


async def _list(
    call: CommandCall,
    platform: Annotated[str, typer.Argument(metavar="[PLATFORM]", help="Only its sources.", show_default=False)] = "",
) -> None:
    """List the sources: state, how far they are read, what is open or given up on, and the node that tends each."""
    pattern = f"{read_platform(platform)}.*" if platform else ">"
    async with call.session() as session:
        from penstock.admin.records import Records

        records = Records(session)
        found = await overviews(records, pattern)
    call.out.table(
        ["source", "adapter", "state", "watermark", "lag", "open", "holes", "backfills", "node", ""],
        [_row(each) for each in found],
        empty="no sources yet: penstock sources add PLATFORM/SOURCE --adapter NAME --account NAME=VALUE",
    )
    call.out.result([msgspec.to_builtins(each) for each in found])


async def overviews(records: "Records", pattern: str) -> "list[Overview]":
    """Return the sources whose keys match, each at one look."""
    from penstock.admin.source_view import overview

    sources, ledgers = await records.sources(pattern), await records.all_ledgers(pattern)
    levels, nodes, settles = await records.levels(), await records.node_names("allocator"), dict[str, int]()
    found = []
    for key in sorted({*sources, *ledgers}):
        record = sources.get(key)
        settle_ms = await _settle_ms(records, levels, key, record, settles)
        ledger, now_ms = ledgers.get(key), records.now_ms()
        found.append(overview(key, record, ledger, settle_ms=settle_ms, nodes=nodes, now_ms=now_ms))
    return found


async def _settle_ms(
    records: "Records",
    levels: "Levels",
    source: "SourceKey",
    record: "SourceRecord | Broken | None",
    known: dict[str, int],
) -> int:
    """Return how long the source's windows wait: its setting, or more if its adapter asks for more."""
    from actors.fetch.settings_levels import LevelName
    from actors.fetch.sources import SourceRecord

    own_ms = levels.settings(LevelName(source.platform, source.source)).settle_ms
    if not isinstance(record, SourceRecord):
        return own_ms
    if record.adapter not in known:
        try:
            known[record.adapter] = (await records.adapter(record.adapter)).declaration.settle_ms
        except UsageError:
            known[record.adapter] = 0
    return max(own_ms, known[record.adapter])


async def slice_world(records: "Records", source: "SourceKey") -> "SliceWorld":
    """Return what is around a source's slices: who may fetch them, and whether the sink takes their orders."""
    from actors.fetch.fetcher.lanes import SINK
    from actors.fetch.settings_levels import LevelName
    from actors.runtime.membership import living
    from actors.runtime.rules.bounds import nobody_text
    from actors.runtime.rules.placement import serves
    from actors.zone.routing import Routing
    from actors.zone.rules.binding import zone_of
    from penstock.admin.slice_why import SliceWorld
    from streams.backlog import consumers_pending

    levels = await records.levels()
    settings = levels.settings(LevelName(source.platform, source.source))
    settle_ms = await _settle_ms(records, levels, source, await records.source(source), {})
    nodes = await living(records.session.bucket("NODES"))
    able = [one for one in nodes if one.has_role("fetcher") and serves(one.labels, one.node, settings.pin)]
    elsewhere = ""
    if able and settings.zone:
        zone = zone_of(await Routing(records.session.bucket("ROUTING")).fresh(), settings.zone)
        elsewhere = nobody_text(settings.zone, zone)
        able = [one for one in able if zone and one.zone == zone]
    pending = await consumers_pending(records.connection, records.namespace.stream("ORDERS"))
    waiting = {name: count for name, count in pending.items() if name.startswith(SINK)}
    slowest = max(waiting, key=waiting.__getitem__, default="")
    is_full = waiting.get(slowest, 0) > settings.sink_backlog
    sink = f"{waiting.get(slowest, 0)} messages of orders wait before {slowest}, more than sink_backlog allows"
    spent = await _spent_rate(records, source, settings, [one.node for one in nodes])
    able_names = sorted(one.node for one in able)
    return SliceWorld(settle_ms, settings.pin, able_names, sink if is_full else "", elsewhere, spent)


async def _spent_rate(
    records: "Records", source: "SourceKey", settings: "FetchSettings", nodes: Sequence[str]
) -> "SpentRate | None":
    """Ask the nodes for which rate requests to the source wait longest. None: for none, or no node replies."""
    from actors.fetch.budget import inflow_of, limits_of
    from actors.fetch.sources import SourceRecord
    from actors.runtime.rate_counts import gather_begun
    from penstock.admin.slice_why import SpentRate
    from platforms.adapter import RateBucket

    record = await records.source(source)
    declared: Sequence[RateBucket] = ()
    if isinstance(record, SourceRecord):
        with suppress(UsageError):
            declared = (await records.adapter(record.adapter)).declaration.rate
    limits = [*limits_of(source, settings, declared), *([inflow_of(source, settings)] if settings.inflow > 0 else [])]
    by_key = {limit.wanted.key: limit for limit in limits}
    until_s = records.now_ms() // 1000 - 1
    told = await gather_begun(records.connection, lambda: nodes, list(by_key), until_s=until_s, seconds=1)
    waiting = [(key.free_ms, key.key) for node in told.nodes for key in node.keys if key.is_waiting]
    if not waiting:
        return None
    free_ms, key = max(waiting)
    return SpentRate(by_key[key].name, by_key[key].wanted.rate.per_s, free_ms)


def _row(each: "Overview") -> list[object]:
    return [
        each.source,
        each.adapter or "-",
        each.state,
        "-" if each.watermark_ms is None else time_text(each.watermark_ms),
        "-" if each.lag_ms is None else span_text(each.lag_ms),
        f"{each.open} ({each.taken} taken)" if each.open else 0,
        f"{each.holes} (+{each.accepted} accepted)" if each.accepted else each.holes,
        ", ".join(each.backfills) or "-",
        each.node or "-",
        each.reason,
    ]


async def _show(
    call: CommandCall,
    source: SourceName,
    all_: Annotated[bool, typer.Option("--all", help="Every setting, also those at their default.")] = False,
) -> None:
    """Show one source whole: account, settings and where they come from, ledger, and the last event of each kind."""
    key = read_source(source)
    async with call.session() as session:
        from actors.fetch.rules.ledger import faults
        from actors.fetch.rules.limits import allowed
        from actors.fetch.rules.settings import as_level, origins
        from actors.fetch.settings_levels import LevelName
        from penstock.admin.records import Records
        from penstock.admin.source_view import account_shown, ledger_document

        records = Records(session)
        record, ledger = await records.need(key)
        levels, events = await records.levels(), await _last_events(records, key)
        (shown,) = await overviews(records, key.key)
    name = LevelName(key.platform, key.source)
    told = origins(*levels.three(name))
    settings = {each: (value, told[each] or "built in") for each, value in as_level(levels.settings(name)).items()}
    account = account_shown(record.account) if record else {}
    for line in _head(shown, account):
        call.out.say(line)
    if ledger is not None and ledger.limit is not None and ledger.limit.per_s:
        per_s = allowed(ledger.limit, records.now_ms())
        call.out.say(
            f"the platform takes about {per_s:.3g} requests a second, learned {time_text(ledger.limit.met_ms)}"
        )
    rows = [[each, value, origin] for each, (value, origin) in settings.items() if all_ or origin != "built in"]
    call.out.table(["setting", "value", "from"], rows, empty="every setting is at its default")
    broken = faults(ledger) if ledger else []
    for fault in broken:
        call.out.say(f"the ledger breaks a rule: {fault}")
    call.out.table(
        ["last event", "at", ""], [[each["kind"], each["at"], each["about"]] for each in events], empty="no events"
    )
    call.out.result(
        {
            **msgspec.to_builtins(shown),
            "account": account,
            "settings": {each: {"value": value, "from": origin} for each, (value, origin) in settings.items()},
            "ledger": ledger_document(ledger) if ledger else None,
            "faults": broken,
            "events": events,
        }
    )


def _head(shown: "Overview", account: dict[str, str]) -> list[str]:
    lines = [
        f"{shown.source}: {shown.state}{f' ({shown.reason})' if shown.reason else ''}",
        f"adapter {shown.adapter or '-'}, tended by {shown.node or 'nobody: no node lives'}",
        *(f"account {name}: {value}" for name, value in account.items()),
    ]
    if shown.watermark_ms is not None and shown.frontier_ms is not None and shown.lag_ms is not None:
        marks = f"stored up to {time_text(shown.watermark_ms)}, cut up to {time_text(shown.frontier_ms)}"
        lines.append(f"{marks}, {span_text(shown.lag_ms)} behind")
        lines.append(f"{shown.open} open ({shown.taken} taken), {shown.holes} holes, {shown.accepted} accepted")
        lines += [f"backfill {name} is running" for name in shown.backfills]
    return lines


async def _last_events(records: "Records", source: "SourceKey") -> list[dict[str, object]]:
    """Return the last event of each kind, the newest first."""
    from streams.errors import MalformedMessage
    from streams.fetch_messages import decode_event
    from streams.log import last_entries

    pattern = records.namespace.pattern("events", "fetch", "*", source.platform, source.source)
    found = await last_entries(records.connection, records.namespace.stream("EVENTS"), [pattern])
    events: list[dict[str, object]] = []
    for entry in sorted(found.values(), key=lambda entry: -entry.stored_ms):
        try:
            told = msgspec.to_builtins(decode_event(entry.payload))
        except MalformedMessage:
            continue
        kind = told.pop("type")
        facts = {name: value for name, value in told.items() if name not in ("platform", "source")}
        about = " ".join(f"{name}={value}" for name, value in facts.items() if value not in ("", 0, None))
        events.append(
            {"kind": kind, "at_ms": entry.stored_ms, "at": time_text(entry.stored_ms), "about": about, **facts}
        )
    return events
