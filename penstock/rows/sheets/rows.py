"""From a sheet's cells to rows by column name. Pure.

The first row names the columns. A row becomes a dict of text, numbers and booleans. Moments become text as ISO 8601.
Every column is in the dict: an empty cell is "", also at the end of a row. Rows without any value are left out. They
count all the same, so that row numbers are those that people see. A row with a value beyond the named columns, or with
a formula that nobody has worked out, has `FAULT` among its cells, which says so. Such a row fails alone. So does a line
of a jsonl that is no object.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any

from actors.batch.rules.sheet_lines import FAILED, FAULT, LINE
from penstock.rows.sheets.disarm import rearmed
from penstock.rows.sheets.limits import BadSheet, SheetLimits

__all__ = ["NO_VALUE", "Cell", "Row", "handed_back", "letters_of", "named_rows", "plain_number"]

Cell = str | int | float | bool
Row = tuple[int, dict[str, Any]]
"""The row's number as people see it (the header is 1, or the first row if there is none), and its cells by column.
Those of a jsonl may be lists and objects, too."""
NO_VALUE = "\ue000no value\ue000"
"""In place of the value of a formula that has none."""


def named_rows(lines: Iterable[Sequence[object]], limits: SheetLimits, *, first: int = 1) -> Iterator[Row]:
    """Yield the rows below the header, which has the number `first`. Raises BadSheet for a header or a cell that is not
    within the limits."""
    numbered = enumerate(lines, first)
    header = next(((at, line) for at, line in numbered if not _is_blank(line)), None)
    if header is None:
        raise BadSheet("no row has a value; the first row has to name the columns")
    names = _names(header[1], limits)
    count = 0
    for at, line in numbered:
        if _is_blank(line):
            continue
        count += 1
        if count > limits.rows:
            raise BadSheet(f"row {at}: more than {limits.rows} rows; send it in parts")
        yield at, _row(at, line, names, limits)


def letters_of(column: int) -> str:
    """Return a column's letters, from 0: A, B, … Z, AA."""
    letters = ""
    column += 1
    while column:
        column, rest = divmod(column - 1, 26)
        letters = chr(65 + rest) + letters
    return letters


def plain_number(value: float) -> int | float:
    """Return a number as people see it: a whole one without a point, as far as a float is exact."""
    return int(value) if value % 1 == 0 and abs(value) < 2**53 else value


def _names(line: Sequence[object], limits: SheetLimits) -> list[str]:
    names = [str(_cell(cell)).strip() for cell in line]
    while names and not names[-1]:
        names.pop()
    if len(names) > limits.columns:
        raise BadSheet(f"{len(names)} columns, at most {limits.columns}")
    names = [name or letters_of(at) for at, name in enumerate(names)]
    places: dict[str, int] = {}
    for at, name in enumerate(names):
        if name in places:
            where = f"{letters_of(places[name])} and {letters_of(at)}"
            raise BadSheet(f"columns {where} are both called {name[:80]!a}; give each its own name")
        places[name] = at
    return names


def handed_back(rows: Iterable[Row], *, is_csv: bool) -> Iterator[Row]:
    """Yield the rows of a sheet that may be one of failed rows, handed in again: without the reasons, and with the text
    that a csv's writer had disarmed as it was."""
    for number, cells in rows:
        if FAILED not in cells:
            yield number, cells
            continue
        own = {name: cell for name, cell in cells.items() if name not in (FAILED, LINE)}
        if is_csv:
            own = {rearmed(name): rearmed(cell) if isinstance(cell, str) else cell for name, cell in own.items()}
        if any(cell != "" for cell in own.values()):
            yield number, own


def _row(at: int, line: Sequence[object], names: list[str], limits: SheetLimits) -> dict[str, Any]:
    faults = []
    if len(line) > len(names) and not _is_blank(line[len(names) :]):
        column = next(place for place in range(len(names), len(line)) if line[place] not in ("", None))
        faults.append(f"a value in column {letters_of(column)}, which has no name in the first row")
    if NO_VALUE in line:
        formulas = [name for name, cell in zip(names, line, strict=False) if cell == NO_VALUE]
        faults.append(f"{', '.join(formulas)[:80]}: a formula without a value; open the file in Excel and save it")
        line = ["" if cell == NO_VALUE else cell for cell in line]
    cells = [_cell(value) for value in line[: len(names)]]
    for place, cell in enumerate(cells):
        if isinstance(cell, str) and len(cell) > limits.cell_chars:
            raise BadSheet(f"row {at}, {names[place]!a}: {len(cell)} characters, at most {limits.cell_chars}")
    cells += [""] * (len(names) - len(cells))
    return dict(zip(names, cells, strict=True)) | ({FAULT: "; ".join(faults)} if faults else {})


def _cell(value: object) -> Cell:
    if isinstance(value, float):
        return plain_number(value)
    if isinstance(value, str | bool | int):
        return value
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return "" if value is None else str(value)


def _is_blank(line: Sequence[object]) -> bool:
    return all(cell is None or (isinstance(cell, str) and not cell.strip()) for cell in line)
