"""Keeps batches that are over as files, before Penstock removes their records.

`TASK/ID.CREATED.jsonl` has the batch in its first line, and an item with its end in each other line.
`TASK/ID.CREATED.xlsx` is the sheet. A file is complete or not there, and a repeat writes the same again. If one cannot
be written, the records stay, a notice says so, and the conductor tries again."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from actors.batch.desk import BatchDesk
from actors.batch.item_pages import Cursor
from actors.batch.rules.refusals import BatchRefused
from actors.batch.views import ItemPage, View, pages_of
from actors.runtime.logs import fields
from actors.runtime.rules.notices import Notice
from penstock.errors import UsageError
from penstock.node.config import Config
from penstock.rows.sheet_stream import sheet_parts
from penstock.rows.whole_file import write_whole

__all__ = ["BatchArchive", "archive_folder"]

log = logging.getLogger(__name__)
SOURCE = "batch archive"
MOST = 1_000


def archive_folder(config: Config) -> Path | None:
    """Return the folder of the archive. `None`: batches are not kept. Raises UsageError if it is not there."""
    if not config.batch_archive or not config.has_role("conductor"):
        return None
    folder = Path(config.batch_archive).expanduser().resolve()
    if not folder.is_dir():
        raise UsageError(f"batch_archive: {folder} is no directory; make it first")
    return folder


class BatchArchive:
    """One node's way to the archive."""

    def __init__(self, folder: Path, desk: BatchDesk, tell: Callable[[Notice], None]) -> None:
        self._folder = folder
        self._desk = desk
        self._tell = tell
        self._is_down = False

    async def keep(self, instance_id: str) -> bool:
        """Write the files of an instance. Return False if that failed. Raises the broker's errors."""
        view = await self._desk.show(instance_id)
        place = self._folder / view.task / f"{view.instance_id}.{view.created_ms}"
        try:
            await anyio.to_thread.run_sync(lambda: place.parent.mkdir(exist_ok=True))
            await _write(place.with_name(f"{place.name}.jsonl"), self._lines(view))
            await self._write_sheet(place, instance_id)
        except BatchRefused:  # it was retried meanwhile, or its id is another instance's
            return False
        except OSError as error:
            self._is_down = True
            self._tell(_down(self._folder, instance_id, error))
            return False
        if self._is_down:
            self._is_down = False
            self._tell(_up(self._folder))
        log.info("batch.archived", extra=fields(instance=instance_id, task=view.task))
        return True

    async def _lines(self, view: View) -> AsyncIterator[bytes]:
        start = Cursor(created_ms=view.created_ms, passes=view.passes).at(0, 0)
        yield msgspec.json.encode(view) + b"\n"
        async for items in pages_of(self._pages(view.instance_id), start):
            yield b"".join(msgspec.json.encode(item) + b"\n" for item in items)

    async def _write_sheet(self, place: Path, instance_id: str) -> None:
        try:
            head = await self._desk.items.sheet(instance_id)
        except BatchRefused:  # no item is known
            return
        parts = sheet_parts(head, pages_of(self._pages(instance_id), head.cursor), "xlsx")
        await _write(place.with_name(f"{place.name}.xlsx"), parts)

    def _pages(self, instance_id: str) -> Callable[[str], Awaitable[ItemPage]]:
        return lambda cursor: self._desk.items.page(instance_id, cursor=cursor, most=MOST)


async def _write(path: Path, parts: AsyncIterator[bytes]) -> None:
    growing = path.with_name(f".{path.name}")
    await anyio.Path(growing).unlink(missing_ok=True)  # of a node that was killed
    await write_whole(path, parts, growing=growing, is_synced=True)


def _down(folder: Path, instance_id: str, error: OSError) -> Notice:
    text = f"the archive of batches cannot be written: {folder}, batch {instance_id}: {error.strerror or error}"
    do = "make room there, or let the node's user write there; the records stay until then"
    return Notice(kind="archive_down", source=SOURCE, text=text, what_to_do=do, facts={"folder": str(folder)})


def _up(folder: Path) -> Notice:
    text = f"the archive of batches is written again: {folder}"
    return Notice(kind="archive_up", source=SOURCE, text=text, what_to_do="")
