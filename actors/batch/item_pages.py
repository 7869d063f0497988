"""The items of instances as people see them: pages, one item's place, the rows that they name, and the sheet."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from actors.batch.instances import Instances, UnknownInstance
from actors.batch.item_rows import index_of_row
from actors.batch.items import BatchItems
from actors.batch.rules.obstacles import ItemPlace
from actors.batch.rules.record import FINAL, Instance, known_items, made_so_far, shown_state
from actors.batch.rules.refusals import BatchRefused
from actors.batch.rules.sheet_lines import MOST_COLUMNS, SheetHead, cells_of, head_of, names_columns, row_of
from actors.batch.tasks import Tasks
from actors.batch.views import MOST_ROWS, ItemPage, ItemShown, Wanted, check_most, pages_of, sheet_of
from actors.runtime.rules.pages import PAGE_BYTES
from actors.runtime.rules.slot_keys import key_reader
from streams.buckets.files import Files
from streams.messages.batch import LOST, NOTHING, Chunk, ChunkResult, Outcome, Status, last_outcomes, lost_parts
from streams.subjects import check_token

MOST_ITEMS = 1_000
MOST_REDONE = 1_000
SCANNED = 16
"""How many chunks one page of items reads at most, so that a page of rare failures stays quick."""
ROOM_EACH = 100
MOST_INFO = 300
"""Characters of an item's reason in a `why`."""
_NOT_ENDED: tuple[Status | None, str | None] = (None, None)
_LOST: tuple[Status | None, str | None] = ("failed", LOST)
_CANCELLED: tuple[Status | None, str | None] = ("cancelled", None)
"""How an item without an end stands: at work, in an instance that lost chunks, and in one that is over."""


class Cursor(NamedTuple):
    """A place among the items of an instance: a chunk, and how many of its items are before the place. `created_ms`: of
    the instance, since a later one of its id is another. `passes`: of its record when a sheet of it was begun. 0:
    whichever, as at the first page and in a cursor of an older version."""

    first: int = 0
    skip: int = 0
    created_ms: int = 0
    passes: int = 0

    def at(self, first: int, skip: int) -> str:
        """Return the text of another place in the same."""
        return f"{first}.{skip}.{self.created_ms}" + (f".{self.passes}" if self.passes else "")

    def of(self, record: Instance) -> "Cursor":
        """Return the place in this record. Refuses one in another instance, or in an earlier pass."""
        if self.created_ms not in (0, record.created_ms):
            reason = f"the {record.instance_id} of this cursor was deleted, and its id is another instance's now"
            raise BatchRefused(f"{reason}; begin at the first page", code="not_found", field="cursor")
        if self.passes not in (0, record.passes):
            reason = f"{record.instance_id} was retried while its sheet was made; make the sheet anew when it is over"
            raise BatchRefused(reason, code="state")
        return self._replace(created_ms=record.created_ms)


