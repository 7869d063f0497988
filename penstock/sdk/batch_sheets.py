"""The default of a task: its items are the rows of the uploaded sheet, and its result is a sheet with each row, its end
and the reason. Also what a task's own code uses to write sheets."""

from __future__ import annotations

import codecs
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio.to_thread
import msgspec
from anyio import open_file

from actors.batch.executor.contexts import NotJson, ReduceContext, SplitContext
from actors.batch.rules.sheet_lines import MOST_COLUMNS, cells_of, head_of, names_columns
from actors.batch.views import sheet_of
from penstock.rows.sheets.kinds import GUESSED, MARKED, SheetKind
from penstock.rows.sheets.limits import BadSheet, too_large
from penstock.rows.sheets.parsing import parse_sheet
from penstock.rows.sheets.rows import Row
from penstock.rows.sheets.writing import SheetWriter, open_sheet
from streams.buckets.files import DamagedFile, FileInfo, Files
from streams.messages.batch import CHUNK_BYTES

__all__ = ["Sheet", "SheetRow", "read_sheet", "reduce_to_sheet", "split_sheet", "write_sheet"]

RESULT = "result.xlsx"


class SheetRow(msgspec.Struct, frozen=True, array_like=True):
    """A row as an item: its number in the sheet, and its cells by column."""

    row: int
    cells: dict[str, Any]


async def split_sheet(context: SplitContext) -> None:
    """Commit each row of the uploaded sheet."""
    given = sheet_of(context.instance_id, context.read_input(msgspec.Raw))
    if given is None:
        raise BadSheet("no file was uploaded; the items of this task are its rows")
    async for rows in read_sheet(
        context.files, given.file, name=given.name, sheet=given.sheet, encoding=given.encoding
    ):
        try:
            await context.commit(*(SheetRow(number, cells) for number, cells in rows))
        except NotJson as error:
            raise BadSheet(_large_among(rows) or str(error)) from error
        context.progress(rows[-1][0])


def _large_among(rows: Sequence[Row]) -> str:
    """Return which of the rows is too large to be an item."""
    sizes = ((number, len(msgspec.json.encode((number, cells)))) for number, cells in rows)
    return next((too_large(number, size, CHUNK_BYTES) for number, size in sizes if size > CHUNK_BYTES), "")


async def read_sheet(
    files: Files, file: str, *, name: str = "", sheet: str = "", encoding: str = ""
) -> AsyncIterator[list[Row]]:
    """Yield the rows of a file in the object store, some hundred at a time, each with its number and its cells:
    `async for rows in penstock.read_sheet(ctx.files, ctx.input["file"])`. `sheet`: the sheet of a workbook, by default
    the first. `encoding`: of a csv, by default UTF-8 or GB 18030. A row that cannot be read as it should has a cell
    `penstock_fault`, which says why. Raises BadSheet, a ValueError."""
    info = await files.info(file)
    if info is None:
        raise BadSheet(f"the file {file[:80]!a} is not there; upload it again")
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        path = Path(folder) / "upload"
        async with await open_file(path, "wb") as copy:
            async for part in files.read(info):
                await copy.write(part)
        async for rows in parse_sheet(path, name=name or file, sheet=sheet, encoding=encoding):
            yield rows


async def reduce_to_sheet(context: ReduceContext, *, is_rows: bool) -> Mapping[str, Any]:
    """Write each item, its end and the reason into `result.xlsx`, and return the file's name and the counts."""
    upload = await _upload_of(context) if is_rows else None
    head = head_of(await _columns(context, upload), is_rows=is_rows, is_whole=True)
    async with Sheet.collecting(context) as sheets:
        sheets.open(RESULT, head.columns)
        async for results in context.chunks():
            await sheets.write(head.line(each.index, each.item, each.status, each.info) for each in results)
    told = {"files": sheets.names, "counts": msgspec.to_builtins(context.counts)}
    return told | ({"note": GUESSED} if upload is not None and upload.is_guessed else {})


async def _columns(context: ReduceContext, upload: _Upload | None) -> list[str]:
    """Return the items' columns, at most as many as an Excel sheet has. If the upload has a header, all rows have its
    columns. Otherwise each item may have columns of its own, and all items are read before the first one is written."""
    columns = dict[str, None]()
    is_headed = upload is not None and upload.has_header
    async for results in context.chunks():
        for result in results:
            columns |= dict.fromkeys(cells_of(result.index, result.item, is_rows=upload is not None)[1])
            if (columns and is_headed) or len(columns) >= MOST_COLUMNS:
                return list(columns)
    return list(columns)


class _Upload(NamedTuple):
    """How the upload was read."""

    has_header: bool
    is_guessed: bool


async def _upload_of(context: ReduceContext) -> _Upload:
    """Read the start of the upload again, to learn whether its first row names the columns and whether its encoding was
    guessed."""
    given = sheet_of(context.instance_id, context.read_input(msgspec.Raw))
    info = await context.files.info(given.file) if given is not None else None
    if given is None or info is None:
        return _Upload(has_header=False, is_guessed=False)
    decode, start = codecs.getincrementaldecoder("utf-8")().decode, b""
    try:
        async for part in context.files.read(info):
            start = start or part
            if given.encoding or start.startswith(MARKED):
                break
            decode(part)
    except UnicodeDecodeError:
        return _Upload(has_header=True, is_guessed=True)
    except DamagedFile:  # since the split, and its rows are known
        return _Upload(has_header=False, is_guessed=False)
    return _Upload(has_header=names_columns(start), is_guessed=False)


class Sheet:
    """Sheets that a reduce writes. They grow in a folder of their own, and go into the object store at the end."""

    def __init__(self, context: ReduceContext, folder: Path) -> None:
        self.names: list[str] = []
        self._context = context
        self._folder = folder
        self._writer: SheetWriter | None = None

    @classmethod
    @asynccontextmanager
    async def collecting(cls, context: ReduceContext) -> AsyncIterator[Sheet]:
        with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
            sheet = cls(context, Path(folder))
            yield sheet
            await sheet.store()

    def open(self, name: str, columns: Sequence[str]) -> None:
        """Begin a sheet. The ending of its name is its format: xlsx, csv or jsonl."""
        kind = msgspec.convert(name.rpartition(".")[2].lower(), SheetKind)
        self._writer = open_sheet(self._folder / name, kind, columns)
        self.names.append(name)

    async def write(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Add rows to the sheet. A thread takes them."""
        assert self._writer is not None
        await anyio.to_thread.run_sync(self._writer.write, rows)

    async def store(self) -> None:
        """End the sheet and put it into the object store."""
        if self._writer is not None:
            await anyio.to_thread.run_sync(self._writer.__exit__, None, None, None)
            for name in self.names:
                await store_file(self._context.files, self._context.file_name(name), self._folder / name)


@asynccontextmanager
async def write_sheet(context: ReduceContext, name: str, columns: Sequence[str]) -> AsyncIterator[Sheet]:
    """Write a sheet of the task's own: `async with write_sheet(ctx, "failed.csv", ["sku", "why"]) as sheet: await
    sheet.write(rows)`. At the end of the block the sheet is in the object store under `ctx.file_name(name)`."""
    async with Sheet.collecting(context) as sheet:
        sheet.open(name, columns)
        yield sheet


async def store_file(files: Files, name: str, path: Path) -> FileInfo:
    """Put a file of this machine into the object store. Raises FileTooLarge."""

    async def parts() -> AsyncIterator[bytes]:
        async with await open_file(path, "rb") as file:
            while part := await file.read(1 << 20):
                yield part

    return await files.put(name, parts())
