"""Files of sources: a row a source, as csv, jsonl or toml. The same that `penstock sources export` writes.

A csv has the columns `source`, `adapter`, `start`, `paused`, `account.NAME` and `settings.NAME`. An empty cell is no
value. A jsonl has an object a line, a toml a table `[[source]]` each, with `account` and `settings` as objects."""

from __future__ import annotations

import csv
import io
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from actors.fetch.rules.setting_table import SETTINGS
from actors.fetch.settings.desk import value_of
from actors.fetch.source_import import RowFault, SourceRow
from actors.runtime.rules.setting_values import BadSetting
from penstock.errors import UsageError

__all__ = ["FORMS", "SourceFile", "form_of", "read_rows", "write_rows"]

FORMS = ("csv", "jsonl", "toml")
PLAIN = ("source", "adapter", "start", "paused")
_PATH = re.compile(r" - at `\$(?:\.)?([^`]*)`$")
_decode = msgspec.json.Decoder(SourceRow).decode


class SourceFile(NamedTuple):
    """What a file holds: its rows with their numbers, from 1, and those that cannot be read."""

    numbers: list[int]
    rows: list[SourceRow]
    faults: list[RowFault]


def form_of(path: str, given: str = "") -> str:
    """Return the form of a file by its ending, or as given. Raises UsageError."""
    form = given or Path(path).suffix.removeprefix(".")
    if form not in FORMS:
        what = f"--form {form!r} is none" if given else f"{path}: its name says no form"
        raise UsageError(f"{what}; use --form {', '.join(FORMS)}")
    return form


def read_rows(data: bytes, form: str, *, where: str) -> SourceFile:
    """Return the rows of a file. Raises UsageError for one that cannot be read at all."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: byte {error.start} is no UTF-8; save it as UTF-8") from error
    found = SourceFile([], [], [])
    reader: Callable[[str, str], Iterator[Callable[[], SourceRow]]] = {"csv": _csv, "jsonl": _jsonl, "toml": _toml}[
        form
    ]
    for number, made in enumerate(reader(text, where), start=1):
        try:
            row = made()
        except BadSetting as error:
            found.faults.append(RowFault(number, f"settings.{error.name}", str(error)))
        except (msgspec.MsgspecError, RecursionError) as error:
            path = _PATH.search(str(error))
            field = path[1] if path else ""
            found.faults.append(RowFault(number, field or _named_field(str(error)), _PATH.sub("", str(error))))
        else:
            found.numbers.append(number)
            found.rows.append(row)
    return found


def write_rows(rows: Sequence[SourceRow], form: str) -> str:
    """Return the text of a file."""
    if form == "jsonl":
        return "".join(f"{msgspec.json.encode(row).decode()}\n" for row in rows)
    if form == "toml":
        return "\n".join(_table(row) for row in rows)
    accounts = sorted({name for row in rows for name in row.account})
    settings = sorted({name for row in rows for name in row.settings})
    columns = [*PLAIN, *(f"account.{name}" for name in accounts), *(f"settings.{name}" for name in settings)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        plain = [row.source, row.adapter, row.start, "true" if row.paused else ""]
        own = [row.account.get(name, "") for name in accounts]
        writer.writerow([*plain, *own, *(_cell(row.settings.get(name)) for name in settings)])
    return text.getvalue()


# ---- one form each


def _jsonl(text: str, _where: str) -> Iterator[Callable[[], SourceRow]]:
    for line in text.splitlines():
        if line.strip():
            yield partial(_decode, line.encode())


def _toml(text: str, where: str) -> Iterator[Callable[[], SourceRow]]:
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{where}: is no TOML: {error}") from error
    sources = tables.pop("source", None)
    if tables or not isinstance(sources, list):
        raise UsageError(f"{where}: write a table [[source]] for each source, and nothing else")
    for table in sources:
        yield partial(msgspec.convert, table, SourceRow)


def _csv(text: str, where: str) -> Iterator[Callable[[], SourceRow]]:
    reader = csv.DictReader(io.StringIO(text), strict=True)
    columns = reader.fieldnames or []
    for column in columns:
        kind, dot, name = column.partition(".")
        is_known = column in PLAIN or (dot and name and kind in ("account", "settings"))
        if not is_known or columns.count(column) > 1:
            raise UsageError(
                f"{where}: column {column[:64]!r}: use each of {', '.join(PLAIN)}, account.NAME, settings.NAME"
            )
    try:
        for cells in reader:
            yield partial(_of_cells, cells)
    except csv.Error as error:
        raise UsageError(f"{where}: line {reader.line_num}: {error}") from error


def _of_cells(cells: Mapping[str | None, str | list[str] | None]) -> SourceRow:
    if None in cells:
        raise msgspec.ValidationError("it has more cells than there are columns")
    values: dict[str, object] = {}
    parts: dict[str, dict[str, object]] = {"account": {}, "settings": {}}
    for column, cell in cells.items():
        kind, dot, name = (column or "").partition(".")
        if not cell or not isinstance(cell, str):
            continue
        if not dot:
            values[kind] = _truth(cell) if kind == "paused" else cell
        else:
            parts[kind][name] = _setting(name, cell) if kind == "settings" else cell
    return msgspec.convert({**values, **parts}, SourceRow)


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise msgspec.ValidationError("write true or false - at `$.paused`")
    return text.lower() == "true"


def _setting(name: str, text: str) -> object:
    return value_of(name, text) if name in SETTINGS else text


def _cell(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _named_field(problem: str) -> str:
    found = re.search(r"field `([^`]*)`", problem)
    return found[1] if found else "row"


def _table(row: SourceRow) -> str:
    document = msgspec.to_builtins(row)
    lines = [f"{name} = {_toml_value(value)}" for name, value in document.items() if not isinstance(value, dict)]
    for part in ("account", "settings"):
        if document.get(part):
            pairs = ", ".join(f"{_key(name)} = {_toml_value(value)}" for name, value in document[part].items())
            lines.append(f"{part} = {{ {pairs} }}")
    return "\n".join(["[[source]]", *lines, ""])


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _toml_value(value: object) -> str:
    """Return a value of a source: a text, a number, a truth or a list of texts, all written as in JSON."""
    return json.dumps(value, ensure_ascii=False)
