"""Writes rows to a file, in constant memory: xlsx over as many sheets as it takes, csv with formulas disarmed, jsonl.

Blocking: call it from a thread, some hundred rows at a time. Text is written as text, so nothing in an xlsx runs.
"""

import csv
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec
import xlsxwriter

from penstock.rows.sheets.disarm import disarmed
from penstock.rows.sheets.kinds import SheetKind

__all__ = ["SheetWriter", "open_sheet"]

SHEET_ROWS = 1_048_576
"""Rows of one sheet of a workbook, the header among them: Excel's own limit."""
CELL_CHARS = 32_767


class SheetWriter(Protocol):
    """A file in writing, as a context manager that ends it. After an exception there is no file."""

    def write(self, rows: Sequence[Mapping[str, object]]) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_sheet(path: Path, kind: SheetKind, columns: Sequence[str]) -> SheetWriter:
    """Return a writer of rows with these columns. Further values of a row are left out (jsonl: kept)."""
    match kind:
        case "xlsx":
            return _Xlsx(path, columns)
        case "csv":
            return _Csv(path, columns)
        case "jsonl":
            return _Jsonl(path)


class _Xlsx:
    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._path = path
        self._columns = columns
        options = {"constant_memory": True, "strings_to_formulas": False, "strings_to_urls": False}
        self._book = xlsxwriter.Workbook(str(path), options)
        self._bold = self._book.add_format({"bold": True})
        self._add_sheet()

    def _add_sheet(self) -> None:
        self._sheet: Any = self._book.add_worksheet()
        for at, name in enumerate(self._columns):
            self._sheet.write_string(0, at, name[:CELL_CHARS], self._bold)
        self._sheet.freeze_panes(1, 0)
        self._row = 1

    def write(self, rows: Sequence[Mapping[str, object]]) -> None:
        for row in rows:
            if self._row == SHEET_ROWS:
                self._add_sheet()
            for at, name in enumerate(self._columns):
                self._cell(at, row.get(name))
            self._row += 1

    def _cell(self, at: int, value: object) -> None:
        if isinstance(value, bool):
            self._sheet.write_boolean(self._row, at, value)
        elif isinstance(value, int | float) and abs(value) < 2**53:
            self._sheet.write_number(self._row, at, value)
        elif value not in (None, ""):
            self._sheet.write_string(self._row, at, _text(value)[:CELL_CHARS])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._book.close()
            return
        with suppress(Exception):  # what is half written goes, whatever its state
            self._book.close()
        self._path.unlink(missing_ok=True)


class _Text:
    """What csv and jsonl have in common: a text file."""

    def __init__(self, path: Path, *, encoding: str) -> None:
        self._path = path
        self._file = path.open("w", encoding=encoding, newline="")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if kind is not None:
            self._path.unlink(missing_ok=True)


class _Csv(_Text):
    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        super().__init__(path, encoding="utf-8-sig")  # without the mark Excel takes it for the local code page
        self._columns = columns
        self._lines = csv.writer(self._file)
        self._lines.writerow([disarmed(name) for name in columns])

    def write(self, rows: Sequence[Mapping[str, object]]) -> None:
        self._lines.writerows([_csv_cell(row.get(name)) for name in self._columns] for row in rows)


class _Jsonl(_Text):
    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8")

    def write(self, rows: Sequence[Mapping[str, object]]) -> None:
        self._file.writelines(f"{msgspec.json.encode(row).decode()}\n" for row in rows)


def _csv_cell(value: object) -> object:
    return value if isinstance(value, int | float) else "" if value is None else disarmed(_text(value))


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
