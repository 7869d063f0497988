"""Talks with the person at the terminal: asks before something is lost, shows how far long work is, knows who it is."""

import getpass
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from penstock.errors import PenstockError, UsageError
from penstock.rows.typed import read_line

__all__ = ["By", "PerSecond", "Yes", "confirm", "progress", "who"]

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
By = Annotated[str, typer.Option("--by", metavar="NAME", help="Who does it; your login if not given.")]
PerSecond = Annotated[float | None, typer.Option(metavar="N", min=0.001, help="At most so many a second.")]


def who(by: str = "") -> str:
    """Return who acts, for the record: the name given, else the login."""
    if by:
        return by[:100]
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return "somebody"


def confirm(question: str, *, is_sure: bool) -> None:
    """Ask before something is lost. Raises UsageError where nobody can answer, PenstockError for a no."""
    if is_sure:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Not asked, since this is no terminal: add --yes")
    typer.echo(f"{question} [y/N]: ", nl=False, err=True)
    if read_line().decode("utf-8", "replace").strip().lower() not in ("y", "yes"):
        raise PenstockError("left as it is")


@contextmanager
def progress(title: str) -> Iterator[Callable[[float], None]]:
    """Show long work on a terminal's stderr. Yield a function that takes the share that is done, from 0 to 1."""
    if not sys.stderr.isatty():
        yield lambda _share: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda share: bar.update(task, completed=min(1.0, max(0.0, share)))
