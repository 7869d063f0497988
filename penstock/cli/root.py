"""The root of the command line: every command and group by what a person wants to do, and the guards around a run.

A command's module is imported when the command runs, so that none waits for what the others need.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.main import get_group

from penstock.cli.terminal.help import Command, Group
from penstock.cli.terminal.output import Output

WrongArgument: Any = typer.BadParameter.__base__
"""What Typer raises for arguments that it cannot take. It keeps the type itself private."""


class CommandEntry(NamedTuple):
    """A command or group: its name, the module of `penstock.cli` that adds it, and its line in the help."""

    name: str
    module: str
    line: str


COMMANDS = {
    "Start here": (
        CommandEntry("demo", "demo", "Fetch the orders of simulated shops, and prove that none is lost."),
        CommandEntry("doctor", "doctor", "Check this machine, the server and its settings."),
    ),
    "Run nodes": (
        CommandEntry("up", "node", "Run a node: it fetches orders, runs jobs and batches."),
        CommandEntry("work", "node", "Run your own job handlers and batch tasks in this process."),
        CommandEntry("init", "node", "Make or update the streams and buckets on a server."),
        CommandEntry("nodes", "node", "List the nodes that live, and how they fare."),
        CommandEntry("config", "node", "Print the configuration, and where each value comes from."),
    ),
    "Fetch orders from shops": (
        CommandEntry("sources", "sources", "Add, list, pause and remove shops."),
        CommandEntry("adapter", "adapter", "Check and try a file that says how to ask a platform."),
        CommandEntry("settings", "settings", "Change how orders are fetched, live on all nodes."),
        CommandEntry("slices", "holes", "List the time slices that are not finished."),
        CommandEntry("holes", "holes", "List what could not be fetched, and fetch it again."),
        CommandEntry("verify", "verify", "Show which time was read, by whom, and what is missing."),
    ),
    "Run delayed jobs and schedules": (
        CommandEntry("jobs", "jobs", "Add, list, hold and delete jobs, and set up topics."),
        CommandEntry("schedules", "schedules", "Have jobs come again and again, by a clock or at an interval."),
        CommandEntry("outbox", "outbox", "Send the jobs that your database transactions added."),
    ),
    "Run batches of rows": (
        CommandEntry("batch", "batch", "Submit a file or an input, follow it, and get its result."),
    ),
    "Run campaigns over tables": (
        CommandEntry("flows", "flows", "List flows, see their rounds, and change their rate live."),
        CommandEntry("rates", "rates", "Watch what begins each second under each rate, and change rates."),
    ),
    "Run jobs in several zones": (
        CommandEntry("zones", "zones", "List zones, drain one, and see how its shards came."),
        CommandEntry("routing", "routing", "Show, plan and change which zone owns which shard."),
    ),
    "Repair and protect": (
        CommandEntry("dead", "dead", "List what failed for good (dead letters), and send it again."),
        CommandEntry("why", "why", "Say what keeps a job, batch, row or source from running."),
        CommandEntry("tokens", "tokens", "Say who may use the HTTP gateway."),
    ),
}  # fmt: skip # one line a command


class Commands(Group):
    """The commands of the table. Until one runs, its line in the help is all that is known of it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._is_json = False
        for title, entries in COMMANDS.items():
            for entry in entries:
                self.add_command(Command(entry.name, help=entry.line, rich_help_panel=title))

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse what stands before the command. Called by Typer."""
        self._is_json = "--json" in args
        with self._told_to_programs():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Parse the command's own arguments and run it. Called by Typer."""
        with self._told_to_programs():
            return super().invoke(ctx)

    @contextmanager
    def _told_to_programs(self) -> Iterator[None]:
        """With --json, print a wrong argument that Typer finds as JSON, too, as `end_with` does with other errors."""
        try:
            yield
        except WrongArgument as error:
            Output(is_json=self._is_json).result({"error": error.format_message()})
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that is named first, its module imported. Called by Typer."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and command_named(name or ""), rest


def command_named(name: str) -> Any:
    """Import and return the command or group of this name, which is one of the table."""
    (module,) = (entry.module for entries in COMMANDS.values() for entry in entries if entry.name == name)
    alone = typer.Typer(rich_markup_mode=None)
    import_module(f"penstock.cli.{module}").add_to(alone)
    return get_group(alone).commands[name]


app = typer.Typer(
    cls=Commands,
    name="penstock",
    help="Fetch the orders of many shops into your database, run delayed jobs, batches and campaigns, losing none.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(version("penstock"))
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before a command."""


def run() -> None:
    """Run the command line. A closed standard stream does not stop it."""
    guard_descriptors()
    app()


def guard_descriptors() -> None:
    """Open /dev/null in place of a closed stdin, stdout or stderr: else the next socket would take that number, and
    whatever writes to the standard streams would write into it."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
