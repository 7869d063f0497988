"""Text with placeholders such as `{window.start}`: a fixed set, checked when it is loaded, that cannot run code."""

from __future__ import annotations

import re
from collections.abc import Mapping

from platforms.errors import BadDeclaration, nearest

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_ACCOUNT_NAME = re.compile(r"account\.[a-z][a-z0-9_]*")


class Template:
    """Compiled text. `names` are its placeholders in order of appearance."""

    def __init__(self, where: str, text: str, known: frozenset[str]) -> None:
        """BadDeclaration for a placeholder that is neither `known` nor `account.<name>`, and for a stray brace."""
        pieces = _PLACEHOLDER.split(text)
        self._literals, self.names = pieces[::2], tuple(pieces[1::2])
        for literal in self._literals:
            if "{" in literal or "}" in literal:
                raise BadDeclaration(where, f"{text[:60]!r} has a brace that belongs to no placeholder")
        for name in self.names:
            if name not in known and not _ACCOUNT_NAME.fullmatch(name):
                raise BadDeclaration(
                    where, f"unknown placeholder {{{name}}}{nearest(name, {*known, 'account.<name>'})}"
                )

    @property
    def account_names(self) -> tuple[str, ...]:
        return tuple(name.removeprefix("account.") for name in self.names if name.startswith("account."))

    def render(self, values: Mapping[str, str | None]) -> str | None:
        """Return the text, or None when a placeholder has no value this time (a first page has no token)."""
        if not self.names:
            return self._literals[0]
        parts = [self._literals[0]]
        for name, literal in zip(self.names, self._literals[1:], strict=True):
            value = values[name]
            if value is None:
                return None
            parts += (value, literal)
        return "".join(parts)
