"""`penstock batch`: a sheet submitted, followed row by row, steered, and its result fetched."""

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from actors.batch.views import Wanted
from penstock.cli.shown.batch import item_cells, say_look, say_view, task_row, view_row
from penstock.cli.terminal.call import CommandCall, command
from penstock.cli.terminal.help import Group
from penstock.cli.terminal.pages import Limit, behind, say_more
from penstock.cli.terminal.parameters import read_values
from penstock.cli.terminal.person import Yes, confirm, progress
from penstock.errors import NotAccepted, UsageError
from streams.clock import now_ms
from streams.messages.batch import AfterState

if TYPE_CHECKING:
    from actors.batch.views import ItemShown, View
    from penstock.api.forms.batch import SubmitOptions
    from penstock.sdk.client_batches import Batches

__all__ = ["add_to"]

ASK_S = 10.0
Id = Annotated[str, typer.Argument(metavar="ID", help="As `batch submit` gave it.")]
Items = Annotated[
    list[int] | None, typer.Option("--item", metavar="N", help="Only this item, by its index; may be repeated.")
]
Rows = Annotated[
    list[int] | None, typer.Option("--row", metavar="N", help="Only this row of the sheet; may be repeated.")
]
Params = Annotated[list[str] | None, typer.Option("--param", metavar="K=V", help="For the task's code; text.")]
Status = Annotated[Wanted, typer.Option(help="Only those that ended so.")]

TEXTS = ("slot_key", "when_full", "zone", "region_key")
"""Limits that are no numbers."""


def add_to(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(
        cls=Group, help="Batches: a sheet's rows, each run by your own code. A node with the role `desk` answers."
    )
    app.add_typer(group, name="batch")
    command(group, "submit")(_submit)
    command(group, "list")(_list)
    command(group, "show")(_show)
    command(group, "items")(_items)
    command(group, "start")(_start)
    command(group, "pause")(_pause)
    command(group, "resume")(_resume)
    command(group, "cancel")(_cancel)
    command(group, "retry")(_retry)
    command(group, "delete")(_delete)
    command(group, "result")(_result)
    command(group, "sheet")(_sheet)
    command(group, "tasks")(_tasks)
    command(group, "task")(_task)


@asynccontextmanager
async def open_batches(call: CommandCall) -> "AsyncIterator[Batches]":
    """Connect, and give the client's way to batches."""
    async with call.session() as session:
        from penstock.sdk.calls import ServiceClient
        from penstock.sdk.client_batches import Batches

        yield Batches(ServiceClient(session.connection, "batch", ASK_S), session.connection)


async def _submit(
    call: CommandCall,
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="xlsx, csv, jsonl or parquet.")] = "",
    task: Annotated[str, typer.Option("--task", metavar="KEY", help="Which task is to run.")] = "",
    param: Params = None,
    input_: Annotated[str, typer.Option("--input", metavar="JSON", help="In place of a file, or as its params.")] = "",
    sheet: Annotated[str, typer.Option(metavar="NAME", help="Of a workbook; else its first.")] = "",
    encoding: Annotated[str, typer.Option(metavar="NAME", help="Of a csv; else UTF-8 or GB 18030.")] = "",
    id_: Annotated[str, typer.Option("--id", metavar="ID", help="A fresh one if not given.")] = "",
    tenant: Annotated[str, typer.Option(metavar="NAME", help="Whose it is.")] = "",
    priority: Annotated[int, typer.Option(min=-100, max=100, help="Higher ones begin first.")] = 0,
    weight: Annotated[int, typer.Option(min=1, max=1000, help="Its tenant's share beside those of other tenants.")] = 1,
    callback: Annotated[
        str, typer.Option(metavar="URL", help="Told of its first failure and its end; `none`: nobody.")
    ] = "",
    delay: Annotated[str, typer.Option(metavar="SPAN", help="Begin after 30m, 2d, 1h30m.")] = "",
    at: Annotated[str, typer.Option(metavar="TIME", help="Begin at 2026-01-31T08:00:00Z.")] = "",
    tz: Annotated[str, typer.Option("--tz", metavar="ZONE", help="Of a --at without an offset.")] = "",
    after: Annotated[str, typer.Option(metavar="ID", help="Begin when this batch is over.")] = "",
    after_state: Annotated[
        AfterState, typer.Option(help="How that has to end. clean: done, and no row failed.")
    ] = "done",
    waits: Annotated[
        bool, typer.Option("--wait", help="Follow it to its end; exit code 1 if that is not done.")
    ] = False,
    is_check: Annotated[
        bool, typer.Option("--check", help="Look at the file and make no batch; exit code 1 if rows would fail.")
    ] = False,
) -> None:
    """Hand in a file, or an input alone, for a task. The same again under the same --id is one batch."""
    if not task:
        raise UsageError("--task: which task is to run? `penstock batch tasks` lists them")
    _check_file(file)
    from penstock.rows.job_rows import read_due

    given = _input_of(param or [], input_)
    delay_ms, due_ms = read_due(delay, at, tz=tz, now_ms=now_ms())
    if not file and given is None:
        raise UsageError("give a FILE, or --input")
    if due_ms is not None and due_ms <= now_ms():
        call.out.say(f"--at {at}: is past, so it begins at once")
    options: SubmitOptions = {
        "id": id_,
        "sheet": sheet,
        "encoding": encoding,
        "tenant": tenant,
        "priority": priority,
        "weight": weight,
        "callback": callback,
        "due": None if due_ms is None else datetime.fromtimestamp(due_ms / 1000, UTC),
        "after": after,
    }
    if delay_ms:
        options["delay"] = timedelta(milliseconds=delay_ms)
    if after or after_state != "done":
        options["after_state"] = after_state
    if is_check:
        async with open_batches(call) as batches:
            say_look(call, await batches.check(task, given, file=file or None, **options))
    else:
        await _send(call, task, given, file or None, options, waits=waits)


