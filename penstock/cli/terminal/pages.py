"""Lists a page at a time: their options, and what people are told of the next page."""

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import typer

from penstock.cli.terminal.output import Output

__all__ = ["Limit", "behind", "page", "say_more"]

Limit = Annotated[int | None, typer.Option("-n", "--limit", metavar="N", min=1, help="At most so many.")]
_T = TypeVar("_T")


def behind(metavar: str) -> Any:
    """Return the option `--after` of a list whose lines have a place of this form."""
    return typer.Option("--after", metavar=metavar, help="Only those behind this one.")


def page(lines: Sequence[_T], limit: int | None, is_behind: Callable[[_T], bool]) -> list[_T]:
    """Return the lines of a list that was read whole, those that are `is_behind` and at most `limit`."""
    return [line for line in lines if is_behind(line)][:limit]


def say_more(out: Output, lines: Sequence[_T], limit: int | None, place: Callable[[_T], object]) -> None:
    """Say how the list goes on, if it may, to programs beside their plain list. `place`: of a line."""
    if lines and len(lines) == limit:
        more = f"there may be more: --after {place(lines[-1])}"
        if out.is_json:
            print(more, file=sys.stderr)
        else:
            out.say(more)
