"""`penstock zones`: which there are, what they own, and how shards move between them."""

from typing import Annotated

import typer

from penstock.cli.call import CommandCall, command
from penstock.cli.help import Group
from penstock.cli.output import moment
from penstock.cli.routing import open_zones, person, say_change

__all__ = ["add_to"]

MOST_SHOWN = 20
Which = Annotated[str, typer.Argument(metavar="ZONE", help="The zone.", show_default=False)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would stop and start, and where.")]


def add_to(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(cls=Group, help="Zones: which shards each owns, and how they move. The role `desk` answers.")
    app.add_typer(group, name="zones")
    command(group, "list")(_list)
    command(group, "show")(_show)
    command(group, "drain")(_drain)
    command(group, "restore")(_restore)


async def _list(call: CommandCall) -> None:
    """List the zones: their shards, their live nodes, and whether they are drained or dead."""
    async with open_zones(call) as zones:
        views = await zones.list()
    rows = [
        [view.zone, view.state, view.count, view.shards or "-", f"{view.weight:g}", len(view.nodes)] for view in views
    ]
    call.out.table(
        ["zone", "state", "shards", "which", "weight", "nodes"],
        rows,
        empty="no zones; start nodes with --zone, and make a map with `penstock routing apply FILE`",
    )
    call.out.result(views)


async def _show(call: CommandCall, which: Which) -> None:
    """Show one: where its jobs are, and how its shards came."""
    async with open_zones(call) as zones:
        shown = await zones.show(which)
    zone = shown.zone
    nodes = ", ".join(zone.nodes) or "none"
    call.out.say(f"{zone.zone}: {zone.state}, {zone.count} shards ({zone.shards or 'none'}), nodes: {nodes}")
    if zone.had:
        call.out.say(f"`penstock zones restore {zone.zone}` gives it back: {zone.had}")
    call.out.table(
        ["job", "shards", "start", "ahead", "waits for"],
        [[job.job, job.shards, job.start, job.ahead, job.waiting or "-"] for job in shown.jobs],
        empty="no job has saved an offset yet",
    )
    if shown.handovers:
        call.out.table(
            ["job", "shard", "from", "epoch", "when", "took", "start", "repeated", "skipped", "forced"],
            [
                [
                    each.job,
                    each.shard,
                    each.before,
                    each.epoch,
                    moment(each.taken_ms),
                    f"{each.took_ms} ms",
                    each.start,
                    each.repeated,
                    each.skipped,
                    "yes" if each.is_forced else "-",
                ]
                for each in shown.handovers[:MOST_SHOWN]
            ],
        )
    call.out.result(shown)


async def _drain(call: CommandCall, which: Which, dry_run: DryRun = False) -> None:
    """Deal the zone's shards to the others, by their weights."""
    async with open_zones(call) as zones:
        view = await zones.drain(which, dry_run=dry_run, by=person())
    say_change(call, view)


async def _restore(call: CommandCall, which: Which, dry_run: DryRun = False) -> None:
    """Give a drained zone the shards back that it had."""
    async with open_zones(call) as zones:
        view = await zones.restore(which, dry_run=dry_run, by=person())
    say_change(call, view)
