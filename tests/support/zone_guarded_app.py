"""A zoned job whose sink is guarded by the epoch, as docs/howto/clusters.md writes it, and one that is not.

Each row is an order. Its shard is its number modulo 10. Each order that was sent writes a line into `sent`. A batch
that the database refused writes one into `fenced`. `GUARD_STOP_AT=3`: the process stops itself (SIGSTOP) in its third
batch of `guarded`, after it has read the rows.
"""

import os
import signal

import penstock
from tests.support.zone_rows import batch, database

STOP_AT = int(os.environ.get("GUARD_STOP_AT", "0"))
_batches = 0


@penstock.zoned("guarded", pause="20ms")
async def guarded(ctx: penstock.ZoneContext) -> None:
    """Send the orders of a batch in one transaction."""
    rows = batch(ctx.start_offset)
    if not rows:
        return
    ids = [row for row, _ in ctx.mine(rows, key=1)]
    _stop_once()
    if not _send(ctx, ids):
        database().execute("INSERT INTO fenced VALUES (?, ?, ?)", (ctx.zone, ctx.epoch, os.getpid()))
        return
    await ctx.save(rows[-1][0])


@penstock.zoned("tick", every="1s")
async def tick(ctx: penstock.ZoneContext) -> None:
    """Write down the rows of one batch at each tick, without a guard."""
    rows = batch(ctx.start_offset)
    if rows:
        written = [(ctx.job, row, ctx.zone, ctx.epoch, os.getpid()) for row, _ in ctx.mine(rows, key=1, offset=0)]
        database().executemany("INSERT INTO handled VALUES (?, ?, ?, ?, ?)", written)
        await ctx.save(rows[-1][0])


def _send(ctx: penstock.ZoneContext, ids: list[int]) -> bool:
    db = database()
    db.execute("BEGIN IMMEDIATE")
    for shard in ctx.shards:
        told = db.execute("UPDATE fence SET epoch = ? WHERE shard = ? AND epoch <= ?", (ctx.epoch, shard, ctx.epoch))
        if told.rowcount == 0:
            db.execute("ROLLBACK")
            return False
    for row in ids:
        if db.execute("UPDATE orders SET state = 'sent' WHERE id = ? AND state = 'new'", (row,)).rowcount:
            db.execute("INSERT INTO sent VALUES (?, ?, ?, ?)", (row, ctx.zone, ctx.epoch, os.getpid()))
    db.execute("COMMIT")
    return True


def _stop_once() -> None:
    global _batches
    _batches += 1
    if _batches == STOP_AT:
        os.kill(os.getpid(), signal.SIGSTOP)
