"""`penstock sources`: the shops that orders are fetched from."""

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.admin.source_door import AdapterTable, read_adapter_table, read_pairs, read_source
from penstock.cli import source_files, source_list
from penstock.cli.adapter import read_adapter_file
from penstock.cli.terminal.call import TAKES_TIMES, CommandCall, command
from penstock.cli.terminal.help import Group
from penstock.cli.terminal.person import By, Yes, confirm, who
from penstock.errors import UsageError
from penstock.times import read_moment, read_range, read_zone, time_text
from streams.clock import now_ms

if TYPE_CHECKING:
    from actors.fetch.rules.ledger import Ledger
    from actors.fetch.sources import SourceKey

__all__ = ["add_to"]

SourceName = Annotated[str, typer.Argument(metavar="PLATFORM/SOURCE", help="The source.")]
Account = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="What the adapter asks for; secrets as NAME=env:VARIABLE or file:/path."),
]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting for this source alone.")]
Pin = Annotated[str | None, typer.Option(metavar="LABEL", help="Only nodes with this label or name fetch it.")]
AdapterOption = typer.Option(metavar="NAME|FILE", help="An adapter's name, or a TOML file that declares one.")
Zone = Annotated[str, typer.Option("--tz", metavar="ZONE", help="Of times without an offset.")]
Moment = Annotated[str, typer.Argument(metavar="TIME", help="2026-01-31T08:00:00Z, -3d, or now.")]


