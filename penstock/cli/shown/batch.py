"""What people see of batches: of a look at a file, of an instance and its items, of a task."""

from typing import TYPE_CHECKING, Any

import typer

from penstock.cli.terminal.call import CommandCall
from penstock.cli.terminal.output import moment

if TYPE_CHECKING:
    from actors.batch.rules.record import Moment
    from actors.batch.rules.row_looks import FirstLook
    from actors.batch.tasks import TaskRecord
    from actors.batch.views import ItemShown, View

LONGEST_CELL = 200
SHOWN_ROWS, SHOWN_FAULTS, SHOWN_CHARS = 3, 20, 16
"""Of a first look: rows, rows that would fail, and characters of a cell."""


def say_look(call: CommandCall, look: "FirstLook") -> None:
    """Show what a task would get of a file. The exit code is 1 if rows would fail."""
    import msgspec

    first = [(each.row, msgspec.json.decode(each.item)) for each in look.first[:SHOWN_ROWS]]
    untyped = "not used" if any(each.type for each in (*look.columns, *look.missing)) else "-"
    rows = [
        [each.name, each.type or untyped, *(_cell(cells, each.name) for _, cells in first)] for each in look.columns
    ]
    if look.columns:
        call.out.table(["column", "type", *(f"row {number}" for number, _ in first)], rows)
    for each in look.missing:
        call.out.say(f"  no column {each.name} ({each.type}), which every row needs")
    for fault in look.faults[:SHOWN_FAULTS]:
        call.out.say(f"  row {fault.row}: {fault.reason}")
    if look.failing > SHOWN_FAULTS:
        call.out.say(f"  and {look.failing - SHOWN_FAULTS} more rows; --json names the first {len(look.faults)}")
    if look.note:
        call.out.say(f"  {look.note}")
    if look.unchecked:
        call.out.say(f"  not checked: {look.unchecked}")
    if look.columns or not look.unchecked:
        call.out.say(f"{look.failing} of {look.rows} rows would fail before the task's code runs; no batch was made")
    call.out.result(look)
    if not look.is_fine:
        raise typer.Exit(1)


def _cell(cells: object, name: str) -> str:
    text = _short(cells.get(name)) if isinstance(cells, dict) else ""
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 1]}…"


def say_view(call: CommandCall, view: "View") -> None:
    from penstock.cli.shown.batch_bar import bar_text

    call.out.say(f"{view.instance_id}: {bar_text(view)}")
    if view.reason:
        call.out.say(f"  {view.reason}")
    for reason in view.reasons:
        call.out.say(f"  {reason}")
    for name in _files(view):
        call.out.say(f"  result: {name}; penstock batch result {view.instance_id}")
    if isinstance(view.result, dict) and "note" in view.result:
        call.out.say(f"  {view.result['note']}")
    if (returned := _returned(view)) is not None:
        call.out.say(f"  returned: {_short(returned)}")
    if view.is_over and view.counts.failed and view.items:
        call.out.say(f"  failed rows, to hand in again: penstock batch sheet {view.instance_id} --failed")
    for told in view.calls:
        call.out.say(f"  callback {view.callback}: {_call(told)}")


def _call(told: "Moment") -> str:
    """Return what the callback was told, and how far that is: `done, pass 2: given up after 12 tries: …`."""
    name = told.name.replace("_", " ") + (f", pass {told.pass_no}" if told.pass_no > 1 else "")
    after = f" after {told.tries} tries" if told.tries > 1 or told.info else ""
    return f"{name}: {told.state.replace('_', ' ')}{after}" + (f": {told.info}" if told.info else "")


def _returned(view: "View") -> object:
    """Return what the task's own reduce returned, without what is shown anyway. `None`: nothing."""
    if not isinstance(view.result, dict):
        return view.result
    import msgspec

    shown = {
        "files": view.result.get("files"),
        "note": view.result.get("note"),
        "counts": msgspec.to_builtins(view.counts),
    }
    return {name: value for name, value in view.result.items() if shown.get(name, _returned) != value} or None


def item_cells(item: "ItemShown") -> list[str]:
    """Return what an item was, of a row its cells alone, and how it ended."""
    is_row = item.row is not None and isinstance(item.item, list)
    return [_short(item.item[1] if is_row else item.item), _short(item.info)]


def _files(view: "View") -> list[Any]:
    told = view.result.get("files") if isinstance(view.result, dict) else None
    return told if isinstance(told, list) else []


def view_row(view: "View") -> list[object]:
    items = "-" if view.items is None else view.items
    counts = view.counts
    return [
        view.instance_id,
        view.task,
        view.state,
        items,
        counts.succeeded,
        counts.failed + counts.unknown,
        moment(view.created_ms),
    ]


def task_row(task: "TaskRecord") -> list[object]:
    limits = task.limits
    numbers = (limits.main_concurrency, limits.item_rate, limits.item_concurrency)
    return [
        task.task,
        task.app or "-",
        task.version or "-",
        *(f"{each:g}" if each else "-" for each in numbers),
        task.attempts,
    ]


def _short(value: object) -> str:
    import msgspec

    text = value if isinstance(value, str) else "" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 1]}…"
