"""`penstock doctor`: is everything here that a node needs, and what does acknowledged data survive?"""

from typing import Annotated

import typer

from penstock.cli.terminal.call import CommandCall, command
from penstock.node.logs import set_up_logs

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Add the command to the command line."""
    command(app, "doctor")(_doctor)


async def _doctor(
    call: CommandCall,
    profile: Annotated[str | None, typer.Option(metavar="safe|fast", help="What you mean it to survive.")] = None,
    replicas: Annotated[int | None, typer.Option(metavar="N", help="Copies that you mean to have.")] = None,
    monitor: Annotated[str | None, typer.Option(metavar="URL", help="The server's monitoring address.")] = None,
) -> None:
    """Check this machine, the server and its settings. The exit code is 1 if a check fails."""
    from penstock.admin.doctor import examine

    config = call.config(profile=profile, replicas=replicas, monitor=monitor)
    set_up_logs("error", "text")
    checks = await examine(config)
    call.out.table(
        ["", "what", "found", "what to do"],
        [[check.level, check.name, check.found, check.do] for check in checks],
    )
    failed = any(check.level == "fail" for check in checks)
    call.out.result({"ok": not failed, "checks": checks})
    if failed:
        raise typer.Exit(1)
