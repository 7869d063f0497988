"""What a sheet of an instance's items has in it: its columns, and the line of each item. Pure.

The whole sheet has each item's number, its cells, its end and the reason. A sheet of the items of one end alone is made
to be put right and handed in again: the columns as they were handed in, and the reason in a column that a reader
ignores.
"""

import codecs
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

SheetKind = Literal["xlsx", "csv", "jsonl"]
"""The kinds of sheets that are written."""
STATUS, REASON, ROW = "status", "reason", "row"
FAILED = "penstock_failed"
"""The column with the reason in a sheet that is handed in again. Whoever reads a sheet leaves it out."""
FAULT = "penstock_fault"
"""In a row's cells: why the row cannot be read as it should. Such a row fails alone, and its code does not see it."""
LINE = "penstock_line"
"""In place of the cells of a row that is no JSON object: its text. A sheet that is handed in again may have it."""
MOST_COLUMNS = 16_384 - 3
"""Columns. The limit of Excel, less our own columns."""
_WORDS = {"ok": "succeeded", "again": "failed"}
_row = msgspec.json.Decoder(tuple[int, Raw])


class SheetHead(Struct, frozen=True, kw_only=True):
    """How a sheet of an instance is written: its columns in order, and which of them are ours. `row` and `status` are
    empty in a sheet to hand in again. `is_rows`: the items are rows of a sheet. `cursor`: of its first page. It is
    refused once the instance was retried or deleted."""

    columns: list[str]
    row: str
    status: str
    reason: str
    is_rows: bool
    cursor: str = ""

    def line(self, index: int, item: Any, status: str, info: Any) -> dict[str, object]:
        """Return an item's line, by column."""
        number, cells = cells_of(index, item, is_rows=self.is_rows)
        end = {self.reason: info}
        return {self.row: number, **cells, self.status: _WORDS.get(status, status), **end} if self.row else cells | end


def head_of(names: Sequence[str], cursor: str = "", *, is_rows: bool, is_whole: bool) -> SheetHead:
    """Return the head of a sheet whose items have these columns."""
    columns = list(names)[:MOST_COLUMNS]
    row, status, reason = _own_names(columns) if is_whole else ("", "", FAILED)
    columns = [row, *columns, status, reason] if is_whole else [*columns, FAILED]
    return SheetHead(columns=columns, row=row, status=status, reason=reason, is_rows=is_rows, cursor=cursor)


def cells_of(index: int, item: Any, *, is_rows: bool) -> tuple[int | None, dict[str, Any]]:
    """Return an item's number in the sheet, and its cells. A lost row has neither."""
    if not is_rows:
        return index + 1, item if isinstance(item, dict) else {"item": item}
    if item is None:
        return None, {}
    number, cells = item
    return number, {name: value for name, value in cells.items() if name != FAULT}


def row_of(item: Raw) -> int | None:
    """Return the number of an item that is a row. `None`: it is none."""
    try:
        return _row.decode(item)[0]
    except msgspec.MsgspecError:
        return None


def names_columns(start: bytes) -> bool:
    """Return whether the first row of an upload that begins so names the columns. That of a jsonl does not."""
    return not start.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{")


def index_in_gap(row: int, before: int | None, after: int | None, indexes: range) -> int | None:
    """Return the index of a row whose chunk is missing. `before` and `after`: the rows beside the gap. `None`: it is
    not known, since the gap has empty rows, or is at an end of the sheet."""
    if before is None or after is None or not before < row < after or after - before - 1 != len(indexes):
        return None
    return indexes.start + row - before - 1


def _own_names(columns: Iterable[str]) -> Iterator[str]:
    """Yield the names of our own columns beside these. The given columns keep their names."""
    taken = set(columns)
    for name in (ROW, STATUS, REASON):
        while name in taken:
            name = f"penstock_{name}"
        yield name
