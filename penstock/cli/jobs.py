"""`penstock jobs`: put aside until they are due, handed out, taken back when their time to run is over."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer
from msgspec.structs import replace

from penstock.cli import held, job_list
from penstock.cli.held import Topic, open_jobs
from penstock.cli.terminal.call import CommandCall, command
from penstock.cli.terminal.help import Group
from penstock.cli.terminal.person import PerSecond, progress
from penstock.errors import NotAccepted, UsageError
from penstock.times import time_text
from streams.clock import now_ms
from streams.messages.jobs import NewJob, OnSame, Priority

if TYPE_CHECKING:
    from penstock.rows.job_files import SubmitReport
    from penstock.rows.job_rows import Defaults

__all__ = ["add_to"]

OnBad = Literal["stop", "skip"]
MOST_TOLD = 20


def add_to(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(
        cls=Group, help="Delayed jobs. Any node with the role `desk` answers; no rights on the streams are needed."
    )
    app.add_typer(group, name="jobs")
    command(group, "add")(_add)
    held.add_to(group)
    job_list.add_to(group)


async def _add(
    call: CommandCall,
    topic: Topic,
    body: Annotated[str, typer.Argument(metavar="[BODY]", help="JSON, @FILE, or - for stdin.")] = "",
    id_: Annotated[str, typer.Option("--id", metavar="ID", help="A fresh one if not given.")] = "",
    delay: Annotated[str, typer.Option(metavar="SPAN", help="Due after 30m, 2d, 1h30m.")] = "",
    at: Annotated[str, typer.Option(metavar="TIME", help="Due at 2026-12-24T08:00:00Z.")] = "",
    tz: Annotated[str, typer.Option(metavar="ZONE", help="Of a --at without an offset.")] = "",
    ttr: Annotated[str, typer.Option(metavar="SPAN", help="Time to run; else the topic's.")] = "",
    priority: Annotated[Priority, typer.Option(help="Within the topic.")] = "normal",
    attempts: Annotated[int | None, typer.Option(min=1, help="At most; else the topic's.")] = None,
    expires: Annotated[
        str, typer.Option("--expires-in", "--expires", metavar="SPAN", help="Give it up if it was not begun by then.")
    ] = "",
    on_same: Annotated[OnSame, typer.Option(help="If there is a job of this id.")] = "keep",
    file: Annotated[str, typer.Option(metavar="FILE", help="Many: a JSON object on each line; - for stdin.")] = "",
    on_bad: Annotated[OnBad, typer.Option(help="At a line that is no job: stop before it, or leave it out.")] = "stop",
    from_line: Annotated[int, typer.Option(min=1, metavar="N", help="Of --file: begin there.")] = 1,
    rate: PerSecond = None,
) -> None:
    """Add a job, or with --file many of them.

    A line of the file has any of topic, id, body, delay, at, ttr, priority, attempts, expires, on_same. The options
    apply to lines that lack one."""
    from penstock.rows.job_rows import Defaults, read_body, read_due, read_span, read_ttr

    if bool(body) == bool(file):
        raise UsageError("give a BODY (null for none), or --file")
    if file and id_:
        raise UsageError("--id and --file: each line has its own id")
    delay_ms, due_ms = read_due(delay, at, tz=tz, now_ms=now_ms())
    job = NewJob(
        topic=topic,
        id=id_,
        delay_ms=delay_ms,
        due_ms=due_ms,
        ttr_ms=read_ttr("--ttr", ttr),
        priority=priority,
        attempts=attempts,
        expires_in_ms=read_span("--expires-in", expires) if expires else None,
        on_same=on_same,
    )
    if file:
        await _add_file(call, file, Defaults(job, tz), skips_bad=on_bad == "skip", from_line=from_line, rate=rate)
        return
    await _add_one(call, replace(job, body=read_body(body)))


async def _add_one(call: CommandCall, job: NewJob) -> None:
    from actors.jobs.rules.job_answers import NotAdded

    async with open_jobs(call) as jobs:
        [answer] = await jobs.add_many([job])
    if isinstance(answer, NotAdded):
        raise NotAccepted(answer.reason, code=answer.code, field=answer.field)
    state = f"{answer.state}, due {time_text(answer.due_ms)}" if answer.state == "delayed" else answer.state
    is_other = "" if answer.is_new or answer.is_same_body else ", with another body"
    call.out.say(f"{answer.topic}/{answer.id}: {'added' if answer.is_new else f'is there already{is_other}'}; {state}")
    call.out.result(answer)


def _place(path: str, told: "SubmitReport") -> str:
    """Say from which line to go on after a stop from outside. An error says it itself."""
    at = told.next_line
    text = f"{path}: all before line {at} is done, and --from-line {at} goes on there"
    return f"{text}. Lines without an id may come twice from there on, up to 1,000 of them"


async def _add_file(
    call: CommandCall, path: str, defaults: "Defaults", *, skips_bad: bool, from_line: int, rate: float | None
) -> None:
    from penstock.rows.job_files import SubmitReport, add_rows, open_rows

    told = SubmitReport()
    with open_rows(path) as rows:
        async with open_jobs(call) as jobs:
            call.if_stopped(lambda: _place(path, told))
            with progress("adding") as advance:
                await add_rows(
                    jobs.add_many,
                    rows,
                    defaults,
                    told,
                    skips_bad=skips_bad,
                    from_line=from_line,
                    rate=rate,
                    advance=advance,
                )
    for bad in told.bad[:MOST_TOLD]:
        typer.echo(f"{path} line {bad.line}: {bad.reason}", err=True)
    if len(told.bad) > MOST_TOLD:
        typer.echo(f"… and {len(told.bad) - MOST_TOLD} more lines; --json tells all", err=True)
    call.out.say(f"{told.added} added, {told.kept} there already, {len(told.bad)} not added")
    if told.next_line:
        behind = sum(bad.line < told.next_line for bad in told.bad)
        left = f". It leaves out {behind} refused before it, which are named above: add those apart" if behind else ""
        call.out.say(f"stopped before line {told.next_line}; --from-line {told.next_line} goes on there{left}")
    call.out.result(told)
    if told.bad:
        raise typer.Exit(1)