async def _send(
    call: CommandCall, task: str, given: object, file: str | None, options: "SubmitOptions", *, waits: bool
) -> None:
    async with open_batches(call) as batches:
        call.if_stopped(lambda: "a batch was made only if `penstock batch list` shows it")
        with progress("sending") as sent:
            view = await batches.submit(task, given, file=file, on_sent=sent, **options)
        call.out.say(f"{view.instance_id}: {view.state}{view.waits and f', {view.waits}'}")
        if not waits:
            call.out.result(view)
            return
        await _follow(call, batches, view.instance_id)


async def _list(
    call: CommandCall,
    task: Annotated[str, typer.Option(metavar="KEY", help="Of this task.")] = "",
    state: Annotated[str, typer.Option(metavar="STATE", help="In this state.")] = "",
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="Of this tenant.")] = None,
    most: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 100,
    after: Annotated[str, typer.Option(metavar="CURSOR", help="Go on where a page ended.")] = "",
) -> None:
    """List batches, the newest first."""
    async with open_batches(call) as batches:
        views = await batches.list(task=task, state=state, tenant=tenant, most=most, after=after)
    columns = ["id", "task", "state", "items", "succeeded", "failed", "created"]
    begins = [view.waits if view.state == "pending" and (view.due_ms or view.after) else "" for view in views]
    rows = [view_row(view) for view in views]
    if any(begins):
        columns.append("begins")
        rows = [[*row, each.removeprefix("begins ")] for row, each in zip(rows, begins, strict=True)]
    is_any = not (task or state or after) and tenant is None
    empty = "no batches; `penstock batch submit FILE` makes one" if is_any else "no such batches"
    call.out.table(columns, rows, empty=empty)
    say_more(call.out, views, most, lambda view: view.place)
    call.out.result(views)


async def _show(
    call: CommandCall,
    id_: Id,
    watch: Annotated[bool, typer.Option("--watch", help="Follow it to its end.")] = False,
) -> None:
    """Show how a batch stands."""
    async with open_batches(call) as batches:
        if watch:
            await _follow(call, batches, id_)
            return
        view = await batches.show(id_)
    say_view(call, view)
    call.out.result(view)


