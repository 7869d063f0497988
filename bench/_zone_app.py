"""The application that `bench zone` measures: a zoned job over rows that come at an even rate. `ZONE_BENCH` names a
folder, where each process notes its batches. The file `from` says when the first row came (seconds of the clock).

Row `n` is there `n / RATE` seconds after the first, and its key is its number.
"""

import functools
import os
from pathlib import Path

import penstock
from streams.clock import monotonic_s

RATE = 2_000
BATCH = 200
SHARDS = 100
FROM = "from"


@functools.cache
def _notes() -> int:
    path = Path(os.environ["ZONE_BENCH"]) / f"{os.getpid()}.batches"
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


@functools.cache
def _from_s() -> float:
    return float((Path(os.environ["ZONE_BENCH"]) / FROM).read_text())


def last_row() -> int:
    """Return the number of the newest row."""
    return int((monotonic_s() - _from_s()) * RATE)


@penstock.zoned("bench", pause="20ms")
async def handle(ctx: penstock.ZoneContext) -> None:
    """Handle a batch: note its start, its end, up to where rows may come again, and the rows themselves."""
    start = ctx.start_offset
    end = min(start + BATCH, last_row())
    if end > start:
        rows = ctx.mine(range(start + 1, end + 1), key=int)
        facts = (ctx.zone, ctx.epoch, os.getpid(), start, end, ctx.ahead_offset, " ".join(map(str, rows)))
        os.write(_notes(), (",".join(map(str, facts)) + "\n").encode())
        await ctx.save(end)
