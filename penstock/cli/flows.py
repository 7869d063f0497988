"""`penstock flows`: which there are, how their rounds go, and their settings."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.rates import read_rate
from penstock.cli.terminal.call import CommandCall, command
from penstock.cli.terminal.help import Group
from penstock.cli.terminal.output import moment
from penstock.cli.terminal.pages import Limit, behind, say_more
from penstock.cli.terminal.parameters import read_values
from penstock.errors import UsageError

if TYPE_CHECKING:
    from actors.flow.desk import FlowView
    from actors.flow.flows import RoundReport
    from penstock.sdk.client_flows import FlowCalls

__all__ = ["add_to"]

ASK_S = 10.0
Which = Annotated[str, typer.Argument(metavar="FLOW", help="The flow's key.")]


def add_to(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(
        cls=Group, help="Flows: rows of your tables, loaded and executed at one rate. The role `desk` answers."
    )
    app.add_typer(group, name="flows")
    command(group, "list")(_list)
    command(group, "show")(_show)
    command(group, "set")(_set)
    command(group, "pause")(_pause)
    command(group, "resume")(_resume)
    command(group, "run")(_run)


@asynccontextmanager
async def _open(call: CommandCall) -> "AsyncIterator[FlowCalls]":
    """Connect, and give the client's way to flows."""
    async with call.session() as session:
        from penstock.sdk.calls import ServiceClient
        from penstock.sdk.client_flows import FlowCalls

        yield FlowCalls(ServiceClient(session.connection, "flow", ASK_S))


async def _list(call: CommandCall, limit: Limit = None, after: Annotated[str, behind("FLOW")] = "") -> None:
    """List the flows that applications have declared."""
    async with _open(call) as flows:
        views = await flows.list(after=after, limit=limit)
    columns = ["flow", "rate", "begun", "in\nflight", "loaded", "state", "limited\nby"]
    call.out.table(
        columns, [_row(view) for view in views], empty="no flows; `penstock up --app MODULE` declares its own"
    )
    say_more(call.out, views, limit, lambda view: view.flow)
    call.out.result(views)


def _row(view: "FlowView") -> list[object]:
    last = view.rounds[-1] if view.rounds else None
    loaded = f"{last.new} of {last.asked}" if last else "-"
    return [
        view.flow,
        _rate(view),
        f"{view.begun:g}/s" if view.rate else "-",
        view.in_flight,
        loaded,
        _state(view),
        view.limited_by.code if view.limited_by else "-",
    ]


def _time(last: "RoundReport | None") -> str:
    """Return when a round began. Rounds come at least once a day, so the day is left out."""
    return moment(last.began_ms).rpartition(" ")[2] if last else "-"


def _rate(view: "FlowView") -> str:
    return f"{view.rate:g}/s" if view.rate else "no limit"


def _state(view: "FlowView") -> str:
    failing = view.rounds and view.rounds[-1].errors
    return "paused" if view.is_paused else "failing" if failing else "runs" if view.rounds else "has not begun"


async def _show(call: CommandCall, which: Which) -> None:
    """Show one: its settings, and what its latest rounds did."""
    async with _open(call) as flows:
        view = await flows.show(which)
    _say(call, view)
    columns = ["round", "ms", "in\nflight", "loaded", "shards", "short", "failed", "silent"]
    rows = [
        [
            _time(each),
            each.took_ms,
            each.in_flight,
            f"{each.new} of {each.asked}",
            each.shards,
            each.short,
            each.failed,
            each.silent,
        ]
        for each in reversed(view.rounds)
    ]
    call.out.table(columns, rows, empty="no round yet")
    for error in view.rounds[-1].errors if view.rounds else ():
        call.out.say(f"error: {error}")
    call.out.result(view)


def _say(call: CommandCall, view: "FlowView") -> None:
    begun = f", {view.begun:g}/s begun" if view.rate else ""
    call.out.say(f"{view.flow}: {_state(view)}, {_rate(view)}, every {view.every}, {view.in_flight} in flight{begun}")
    if view.limited_by:
        call.out.say(fill(f"limited by {view.limited_by.code}: {view.limited_by.reason}", 80))
    for name, value in view.settings.items():
        call.out.say(f"{name} = {_text(value) or '-'}{' (no limit)' if (name, value) == ('slots', 0) else ''}")
    for warning in view.warnings:
        call.out.say(f"warning: {warning}")


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ",".join(
            f"{name}:{part:g}" if isinstance(part, float) else f"{name}:{part}" for name, part in value.items()
        )
    return str(value)


async def _set(
    call: CommandCall,
    which: Which,
    changes: Annotated[
        list[str], typer.Argument(metavar="NAME=VALUE...", help="rate=500 or 1/m; `rate=` for the code's.")
    ],
) -> None:
    """Change settings: rate, every, longest, lead, load_timeout, most_in_flight, groups (groups=a:odd,b:even), slots
    (calls of `execute` at once under each key, 0: no limit), slot_key, when_full, zone (as east or shard:7),
    region_key."""
    values = {name: _value(name, text) for name, text in read_values(changes, "NAME=VALUE", "rate=500").items()}
    async with _open(call) as flows:
        view = await flows.set(which, **values)
    _say(call, view)
    call.out.result(view)


def _value(name: str, value: str) -> object:
    if not value:
        return None
    if name == "groups":
        return _groups(value)
    if name == "rate":
        return read_rate(value)
    if name in ("most_in_flight", "slots"):
        try:
            number = float(value)
        except ValueError:
            raise UsageError(f"{name}: {value[:80]!a} is no number") from None
        return int(number) if number.is_integer() else number
    return value


def _groups(text: str) -> dict[str, float | str]:
    groups: dict[str, float | str] = {}
    for each in text.split(","):
        name, colon, part = each.partition(":")
        if not colon:
            raise UsageError(f"groups: {each[:80]!a}: write LABEL:PART, as a:odd or a:2")
        if name in groups:
            raise UsageError(f"groups: {name[:80]}: given twice; leave one of them out")
        try:
            groups[name] = float(part)
        except ValueError:
            groups[name] = part
    return groups


async def _pause(call: CommandCall, which: Which) -> None:
    """Load and execute nothing more. Rows that run come to their end."""
    async with _open(call) as flows:
        view = await flows.pause(which)
    _say(call, view)
    call.out.result(view)


async def _resume(call: CommandCall, which: Which) -> None:
    """Go on."""
    async with _open(call) as flows:
        view = await flows.resume(which)
    _say(call, view)
    call.out.result(view)


async def _run(call: CommandCall, which: Which) -> None:
    """Have a round now, beside the schedule."""
    async with _open(call) as flows:
        view = await flows.run(which)
    _say(call, view)
    call.out.result(view)
