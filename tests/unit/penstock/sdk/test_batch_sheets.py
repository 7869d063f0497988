"""The default reduce: a sheet of hundreds of wide rows, written while the event loop serves others."""

from collections.abc import AsyncIterator, Sequence
from typing import cast

import anyio
import msgspec
from msgspec import Raw

from actors.batch.executor.contexts import ReduceContext
from actors.batch.items import BatchItems
from actors.batch.rules.record import Instance, Seal
from penstock.sdk.batch_sheets import reduce_to_sheet
from streams.buckets.files import Files
from streams.messages.batch import Chunk, ChunkResult
from tests.support.loop_turns import longest_turn_ms

CHUNKS, IN_CHUNK, COLUMNS = 11, 25, 1_000
ROW = Raw(msgspec.json.encode((2, {f"column {at}": at for at in range(COLUMNS)})))


class Stored:
    """Chunks of wide items, read at once."""

    async def with_results(self, _record: Instance, numbers: range) -> list[tuple[Chunk, Sequence[ChunkResult]]]:
        return [(Chunk(first=number * IN_CHUNK, items=(ROW,) * IN_CHUNK), ()) for number in numbers]


class Kept:
    """Files that are counted."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}

    async def put(self, name: str, parts: AsyncIterator[bytes]) -> None:
        self.sizes[name] = sum([len(part) async for part in parts])


async def test_a_sheet_of_a_thousand_columns_does_not_hold_up_the_event_loop() -> None:
    seal = Seal(fence=1, chunks=CHUNKS, items=CHUNKS * IN_CHUNK, digest="")
    record = Instance(instance_id="i", task="t", created_ms=1, state="reducing", step_fence=2, seal=seal)
    files = Kept()
    context = ReduceContext(record, cast(Files, files), lambda: record, cast(BatchItems, Stored()))
    async with longest_turn_ms() as longest_ms:
        with anyio.fail_after(60):
            result = await reduce_to_sheet(context, is_rows=True)
        assert longest_ms() < 25
    assert result["files"] == ["result.xlsx"]
    assert files.sizes["i/result-2/result.xlsx"] > 130_000
