"""Text with placeholders such as `{window.start}`: a fixed set, checked when it is loaded, that cannot run code.

`{{` and `}}` are braces. In JSON, a value that is one placeholder keeps its kind, so that a number stays a number.
`{name:text}` and `{name:number}` say which kind it has there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from platforms.errors import BadDeclaration, nearest

_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
_ACCOUNT_NAME = re.compile(r"account\.[a-z][a-z0-9_]*")
_NUMBER = re.compile(r"-?\d{1,19}", re.ASCII)
_KINDS = ("", "text", "number")


class KeyList(list[str]):
    """Keys: a list in JSON, a joined text anywhere else."""

    def __init__(self, keys: Iterable[str], join: str) -> None:
        super().__init__(keys)
        self._join = join

    def __str__(self) -> str:
        return self._join.join(self)


Values = Mapping[str, str | int | KeyList | None]
LEFT_OUT: Any = object()
"""The value of a JSON field whose placeholder has no value this time."""


class Template:
    """Compiled text. `names` are its placeholders in order of appearance."""

    def __init__(self, where: str, text: str, known: frozenset[str]) -> None:
        """BadDeclaration for a placeholder that is neither `known` nor `account.<name>`, and for a stray brace."""
        self._where = where
        self._literals, holes = _pieces(where, text)
        self.names: tuple[str, ...] = tuple(hole.partition(":")[0] for hole in holes)
        self._kinds = tuple(hole.partition(":")[2] for hole in holes)
        for name, kind in zip(self.names, self._kinds, strict=True):
            if name not in known and not _ACCOUNT_NAME.fullmatch(name):
                raise BadDeclaration(
                    where, f"unknown placeholder {{{name}}}{nearest(name, {*known, 'account.<name>'})}"
                )
            if kind not in _KINDS:
                raise BadDeclaration(where, f"{{{name}:{kind}}} is no kind of value; write :text or :number")

    @property
    def account_names(self) -> tuple[str, ...]:
        return tuple(name.removeprefix("account.") for name in self.names if name.startswith("account."))

    def render(self, values: Values) -> str | None:
        """Return the text, or None when a placeholder has no value this time (a first page has no token)."""
        if not self.names:
            return self._literals[0]
        parts = [self._literals[0]]
        for name, literal in zip(self.names, self._literals[1:], strict=True):
            value = values[name]
            if value is None:
                return None
            parts += (str(value), literal)
        return "".join(parts)

    def render_json(self, values: Values) -> Any:
        """Return the value for JSON, LEFT_OUT when a placeholder has none. BadDeclaration for a number that is none."""
        if len(self.names) != 1 or any(self._literals):
            text = self.render(values)
            return LEFT_OUT if text is None else text
        value, kind = values[self.names[0]], self._kinds[0]
        if value is None:
            return LEFT_OUT
        if kind == "number" and isinstance(value, str):
            if not _NUMBER.fullmatch(value):
                raise BadDeclaration(self._where, f"{{{self.names[0]}:number}} is no whole number")
            return int(value)
        return str(value) if kind == "text" else value


def _pieces(where: str, text: str) -> tuple[list[str], list[str]]:
    """Return the texts between the placeholders, with braces as they are meant, and what the placeholders hold."""
    literals, holes, at = [""], list[str](), 0
    for found in _PIECE.finditer(text):
        literals[-1] += _plain(where, text, text[at : found.start()])
        if found[1] is None:
            literals[-1] += found[0][0]
        else:
            holes.append(found[1])
            literals.append("")
        at = found.end()
    literals[-1] += _plain(where, text, text[at:])
    return literals, holes


def _plain(where: str, text: str, literal: str) -> str:
    if "{" in literal or "}" in literal:
        raise BadDeclaration(
            where, f"{text[:60]!r} has a brace that belongs to no placeholder; write {{{{ or }}}} for a brace"
        )
    return literal
