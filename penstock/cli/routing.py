"""`penstock routing`: the shard map, what a change of it would do, and its history."""

import math
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from actors.runtime.rules.texts import some_of
from penstock.cli.terminal.call import CommandCall, command
from penstock.cli.terminal.help import Group
from penstock.cli.terminal.output import Output, moment
from penstock.cli.terminal.pages import Limit, behind, say_more
from penstock.errors import UsageError

if TYPE_CHECKING:
    from actors.zone.rules.report import MoveReport
    from actors.zone.views import ChangeView, MapView
    from penstock.sdk.client_zones import ZoneCalls

__all__ = [
    "add_to",
    "check_drill",
    "followed",
    "open_zones",
    "person",
    "say_change",
    "say_history",
    "say_map",
    "say_plan",
    "say_report",
    "weight_of",
    "write_drill",
]

V = TypeVar("V")
ASK_S = 10.0
MOST_NAMED = 3
LOOK_S = 0.2
"""Between two looks at a change that is followed."""

MapFile = Annotated[Path | None, typer.Argument(metavar="FILE", help="A whole map (TOML): shards, zones.")]
Moves = Annotated[
    list[str] | None, typer.Option("--move", metavar="SHARD=ZONE", help="Move one shard; may come more than once.")
]
Weights = Annotated[
    list[str] | None, typer.Option("--weight", metavar="ZONE=N", help="How much a zone takes when shards are dealt.")
]
Reported = Annotated[int | None, typer.Option("--epoch", metavar="N", help="Of this epoch, not the last one.")]
Wait = Annotated[str | None, typer.Option("--wait", metavar="SPAN", help="Wait until it is over; exit 1 if it is not.")]
Earlier = Annotated[int | None, typer.Option("--epoch", metavar="N", help="Go back to the owners of this epoch.")]
FromZone = Annotated[
    bool, typer.Option("--from-zone", help="Make a lost hub's map again, from that of this terminal's zone.")
]
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
    command(group, "report")(_report)


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
    say_map(call.out, view)
    call.out.result(view)


def say_map(out: Output, view: "MapView") -> None:
    """Say which zone owns what."""
    out.say(f"epoch {view.epoch}: {_cut(view)}")
    out.say(f"{view.why}{f', by {view.by}' if view.by else ''}")
    out.say(f"drain = {view.drain}, takeover = {view.takeover or 'never'}")
    out.table(
        ["zone", "weight", "shards", "gets back"],
        [
            [zone, f"{view.weights[zone]:g}", text or "-", view.drained.get(zone, "-")]
            for zone, text in view.zones.items()
        ],
    )


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
        from_zone: FromZone = False,
        balance: Balance = False,
        drain: Drain = None,
        takeover: Takeover = None,
        if_epoch: IfEpoch = None,
    ) -> None:
        wanted = _change(file, move, weight, epoch, from_zone, balance, drain, takeover) | {"if_epoch": if_epoch}
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
    from_zone: bool,
    balance: bool,
    drain: str | None,
    takeover: str | None,
) -> dict[str, Any]:
    change: dict[str, Any] = {
        "map": None if file is None else _document(file),
        "moves": _each_once("--move", [_pair("--move", text, "SHARD=ZONE") for text in move or ()]),
        "weights": _each_once("--weight", [weight_of(text) for text in weight or ()]),
        "epoch": epoch,
        "from_zone": from_zone,
        "balance": balance,
        "drain": drain,
        "takeover": takeover,
    }
    if not any(value for value in change.values()) and epoch is None and file is None:
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


def _each_once(option: str, pairs: "Sequence[tuple[str, V]]") -> dict[str, V]:
    found: dict[str, V] = {}
    for name, value in pairs:
        if found.setdefault(name, value) != value:
            raise UsageError(f"{option}: {name[:40]}: is given twice, as {found[name]} and as {value}; use one of them")
    return found


def _pair(option: str, text: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise UsageError(f"{option}: {text[:80]!a}: write {form}")
    return name, value


def weight_of(text: str) -> tuple[str, float]:
    """Return the zone and its weight. Raises UsageError."""
    from actors.zone.rules.routing import BadMap, check_weights

    zone, number = _pair("--weight", text, "ZONE=N")
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight):
        raise UsageError(f"--weight: {zone}: {number[:40]!a} is no number")
    try:
        check_weights({zone: weight})
    except BadMap as error:
        raise UsageError(f"--weight: {error}") from error
    return zone, weight


def say_change(call: CommandCall, view: "ChangeView") -> None:
    """Say what a change does, or did."""
    say_plan(call.out, view)
    call.out.result(view)


