"""`penstock rates`: how many a second may begin of what, how many do, and how that is changed."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.shown.rate_seconds import levels_of, nodes_text, rate_text, sparkline
from penstock.cli.terminal.call import TAKES_TIMES, CommandCall, command
from penstock.cli.terminal.help import Group
from penstock.cli.terminal.output import moment
from penstock.cli.terminal.pages import Limit, behind
from penstock.errors import UsageError

if TYPE_CHECKING:
    from actors.flow.rates_desk import RatesView, RateView
    from penstock.sdk.client_rates import RateCalls

__all__ = ["add_to"]

ASK_S = 10.0
SHOWN = 60
"""Seconds that `show` draws."""
PER = {"s": 1, "m": 60, "h": 3_600}
Which = Annotated[str, typer.Argument(metavar="[KIND/]NAME", help="As topic/mail, task/tag or source/mall/s1.")]


def add_to(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(
        cls=Group,
        help="Rates of topics, flows, tasks, platforms, sources, by the second. The role `desk` answers.",
    )
    app.add_typer(group, name="rates")
    command(group, "list")(_list)
    command(group, "show")(_show)
    command(group, "set", context=TAKES_TIMES)(_set)
    command(group, "watch")(_watch)
    command(group, "report")(_report)


@asynccontextmanager
async def _open(call: CommandCall) -> "AsyncIterator[RateCalls]":
    async with call.session() as session:
        from penstock.sdk.calls import ServiceClient
        from penstock.sdk.client_rates import RateCalls

        yield RateCalls(ServiceClient(session.connection, "rates", ASK_S))


async def _list(call: CommandCall, limit: Limit = None, after: Annotated[str, behind("KIND/NAME")] = "") -> None:
    """List every rate: its target, and what was begun in the last full second and in ten."""
    async with _open(call) as rates:
        view = await rates.list(after=after, limit=limit)
    rows = [
        [
            f"{each.kind}/{each.name}",
            rate_text(each.rate),
            each.last,
            f"{each.mean:g}",
            sum(node.share > 0 for node in each.nodes),
            "yes" if any(node.is_waiting for node in each.nodes) else "no",
        ]
        for each in view.rates
    ]
    columns = ["name", "rate", "last second", "10 s mean", "nodes", "more waits"]
    call.out.table(columns, rows, empty="no rates; `penstock rates set topic/NAME 100` sets one")
    if view.next:
        call.out.say(f"there may be more: --after {view.next}")
    _say_slots(call, view)
    _say_nodes(call, view)
    call.out.result(view)


async def _show(call: CommandCall, which: Which) -> None:
    """Show one: its nodes with their shares, and each second of the last minute."""
    kind, name = _named(which)
    async with _open(call) as rates:
        view = await rates.show(name, kind=kind, seconds=SHOWN)
    [one] = view.rates
    call.out.say(f"{one.kind}/{one.name}: {rate_text(one.rate)}, {one.last} begun in the last full second")
    if one.rate:
        call.out.say(f"last minute: {_drawn(one)}")
    columns = ["node", "share", "last second", "more waits"]
    nodes = [[each.node, f"{each.share:g}", each.begun, "yes" if each.is_waiting else "no"] for each in one.nodes]
    call.out.table(columns, nodes, empty="no node has begun anything under it lately")
    _say_slots(call, view)
    _say_nodes(call, view)
    call.out.result(view)


async def _set(
    call: CommandCall,
    which: Which,
    rate: Annotated[
        str, typer.Argument(metavar="RATE", help="500, 0.5, 1/m, 10/h, 0: no limit; `default`: the code's.")
    ],
) -> None:
    """Change a rate, live on all nodes."""
    (kind, name), per_s = _named(which), read_rate(rate)
    async with _open(call) as rates:
        changed = await rates.set(name, per_s, kind=kind)
    before, now = rate_text(changed.before), rate_text(changed.rate)
    call.out.say(f"{changed.kind}/{changed.name}: {now}, before {before}")
    call.out.result(changed)


async def _watch(
    call: CommandCall,
    which: Annotated[str, typer.Argument(metavar="[[KIND/]NAME]", help="Only this one.")] = "",
    seconds: Annotated[
        int, typer.Option(metavar="N", min=1, help="End after so many.", show_default=False)
    ] = sys.maxsize,
) -> None:
    """Follow rates: each second's count against its target. In a pipe, a line a second."""
    from penstock.cli.shown.rates_watch import lines, live_table

    async with _open(call) as rates:
        ask = await _asking(rates, which)
        follow = live_table if sys.stdout.isatty() and not call.out.is_json else lines
        await follow(call.out, ask, seconds)


