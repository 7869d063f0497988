"""`penstock schedules`: what comes again and again, by a cron line or at an interval."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from actors.jobs.rules.schedule_record import Misfire, Overlap
from penstock.cli.held import ASK_S
from penstock.cli.terminal.call import TAKES_TIMES, CommandCall, command
from penstock.cli.terminal.help import Group
from penstock.cli.terminal.pages import Limit, behind, say_more
from penstock.cli.terminal.person import Yes, confirm
from penstock.errors import NotAccepted, UsageError
from penstock.rows.schedule_names import read_name
from penstock.times import read_moment, read_range, read_zone, span_text, time_text
from streams.clock import now_ms
from streams.messages.jobs import Priority
from streams.subjects import check_token

if TYPE_CHECKING:
    from actors.jobs.rules.cron import BadRecurrence
    from actors.jobs.rules.schedule_record import Schedule
    from actors.jobs.rules.schedule_views import RunView, ScheduleLine, ScheduleView
    from penstock.sdk.client_schedules import Schedules

__all__ = ["add_to"]

Which = Annotated[str, typer.Argument(metavar="TOPIC/NAME", help="The schedule.")]
Source = Annotated[str, typer.Option(metavar="PLATFORM/SOURCE", help='Have it look again; BODY as {"last": "2h"}.')]
ExpiresIn = Annotated[
    str, typer.Option("--expires-in", "--expires", metavar="SPAN", help="Give one up that was not begun so long after.")
]
OnMisfire = Annotated[
    Misfire, typer.Option(help="Of what was missed while no node was there: nothing, the latest, or all of it.")
]
OnOverlap = Annotated[
    Overlap,
    typer.Option(
        help="While the one before is not finished: leave it out, run it, have one wait, or delete the one before."
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(
        cls=Group, help="Jobs that come again and again. Each occurrence is an ordinary job of the topic."
    )
    app.add_typer(group, name="schedules")
    command(group, "add")(_add)
    command(group, "list")(_list)
    command(group, "show")(_show)
    command(group, "pause")(_pause)
    command(group, "resume")(_resume)
    command(group, "trigger")(_trigger)
    command(group, "backfill", context=TAKES_TIMES)(_backfill)
    command(group, "remove")(_remove)


@asynccontextmanager
async def _opened(call: CommandCall) -> "AsyncIterator[Schedules]":
    """Connect, and give the client's way to schedules."""
    async with call.session() as session:
        from penstock.sdk.calls import ServiceClient
        from penstock.sdk.client_schedules import Schedules

        yield Schedules(ServiceClient(session.connection, "schedules", ASK_S))


async def _add(
    call: CommandCall,
    which: Which,
    body: Annotated[str, typer.Argument(metavar="[BODY]", help="JSON, @FILE, or - for stdin.")] = "null",
    cron: Annotated[str, typer.Option(metavar="LINE", help="As '30 9 * * MON-FRI', or with seconds before it.")] = "",
    every: Annotated[str, typer.Option(metavar="SPAN", help="As 10m; from --start, or now.")] = "",
    fixed_delay: Annotated[str, typer.Option(metavar="SPAN", help="So long after the end of the one before.")] = "",
    at: Annotated[str, typer.Option(metavar="TIME", help="Once, at this moment.")] = "",
    tz: Annotated[str, typer.Option(metavar="ZONE", help="By whose clock the cron line goes.")] = "UTC",
    start: Annotated[str, typer.Option(metavar="TIME", help="None is due before.")] = "",
    initial_delay: Annotated[str, typer.Option(metavar="SPAN", help="None is due before so much from now.")] = "",
    jitter: Annotated[str, typer.Option(metavar="SPAN", help="Each is due up to so much later.")] = "",
    batch: Annotated[str, typer.Option(metavar="TASK", help='Submit a batch each time; BODY as {"input": …}.')] = "",
    source: Source = "",
    data_time: Annotated[str, typer.Option(metavar="FIELD", help="Field of the body that tells each its time.")] = "",
    ttr: Annotated[str, typer.Option(metavar="SPAN", help="Time to run; else the topic's.")] = "",
    attempts: Annotated[int | None, typer.Option(min=1, help="At most; else the topic's.")] = None,
    priority: Annotated[Priority, typer.Option(help="Within the topic.")] = "normal",
    expires: ExpiresIn = "",
    misfire: OnMisfire = "once",
    most_missed: Annotated[int | None, typer.Option(min=1, help="Of all that was missed, only so many latest.")] = None,
    overlap: OnOverlap = "skip",
    replace: Annotated[bool, typer.Option("--replace", help="Put it in the place of another definition.")] = False,
) -> None:
    """Add a schedule. The same again changes nothing.

    When the clock changes: a fixed time that is left out comes when the clock goes on, one that comes twice counts the
    first time. Lines with a * for minute or hour follow the elapsed time."""
    from actors.jobs.rules.schedule_record import Schedule
    from penstock.rows.job_rows import read_body, read_span, read_ttr

    read_name(which)
    zone = read_zone(tz)
    wanted = Schedule(
        cron=cron,
        every_ms=_interval("--every", every),
        fixed_delay_ms=_interval("--fixed-delay", fixed_delay),
        at_ms=read_moment(at, now_ms=now_ms(), zone=zone) if at else 0,
        tz=tz,
        start_ms=read_moment(start, now_ms=now_ms(), zone=zone) if start else 0,
        initial_delay_ms=read_span("--initial-delay", initial_delay) if initial_delay else 0,
        jitter_ms=read_span("--jitter", jitter) if jitter else 0,
        body=read_body(body),
        batch=batch,
        source=source,
        data_time=data_time,
        ttr_ms=read_ttr("--ttr", ttr),
        attempts=attempts,
        priority=priority,
        expires_in_ms=read_span("--expires-in", expires) if expires else None,
        misfire=misfire,
        most_missed=most_missed,
        overlap=overlap,
    )
    await _put(call, which, wanted, is_replaced=replace)


