"""Zoned jobs over the rows of a SQLite file (tests/support/zone_rows.py).

A row has a number, `id`, and a key. Each handled row writes a line into `handled`: the row, the zone, the epoch, the
process. `refused` has a line for each save that was refused. `ZONE_STOP_AT=3`: the process stops itself (SIGSTOP) in
its third batch of `long`, after the rows and before the save.
"""

import os
import signal

import penstock
from tests.support.zone_rows import batch, database

STOP_AT = int(os.environ.get("ZONE_STOP_AT", "0"))
_batches = 0


def _handle(ctx: penstock.ZoneContext | penstock.PlainZoneContext, rows: list[tuple[int, int]]) -> None:
    written = [(ctx.job, row, ctx.zone, ctx.epoch, os.getpid()) for row, _ in rows]
    database().executemany("INSERT INTO handled VALUES (?, ?, ?, ?, ?)", written)


def _refuse(ctx: penstock.ZoneContext | penstock.PlainZoneContext, offset: int) -> None:
    database().execute(
        "INSERT INTO refused VALUES (?, ?, ?, ?, ?)", (ctx.job, offset, ctx.zone, ctx.epoch, os.getpid())
    )


def _stop_now_and_then() -> None:
    global _batches
    _batches += 1
    if _batches == STOP_AT:
        os.kill(os.getpid(), signal.SIGSTOP)


@penstock.zoned("sync", pause="20ms")
async def sync(ctx: penstock.ZoneContext) -> None:
    """A loop, whose batches are of rows that their shard has not passed."""
    rows = batch(ctx.start_offset)
    if rows:
        _handle(ctx, ctx.mine(rows, key=1, offset=0))
        try:
            await ctx.save(rows[-1][0])
        except penstock.RunEnded:
            _refuse(ctx, rows[-1][0])
            raise


@penstock.zoned("long", pause="20ms")
def long(ctx: penstock.PlainZoneContext) -> None:
    """A plain function with a loop of its own. It does not name the offset, so rows may come again."""
    offset = ctx.start_offset
    while not ctx.is_stopped():
        rows = batch(offset)
        if rows:
            _handle(ctx, ctx.mine(rows, key=lambda row: row[1]))
            _stop_now_and_then()
            offset = rows[-1][0]
            try:
                ctx.save(offset)
            except penstock.RunEnded:
                _refuse(ctx, offset)
                raise
        ctx.pause()


@penstock.zoned("tick", every="1s")
async def tick(ctx: penstock.ZoneContext) -> None:
    """One batch at each tick."""
    rows = batch(ctx.start_offset)
    if rows:
        _handle(ctx, ctx.mine(rows, key=1, offset=0))
        await ctx.save(rows[-1][0])
