"""A first look at rows before they run: how a task's code reads them, and which it would not take. Pure.

A process that serves the task decodes the rows as its executor does, page by page, and runs nothing. Whoever asked puts
the pages together.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from actors.batch.rules.sheet_lines import FAULT, MOST_COLUMNS
from streams.messages.batch import FaultyRow, FieldSeen, RowSeen, RowsSeen

MOST_LOOKED_AT = 1_000
"""Rows that one request looks at."""
SHOWN = 5
"""The first rows that a look shows."""
MOST_FAULTS = 100
"""The rows that a look names of those that would fail. It counts all of them."""
MOST_REASON = 300
SHOWN_BYTES = 16 * 1024
"""The limit of the rows that a page shows, so that an answer fits into a message."""
AskRows = Callable[[Sequence[Raw], int], Awaitable[RowsSeen]]
"""Returns how a task's code reads rows. It shows so many of them."""
_row = msgspec.json.Decoder(tuple[int, Raw]).decode
_cells = msgspec.json.Decoder(dict[str, Any]).decode


class UnreadableRow(ValueError):
    """A row that was not read from its sheet as it should. Its code does not see it."""


class FirstLook(Struct, frozen=True, kw_only=True):
    """What a task would get of a sheet. `columns`: of the sheet, each with the type that the task's code declares for
    it, empty if it declares none. `missing`: what the code needs and no column gives. `first`: the first rows, as the
    code sees them. `faults`: the first rows that would fail before the code runs, and why. `failing`: how many these
    are. `unchecked`: why no code has looked at the rows. `note`: what a person should know of the file."""

    task: str
    rows: int = 0
    columns: tuple[FieldSeen, ...] = ()
    missing: tuple[FieldSeen, ...] = ()
    first: tuple[RowSeen, ...] = ()
    failing: int = 0
    faults: tuple[FaultyRow, ...] = ()
    unchecked: str = ""
    note: str = ""

    @property
    def is_fine(self) -> bool:
        """Whether no row is known that would fail."""
        return not self.failing


def look_at(
    rows: Iterable[Raw],
    read: Callable[[Raw], object],
    reason_of: Callable[[Exception], str],
    *,
    shown: int,
    fields: Sequence[FieldSeen] | None = None,
) -> RowsSeen:
    """Return how `read` takes these rows. It may raise any exception, of which `reason_of` makes a text."""
    seen, faults, failing, room = list[RowSeen](), list[FaultyRow](), 0, SHOWN_BYTES
    for row in rows:
        number, _ = _row(row)
        try:
            item = read(row)
        except Exception as error:  # the border to the user's types
            failing += 1
            if len(faults) < MOST_FAULTS:
                faults.append(FaultyRow(number, reason_of(error)[:MOST_REASON]))
            item = {name: cell for name, cell in cells_alone(row).items() if name != FAULT}
        if len(seen) < shown:
            raw = msgspec.json.encode(item, enc_hook=str)
            room -= len(raw)
            if room < 0:
                shown = len(seen)
            else:
                seen.append(RowSeen(number, Raw(raw)))
    return RowsSeen(
        fields=None if fields is None else tuple(fields), rows=tuple(seen), faults=tuple(faults), failing=failing
    )


def cells_alone(row: Raw) -> dict[str, Any]:
    """Return a row's cells, where no code looks at them."""
    return _cells(_row(row)[1])


def readable_cells(row: Raw) -> dict[str, Any]:
    """Return a row's cells. Raises UnreadableRow."""
    cells = cells_alone(row)
    if FAULT in cells:
        raise UnreadableRow(str(cells[FAULT]))
    return cells


def with_page(look: FirstLook, rows: Sequence[tuple[int, dict[str, Any]]], seen: RowsSeen) -> FirstLook:
    """Return the look with one more page of rows, and what became of it."""
    types = {field.name: field for field in seen.fields or ()}
    names = dict.fromkeys(each.name for each in look.columns)
    for _, cells in rows:
        if len(names) < MOST_COLUMNS:
            names |= dict.fromkeys(name for name in cells if name != FAULT)
    columns = tuple(types.get(name, FieldSeen(name)) for name in names)
    return replace(
        look,
        rows=look.rows + len(rows),
        columns=columns,
        missing=tuple(each for each in types.values() if each.is_needed and each.name not in names),
        first=(*look.first, *seen.rows)[:SHOWN],
        failing=look.failing + seen.failing,
        faults=(*look.faults, *seen.faults)[:MOST_FAULTS],
        unchecked=seen.unchecked,
    )