async def _put(call: CommandCall, which: str, wanted: "Schedule", *, is_replaced: bool) -> None:
    """Put the schedule, and say when it is due."""
    from actors.jobs.rules.cron import BadRecurrence
    from actors.jobs.rules.schedule_checks import check_wanted

    try:
        check_wanted(wanted)
    except BadRecurrence as error:
        raise UsageError(str(_as_typed(error))) from error
    async with _opened(call) as schedules:
        try:
            told = await schedules.put(which, wanted, is_replaced=is_replaced)
        except NotAccepted as refused:
            if refused.field != "at_ms":
                raise
            raise UsageError(f"--at {time_text(wanted.at_ms)}: is past; give a later moment") from refused
    nexts = told.schedule.next_ms
    nexts_text = f"due {', '.join(map(time_text, nexts))}" if nexts else told.schedule.state
    call.out.say(f"{which}: {'added' if told.is_changed else 'is there already, just so'}; {nexts_text}")
    call.out.result({"is_new": told.is_changed, **_document(told.schedule)})


def _as_typed(bad: "BadRecurrence") -> "BadRecurrence":
    """Return the error with the name of the option, in place of the record's field."""
    from actors.jobs.rules.cron import BadRecurrence

    name = "BODY" if bad.field == "body" else f"--{bad.field.removesuffix('_ms').replace('_', '-')}"
    return BadRecurrence(name, bad.value, bad.what, bad.hint)


def _interval(option: str, text: str) -> int:
    from penstock.rows.job_rows import read_span

    span_ms = read_span(option, text) if text else 0
    if text and not span_ms:
        raise UsageError(f"{option} {text!r}: is no interval; write one of 1s or more, as 10m")
    return span_ms


async def _list(
    call: CommandCall,
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="Only of this one.")] = "",
    limit: Limit = None,
    after: Annotated[str, behind("TOPIC/NAME")] = "",
) -> None:
    """List schedules: when each is due next, and how it fares."""
    if topic:
        check_token("topic", topic)
    async with _opened(call) as schedules:
        found = await schedules.list(topic, after=after, limit=limit)
    rows = [[f"{line.topic}/{line.name}", *_cells(line)] for line in found]
    call.out.table(["schedule", "when", "next", "left\nout", "state"], rows, empty="no schedules")
    say_more(call.out, found, limit, lambda line: f"{line.topic}/{line.name}")
    call.out.result([_document(line) for line in found])


def _cells(line: "ScheduleLine") -> list[object]:
    if line.state == "unreadable":
        return ["-", "-", "-", f"not followed: {line.fault}"]
    return [_when(line), _day(line.next_ms[0]) if line.next_ms else "-", line.left_out, line.state]


def _day(at_ms: int) -> str:
    """Return a moment without its year, if that is the present one."""
    text, year = time_text(at_ms), time_text(now_ms())[:5]
    return text.removeprefix(year)


def _when(it: "ScheduleLine") -> str:
    if it.at_ms:
        return f"once, {time_text(it.at_ms)}"
    if it.fixed_delay_ms:
        return f"{span_text(it.fixed_delay_ms)} after each end"
    return " ".join([it.cron, it.tz]) if it.cron else f"every {span_text(it.every_ms)}"


async def _show(
    call: CommandCall,
    which: Which,
    most: Annotated[int, typer.Option("--next", min=0, max=100, help="So many of the next due times.")] = 5,
) -> None:
    """Show one whole, with its next due times and how its latest runs ended."""
    read_name(which)
    async with _opened(call) as schedules:
        view = await schedules.show(which, next=most)
    for name, value in _lines(view):
        call.out.say(f"{name}: {value}")
    for at_ms in view.next_ms:
        call.out.say(f"due: {time_text(at_ms)}")
    for run in reversed(view.runs):
        call.out.say(f"run: {_run_text(run)}")
    call.out.result(_document(view))