def add_to(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(cls=Group, help="The shops that orders are fetched from.")
    app.add_typer(group, name="sources")
    command(group, "add")(_add)
    source_list.add_to(group)
    command(group, "set")(_set)
    command(group, "pause")(_pause)
    command(group, "resume")(_resume)
    command(group, "rewind", context=TAKES_TIMES)(_rewind)
    command(group, "backfill", context=TAKES_TIMES)(_backfill)
    command(group, "look", context=TAKES_TIMES)(_look)
    source_files.add_to(group)
    command(group, "remove")(_remove)


async def _add(
    call: CommandCall,
    source: SourceName,
    adapter: Annotated[str, AdapterOption],
    account: Account = None,
    start: Annotated[
        str, typer.Option(metavar="TIME", help="Where to begin: -90d, or a moment. Not for a source that was kept.")
    ] = "",
    set_: Set = None,
    pin: Pin = None,
    untried: Annotated[bool, typer.Option("--untried", help="Do not ask the platform first.")] = False,
    tz: Zone = "",
    paused: Annotated[bool, typer.Option("--paused", help="Read nothing before `penstock sources resume`.")] = False,
) -> None:
    """Add a source, if the platform takes a first request. Nodes begin at once. The same again changes nothing.

    A source that was removed with --keep goes on where its ledger is. Then --start only guards against a gap before it.
    """
    from penstock.admin import sources

    wanted = sources.Wanted(
        source=read_source(source),
        adapter=_adapter(adapter),
        account=read_pairs("--account", account or ()),
        settings=_settings(set_, pin),
        start=_start(start, tz),
        is_paused=paused,
        is_tried=not untried,
    )
    async with call.session() as session:
        from penstock.admin.records import Records
        from penstock.admin.source_view import ledger_document

        records = Records(session)
        added = await sources.add(records, wanted)
    state = "reading" if added.ledger.state == "running" else added.ledger.state
    is_running = f"{state} from {time_text(added.ledger.frontier_ms)} on"
    call.out.say(f"{added.source}: {'added' if added.is_new else 'is there already, just so'}, {is_running}")
    for note in added.notes:
        call.out.say(f"note: {note}")
    call.out.result(
        {
            "source": str(added.source),
            "is_new": added.is_new,
            "is_continued": added.is_continued,
            "notes": added.notes,
            "ledger": ledger_document(added.ledger),
        }
    )


async def _set(
    call: CommandCall,
    source: SourceName,
    account: Account = None,
    drop_account: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Take an account value away.")] = None,
    adapter: Annotated[str | None, AdapterOption] = None,
    set_: Set = None,
    unset: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Leave a setting to the platform.")] = None,
    pin: Pin = None,
) -> None:
    """Change a source's account, adapter or settings. An adapter FILE replaces the stored one for all its sources."""
    from penstock.admin import sources

    key = read_source(source)
    edit = sources.Edit(
        adapter=None if adapter is None else _adapter(adapter),
        account=read_pairs("--account", account or ()),
        dropped=drop_account or (),
        settings=_settings(set_, pin),
        unset=unset or (),
    )
    if edit == sources.Edit():
        raise UsageError("nothing to set: give --account, --adapter, --set, --unset or --pin")
    async with call.session() as session:
        from penstock.admin.records import Records

        records = Records(session)
        changed = await sources.change(records, key, edit)
    call.out.say("\n".join(f"{key}: {line}" for line in changed) or f"{key}: nothing changes")
    call.out.result({"source": str(key), "changed": changed})


async def _pause(
    call: CommandCall, source: SourceName, reason: Annotated[str, typer.Option(metavar="TEXT", help="Why.")] = ""
) -> None:
    """Stop fetching. Slices that are being read are finished. Later `resume` reads the time that was left out."""
    key = read_source(source)
    async with call.session() as session:
        from penstock.admin import source_moves
        from penstock.admin.records import Records

        records = Records(session)
        ledger, is_changed = await source_moves.pause(records, key, reason=reason)
    _tell_state(call, key, ledger, is_changed=is_changed)


async def _resume(call: CommandCall, source: SourceName, by: By = "") -> None:
    """Run on after a pause, or after the platform's refusal has been mended."""
    key = read_source(source)
    async with call.session() as session:
        from penstock.admin import source_moves
        from penstock.admin.records import Records

        records = Records(session)
        ledger, is_changed = await source_moves.resume(records, key, by=who(by))
    _tell_state(call, key, ledger, is_changed=is_changed)


def _tell_state(call: CommandCall, source: "SourceKey", ledger: "Ledger", *, is_changed: bool) -> None:
    from penstock.admin.source_view import ledger_document

    reason = f": {ledger.reason}" if ledger.reason else ""
    call.out.say(f"{source} is {ledger.state}{'' if is_changed else ' already'}{reason}")
    call.out.result({"source": str(source), "is_changed": is_changed, "ledger": ledger_document(ledger)})


async def _rewind(call: CommandCall, source: SourceName, time: Moment, tz: Zone = "") -> None:
    """Read everything from TIME on again. For a source whose ledger was deleted: begin there.

    What comes again is recognised by key and version, so sinks do not see it twice. To read one past window only, and
    leave the live tail alone, use `backfill`."""
    key = read_source(source)
    to_ms = read_moment(time, now_ms=now_ms(), zone=read_zone(tz))
    async with call.session() as session:
        from penstock.admin import source_moves
        from penstock.admin.records import Records
        from penstock.admin.source_view import ledger_document

        records = Records(session)
        ledger = await source_moves.rewind(records, key, to_ms)
    call.out.say(f"{key}: reading from {time_text(ledger.frontier_ms)} on, epoch {ledger.epoch}")
    call.out.result({"source": str(key), "ledger": ledger_document(ledger)})


async def _backfill(
    call: CommandCall,
    source: SourceName,
    from_: Annotated[str, typer.Argument(metavar="[FROM]", help="Where it begins.")] = "",
    to: Annotated[str, typer.Argument(metavar="[TO]", help="Where it ends.")] = "",
    name: Annotated[str, typer.Option(metavar="NAME", help="To know it by.")] = "",
    cancel: Annotated[str, typer.Option(metavar="NAME", help="Drop this backfill.")] = "",
    tz: Zone = "",
) -> None:
    """Read a past window once more, beside the live tail and at lower priority."""
    key = read_source(source)
    if bool(cancel) == bool(from_ or to) or (not cancel and not to):
        raise UsageError("give FROM and TO, or --cancel NAME")
    span = None if cancel else read_range(from_, to, now_ms=now_ms(), zone=read_zone(tz))
    async with call.session() as session:
        from penstock.admin import source_moves
        from penstock.admin.records import Records

        records = Records(session)
        if span is None:
            await source_moves.cancel_backfill(records, key, cancel)
        else:
            cancel = await source_moves.backfill(records, key, *span, name=name)
    if span is None:
        call.out.say(f"{key}: {cancel} is dropped")
        call.out.result({"source": str(key), "cancelled": cancel})
        return
    call.out.say(f"{key}: {cancel} reads {time_text(span[0])} to {time_text(span[1])}")
    call.out.result({"source": str(key), "backfill": cancel, "start_ms": span[0], "end_ms": span[1]})


async def _look(
    call: CommandCall,
    source: SourceName,
    from_: Annotated[str, typer.Option("--from", metavar="TIME", help="Where to begin.")] = "",
    to: Annotated[str, typer.Option("--to", metavar="TIME", help="Where to end.")] = "",
    tz: Zone = "",
) -> None:
    """Read a window at once, because there is something new. The source is polled all the same.

    Without --from: from where the source was read to. Without --to: up to now. Hints that come together are one look.
    """
    key, zone, at_ms = read_source(source), read_zone(tz), now_ms()
    start_ms, end_ms = (read_moment(text, now_ms=at_ms, zone=zone) if text else None for text in (from_, to))
    async with call.session() as session:
        from penstock.admin import source_moves
        from penstock.admin.records import Records

        view = await source_moves.look(Records(session), key, start_ms=start_ms, end_ms=end_ms)
    until = "now" if view.end_ms is None else time_text(view.end_ms)
    joined = "" if view.is_new else ", with a look that waits already"
    call.out.say(f"{key}: looks at {time_text(view.start_ms)} to {until}, not before {time_text(view.due_ms)}{joined}")
    call.out.result(view)


async def _remove(
    call: CommandCall,
    source: SourceName,
    keep: Annotated[bool, typer.Option("--keep", help="Keep ledger and settings; `add` goes on with them.")] = False,
    yes: Yes = False,
) -> None:
    """Remove a source. Fetched orders stay. Without --keep, Penstock forgets how far the source was read."""
    key = read_source(source)
    async with call.session() as session:
        from penstock.admin import source_moves
        from penstock.admin.records import Records

        records = Records(session)
        _, ledger = await records.need(key)
        reached = f"it was read up to {time_text(ledger.watermark_ms)}; " if ledger else ""
        if ledger and ledger.holes:
            reached += f"{len(ledger.holes)} holes are listed; "
        what = "its ledger is kept" if keep else "its ledger and settings go too"
        confirm(f"Remove {key} ({reached}{what})?", is_sure=yes)
        await source_moves.remove(records, key, keeps_ledger=keep)
    call.out.say(f"{key}: removed" + (", its ledger is kept" if keep else ""))
    call.out.result({"source": str(key), "removed": True, "is_ledger_kept": keep})


# ---- arguments into values


def _adapter(text: str) -> str | AdapterTable:
    """Return an adapter's name, or what a file declares: anything with a slash or a dot is a file."""
    if "/" not in text and "." not in text:
        return text
    return read_adapter_table(read_adapter_file(text), where=text)


def _settings(texts: list[str] | None, pin: str | None) -> dict[str, object]:
    from actors.fetch.settings.desk import value_of

    values = {name: value_of(name, text) for name, text in read_pairs("--set", texts or ()).items()}
    if pin is not None:
        if "pin" in values:
            raise UsageError("--pin and --set pin=…: give one of them")
        values["pin"] = pin
    if "start" in values:
        raise UsageError("--set start=…: give it as --start, or rewind the source")
    return values


def _start(text: str, tz: str) -> str:
    """Return a start as settings hold it: `-90d` as it is, a moment in UTC to the whole second."""
    zone = read_zone(tz)
    if not text:
        return ""
    at_ms = read_moment(text, now_ms=now_ms(), zone=zone)
    return text if text.startswith("-") else time_text(at_ms - at_ms % 1000)