async def _items(
    call: CommandCall,
    id_: Id,
    failed: Annotated[bool, typer.Option("--failed", help="Only those that failed.")] = False,
    status: Status = "all",
    most: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 100,
    cursor: Annotated[str, typer.Option(metavar="CURSOR", help="Where the page before ended.")] = "",
) -> None:
    """List a batch's items: what was to be done, how it ended, and why."""
    wanted = _wanted(status, is_failed=failed)
    found: list[ItemShown] = []
    async with open_batches(call) as batches:
        while True:
            page = await batches.page(id_, status=wanted, cursor=cursor, most=most - len(found))
            found += page.items
            cursor = page.cursor
            if not cursor or len(found) >= most:
                break
    rows = [[item.index if item.row is None else item.row, item.status or "-", *item_cells(item)] for item in found]
    columns = ["item", "status", "what", "reason"]
    if any(item.row is not None for item in found):
        columns = ["row", "status", "what", "reason"]
    call.out.table(columns, rows, empty="no such items")
    if cursor:
        call.out.say(f"more: --cursor {cursor}")
    call.out.result({"items": found, "cursor": cursor})


async def _start(call: CommandCall, id_: Id) -> None:
    """Begin it now, though it waits for its time, or for another batch."""
    await _steer(call, lambda batches: batches.start(id_))


async def _pause(call: CommandCall, id_: Id) -> None:
    """Start no more of its items. Items that run come to their end."""
    await _steer(call, lambda batches: batches.pause(id_))


async def _resume(call: CommandCall, id_: Id) -> None:
    """Go on with what was paused."""
    await _steer(call, lambda batches: batches.resume(id_))


async def _cancel(call: CommandCall, id_: Id) -> None:
    """End it: what runs ends, the rest is cancelled."""
    await _steer(call, lambda batches: batches.cancel(id_))


async def _retry(
    call: CommandCall,
    id_: Id,
    item: Items = None,
    row: Rows = None,
    waits: Annotated[bool, typer.Option("--wait", help="Follow it to its end.")] = False,
) -> None:
    """Run what failed or was cancelled again, or only some items, and make the result anew."""
    async with open_batches(call) as batches:
        view = await batches.retry(id_, item or [], rows=row or [])
        if waits:
            await _follow(call, batches, id_)
            return
    call.out.say(f"{view.instance_id}: {view.state}, pass {view.passes}")
    call.out.result(view)


async def _delete(call: CommandCall, id_: Id, yes: Yes = False) -> None:
    """Delete a batch that is over, with its items, its upload and its result."""
    async with open_batches(call) as batches:
        await batches.show(id_)
        confirm(f"Delete the batch {id_}, with its rows and its result?", is_sure=yes)
        view = await batches.delete(id_)
    call.out.say(f"{view.instance_id}: deleted, it was {view.state}")
    call.out.result(view)


async def _result(
    call: CommandCall,
    id_: Id,
    out: Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="Where to; its own name if not given.")] = "",
    name: Annotated[str, typer.Option(metavar="NAME", help="Which of several.")] = "",
) -> None:
    """Fetch a file of the result."""
    from penstock.sdk.client_batches import chosen_file

    async with open_batches(call) as batches:
        told = chosen_file(await batches.show(id_), name)
        path = await batches.result(id_, out or Path(told).name, name=told)
    size = path.stat().st_size  # the command's last line
    call.out.say(f"{path}: {size} bytes")
    call.out.result({"path": str(path), "name": told, "bytes": size})


async def _sheet(
    call: CommandCall,
    id_: Id,
    failed: Annotated[bool, typer.Option("--failed", help="Only the rows that failed, to hand in again.")] = False,
    status: Status = "all",
    out: Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="xlsx, csv or jsonl; else ID.xlsx.")] = "",
) -> None:
    """Write a sheet of what became of each row of a batch that is over, cancelled and failed ones too. With --failed it
    has those rows alone, ready to be put right and handed in again."""
    wanted = _wanted(status, is_failed=failed)
    part = "" if wanted == "all" else f"-{wanted}"
    async with open_batches(call) as batches:
        path = await batches.sheet(id_, out or f"{id_}{part}.xlsx", status=wanted)
    size = path.stat().st_size  # the command's last line
    call.out.say(f"{path}: {size} bytes")
    call.out.result({"path": str(path), "bytes": size})


