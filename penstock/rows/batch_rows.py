"""How the cells of a sheet's row become an item of the type that a task's code declares. Pure.

A sheet knows text, numbers and empty cells, and no other types. A jsonl knows lists and objects, too. So each field at
the top of a struct, dataclass or TypedDict is read by four rules. A number, a list or an object is text if the field
takes text only. The JSON text of a list or an object is one if the field takes no text. An empty cell is None if the
field may be None, else the field's default, else an empty text. Blanks around a number do not count, and a number is
finite. The rest is msgspec's, with its errors.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import inspect

from penstock.rows.sheets.rows import plain_number
from streams.messages.batch import FieldSeen

__all__ = ["fields_of", "row_reader"]

_NUMBERS = frozenset({int, float})  # not the booleans, which are of int
_NUMERIC: frozenset[type[inspect.Type]] = frozenset({inspect.IntType, inspect.FloatType, inspect.DecimalType})
_ENDLESS = frozenset({"nan", "inf", "infinity"})
_NESTED: frozenset[type[inspect.Type]] = frozenset(
    {
        inspect.ListType,
        inspect.SetType,
        inspect.FrozenSetType,
        inspect.VarTupleType,
        inspect.TupleType,
        inspect.DictType,
        inspect.StructType,
        inspect.DataclassType,
        inspect.TypedDictType,
        inspect.NamedTupleType,
    }
)
_FIELDS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)
_BOUNDS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")


def fields_of(item_type: Any) -> tuple[FieldSeen, ...] | None:
    """Return the fields that rows are read into, as people write their types. `None`: the type has none."""
    told = _bare(inspect.type_info(item_type))
    if not isinstance(told, _FIELDS):
        return None
    return tuple(FieldSeen(each.encode_name, _written(each.type), each.required) for each in told.fields)


def _written(told: inspect.Type) -> str:
    match told:
        case inspect.Metadata():
            return _written(told.type)
        case inspect.UnionType():
            return " | ".join(map(_written, told.types))
        case inspect.LiteralType():
            return " | ".join(map(repr, told.values))
        case inspect.EnumType() | inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType():
            return told.cls.__name__
        case inspect.ListType() | inspect.SetType() | inspect.FrozenSetType():
            return f"{_plain(told)}[{_written(told.item_type)}]"
        case inspect.DictType():
            return f"dict[{_written(told.key_type)}, {_written(told.value_type)}]"
    bounds = ((name, getattr(told, name, None)) for name in _BOUNDS)
    stated = ", ".join(f"{name}={bound!r}" for name, bound in bounds if bound is not None)
    return f"{_plain(told)}({stated})" if stated else _plain(told)


def _plain(told: inspect.Type) -> str:
    return "None" if isinstance(told, inspect.NoneType) else type(told).__name__.removesuffix("Type").lower()


def row_reader(item_type: Any) -> Callable[[dict[str, Any]], Any]:
    """Return a function that makes an item of a row's cells, and changes them. It raises msgspec.ValidationError."""
    texts, numbers, nests, nones, defaults = _wanted(item_type)

    def read(cells: dict[str, Any]) -> Any:
        for name in numbers:
            if type(cell := cells.get(name)) is str:
                cells[name] = cell = cell.strip()
                if cell[-1:].isalpha() and cell.lower().lstrip("+-") in _ENDLESS:
                    raise msgspec.ValidationError(f"Expected a finite number, got `{cell}` - at `$.{name}`")
        for name in texts:
            kind = type(cells.get(name))
            if kind in _NUMBERS:
                cells[name] = str(plain_number(cells[name]))
            elif kind is list or kind is dict:
                cells[name] = msgspec.json.encode(cells[name]).decode()
        for name in nests:
            if type(cell := cells.get(name)) is str and cell[:1] in ("[", "{"):
                with suppress(msgspec.DecodeError, RecursionError):
                    cells[name] = msgspec.json.decode(cell)
        if "" in cells.values():
            cells |= {name: None for name in nones if cells.get(name) == ""}
            for name in defaults:
                if cells.get(name) == "":
                    del cells[name]
        return msgspec.convert(cells, item_type, strict=False)

    return read


def _wanted(item_type: Any) -> tuple[list[str], list[str], list[str], list[str], list[str]]:
    """Return the fields that take text only, those that take numbers and no text, those that take lists or objects and
    no text, and those where an empty cell is None, or the default."""
    texts, numbers, nests, nones, defaults = list[str](), list[str](), list[str](), list[str](), list[str]()
    told = _bare(inspect.type_info(item_type))
    for field in told.fields if isinstance(told, _FIELDS) else ():
        kinds = set(_kinds(field.type))
        if inspect.AnyType in kinds:
            continue
        if kinds - {inspect.NoneType} == {inspect.StrType}:
            texts.append(field.encode_name)
        elif inspect.StrType not in kinds:
            nests += [field.encode_name] if kinds & _NESTED else []
            numbers += [field.encode_name] if kinds & _NUMERIC else []
        if inspect.NoneType in kinds:
            nones.append(field.encode_name)
        elif not field.required:
            defaults.append(field.encode_name)
    return texts, numbers, nests, nones, defaults


def _kinds(told: inspect.Type) -> Iterator[type[inspect.Type]]:
    bare = _bare(told)
    for each in bare.types if isinstance(bare, inspect.UnionType) else (bare,):
        yield type(_bare(each))


def _bare(told: inspect.Type) -> inspect.Type:
    return told.type if isinstance(told, inspect.Metadata) else told
