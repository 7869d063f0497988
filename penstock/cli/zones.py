"""`penstock zones`: which there are, what they own, and how shards move between them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from actors.runtime.rules.texts import some_of
from penstock.cli.routing import (
    check_drill,
    followed,
    open_zones,
    person,
    say_change,
    say_plan,
    say_report,
    write_drill,
)
from penstock.cli.terminal.call import CommandCall, command
from penstock.cli.terminal.help import Group
from penstock.cli.terminal.output import Output
from penstock.cli.terminal.pages import Limit, behind, say_more
from penstock.errors import UsageError

if TYPE_CHECKING:
    from actors.zone.views import HandoverView, ZoneShown

__all__ = ["add_to", "say_zone"]

MOST_SHOWN = 20
MOST_NODES = 5
DRILL_S = 60.0
"""How long a drill waits for the runs of the new owners."""
Which = Annotated[str, typer.Argument(metavar="ZONE", help="The zone.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would stop and start, and where.")]

Report = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Wait until it is over, and write what it did; as JSON into *.json.")
]


def add_to(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(cls=Group, help="Zones: which shards each owns, and how they move. The role `desk` answers.")
    app.add_typer(group, name="zones")
    command(group, "list")(_list)
    command(group, "show")(_show)
    command(group, "drain")(_drain)
    command(group, "restore")(_restore)


async def _list(call: CommandCall, limit: Limit = None, after: Annotated[str, behind("ZONE")] = "") -> None:
    """List the zones: their shards, their live nodes, and whether they are drained, dead or cut off."""
    async with open_zones(call) as zones:
        views = await zones.list(after=after, limit=limit)
    rows = [
        [view.zone, view.state, view.count, view.shards or "-", f"{view.weight:g}", len(view.nodes)] for view in views
    ]
    call.out.table(
        ["zone", "state", "shards", "which", "weight", "nodes"],
        rows,
        empty="no zones; start nodes with --zone, and make a map with `penstock routing apply FILE`",
    )
    say_more(call.out, views, limit, lambda view: view.zone)
    call.out.result(views)


async def _show(call: CommandCall, which: Which) -> None:
    """Show one: where its jobs are, and how its shards came."""
    async with open_zones(call) as zones:
        shown = await zones.show(which)
    say_zone(call.out, shown)
    call.out.result(shown)


def say_zone(out: Output, shown: "ZoneShown") -> None:
    """Say what a zone has, and how its shards came: those of one job that came from one zone are one line."""
    zone = shown.zone
    nodes = some_of(zone.nodes, MOST_NODES) or "none"
    out.say(f"{zone.zone}: {zone.state}, {zone.count} shards ({zone.shards or 'none'}), nodes: {nodes}")
    if zone.had:
        out.say(f"`penstock zones restore {zone.zone}` gives it back: {zone.had}")
    out.table(
        ["job", "shards", "start", "ahead", "waits for"],
        [[job.job, job.shards, job.start, job.ahead, job.waiting or "-"] for job in shown.jobs],
        empty="no job has saved an offset yet",
    )
    groups: dict[tuple[str, str, int], list[HandoverView]] = {}
    for each in shown.handovers:
        groups.setdefault((each.job, each.before, each.epoch), []).append(each)
    if groups:
        out.table(
            ["job", "came from", "epoch", "shards", "ms", "start", "repeated", "skipped", "forced"],
            [
                [
                    job,
                    before,
                    epoch,
                    len(came),
                    max(each.took_ms for each in came),
                    min(each.start for each in came),
                    sum(each.repeated for each in came),
                    sum(each.skipped for each in came),
                    sum(each.is_forced for each in came),
                ]
                for (job, before, epoch), came in list(groups.items())[:MOST_SHOWN]
            ],
        )


async def _drain(call: CommandCall, which: Which, dry_run: DryRun = False, report: Report = None) -> None:
    """Deal the zone's shards to the others, by their weights."""
    await _steer(call, "drain", which, dry_run, report)


async def _restore(call: CommandCall, which: Which, dry_run: DryRun = False, report: Report = None) -> None:
    """Give a drained zone the shards back that it had."""
    await _steer(call, "restore", which, dry_run, report)


async def _steer(
    call: CommandCall, verb: Literal["drain", "restore"], which: str, dry_run: bool, file: Path | None
) -> None:
    """Change the map. With `file`, wait until the change is over, and write down what it was to do, and did."""
    if dry_run and file is not None:
        raise UsageError("--report: nothing moves with --dry-run; use one of them")
    if file is not None:
        check_drill(file)
    async with open_zones(call) as zones:
        steer = zones.drain if verb == "drain" else zones.restore
        view = await steer(which, dry_run=dry_run, by=person())
        if file is None:
            say_change(call, view)
            return
        say_plan(call.out, view)
        call.if_stopped(lambda: f"the shards move on; `penstock routing report --epoch {view.map.epoch}` says how")
        told = await followed(zones, view.map.epoch, DRILL_S)
    write_drill(file, view, told)
    say_report(call.out, told)
    call.out.result({"plan": view.plan, "report": told})
    if not told.is_over:
        raise typer.Exit(1)