class ItemPages:
    """The items of all instances. `full_key(task, key, most)`: what says that a key has no free slot, or nothing."""

    def __init__(
        self,
        *,
        tasks: Tasks,
        instances: Instances,
        items: BatchItems,
        files: Files,
        full_key: Callable[[str, str, int], Awaitable[str]] | None,
    ) -> None:
        self._tasks = tasks
        self._instances = instances
        self._items = items
        self._files = files
        self._full_key = full_key

    async def page(
        self,
        instance_id: str,
        *,
        status: Wanted = "all",
        cursor: str = "",
        most: int = 100,
        most_bytes: int = PAGE_BYTES,
    ) -> ItemPage:
        """Return a page of an instance's items with the wanted status, in their order. A page may hold fewer than
        `most`, or none, and still not be the last."""
        check_most(most, MOST_ITEMS)
        record = await self._whole(check_token("batch", instance_id))
        place = _read_cursor(cursor).of(record)
        first, skip = place.first, place.skip
        found: list[ItemShown] = []
        made = made_so_far(record)
        chunks = made.chunks if made is not None else 0
        size = 0
        async for number, views in self._of_chunks(record, range(first, min(first + SCANNED, chunks)), most):
            for at, (view, own) in enumerate(views):
                if (number, at) < (first, skip) or (status != "all" and view.status != status):
                    continue
                if found and size + own > most_bytes:
                    return ItemPage(found, place.at(number, at))
                found.append(view)
                size += own
                if len(found) == most:
                    return ItemPage(found, place.at(number, at + 1))
        after = first + SCANNED
        return ItemPage(found, place.at(after, 0) if after < chunks else "")

    async def sheet(self, instance_id: str, *, status: Wanted = "all") -> SheetHead:
        """Return how the sheet of an instance that is over is written. `page` has what is in it. With a status it is a
        sheet of these items alone, to be put right and handed in again."""
        record = await self._instances.get(check_token("batch", instance_id))
        if record.state not in FINAL:
            reason = f"{instance_id} is {shown_state(record)}; its sheet can be made when it is over"
            raise BatchRefused(reason, code="state")
        if made_so_far(record) is None:
            reason = f"{instance_id} is {record.state}, and none of its items is known"
            raise BatchRefused(f"{reason}{record.reason and f': {record.reason}'}", code="not_found", field="name")
        is_rows = self._is_rows(record)
        start = Cursor(created_ms=record.created_ms, passes=record.passes).at(0, 0)
        columns = dict[str, None]()
        is_headed = is_rows and await self._has_header(record)
        async for items in pages_of(lambda cursor: self.page(instance_id, cursor=cursor, most=MOST_ITEMS), start):
            for item in items:
                columns |= dict.fromkeys(cells_of(item.index, item.item, is_rows=is_rows)[1])
            if (columns and is_headed) or len(columns) >= MOST_COLUMNS:
                break
        return head_of(list(columns), start, is_rows=is_rows, is_whole=status == "all")

    async def place(self, record: Instance, index: int) -> ItemPlace:
        """Return what is known of an item."""
        made = made_so_far(record)
        low, high = 0, made.chunks if made is not None else 0
        while low < high:
            middle = (low + high) // 2
            chunk = await self._items.chunk(record, middle)
            if chunk is None:
                gap = await self._items.gap(record, middle)
                if index in gap.indexes:
                    [end] = last_outcomes(Chunk(first=index, items=(NOTHING,)), gap.results)
                    known = ("failed", LOST) if end is None or end.status == "again" else (end.status, _info(end))
                    return ItemPlace(gap.chunks.start, *known)
                low, high = (low, gap.chunks.start) if index < gap.indexes.start else (gap.chunks.stop, high)
            elif index < chunk.first:
                high = middle
            elif index >= chunk.first + len(chunk.items):
                low = middle + 1
            else:
                return await self._place_in(record, middle, chunk, index)
        return ItemPlace()

    async def _place_in(self, record: Instance, number: int, chunk: Chunk, index: int) -> ItemPlace:
        results = await self._items.results(record, [number], least_seq=record.counted_seq)
        end = list(last_outcomes(chunk, results[number]))[index - chunk.first]
        slots, full = self._tasks.of_any(record.task).slots, ""
        if slots is not None and self._full_key is not None and (end is None or end.status == "again"):
            key = key_reader(slots.key)(bytes(chunk.items[index - chunk.first]))
            full = await self._full_key(f"batch.{record.task}", key, slots.most)
        return ItemPlace(number, *(("", "") if end is None else (end.status, _info(end))), full)

    async def _whole(self, instance_id: str) -> Instance:
        """Return an instance whose items are not being deleted: those would look lost."""
        record = await self._instances.get(instance_id)
        if record.deleted_ms:
            raise UnknownInstance(instance_id)
        return record

    async def _has_header(self, record: Instance) -> bool:
        """Return whether the first row of an instance's upload named the columns, so that all rows have the same."""
        given = sheet_of(record.instance_id, record.input)
        info = None if given is None else await self._files.info(given.file)
        if info is None:
            return False
        async for start in self._files.read(info):
            return names_columns(start)
        return False

    def _is_rows(self, record: Instance) -> bool:
        """Return whether the items are rows of a sheet. If the task is not there any more, its input tells."""
        if record.task in self._tasks.known():
            return self._tasks.current(record.task).is_sheet
        return sheet_of(record.instance_id, record.input) is not None

    async def named(self, record: Instance, items: Sequence[int], rows: Sequence[int]) -> Sequence[int]:
        """Return the indexes of these items, or of the items of these rows."""
        if not rows:
            return items
        if items:
            raise BatchRefused("items and rows: name one of them", field="rows")
        if len(rows) > MOST_ROWS:
            raise BatchRefused(f"{len(rows)} rows: name at most {MOST_ROWS}, or none for all that failed", field="rows")
        if not self._is_rows(record):
            raise BatchRefused(f"row {rows[0]}: items of {record.task} are no rows of a sheet; name items", field="row")
        return [await index_of_row(self._items, record, row) for row in rows]

    async def reasons_of(self, record: Instance, items: Sequence[int]) -> list[str]:
        """Return those of the record's few reasons that are of these items."""
        named, found = set(items), list[str]()
        for reason in record.reasons if named else ():
            kind, _, number = reason.partition(":")[0].rpartition(" ")
            if number.isdecimal() and kind in ("item", "row"):
                index = int(number) if kind == "item" else await index_of_row(self._items, record, int(number))
                found += [reason] if index in named else []
        return found

    async def _of_chunks(
        self, record: Instance, numbers: range, most: int
    ) -> AsyncIterator[tuple[int, Iterator[tuple[ItemShown, int]]]]:
        """Yield the numbers of chunks, each with its items and their sizes in bytes. So many chunks are read at a time
        as have `most` items."""
        made, is_rows = made_so_far(record), self._is_rows(record)
        rest = _NOT_ENDED if record.state not in FINAL else _LOST if record.gone else _CANCELLED
        at_once = 1 if made is None else 1 + most * made.chunks // max(1, made.items)
        for at in range(0, len(numbers), at_once):
            some = numbers[at : at + at_once]
            for number, (chunk, results) in zip(some, await self._items.with_results(record, some), strict=True):
                if chunk is not None:
                    yield number, _views(chunk, results, rest, is_rows=is_rows)
                else:
                    yield number, await self._of_gap(record, number)

    async def _of_gap(self, record: Instance, number: int) -> Iterator[tuple[ItemShown, int]]:
        """Return the items of the missing chunks from this one on. There are none if the one before is missing too."""
        if (await self._whole(record.instance_id)).created_ms != record.created_ms:
            raise UnknownInstance(record.instance_id)
        gap = await self._items.lost(record, number)
        parts = lost_parts(gap.indexes.start, gap.indexes.stop)
        return (pair for part in parts for pair in _views(part, gap.results, _LOST, is_rows=False))


