"""`penstock demo`: simulated shops, everything else real, and a verdict."""

from typing import Annotated

import typer

from penstock.cli.terminal.call import CommandCall, command

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Add the command to the command line."""
    command(app, "demo")(_demo)


async def _demo(
    call: CommandCall,
    orders: Annotated[int, typer.Option(min=1, max=1_000_000, help="Orders of all platforms together.")] = 20_000,
    platforms: Annotated[int, typer.Option(min=1, max=20, help="Simulated platforms, one shop each.")] = 3,
    nodes: Annotated[int, typer.Option(min=1, max=8, help="Node processes.")] = 2,
    kill: Annotated[bool, typer.Option("--kill", help="Kill -9 each node at random, three times at least.")] = False,
    seed: Annotated[int, typer.Option(help="Of the shops' orders.")] = 7,
) -> None:
    """Pull the orders of simulated shops into SQLite, and compare: every order there, none twice."""
    from rich.console import Console
    from rich.live import Live

    from penstock.demo.run import Options, run_demo
    from penstock.demo.watch import Picture, drawn
    from penstock.node.logs import set_up_logs

    config = call.config()
    set_up_logs("error", "text")
    options = Options(orders=orders, platforms=platforms, nodes=nodes, kill=kill, seed=seed)
    console = Console(stderr=True)
    with Live(console=console, refresh_per_second=4, transient=True) as live:

        def show(picture: Picture) -> None:
            live.update(drawn(picture))

        report = await run_demo(config, options, show)
    call.out.table(
        ("made", "stored", "missing", "doubled", "holes", "nodes killed", "slices", "retried", "seconds", "orders/s"),
        [
            (
                report.made,
                report.stored,
                report.missing,
                report.doubled,
                report.holes,
                report.killed,
                report.slices,
                report.retried,
                report.seconds,
                report.orders_per_second,
            )
        ],
    )
    call.out.say(
        f"{report.requests} requests, of which the shops spoilt {report.faults}; {report.versions} versions of "
        f"{report.stored} orders in {report.database}"
    )
    for example in report.examples:
        call.out.say(example)
    call.out.say("every order is there, none twice" if report.ok else f"not whole: {report.reason or 'see above'}")
    call.out.result(report)
    raise typer.Exit(0 if report.ok else 1)
