"""Reads an uploaded sheet in a process of its own, so that a hostile file hurts nothing but that process."""

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import msgspec
from anyio.streams.buffered import BufferedByteReceiveStream

from penstock.rows.sheets.kinds import check_encoding, kind_of
from penstock.rows.sheets.limits import BadSheet, ReaderEnded, SheetLimits
from penstock.rows.sheets.rows import Row

__all__ = ["parse_sheet"]

LONGEST_LINE = 1 << 30
ENDS = {
    -9: "it was killed, most likely for want of memory",
    -6: "it takes more memory than allowed",
    -24: "it takes too long",
}


class _Told(msgspec.Struct):
    rows: list[Row] = []
    count: int = -1
    error: str = ""


async def parse_sheet(
    path: Path,
    *,
    name: str = "",
    limits: SheetLimits | None = None,
    sheet: str = "",
    encoding: str = "",
) -> AsyncIterator[list[Row]]:
    """Yield the rows of a file, some hundred at a time, with their numbers. Raises BadSheet, before or after some rows:
    nothing of a sheet counts until it has been read to its end."""
    limits = limits or SheetLimits()
    size = (await anyio.Path(path).stat()).st_size
    if size > limits.file_bytes:
        raise BadSheet(f"{size} bytes, at most {limits.file_bytes}; send it in parts")
    encoding = check_encoding(encoding)
    kind: str = await anyio.to_thread.run_sync(kind_of, path, name, encoding)
    arguments = [str(path), kind, msgspec.json.encode(limits).decode(), sheet, encoding]
    command = [sys.executable, "-I", "-m", "penstock.rows.sheets.child", *arguments]
    async with await anyio.open_process(command, stdin=None, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        lines, decode, is_whole = BufferedByteReceiveStream(process.stdout), msgspec.json.Decoder(_Told).decode, False
        try:
            while not is_whole:
                told = decode(await lines.receive_until(b"\n", LONGEST_LINE))
                if told.error:
                    raise BadSheet(told.error)
                is_whole = told.count >= 0
                if told.rows:
                    yield told.rows
        except (anyio.IncompleteRead, anyio.EndOfStream):
            code = await process.wait()
            raise ReaderEnded(f"the file cannot be read: {ENDS.get(code, f'its reader ended with {code}')}") from None
        finally:
            if process.returncode is None:
                process.kill()
