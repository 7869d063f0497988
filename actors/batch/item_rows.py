"""Finds items among the chunks of an instance: by index, and by the row of the sheet that they were."""

from actors.batch.items import BatchItems
from actors.batch.rules.record import Instance, made_so_far
from actors.batch.rules.refusals import BatchRefused
from actors.batch.rules.sheet_lines import index_in_gap, row_of
from streams.messages.batch import Chunk


async def index_of_row(items: BatchItems, record: Instance, row: int) -> int:
    """Return the index of a row. It costs some reads, however many rows there are. Raises BatchRefused."""
    made = made_so_far(record)
    low, high = 0, made.chunks if made is not None else 0
    while low < high:
        middle = (low + high) // 2
        chunk = await items.chunk(record, middle)
        start, stop = middle, middle + 1
        if chunk is None:
            gap = await items.gap(record, middle)
            start, stop = gap.chunks.start, gap.chunks.stop
            before = await items.chunk(record, start - 1) if start else None
            after = await items.chunk(record, stop) if made is not None and stop < made.chunks else None
            first = None if before is None else _last(before)
            last = None if after is None else row_of(after.items[0])
            if (first is None or row > first) and (last is None or row < last):
                return _found_in_gap(record, row, index_in_gap(row, first, last, gap.indexes))
            is_before = first is not None and row <= first
        else:
            rows = [row_of(item) for item in chunk.items]
            if row in rows:
                return chunk.first + rows.index(row)
            is_before = rows[0] is None or row < rows[0]
        low, high = (low, start) if is_before else (stop, high)
    raise BatchRefused(
        f"row {row}: {record.instance_id} has no such row; `penstock batch items` shows those that it has", field="row"
    )


def _found_in_gap(record: Instance, row: int, index: int | None) -> int:
    if index is None:
        reason = f"rows near it in {record.instance_id} are gone, so it is not known which item it was"
        raise BatchRefused(f"row {row}: {reason}", field="row")
    return index


def _last(chunk: Chunk) -> int | None:
    return row_of(chunk.items[-1])
