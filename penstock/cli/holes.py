"""`penstock slices` and `penstock holes`: what of each source's time is open, and what was given up on."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.admin.source_door import read_source
from penstock.cli.terminal.call import CommandCall, command
from penstock.cli.terminal.help import Group
from penstock.cli.terminal.pages import Limit, behind, page, say_more
from penstock.cli.terminal.person import By, Yes, confirm, who
from penstock.errors import PenstockError, UsageError
from penstock.times import span_text, time_text

if TYPE_CHECKING:
    from actors.fetch.rules.ledger import Ledger
    from actors.fetch.sources import SourceKey
    from penstock.admin.records import Records

__all__ = ["add_to"]

SliceState = Literal["open", "taken", "waiting"]
MOST_SHOWN = 200

SourceName = Annotated[str, typer.Argument(metavar="SOURCE", help="PLATFORM/SOURCE.")]
MaybeSource = Annotated[str, typer.Argument(metavar="[SOURCE]", help="Only this one.")]
AfterSlice = Annotated[str, behind("PLATFORM/SOURCE/SLICE")]
SliceId = Annotated[str, typer.Argument(metavar="SLICE", help="As `holes list` shows it.")]
MaybeSlice = Annotated[str, typer.Argument(metavar="[SLICE]", help="As `holes list` shows it.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    command(app, "slices")(_slices)
    group = typer.Typer(cls=Group, help="Windows that were given up on. They hold the watermark until somebody acts.")
    app.add_typer(group, name="holes")
    command(group, "list")(_list)
    command(group, "redrive")(_redrive)
    command(group, "accept")(_accept)
    command(group, "forget")(_forget)


async def _slices(
    call: CommandCall,
    source: MaybeSource = "",
    state: Annotated[SliceState | None, typer.Option(help="All that are open, if not given.")] = None,
    limit: Limit = None,
    after: AfterSlice = "",
) -> None:
    """List the slices that are cut and not finished: who holds them, or what they wait for."""
    async with call.session() as session:
        from penstock.admin.records import Records

        records = Records(session)
        found, now_ms = await _ledgers(records, source), records.now_ms()
    rows = [
        row for key, ledger in found for row in _open_rows(key, ledger, now_ms) if state in (None, "open", row["state"])
    ]
    columns = {
        "source": "source",
        "slice_id": "slice",
        "start": "from",
        "end": "to",
        "state": "state",
        "attempt": "attempt",
        "about": "",
    }
    _show(call, columns, rows, limit, after, empty="no slice is open", spare=("to", "from", "attempt"))


def _open_rows(source: "SourceKey", ledger: "Ledger", now_ms: int) -> list[dict[str, object]]:
    """Return the open slices of a ledger. Nobody may take the `waiting` ones yet."""
    from actors.fetch.rules.outages import earliest_ms, may_take

    rows: list[dict[str, object]] = []
    for held in ledger.open:
        due_ms = earliest_ms(ledger, held)
        state, about = "open", "offered"
        if held.is_taken:
            state, about = "taken", f"{held.holder}, for {span_text(max(0, now_ms - held.taken_ms))}"
        elif ledger.state != "running":
            state, about = "waiting", f"the source is {ledger.state}"
        elif not may_take(ledger, held):
            state, about = "waiting", "the source is down, and another slice is its probe"
        elif due_ms > now_ms:
            state, about = "waiting", f"{span_text(due_ms - now_ms)} more" + (f": {held.reason}" if held.reason else "")
        rows.append(
            {
                "source": str(source),
                "slice_id": held.slice_id,
                "start": time_text(held.start_ms),
                "end": time_text(held.end_ms),
                "start_ms": held.start_ms,
                "end_ms": held.end_ms,
                "state": state,
                "attempt": held.attempt,
                "holder": held.holder,
                "taken_ms": held.taken_ms,
                "not_before_ms": due_ms,
                "losses": held.losses,
                "reason": held.reason,
                "pass": held.pass_name,
                "about": about,
            }
        )
    return rows


async def _list(call: CommandCall, source: MaybeSource = "", limit: Limit = None, after: AfterSlice = "") -> None:
    """List the holes, with what was tried and why it failed."""
    async with call.session() as session:
        from penstock.admin.records import Records

        records = Records(session)
        found = await _ledgers(records, source)
    rows: list[dict[str, object]] = [
        {
            "source": str(key),
            "slice_id": hole.slice_id,
            "start": time_text(hole.start_ms),
            "end": time_text(hole.end_ms),
            "start_ms": hole.start_ms,
            "end_ms": hole.end_ms,
            "attempts": hole.attempts,
            "since": time_text(hole.since_ms),
            "reason": hole.reason,
            "short": None if hole.short is None else {"missing": hole.short.missing, "listed": hole.short.listed},
            "accepted_by": hole.accepted_by,
        }
        for key, ledger in found
        for hole in ledger.holes
    ]
    columns = {
        "source": "source",
        "slice_id": "slice",
        "start": "from",
        "end": "to",
        "attempts": "tried",
        "since": "given up",
        "accepted_by": "accepted by",
        "reason": "why",
    }
    _show(call, columns, rows, limit, after, empty="no holes", spare=("accepted by", "to", "given up", "from"))


async def _redrive(
    call: CommandCall,
    source: SourceName,
    slice_id: MaybeSlice = "",
    all_: Annotated[bool, typer.Option("--all", help="All holes that nobody accepted.")] = False,
    by: By = "",
) -> None:
    """Have a hole read again, from its first attempt on."""
    if bool(slice_id) == all_:
        raise UsageError("name one SLICE, or say --all")
    key = read_source(source)
    async with call.session() as session:
        from penstock.admin import holes
        from penstock.admin.records import Records

        records = Records(session)
        if all_:
            again = await holes.redrive_all(records, key, by=who(by))
        else:
            again = [await holes.redrive(records, key, slice_id, by=who(by))]
        ledger = await records.ledger(key)
    call.out.say(
        "\n".join(f"{key}: {each.slice_id} is read again" for each in again) or f"{key} has no hole to redrive"
    )
    if again and ledger and ledger.state != "running":
        call.out.say(f"note: {key} is {ledger.state}; `penstock sources resume {key}` lets it run")
    call.out.result({"source": str(key), "redriven": [each.slice_id for each in again]})


async def _accept(call: CommandCall, source: SourceName, slice_id: SliceId, by: By = "") -> None:
    """Let the watermark pass a hole as it is. It stays listed, with who accepted it."""
    key = read_source(source)
    async with call.session() as session:
        from penstock.admin import holes
        from penstock.admin.records import Records

        records = Records(session)
        is_new = await holes.accept(records, key, slice_id, by=who(by))
    call.out.say(f"{key}: {slice_id} is accepted" if is_new else f"{key}: {slice_id} was accepted before")
    call.out.result({"source": str(key), "slice_id": slice_id, "accepted_by": who(by), "is_new": is_new})


async def _forget(call: CommandCall, source: SourceName, slice_id: SliceId, yes: Yes = False) -> None:
    """Take an accepted hole off the list for good."""
    key = read_source(source)
    confirm(f"{key}: forget that {slice_id} was never read?", is_sure=yes)
    async with call.session() as session:
        from penstock.admin import holes
        from penstock.admin.records import Records

        records = Records(session)
        await holes.forget(records, key, slice_id)
    call.out.say(f"{key}: {slice_id} is forgotten")
    call.out.result({"source": str(key), "forgotten": slice_id})


async def _ledgers(records: "Records", source: str) -> "list[tuple[SourceKey, Ledger]]":
    """Return the ledgers asked for. One that is broken is told, and ends the command only if it was asked for alone."""
    from actors.fetch.stored import Broken

    if source:
        key = read_source(source)
        _, ledger = await records.need(key)
        if ledger is None:
            raise PenstockError(f"{key} has no ledger; say where to begin: penstock sources rewind {key} TIME")
        return [(key, ledger)]
    found: list[tuple[SourceKey, Ledger]] = []
    for key, each in (await records.all_ledgers()).items():
        if isinstance(each, Broken):
            typer.echo(f"left out: {each.why}", err=True)
        else:
            found.append((key, each))
    return found


def _show(
    call: CommandCall,
    columns: dict[str, str],
    rows: list[dict[str, object]],
    limit: int | None,
    after: str,
    *,
    empty: str,
    spare: Sequence[str],
) -> None:
    """Print a page of rows, by source and time. Without a limit: all for programs, and what fits a screen or two for
    people."""
    first = _order(after)
    found = page(sorted(rows, key=lambda row: _order(_place(row))), limit, lambda row: _order(_place(row)) > first)
    shown = found[:MOST_SHOWN]
    cells = [[row[key] for key in columns] for row in shown]
    call.out.table(list(columns.values()), cells, empty=empty, spare=spare)
    if len(found) > MOST_SHOWN:
        call.out.say(f"… and {len(found) - MOST_SHOWN} more: --after {_place(shown[-1])}, or take all with --json")
    else:
        say_more(call.out, found, limit, _place)
    call.out.result(found)


def _place(row: dict[str, object]) -> str:
    return f"{row['source']}/{row['slice_id']}"


def _order(place: str) -> tuple[str, str, int, str]:
    """Return what a slice's place, as PLATFORM/SOURCE/SLICE, is sorted by. Nothing comes before the empty place. Raises
    UsageError for a text that is no place."""
    from actors.fetch.rules.slices import MalformedSliceId, parse_slice_id

    if not place:
        return ("", "", 0, "")
    source, _, slice_id = place.rpartition("/")
    try:
        key = read_source(source)
        return key.platform, key.source, parse_slice_id(slice_id).start_ms, slice_id
    except MalformedSliceId as error:
        raise UsageError(f"--after {place[:200]}: {error}; write PLATFORM/SOURCE/SLICE") from error
