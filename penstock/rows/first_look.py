"""A first look at a sheet before it becomes a batch: its rows are read as the split reads them, and the task's own code
tells page by page which it would not take. Nothing is stored, and nothing runs."""

import codecs
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import anyio.to_thread
import msgspec
from anyio import open_file
from msgspec import Raw
from msgspec.structs import replace

from actors.batch.rules.refusals import BatchRefused
from actors.batch.rules.row_looks import SHOWN, AskRows, FirstLook, cells_alone, look_at, with_page
from penstock.rows.sheets.kinds import GUESSED, MARKED
from penstock.rows.sheets.limits import BadSheet, too_large
from penstock.rows.sheets.parsing import parse_sheet
from penstock.rows.sheets.rows import Row
from streams.messages.batch import CHUNK_BYTES

__all__ = ["first_look", "look_at_file"]

"""Returns how the task's code reads rows. It shows so many of them."""


async def look_at_file(
    task: str, parts: AsyncIterator[bytes], ask: AskRows, *, name: str, sheet: str, encoding: str
) -> FirstLook:
    """Look at a file that comes in parts. Raises BatchRefused."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        path = Path(folder) / "upload"
        async with await open_file(path, "wb") as copy:
            async for part in parts:
                await copy.write(part)
        return await first_look(task, path, ask, name=name, sheet=sheet, encoding=encoding)


async def first_look(
    task: str, path: Path, ask: AskRows, *, name: str = "", sheet: str = "", encoding: str = ""
) -> FirstLook:
    """Look at all rows of a file. Raises BatchRefused."""
    look = FirstLook(task=task)
    try:
        async for page in parse_sheet(path, name=name, sheet=sheet, encoding=encoding):
            for rows, raws in _messages(page):
                left = SHOWN - len(look.first)
                if look.unchecked:  # nobody answers, or none of the code would tell
                    seen = replace(look_at(raws, cells_alone, str, shown=left), unchecked=look.unchecked)
                else:
                    seen = await ask(raws, left)
                look = with_page(look, rows, seen)
    except BadSheet as error:
        raise BatchRefused(str(error), field="file") from error
    if not look.rows:
        seen = await ask([], 0)  # it knows the fields all the same
        look = with_page(look, [], seen)
    is_guess = not encoding and await anyio.to_thread.run_sync(_is_guess, path)
    return replace(look, note=GUESSED) if is_guess else look


def _messages(page: Sequence[Row]) -> Iterator[tuple[list[Row], list[Raw]]]:
    """Yield the rows as items, as many at a time as fit into a message. Raises BadSheet for one that fits into none."""
    rows, raws, size = list[Row](), list[Raw](), 0
    for row in page:
        raw = Raw(msgspec.json.encode(row))
        own = len(bytes(raw))
        if own > CHUNK_BYTES:
            raise BadSheet(too_large(row[0], own, CHUNK_BYTES))
        if rows and size + own > CHUNK_BYTES:
            yield rows, raws
            rows, raws, size = [], [], 0
        rows.append(row)
        raws.append(raw)
        size += own
    if rows:
        yield rows, raws


def _is_guess(path: Path) -> bool:
    """Return whether a file without a mark is no UTF-8, so that its reader guessed what it is."""
    decode = codecs.getincrementaldecoder("utf-8")().decode
    with path.open("rb") as file:
        start = part = file.read(1 << 20)
        if start.startswith(MARKED):
            return False
        try:
            while part:
                decode(part)
                part = file.read(1 << 20)
        except UnicodeDecodeError:
            return True
    return False
