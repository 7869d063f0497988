"""Dotted paths into JSON, compiled once into typed decoders.

The decoder makes Python objects of a page's few needed fields only and skips everything else. Each row stays the bytes
that arrived. A step into a list has its number: `errors[0].code`, and `data[-1].id` counts from the end."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from platforms.errors import BadDeclaration

_PATH = re.compile(r"[^.\s\[\]]+(\[-?\d{1,6}\])*(\.[^.\s\[\]]+(\[-?\d{1,6}\])*)*", re.ASCII)
_STEP = re.compile(r"\[(-?\d+)\]|([^.\[\]]+)")

Step = str | int
Steps = tuple[Step, ...]


class Field(NamedTuple):
    """One wanted leaf: its place in the declaration, its path, its type, and whether it may be missing."""

    where: str
    path: str
    type: Any  # a runtime type, handed to msgspec as it is
    is_optional: bool = False


class _Missing(ValueError):
    """A list is too short for a path that must lead somewhere."""


class Picker:
    """Decodes JSON into the leaves of `fields`, in their order. Missing optional leaves are None."""

    def __init__(self, name: str, fields: Mapping[str, Field]) -> None:
        tree: dict[str, Any] = {}
        inner = {label: _into_list(field) for label, field in fields.items()}
        for label, field in fields.items():
            found = inner[label]
            _plant(tree, field if found is None else found.list_field)
        places: dict[str, str] = {}
        self._decoder = msgspec.json.Decoder(_struct(name, tree, "", "", places))
        self.getters: dict[str, Callable[[Any], Any]] = {}
        for label, field in fields.items():
            found = inner[label]
            if found is None:
                self.getters[label] = _getter(places[field.path])
            else:
                self.getters[label] = found.getter(_getter(places[found.list_field.path]))

    def decode(self, body: bytes | Raw) -> Any:
        """Return the decoded head, for the `getters`. msgspec.DecodeError names the path that does not fit. A getter
        raises ValueError when a list is too short for it."""
        return self._decoder.decode(body)


def steps_of(where: str, path: str) -> Steps:
    """Return the path's steps. BadDeclaration unless it is names joined by single dots, each with numbers or none."""
    if not _PATH.fullmatch(path):
        raise BadDeclaration(where, f"{path!r} is no path such as 'data.orders' or 'errors[0].code'")
    return tuple(int(found[1]) if found[1] is not None else found[2] for found in _STEP.finditer(path))


class _IntoList(NamedTuple):
    """A field behind a list: the list, which number of it, and the rest of the path in there."""

    field: Field
    list_field: Field
    number: int
    rest: str

    def getter(self, get_list: Callable[[Any], Any]) -> Callable[[Any], Any]:
        field, number = self.field, self.number
        decode, get = _below(field, self.rest)

        def get_below(head: Any) -> Any:
            raws = get_list(head)
            if raws is None or not -len(raws) <= number < len(raws):
                if field.is_optional:
                    return None
                raise _Missing(f"there is no [{number}] for {field.path!r}")
            return get(decode(raws[number]))

        return get_below


def _below(field: Field, rest: str) -> tuple[Callable[[Raw], Any], Callable[[Any], Any]]:
    """Return the decoder of one member of a list, and the getter of the field in what it returns."""
    if not rest:
        type_ = field.type | None if field.is_optional else field.type
        return msgspec.json.Decoder(type_).decode, _itself
    if rest.startswith("["):  # a list in a list
        inner = _into_list(field._replace(path=f"x{rest}"))
        assert inner is not None  # it has a number
        return msgspec.json.Decoder(list[Raw]).decode, inner.getter(_itself)
    picker = Picker("Member", {"value": field._replace(path=rest)})
    return picker.decode, picker.getters["value"]


def _itself(value: Any) -> Any:
    return value


def _into_list(field: Field) -> _IntoList | None:
    steps_of(field.where, field.path)
    path, bracket, rest = field.path.partition("[")
    if not bracket:
        return None
    number, _, rest = rest.partition("]")
    list_field = Field(field.where, path, list[Raw], field.is_optional)
    return _IntoList(field, list_field, int(number), rest.removeprefix("."))


def _plant(tree: dict[str, Any], field: Field) -> None:
    *branches, leaf = [str(step) for step in steps_of(field.where, field.path)]
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
        if field.type != type_:
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


def value_at(value: Any, path: Steps) -> Any:
    """Return what lies at a path in decoded JSON, None if nothing does."""
    for step in path:
        if isinstance(step, str) and isinstance(value, dict):
            value = value.get(step)
        elif isinstance(step, int) and isinstance(value, list) and -len(value) <= step < len(value):
            value = value[step]
        else:
            return None
    return value