async def _report(
    call: CommandCall,
    which: Which,
    seconds: Annotated[int, typer.Option(metavar="N", min=1, max=86_400, help="How long to look.")] = 60,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw target and actual (penstock[charts]).")] = None,
) -> None:
    """Count for some seconds, and say how near the target they were."""
    from penstock.cli.shown.rates_report import collect, report_of

    if svg is not None:
        from penstock.cli.shown.rates_chart import check_chart, draw

        check_chart(svg)
    async with _open(call) as rates:
        seen = await collect(await _asking(rates, which), seconds)
    report = report_of(seen)
    call.out.say(
        f"{report.name}: {report.seconds} seconds from {moment(report.began_ms)}, target {rate_text(report.rate)}"
    )
    call.out.say(f"least {report.least}, most {report.most}, mean {report.mean:g} a second")
    call.out.say(f"within 1 % of the target: {report.near:.1%} of the seconds; above it: {report.above}")
    if report.unheard:
        call.out.say(f"in {report.unheard} seconds not all nodes answered, so more may have begun")
    if svg is not None:
        draw(report, svg)
        call.out.say(f"wrote {svg}")
    call.out.result(report)


async def _asking(rates: "RateCalls", which: str) -> "Callable[[int], Awaitable[RatesView]]":
    """Return what to ask for each second. Raises UsageError if nothing would be counted."""
    if not which:
        return rates.list
    kind, name = _named(which)
    [one] = (await rates.show(name, kind=kind, seconds=1)).rates
    if not one.rate:
        full = f"{one.kind}/{one.name}"
        raise UsageError(f"{full}: has no rate, so nothing is counted; `penstock rates set {full} 100` sets one")

    async def ask(seconds: int) -> "RatesView":
        return await rates.show(one.name, kind=one.kind, seconds=seconds)

    return ask


def _say_slots(call: CommandCall, view: "RatesView") -> None:
    """Show the keys of which slots are taken."""
    if not view.slots:
        return
    rows = [
        [
            f"{one.kind}/{one.name}",
            one.key or "-",
            f"{one.taken} of {one.most}",
            one.waiting,
            ", ".join(f"{node} {count}" for node, count in one.nodes.items()) or "-",
        ]
        for one in view.slots
    ]
    call.out.table(["slots of", "key", "taken", "waiting", "by"], rows)
    if view.keys > len(view.slots):
        call.out.say(f"and {view.keys - len(view.slots)} more keys")


def _say_nodes(call: CommandCall, view: "RatesView") -> None:
    for line in nodes_text(view):
        call.out.say(line)


def _drawn(one: "RateView") -> str:
    return sparkline([(begun, one.rate) for begun in one.begun], levels_of(sys.stdout))


def _named(which: str) -> tuple[str, str]:
    kind, slash, name = which.partition("/")
    return (kind, name) if slash else ("", kind)


def read_rate(text: str) -> float | None:
    """Return what a person wrote as a rate a second. None: the default. Raises UsageError."""
    if text == "default":
        return None
    number, slash, unit = text.partition("/")
    try:
        per_s = float(number) / PER[unit if slash else "s"]
    except (ValueError, KeyError):
        raise UsageError(f"rate: {text[:80]!a}: use a number a second, as 500 or 0.5, or 1/m, 10/h, default") from None
    if not 0 <= per_s < float("inf"):
        raise UsageError(f"rate: {text[:80]!a}: use a number from 0 on; 0 is no limit")
    return per_s
