"""What a command prints: tables and sentences for people, one JSON document for programs (`--json`)."""

import shutil
import sys
from codecs import lookup
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from io import TextIOWrapper
from typing import TextIO

__all__ = ["Output", "moment"]

IDS = {"id", "item", "name", "node", "order", "schedule", "seq", "slice", "source", "task", "topic"}
"""Headings of the columns whose cells people copy into the next command: such a cell stays on one line."""
NARROW = 8
"""Characters to which every other column may be narrowed. Its cells then go on below."""
READABLE = 20
"""Characters in which a moment stands on one line, and a text can be read. Else other columns are left out."""
BLANKS = ("", "-", "0")
"""Cells that say nothing."""
BETWEEN = 3
"""Characters from one column to the next."""
LINES = 25
"""Not used, but without it Rich takes a terminal that is called `dumb` for 80 columns wide."""


def moment(at_ms: int) -> str:
    """Return a moment for eyes, UTC, to the second, `-` for none."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%SZ}" if at_ms else "-"


class Output:
    """Where a command's answer goes. With `is_json` only `result` prints, once. With `is_wide`, and in a pipe, tables
    are as wide as their cells."""

    def __init__(self, *, is_json: bool, is_wide: bool = False, file: TextIO | None = None) -> None:
        self.is_json = is_json
        if isinstance(sys.stdout, TextIOWrapper) and lookup(sys.stdout.encoding).name != "utf-8":
            # a terminal without UTF-8 gets \u2026 for a sign that it lacks
            sys.stdout.reconfigure(errors="backslashreplace")
        self._file = file or sys.stdout
        self._is_wide = is_wide

    def say(self, text: str) -> None:
        """Print a sentence for people. Text from elsewhere cannot move the cursor or colour the terminal."""
        if not self.is_json:
            self._file.write("".join(_visible(sign) for sign in text) + "\n")

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
        *,
        empty: str = "none",
        spare: Sequence[str] = (),
    ) -> None:
        """Print a table for people. Cells are shown by their `str`. An empty table is a sentence. On a terminal all
        columns but those of ids are made narrow. If that is not enough, columns without a value are left out, and then
        those of `spare`, the first one first. Where the ids alone need more, each cell has a line of its own."""
        if self.is_json:
            return
        if not rows:
            self.say(empty)
            return
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        cells = [[Text("".join(_visible(sign) for sign in str(cell))) for cell in row] for row in rows]
        unseen: Sequence[str] = ()
        widths = [
            max(line.cell_len for cell in (Text(column), *below) for line in cell.split(allow_blank=True))
            for column, *below in zip(columns, *cells, strict=True)
        ]
        if self._file.isatty() and not self._is_wide:
            kept, unseen = fitting(columns, widths, [[text.plain for text in row] for row in cells], spare)
            columns, widths = [columns[at] for at in kept], [widths[at] for at in kept]
            cells, rows = [[row[at] for at in kept] for row in cells], [[row[at] for at in kept] for row in rows]
            room = shutil.get_terminal_size().columns - BETWEEN * len(widths) + 1
            widths = narrowed(widths, room, [column in IDS for column in columns])
            if sum(widths) > room:
                keys = [column.replace("\n", " ") for column in columns]
                longest = max(map(len, keys))
                blocks = (zip(keys, row, strict=True) for row in rows)
                self.say("\n\n".join("\n".join(f"{key:{longest}}  {cell}" for key, cell in block) for block in blocks))
                return
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column, width in zip(columns, widths, strict=True):
            table.add_column(column, overflow="fold", width=width)
        for row in cells:
            table.add_row(*row)
        width = sum(widths) + BETWEEN * len(widths) - 1
        Console(file=self._file, width=width, height=LINES, highlight=False).print(table)
        if unseen:
            self.say(f"not shown for want of room: {', '.join(unseen)} (--wide shows all)")

    def result(self, document: object) -> None:
        """Print the answer for programs: one JSON document on one line."""
        if self.is_json:
            import msgspec

            text = msgspec.json.encode(document, enc_hook=str).decode()
            try:
                text.encode(getattr(self._file, "encoding", None) or "utf-8")
            except UnicodeEncodeError:
                import json

                text = json.dumps(json.loads(text))  # in ASCII
            self._file.write(text + "\n")

    def records(self, columns: Mapping[str, str], records: Sequence[Mapping[str, object]], *, empty: str) -> None:
        """Print records: a table of the named columns (key to heading) for people, all of each for programs."""
        self.table(
            list(columns.values()), [[record.get(key, "") for key in columns] for record in records], empty=empty
        )
        self.result(records)


def fitting(
    columns: Sequence[str], widths: Sequence[int], rows: Sequence[Sequence[str]], spare: Sequence[str]
) -> tuple[list[int], list[str]]:
    """Return which columns are shown on a terminal, and the names of those of `spare` that are not: all, if each can be
    read at its place, or if leaving some out does not help."""
    whole = shutil.get_terminal_size().columns + 1
    needs = [
        BETWEEN + (width if column in IDS else min(width, READABLE))
        for column, width in zip(columns, widths, strict=True)
    ]
    blank = [at for at, column in enumerate(columns) if column not in IDS and all(row[at] in BLANKS for row in rows)]
    later = [list(columns).index(name) for name in spare]
    kept = list(range(len(columns)))
    for at in dict.fromkeys((*blank, *later)):
        if sum(needs[each] for each in kept) <= whole:
            break
        kept.remove(at)
    if sum(needs[each] for each in kept) > whole:
        return list(range(len(columns))), []
    return kept, [columns[at] for at in later if at not in kept and at not in blank]


def narrowed(widths: Sequence[int], room: int, is_kept: Sequence[bool]) -> list[int]:
    """Return the widths of columns that shall have `room` together: the widest is narrowed first, none that is kept,
    and none below NARROW. They take more than `room` if that is not enough."""
    found = [width if kept else min(width, max(room, NARROW)) for width, kept in zip(widths, is_kept, strict=True)]
    while sum(found) > room:
        width, at = max((0 if kept else width, at) for at, (width, kept) in enumerate(zip(found, is_kept, strict=True)))
        if width <= NARROW:
            break
        found[at] -= 1
    return found


def _visible(sign: str) -> str:
    return sign if sign.isprintable() or sign == "\n" else sign.encode("unicode_escape").decode()
