"""The root of the command line: every command group, and the guards around a run."""

from typing import Annotated

import typer

from penstock.cli import batch, dead, demo, doctor, holes, jobs, node, outbox, settings, sources, tokens, verify
from penstock.node.logs import guard_descriptors

app = typer.Typer(
    name="penstock",
    help="Brings the orders of many shops on many platforms into your database, without losing one.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

node.add_to(app)
demo.add_to(app)
doctor.add_to(app)
settings.add_to(app)
sources.add_to(app)
holes.add_to(app)
dead.add_to(app)
jobs.add_to(app)
batch.add_to(app)
outbox.add_to(app)
tokens.add_to(app)
verify.add_to(app)


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
    """Run the command line; a standard stream that is closed does not stop it."""
    guard_descriptors()
    app()