def _run_text(run: "RunView") -> str:
    words = [time_text(run.due_ms), run.outcome or "not ended"]
    if run.kind:
        words.append(run.kind)
    if run.started_ms and not run.kind:
        words.append(f"started {span_text(max(0, run.started_ms - run.due_ms))} later")
    if run.started_ms and run.ended_ms:
        words.append(f"took {span_text(run.ended_ms - run.started_ms)}")
    return ", ".join(words)


def _lines(it: "ScheduleView") -> Iterator[tuple[str, object]]:
    """Yield what is shown to people of one. Values of the topic are left out."""
    yield "schedule", f"{it.topic}/{it.name}"
    if it.state == "unreadable":
        yield "not followed", it.fault
        return
    yield "when", _when(it)
    yield "state", it.state
    yield from (("jitter", span_text(it.jitter_ms)),) if it.jitter_ms else ()
    yield "misfire", it.misfire if it.most_missed is None else f"{it.misfire}, at most {it.most_missed}"
    yield "overlap", it.overlap
    yield from (("ttr", span_text(it.ttr_ms)),) if it.ttr_ms else ()
    yield from (("attempts", it.attempts),) if it.attempts else ()
    yield from (("priority", it.priority),) if it.priority != "normal" else ()
    yield from (("expires", f"{span_text(it.expires_in_ms)} after it was due"),) if it.expires_in_ms else ()
    yield from (("batch", it.batch),) if it.batch else ()
    yield from (("source", it.source),) if it.source else ()
    yield "body", bytes(it.body).decode("utf-8", "replace")
    yield from (("data time", it.data_time),) if it.data_time else ()
    yield from (("backfill", f"goes on until {time_text(it.backfill[1])}"),) if it.backfill else ()
    yield "added last", time_text(it.added_ms) if it.added_ms else "none yet"
    yield "left out", it.left_out


async def _pause(call: CommandCall, which: Which) -> None:
    """Add no more jobs. Jobs that were added and are not due yet are taken back."""
    read_name(which)
    async with _opened(call) as schedules:
        is_new = (await schedules.pause(which)).is_changed
    call.out.say(f"{which} {'is paused' if is_new else 'was paused before'}")
    call.out.result({"schedule": which, "is_paused": True, "is_changed": is_new})


async def _resume(call: CommandCall, which: Which) -> None:
    """Continue from now. Times within the pause do not count as missed."""
    read_name(which)
    async with _opened(call) as schedules:
        is_new = (await schedules.resume(which)).is_changed
    call.out.say(f"{which} {'goes on' if is_new else 'runs already'}")
    call.out.result({"schedule": which, "is_paused": False, "is_changed": is_new})


async def _trigger(call: CommandCall, which: Which) -> None:
    """Add a job now, beside the schedule, also during a pause."""
    read_name(which)
    async with _opened(call) as schedules:
        told = await schedules.trigger(which)
    call.out.say(f"{which}: {told.id} is added now")
    call.out.result({"schedule": which, "topic": told.topic, "id": told.id})


async def _backfill(
    call: CommandCall,
    which: Which,
    from_: Annotated[str, typer.Argument(metavar="FROM", help="Where it begins.")],
    to: Annotated[str, typer.Argument(metavar="TO", help="Where it ends, itself left out.")],
    tz: Annotated[str, typer.Option(metavar="ZONE", help="Of moments that have none.")] = "",
) -> None:
    """Add a job for each time of the schedule in a past range. Jobs that may not overlap come one after the other."""
    read_name(which)
    span = read_range(from_, to, now_ms=now_ms(), zone=read_zone(tz))
    async with _opened(call) as schedules:
        try:
            await schedules.backfill(which, *(datetime.fromtimestamp(at_ms / 1000, UTC) for at_ms in span))
        except NotAccepted as refused:
            if refused.field not in ("start", "end"):
                raise
            raise UsageError(f"{from_} to {to}: {str(refused).partition(': ')[2]}") from refused
    call.out.say(f"{which}: adds {time_text(span[0])} to {time_text(span[1])}")
    call.out.result({"schedule": which, "start_ms": span[0], "end_ms": span[1]})


async def _remove(call: CommandCall, which: Which, yes: Yes = False) -> None:
    """Remove a schedule. Jobs that were added and are not due yet go too, as soon as a node sees it."""
    read_name(which)
    async with _opened(call) as schedules:
        await schedules.show(which, next=0)
        confirm(f"Remove the schedule {which}?", is_sure=yes)
        await schedules.remove(which)
    call.out.say(f"{which} is removed")
    call.out.result({"schedule": which, "removed": True})


def _document(it: "ScheduleLine | ScheduleView") -> dict[str, object]:
    """Return what programs are shown of one."""
    import msgspec

    document = msgspec.structs.asdict(it)
    if "body" in document:
        document["body"] = msgspec.json.decode(document["body"])
        document["runs"] = msgspec.to_builtins(document["runs"])
    return document