def _views(
    chunk: Chunk, results: Sequence[ChunkResult], rest: tuple[Status | None, str | None], *, is_rows: bool
) -> Iterator[tuple[ItemShown, int]]:
    """Yield the items with their sizes. `rest`: how those without an end stand."""
    decode = msgspec.json.decode
    for index, (item, end) in enumerate(zip(chunk.items, last_outcomes(chunk, results), strict=True), chunk.first):
        size, row = len(bytes(item)) + ROOM_EACH, row_of(item) if is_rows else None
        if end is not None and end.status != "again":
            yield ItemShown(index, decode(item), end.status, decode(end.info), row), size + len(bytes(end.info))
        else:
            yield ItemShown(index, decode(item), *rest, row), size


def _info(end: Outcome) -> str:
    return "" if bytes(end.info) == b"null" else bytes(end.info).decode(errors="replace")[:MOST_INFO]


def check_items(record: Instance, items: Sequence[int]) -> None:
    """Refuse items that the instance does not have, and too many."""
    count = known_items(record) or 0
    if len(items) > MOST_REDONE:
        raise BatchRefused(f"{len(items)} items: name at most {MOST_REDONE}, or none for all that failed")
    for index in items:
        if not 0 <= index < count:
            raise BatchRefused(f"item {index}: {record.instance_id} has items 0 to {count - 1}")


def _read_cursor(cursor: str) -> Cursor:
    """Return the place that a cursor names. Raises BatchRefused for a text that is none."""
    numbers = cursor.split(".") if cursor else []
    are_numbers = all(each.isascii() and each.isdecimal() and len(each) < 17 for each in numbers)
    if len(numbers) not in (0, 2, 3, 4) or not are_numbers:
        raise BatchRefused(f"cursor {cursor[:80]!a}: use the one of the page before, unchanged")
    return Cursor(*map(int, numbers))
