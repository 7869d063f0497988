"""JSON with placeholders: request bodies, GraphQL variables, and parameters whose value is JSON.

Keys are sorted and nothing is indented: some platforms sign this text, and a stored file has no order of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from platforms.errors import BadDeclaration
from platforms.templates import LEFT_OUT, Template, Values

CheckValue = Callable[[str, Template], None]


class JsonTemplate:
    """A compiled table, list or value. A field whose placeholder has no value is left out."""

    def __init__(self, where: str, value: object, known: frozenset[str], check: CheckValue) -> None:
        """`check` gets the place and the template of each text in it. BadDeclaration for what is no JSON."""
        self.templates: list[Template] = []
        self._known = known
        self._check = check
        self._root = self._compile(where, value)

    def render(self, values: Values) -> str:
        """Return the JSON text."""
        return json.dumps(self.value(values), sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    def value(self, values: Values) -> Any:
        """Return the value before it is written."""
        return _rendered(self._root, values)

    def _compile(self, where: str, value: object) -> object:
        if isinstance(value, str):
            template = Template(where, value, self._known)
            self._check(where, template)
            self.templates.append(template)
            return template
        if isinstance(value, dict):
            return {str(key): self._compile(f"{where}.{key}", below) for key, below in value.items()}
        if isinstance(value, list):
            return [self._compile(f"{where}[{number}]", below) for number, below in enumerate(value)]
        if isinstance(value, int | float):
            return value
        raise BadDeclaration(where, f"{value} is a {type(value).__name__}; write it as text")


def _rendered(node: object, values: Values) -> Any:
    if isinstance(node, Template):
        return node.render_json(values)
    if isinstance(node, dict):
        made = {key: _rendered(below, values) for key, below in node.items()}
        return {key: below for key, below in made.items() if below is not LEFT_OUT}
    if isinstance(node, list):
        return [made for below in node if (made := _rendered(below, values)) is not LEFT_OUT]
    return node