def say_plan(out: Output, view: "ChangeView") -> None:
    """Say it to people."""
    _say_moves(out, view)
    if left_out := [move.shard for move in view.plan.moves if not move.after]:
        out.say(f"no zone has {some_of(left_out, MOST_NAMED)} any more: rows of these regions wait for one that does")
    for zone in view.nodeless:
        out.say(f"zone {zone} has no live node: its new shards wait for one")


def _say_moves(out: Output, view: "ChangeView") -> None:
    plan = view.plan
    if not plan.moves:
        out.say(f"epoch {view.map.epoch}: no shard moves")
        return
    done = (
        f"epoch {view.map.epoch} is in force"
        if view.is_applied
        else f"epoch {view.map.epoch} would follow {plan.epoch}"
    )
    out.say(f"{done}: {len(plan.moves)} shard{'s move' if len(plan.moves) > 1 else ' moves'}")
    out.table(
        ["zone", "gives", "gets", "then owns"],
        [[zone.zone, zone.gives or "-", zone.gets or "-", zone.shards] for zone in plan.zones],
    )
    if plan.starts:
        out.table(
            ["job", "starts in", "from", "repeats at most"],
            [[start.job, start.zone, start.start, start.repeated] for start in plan.starts],
        )
    if plan.goes_on:
        out.say(f"go on without a stop: {', '.join(plan.goes_on)}")


async def _history(
    call: CommandCall, limit: Limit = None, after: Annotated[int | None, behind("EPOCH")] = None
) -> None:
    """List the kept maps, the newest first. `penstock routing apply --epoch N` goes back to one."""
    async with open_zones(call) as zones:
        maps = await zones.history(before=after, limit=limit)
    say_history(call.out, maps)
    say_more(call.out, maps, limit, lambda shards: shards.epoch)
    call.out.result(maps)


def say_history(out: Output, maps: "Sequence[MapView]") -> None:
    """Say which maps there were."""
    out.table(
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


async def _report(call: CommandCall, epoch: Reported = None, wait: Wait = None) -> None:
    """Say how a change of the map went: what was taken, how fast, and how many rows came again."""
    async with open_zones(call) as zones:
        report = await followed(zones, epoch, 0.0 if wait is None else _wait_s(wait))
    say_report(call.out, report)
    call.out.result(report)
    if wait is not None and not report.is_over:
        raise typer.Exit(1)


def _wait_s(text: str) -> float:
    from actors.runtime.rules.setting_values import span_ms

    return span_ms("wait", text) / 1000


async def followed(zones: "ZoneCalls", epoch: int | None, within_s: float) -> "MoveReport":
    """Return the report of a change once it is over, or as it is after so long."""
    import anyio

    from streams.clock import monotonic_s

    until_s = monotonic_s() + within_s
    while True:
        report = await zones.report(epoch)
        if report.is_over or monotonic_s() >= until_s:
            return report
        await anyio.sleep(LOOK_S)


def say_report(out: Output, report: "MoveReport") -> None:
    """Say how a change went."""
    who = f", by {report.by}" if report.by else ""
    out.say(f"epoch {report.epoch}, {moment(report.changed_ms)}: {report.why}{who}")
    told = "it is over" if report.is_over else "it is not over yet"
    shards = "1 shard" if report.shards == 1 else f"{report.shards} shards"
    out.say(f"{told}: {shards}, the last one taken after {report.took_ms} ms")
    out.say(f"rows repeated: {report.repeated}, skipped: {report.skipped}")
    out.table(
        ["job", "now in", "taken", "waits for", "from", "ms", "repeated", "forced"],
        [
            [
                each.job,
                each.zone,
                each.taken,
                each.waiting or "-",
                each.start,
                each.took_ms,
                each.repeated,
                each.forced,
            ]
            for each in report.taken
        ],
        empty="no job has saved an offset in these shards",
    )


def check_drill(path: Path) -> None:
    """Raise UsageError if the report cannot be written there. Called before anything moves."""
    try:
        with path.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise UsageError(f"--report: {path}: {error.strerror}; nothing was moved") from error


def write_drill(path: Path, view: "ChangeView", report: "MoveReport") -> None:
    """Write what a change was expected to do, and what it did: as JSON if the name ends so, else as text."""
    import msgspec

    try:
        with path.open("w", encoding="utf-8") as file:
            if path.suffix == ".json":
                file.write(msgspec.json.encode({"plan": view.plan, "report": report}).decode() + "\n")
            else:
                out = Output(is_json=False, is_wide=True, file=file)
                say_plan(out, view)
                say_report(out, report)
    except OSError as error:
        raise UsageError(f"--report: {path}: {error.strerror}") from error