async def _tasks(call: CommandCall, limit: Limit = None, after: Annotated[str, behind("TASK")] = "") -> None:
    """List the tasks that applications have declared, and their limits."""
    async with open_batches(call) as batches:
        tasks = await batches.tasks(after=after, limit=limit)
    columns = ["task", "application", "version", "instances\nat once", "items\nper s", "items\nat once", "attempts"]
    call.out.table(
        columns, [task_row(task) for task in tasks], empty="no tasks; `penstock work MODULE` declares its own"
    )
    say_more(call.out, tasks, limit, lambda task: task.task)
    call.out.result(tasks)


async def _task(
    call: CommandCall,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The task.")],
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="item_rate=200; `item_rate=` for the code's.")
    ] = None,
) -> None:
    """Show a task, or change its limits: main_concurrency, main_rate, item_rate, item_concurrency, slots (items at once
    under each key), slot_key, when_full, zone (where its code runs, as east or shard:7), region_key.
    0 is no limit."""
    from actors.batch.tasks import UnknownTask

    given = read_values(changes or (), "NAME=VALUE", "item_rate=200")
    limits = {name: _limit(name, value) for name, value in given.items()}
    async with open_batches(call) as batches:
        if limits:
            task = await batches.limit(key, **limits)
        else:
            known = {each.task: each for each in await batches.tasks()}
            if key not in known:
                raise NotAccepted(str(UnknownTask(key, known)), code="not_found", field="task")
            task = known[key]
    for name in task.limits.__struct_fields__:
        value = getattr(task.limits, name)
        if name not in TEXTS:
            call.out.say(f"{name} = {value:g}" if value else f"{name} = 0 (no limit)")
        elif name in ("zone", "region_key"):
            call.out.say(f"{name} = {value or '(any)'}")
        elif task.limits.slots:
            call.out.say(f"{name} = {value or '(all under one key)'}")
    if task.is_streaming:
        call.out.say("streaming: items run before the split has ended")
    call.out.result(task)


async def _steer(call: CommandCall, act: "Callable[[Batches], Awaitable[View]]") -> None:
    async with open_batches(call) as batches:
        view = await act(batches)
    call.out.say(f"{view.instance_id}: {view.state}")
    call.out.result(view)


async def _follow(call: CommandCall, batches: "Batches", id_: str) -> None:
    """Show a batch's progress until it is over. The exit code is 1 if it is not done then."""
    from penstock.cli.shown.batch_bar import following

    call.if_stopped(lambda: f"the batch goes on; `penstock batch show {id_} --watch` follows it")
    with following() as look:
        view = await batches.wait(id_, on_look=look)
    say_view(call, view)
    call.out.result(view)
    if view.state != "done":
        raise typer.Exit(1)


def _wanted(status: Wanted, *, is_failed: bool) -> Wanted:
    if is_failed and status != "all":
        raise UsageError(f"--failed and --status {status}: give one of them")
    return "failed" if is_failed else status


def _check_file(file: str) -> None:
    if file and not Path(file).is_file():
        raise UsageError(f"{file}: {'a directory' if Path(file).is_dir() else 'no such file'}; name a file")


def _input_of(params: list[str], text: str) -> object:
    """Return what stands in --input, or the --param pairs as an object, or None."""
    import msgspec

    if text and params:
        raise UsageError("--input and --param: give one of them")
    if not text:
        return read_values(params, "--param NAME=VALUE", "--param month=2026-11") or None
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"--input: {error}") from error


def _limit(name: str, value: str) -> float | int | str | None:
    return (value or None) if name in TEXTS else _number(name, value)


def _number(name: str, value: str) -> float | int | None:
    if not value:
        return None
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{name}={value[:80]}: a number is needed")
    return int(number) if number.is_integer() else number
