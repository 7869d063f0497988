"""What a command prints: tables and sentences for people, one JSON document for programs (`--json`)."""

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TextIO

__all__ = ["Output", "moment"]

WIDEST_IN_A_PIPE = 4096


def moment(at_ms: int) -> str:
    """Return a moment for eyes, UTC, to the second; `-` for none."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%SZ}" if at_ms else "-"


class Output:
    """Where a command's answer goes. With `is_json` only `result` prints, once."""

    def __init__(self, *, is_json: bool, file: TextIO | None = None) -> None:
        self.is_json = is_json
        self._file = file or sys.stdout

    def say(self, text: str) -> None:
        """Print a sentence for people; text from elsewhere cannot move the cursor or colour the terminal."""
        if not self.is_json:
            self._file.write("".join(_visible(sign) for sign in text) + "\n")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str = "none") -> None:
        """Print a table for people; cells are shown by their `str`. An empty one is said in words."""
        if self.is_json:
            return
        if not rows:
            self.say(empty)
            return
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(Text("".join(_visible(sign) for sign in str(cell))) for cell in row))
        width = None if self._file.isatty() else WIDEST_IN_A_PIPE
        Console(file=self._file, width=width, highlight=False).print(table)

    def result(self, document: object) -> None:
        """Print the answer for programs: one JSON document on one line."""
        if self.is_json:
            import msgspec

            self._file.write(msgspec.json.encode(document, enc_hook=str).decode() + "\n")

    def records(self, columns: Mapping[str, str], records: Sequence[Mapping[str, object]], *, empty: str) -> None:
        """Print records: a table of the named columns (key to heading) for people, all of each for programs."""
        self.table(
            list(columns.values()), [[record.get(key, "") for key in columns] for record in records], empty=empty
        )
        self.result(records)


def _visible(sign: str) -> str:
    return sign if sign.isprintable() or sign == "\n" else sign.encode("unicode_escape").decode()
