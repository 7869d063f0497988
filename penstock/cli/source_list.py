"""`penstock sources list` and `show`."""

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penstock.admin.source_door import read_platform, read_source
from penstock.cli.terminal.call import CommandCall, command
from penstock.cli.terminal.pages import Limit, behind, say_more
from penstock.times import fact_text, span_text, time_text

if TYPE_CHECKING:
    from actors.fetch.overview import Overview
    from actors.fetch.sources import SourceKey
    from penstock.admin.records import Records

__all__ = ["add_to"]

SourceName = Annotated[str, typer.Argument(metavar="PLATFORM/SOURCE", help="The source.")]


def add_to(group: typer.Typer) -> None:
    """Add the commands to the group."""
    command(group, "list")(_list)
    command(group, "show")(_show)


async def _list(
    call: CommandCall,
    platform: Annotated[str, typer.Argument(metavar="[PLATFORM]", help="Only its sources.")] = "",
    limit: Limit = None,
    after: Annotated[str, behind("PLATFORM/SOURCE")] = "",
) -> None:
    """List the sources: state, how far they are read, what is open or given up on, their nodes, what is in the way."""
    pattern = f"{read_platform(platform)}.*" if platform else ">"
    async with call.session() as session:
        from penstock.admin.records import Records

        records = Records(session)
        found = await records.source_desk.overviews(pattern, after=after, limit=limit)
    call.out.table(
        ["source", "adapter", "state", "watermark", "lag", "open", "holes", "backfills", "node", ""],
        [_row(each) for each in found],
        empty="no sources yet: penstock sources add PLATFORM/SOURCE --adapter NAME --account NAME=VALUE",
        spare=("adapter", "watermark", "backfills"),
    )
    say_more(call.out, found, limit, lambda one: one.source)
    call.out.result([msgspec.to_builtins(each) for each in found])


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
        each.reason or each.waits or ("a person paused it" if each.state == "paused" else ""),
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
        from actors.fetch.settings.levels import LevelName
        from penstock.admin.records import Records
        from penstock.admin.source_view import account_shown, ledger_document

        records = Records(session)
        record, ledger = await records.need(key)
        levels, events = await records.levels(), await _last_events(records, key)
        (shown,) = await records.source_desk.overviews(key.key)
    name = LevelName(key.platform, key.source)
    told = origins(*levels.three(name))
    settings = {each: (value, told[each] or "built in") for each, value in as_level(levels.settings(name)).items()}
    account = account_shown(record.account) if record else {}
    for line in _head(shown, account):
        call.out.say(line)
    per_s = allowed(ledger.limit, records.now_ms()) if ledger is not None else None
    if ledger is not None and ledger.limit is not None and per_s:
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
    from streams.messages.fetch import decode_event
    from streams.reads.log import last_entries

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
        about = " ".join(
            f"{name.removesuffix('_ms')}={fact_text(name, value)}"
            for name, value in facts.items()
            if value not in ("", 0, None)
        )
        events.append(
            {"kind": kind, "at_ms": entry.stored_ms, "at": time_text(entry.stored_ms), "about": about, **facts}
        )
    return events
