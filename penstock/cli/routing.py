"""`penstock routing`: the shard map, what a change of it would do, and its history."""

import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from penstock.cli.call import CommandCall, command
from penstock.cli.help import Group
from penstock.cli.output import moment
from penstock.errors import UsageError

if TYPE_CHECKING:
    from actors.zone.desk import ChangeView, MapView
    from penstock.sdk.client_zones import ZoneCalls

__all__ = ["add_to", "open_zones", "person", "say_change"]

ASK_S = 10.0

MapFile = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="A whole map (TOML): shards, zones.", show_default=False)
]
Moves = Annotated[
    list[str] | None, typer.Option("--move", metavar="SHARD=ZONE", help="Move one shard; may come more than once.")
]
Weights = Annotated[
    list[str] | None, typer.Option("--weight", metavar="ZONE=N", help="How much a zone takes when shards are dealt.")
]
Earlier = Annotated[int | None, typer.Option("--epoch", metavar="N", help="Go back to the owners of this epoch.")]
Balance = Annotated[bool, typer.Option("--balance", help="Deal shards by weight, with as few moves as that needs.")]
Drain = Annotated[str | None, typer.Option(metavar="SPAN", help="How long the former owner may finish its batch.")]
Takeover = Annotated[
    str | None, typer.Option(metavar="SPAN", help="Deal a dead zone's shards after this; `never`: a person does.")
]
IfEpoch = Annotated[int | None, typer.Option("--if-epoch", metavar="N", help="Only if this epoch is in force.")]


def add_to(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(cls=Group, help="The shard map: which zone owns which shard. The role `desk` answers.")
    app.add_typer(group, name="routing")
    command(group, "show")(_show)
    command(group, "plan")(
        _changing(
            "plan", "Say what a change would do: who stops and starts, from which offset, and how much is repeated."
        )
    )
    command(group, "apply")(_changing("apply", "Change the map. Each change is the next epoch."))
    command(group, "history")(_history)


@asynccontextmanager
async def open_zones(call: CommandCall) -> "AsyncIterator[ZoneCalls]":
    """Connect, and give the calls."""
    async with call.session() as session:
        from penstock.sdk.calls import ServiceClient
        from penstock.sdk.client_zones import ZoneCalls

        yield ZoneCalls(ServiceClient(session.connection, "zones", ASK_S))


def person() -> str:
    """Return who calls, for the history."""
    import getpass

    try:
        return getpass.getuser()[:64]
    except (KeyError, OSError):  # no such user
        return ""


async def _show(call: CommandCall) -> None:
    """Show the map in force."""
    async with open_zones(call) as zones:
        view = await zones.routing()
    call.out.say(f"epoch {view.epoch}: {_cut(view)}; {view.why}{f', by {view.by}' if view.by else ''}")
    call.out.say(f"drain = {view.drain}, takeover = {view.takeover or 'never'}")
    call.out.table(
        ["zone", "weight", "shards", "gets back"],
        [
            [zone, f"{view.weights[zone]:g}", text or "-", view.drained.get(zone, "-")]
            for zone, text in view.zones.items()
        ],
    )
    call.out.result(view)


def _cut(view: "MapView") -> str:
    return f"{view.shards} regions" if view.function == "region" else f"{view.shards} shards by {view.function}"


def _changing(verb: Literal["plan", "apply"], about: str) -> Callable[..., Awaitable[None]]:
    """Return the command that plans a change, or the one that makes it: their options are the same."""

    async def change(
        call: CommandCall,
        file: MapFile = None,
        move: Moves = None,
        weight: Weights = None,
        epoch: Earlier = None,
        balance: Balance = False,
        drain: Drain = None,
        takeover: Takeover = None,
        if_epoch: IfEpoch = None,
    ) -> None:
        wanted = _change(file, move, weight, epoch, balance, drain, takeover) | {"if_epoch": if_epoch}
        async with open_zones(call) as zones:
            view = await (zones.plan(**wanted) if verb == "plan" else zones.apply(by=person(), **wanted))
        say_change(call, view)

    change.__doc__ = about
    return change


def _change(
    file: Path | None,
    move: list[str] | None,
    weight: list[str] | None,
    epoch: int | None,
    balance: bool,
    drain: str | None,
    takeover: str | None,
) -> dict[str, Any]:
    change: dict[str, Any] = {
        "map": None if file is None else _document(file),
        "moves": dict(_pair("--move", text, "SHARD=ZONE") for text in move or ()),
        "weights": dict(_weight(text) for text in weight or ()),
        "epoch": epoch,
        "balance": balance,
        "drain": drain,
        "takeover": takeover,
    }
    if not any(value for value in change.values()) and epoch is None:
        raise UsageError("say what to change: a FILE, --move, --weight, --balance, --epoch, --drain or --takeover")
    if file is not None and sum(bool(value) for value in change.values()) > 1:
        raise UsageError(f"{file}: is a whole map; write weights, drain and takeover into it, and no other option")
    return change


def _document(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{file}: not TOML: {error}") from error


def _pair(option: str, text: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise UsageError(f"{option}: {text[:80]!a}: write {form}")
    return name, value


def _weight(text: str) -> tuple[str, float]:
    zone, number = _pair("--weight", text, "ZONE=N")
    try:
        return zone, float(number)
    except ValueError:
        raise UsageError(f"--weight: {zone}: {number[:40]!a} is no number") from None


def say_change(call: CommandCall, view: "ChangeView") -> None:
    """Say what a change does, or did."""
    plan = view.plan
    if not plan.moves:
        call.out.say(f"epoch {view.map.epoch}: no shard moves")
    else:
        done = (
            f"epoch {view.map.epoch} is in force"
            if view.is_applied
            else f"epoch {view.map.epoch} would follow {plan.epoch}"
        )
        call.out.say(f"{done}: {len(plan.moves)} shard{'s move' if len(plan.moves) > 1 else ' moves'}")
        call.out.table(
            ["zone", "gives", "gets", "then owns"],
            [[zone.zone, zone.gives or "-", zone.gets or "-", zone.shards] for zone in plan.zones],
        )
        if plan.starts:
            call.out.table(
                ["job", "starts in", "from", "repeats at most"],
                [[start.job, start.zone, start.start, start.repeated] for start in plan.starts],
            )
        if plan.goes_on:
            call.out.say(f"go on without a stop: {', '.join(plan.goes_on)}")
    call.out.result(view)


async def _history(call: CommandCall) -> None:
    """List the kept maps, the newest first. `penstock routing apply --epoch N` goes back to one."""
    async with open_zones(call) as zones:
        maps = await zones.history()
    call.out.table(
        ["epoch", "when", "by", "why", "zones"],
        [
            [
                each.epoch,
                moment(each.changed_ms),
                each.by or "-",
                each.why,
                " ".join(f"{zone}:{text or '-'}" for zone, text in each.zones.items()),
            ]
            for each in maps
        ],
        empty="no map yet; make one with `penstock routing apply FILE`",
    )
    call.out.result(maps)
