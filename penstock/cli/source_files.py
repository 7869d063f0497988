"""`penstock sources import` and `export`: many sources as a file."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.terminal.call import CommandCall, command
from penstock.cli.terminal.person import progress
from penstock.errors import UsageError
from penstock.rows.typed import read_typed

if TYPE_CHECKING:
    from actors.fetch.source_import import Imported

__all__ = ["add_to"]

MOST_SHOWN = 20
STDIN = "-"
Form = Annotated[str, typer.Option(metavar="csv|jsonl|toml", help="By default by the file's name.")]


def add_to(group: typer.Typer) -> None:
    """Add the commands to the group."""
    command(group, "import")(_import)
    command(group, "export")(_export)


async def _import(
    call: CommandCall,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A csv, jsonl or toml file; - is the standard input.")],
    form: Form = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and compare. Write nothing.")] = False,
    update: Annotated[bool, typer.Option("--update", help="Change sources that are there in another form.")] = False,
) -> None:
    """Add the sources of a file. All rows are checked before the first is written. The same again changes nothing.

    Platforms are not asked. A source that is there in another form is listed, and changed only with --update."""
    data = _bytes(file)
    async with call.session() as session:
        from penstock.admin.records import Records
        from penstock.rows.source_files import form_of, read_rows

        found = read_rows(data, form_of(file, form), where=file)
        if not dry_run:
            call.if_stopped(lambda: "what was written stays, and the same command again goes on")
        with progress("writing") as advance:
            done = await Records(session).importer.run(
                found.rows,
                is_trial=dry_run or bool(found.faults),
                is_updating=update,
                numbers=found.numbers,
                progress=lambda done, of: advance(done / of),
            )
    faults = sorted([*found.faults, *done.faults], key=lambda fault: fault.row)
    for fault in faults[:MOST_SHOWN]:
        call.out.say(f"row {fault.row}: {fault.field}: {fault.problem}")
    for differing in done.differing[:MOST_SHOWN]:
        verb = "changed" if update else "differs"
        call.out.say(f"row {differing.row}: {differing.source} {verb}: {', '.join(differing.fields)}")
    is_refused = bool(found.faults) or (bool(faults) and not done.added + done.changed)
    call.out.say(_summary(done, faults=len(faults), is_trial=dry_run, is_updating=update))
    call.out.result({**_document(done), "faults": faults, "is_trial": dry_run or is_refused})
    if faults or (done.differing and not update and not dry_run):
        raise typer.Exit(1)


def _document(done: "Imported") -> dict[str, object]:
    return {"added": done.added, "changed": done.changed, "same": done.same, "differing": done.differing}


def _summary(done: "Imported", *, faults: int, is_trial: bool, is_updating: bool) -> str:
    if faults and done.is_trial and not is_trial:
        return f"{faults} rows cannot be taken, so nothing was written"
    parts = [f"{done.added} {'would be added' if is_trial else 'added'}"]
    if is_updating:
        parts.append(f"{done.changed} {'would be changed' if is_trial else 'changed'}")
    elif done.differing:
        parts.append(f"{len(done.differing)} are there in another form (--update changes them)")
    if faults:
        parts.append(f"{faults} rows cannot be taken")
    return ", ".join([*parts, f"{done.same} the same"])


def _bytes(file: str) -> bytes:
    if file == STDIN:
        return read_typed()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error


async def _export(
    call: CommandCall,
    form: Annotated[str, typer.Option(metavar="csv|jsonl|toml", help="The form of the output.")] = "jsonl",
) -> None:
    """Print all sources as `sources import` takes them, by name. Secrets are references in them, as they are stored."""
    async with call.session() as session:
        from penstock.admin.records import Records
        from penstock.rows.source_files import form_of, write_rows

        form = form_of("--form", form)
        rows = await Records(session).source_desk.rows()
    if not call.out.is_json:
        sys.stdout.write(write_rows(rows, form))
    call.out.result(rows)
