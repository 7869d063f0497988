"""Writes rows to a file, in constant memory: xlsx over as many sheets as it takes, csv with formulas disarmed, jsonl.

Blocking: call it from a thread, some hundred rows at a time. Text is written as text, so nothing in an xlsx runs.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol, Self

import msgspec

from penstock.rows.sheets.disarm import disarmed
from penstock.rows.sheets.kinds import SheetKind
from penstock.rows.sheets.workbook import Workbook, shown_text

__all__ = ["SheetWriter", "open_sheet"]

SEPARATORS = ";\t|"
"""What a reader may take for the separator, unless it is quoted."""


class SheetWriter(Protocol):
    """A file in writing, as a context manager that ends it. After an exception there is no file."""

    def write(self, rows: Iterable[Mapping[str, object]]) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_sheet(place: Path | IO[bytes], kind: SheetKind, columns: Sequence[str]) -> SheetWriter:
    """Return a writer of rows with these columns. Further values of a row are left out (jsonl: kept). `place`: a path,
    or an open file, which need not be able to seek."""
    match kind:
        case "xlsx":
            return Workbook(place, columns)
        case "csv":
            return _Csv(place, columns)
        case "jsonl":
            return _Jsonl(place)


class _Text:
    """What csv and jsonl have in common: a text file."""

    def __init__(self, place: Path | IO[bytes], *, encoding: str) -> None:
        self._place = place
        file = place.open("wb") if isinstance(place, Path) else place
        self._file = io.TextIOWrapper(file, encoding=encoding, newline="", write_through=not isinstance(place, Path))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if kind is not None and isinstance(self._place, Path):
            self._place.unlink(missing_ok=True)


class _Csv(_Text):
    def __init__(self, place: Path | IO[bytes], columns: Sequence[str]) -> None:
        super().__init__(place, encoding="utf-8-sig")  # without the mark Excel takes it for the local code page
        self._columns = columns
        self._lines = csv.writer(self._file)
        is_odd = any(sign in name for name in columns for sign in SEPARATORS)
        header = csv.writer(self._file, quoting=csv.QUOTE_ALL) if is_odd else self._lines
        header.writerow([disarmed(name) for name in columns])

    def write(self, rows: Iterable[Mapping[str, object]]) -> None:
        self._lines.writerows([_csv_cell(row.get(name)) for name in self._columns] for row in rows)


class _Jsonl(_Text):
    def __init__(self, place: Path | IO[bytes]) -> None:
        super().__init__(place, encoding="utf-8")

    def write(self, rows: Iterable[Mapping[str, object]]) -> None:
        self._file.writelines(f"{msgspec.json.encode(row).decode()}\n" for row in rows)


def _csv_cell(value: object) -> object:
    return value if isinstance(value, int | float) else "" if value is None else disarmed(shown_text(value))
