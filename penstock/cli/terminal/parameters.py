"""The plain values of a command's parameters, taken as they are.

Typer converts each value by Pydantic, whose import takes more CPU than most commands. Values without conversion (text,
a choice, a default) and numbers in digits are taken here. All others are left to Typer, also wrong ones.
"""

import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import typer

from penstock.errors import UsageError

TIMES = {"SPAN": "a number with its unit, as 30s or 2h", "TIME": "a moment, as 2026-12-24T08:00:00Z"}
"""What stands behind an option, by its name in the help. An empty one, from an unset variable of a script,
would mean at once."""
NUMBERS = {int: re.compile(r"-?[0-9]{1,15}"), float: re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?")}


class NotPlain(Exception):
    """The value is Typer's to convert, or to refuse."""


def take_plain_values(parameters: list[Any]) -> list[Any]:
    """Have parameters of Typer's take plain values as they are, and return them. A repeat does nothing."""
    for parameter in parameters:
        if "get_runtime_param" not in vars(parameter):
            first = PlainFirst(parameter.get_runtime_param)
            parameter.get_runtime_param = partial(_itself, first)
    return parameters


class PlainFirst(NamedTuple):
    """Stands where Typer keeps the conversion of a parameter. `typers` returns Typer's own."""

    typers: Callable[[], Any]

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the converted value. Called by Typer. `value` is None if the parameter was not given."""
        is_many = param.multiple or param.nargs == -1
        if value is None:
            return () if is_many else None
        # a script's unset variable
        if value == "" and getattr(param, "metavar", None) in TIMES and _is_given(param, ctx):
            raise typer.BadParameter(f"is empty; write {TIMES[param.metavar]}, or leave the option out", ctx, param)
        kind = param.type_descriptor.annotation
        try:
            if is_many:
                return [plain(each, *get_args(kind)) for each in value]
            return plain(value, kind, getattr(param, "min", None), getattr(param, "max", None))
        except NotPlain:
            return self.typers().coerce(value, param=param, ctx=ctx)


def plain(value: object, kind: Any, low: float | None = None, high: float | None = None) -> object:
    """Return the value as a `kind`. Raises NotPlain for what needs more than that, and for a number out of bounds."""
    if get_origin(kind) is Literal and value in get_args(kind):
        return value
    if not isinstance(kind, type):
        raise NotPlain
    if isinstance(value, kind):
        return value
    if isinstance(value, str) and kind is Path:
        return Path(value)
    if not isinstance(value, str) or kind not in NUMBERS or not NUMBERS[kind].fullmatch(value):
        raise NotPlain
    number: float = kind(value)
    if (low is not None and number < low) or (high is not None and number > high):
        raise NotPlain
    return number


def read_values(texts: Iterable[str], form: str, example: str) -> dict[str, str]:
    """Return texts such as `ttr=2m` as a table. Raises UsageError for one that is none, and for a name given twice."""
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{text[:80]!a}: write {form}, as {example}")
        if name in values:
            raise UsageError(f"{name[:80]}: given twice; leave one of them out")
        values[name] = value
    return values


def _is_given(param: Any, ctx: Any) -> bool:
    source = ctx.get_parameter_source(param.name)
    return source is not None and source.name == "COMMANDLINE"


def _itself(first: PlainFirst) -> PlainFirst:
    return first
