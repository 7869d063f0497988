"""Dotted paths into JSON, compiled once into typed decoders.

The decoder makes Python objects of a page's few needed fields only and skips everything else. Each row stays the bytes
that arrived. Paths go through objects, never into arrays by index."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from platforms.errors import BadDeclaration

_PATH = re.compile(r"[^.\s]+(\.[^.\s]+)*")


class Field(NamedTuple):
    """One wanted leaf: its place in the declaration, its path, its type, and whether it may be missing."""

    where: str
    path: str
    type: Any  # a runtime type, handed to msgspec as it is
    is_optional: bool = False


class Picker:
    """Decodes JSON into the leaves of `fields`, in their order. Missing optional leaves are None."""

    def __init__(self, name: str, fields: Mapping[str, Field]) -> None:
        tree: dict[str, Any] = {}
        for field in fields.values():
            _plant(tree, field)
        places: dict[str, str] = {}
        self._decoder = msgspec.json.Decoder(_struct(name, tree, "", "", places))
        self.getters: dict[str, Callable[[Any], Any]] = {
            label: _getter(places[field.path]) for label, field in fields.items()
        }

    def decode(self, body: bytes | msgspec.Raw) -> Any:
        """Return the decoded head, for the `getters`. msgspec.DecodeError names the path that does not fit."""
        return self._decoder.decode(body)


def check_path(where: str, path: str) -> tuple[str, ...]:
    """Return the path's steps. BadDeclaration unless it is names joined by single dots."""
    if not _PATH.fullmatch(path):
        raise BadDeclaration(where, f"{path!r} is no path such as 'data.orders'")
    return tuple(path.split("."))


def _plant(tree: dict[str, Any], field: Field) -> None:
    *branches, leaf = check_path(field.where, field.path)
    for step in branches:
        below = tree.setdefault(step, {})
        if isinstance(below, list):
            raise BadDeclaration(field.where, f"{field.path!r} leads through a path that is itself wanted")
        tree = below
    if isinstance(tree.setdefault(leaf, []), dict):
        raise BadDeclaration(field.where, f"{field.path!r} is itself on the way to another wanted path")
    tree[leaf].append(field)


def _struct(name: str, tree: dict[str, Any], path: str, place: str, places: dict[str, str]) -> type[msgspec.Struct]:
    """Build the type for one level. `places` gets the attribute path of each wanted path."""
    fields: list[tuple[str, Any, Any]] = []
    names: dict[str, str] = {}
    for number, (step, below) in enumerate(tree.items()):
        attribute, here = f"f{number}", f"{path}{step}"
        names[attribute] = step
        if isinstance(below, list):
            places[here] = place + attribute
            type_, is_optional = _union(below), all(field.is_optional for field in below)
        else:
            type_ = _struct(f"{name}_{number}", below, f"{here}.", f"{place}{attribute}.", places)
            is_optional = _is_optional(below)
        # a required field has no default, and stands first
        fields.append((attribute, type_ | None, None) if is_optional else (attribute, type_, msgspec.NODEFAULT))
    return msgspec.defstruct(name, fields, rename=names, kw_only=True, gc=False)


def _union(fields: list[Field]) -> Any:
    type_ = fields[0].type
    for field in fields[1:]:
        type_ = type_ | field.type
    return type_


def _is_optional(tree: dict[str, Any]) -> bool:
    return all(
        all(field.is_optional for field in below) if isinstance(below, list) else _is_optional(below)
        for below in tree.values()
    )


def _getter(place: str) -> Callable[[Any], Any]:
    if "." not in place:
        return attrgetter(place)
    steps = place.split(".")

    def get(head: Any) -> Any:
        for step in steps:
            if head is None:
                return None
            head = getattr(head, step)
        return head

    return get
