"""The application of tests of streaming splits in processes of their own: what ran is noted in a file."""

import os
from pathlib import Path
from typing import Any

import anyio

import penstock

STREAMED = "streamed"
HALF, MORE, ALL = 25, 40, 60
half_ran = anyio.Event()


def notes_of(path: Path) -> list[int]:
    """Return the items that ran, in the order in which they began."""
    return [int(line) for line in path.read_text().split()]


@penstock.batch(STREAMED, streaming=True, is_idempotent=False, chunk_items=10)
class Streamed:
    """Its first split goes on when the first half has run, and comes to no end."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*range(HALF))
        if "PENSTOCK_CRASH_AT" in os.environ:
            await half_ran.wait()
            await ctx.commit(*range(HALF, MORE))
            await anyio.sleep_forever()
        await ctx.commit(*range(HALF, ALL))

    async def map(self, item: int) -> None:
        notes = os.open(os.environ["STREAMED_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(notes, f"{item}\n".encode())
        finally:
            os.close(notes)
        if item == HALF - 1:
            half_ran.set()

    async def reduce(self, ctx: penstock.ReduceContext) -> dict[str, Any]:
        found = [result.item async for page in ctx.read(7) for result in page]
        return {"in order": found == list(range(ALL))}
