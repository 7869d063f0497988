"""A sheet of an instance's items as bytes, which are made while they are taken: never whole in memory."""

import io
from collections.abc import AsyncIterator
from typing import IO, cast

import anyio.to_thread

from actors.batch.rules.sheet_lines import SheetHead
from actors.batch.views import ItemShown
from penstock.rows.sheets.kinds import SheetKind
from penstock.rows.sheets.writing import open_sheet

__all__ = ["sheet_parts"]


async def sheet_parts(head: SheetHead, pages: AsyncIterator[list[ItemShown]], kind: SheetKind) -> AsyncIterator[bytes]:
    """Yield a sheet's bytes, some hundred lines at a time."""
    growing = _Growing()
    with open_sheet(cast(IO[bytes], growing), kind, head.columns) as sheet:
        async for items in pages:
            lines = (head.line(each.index, each.item, each.status or "", each.info) for each in items)
            await anyio.to_thread.run_sync(sheet.write, lines)
            if part := growing.take():
                yield part
    yield growing.take()


class _Growing(io.RawIOBase):
    """What was written, and nobody has taken yet."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, part: bytes) -> int:  # type: ignore[override] # whatever bytes() takes
        self._parts.append(bytes(part))
        return len(self._parts[-1])

    def take(self) -> bytes:
        taken = b"".join(self._parts)
        self._parts.clear()
        return taken
