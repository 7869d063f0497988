"""Zoned jobs over the rows of a SQLite file: `ZONE_DB` names it. `ZONE_BATCH`: rows of one batch, 50 by default.

A row has a number, `id`, and a key. Each handled row writes a line into `handled`: the row, the zone, the epoch, the
process. `refused` has a line for each save that was refused. `ZONE_STOP_AT=3`: the process stops itself (SIGSTOP) in
its third batch of `long`, after the rows and before the save.
"""

import os
import signal
import sqlite3
import threading

import penstock

BATCH = int(os.environ.get("ZONE_BATCH", "50"))
STOP_AT = int(os.environ.get("ZONE_STOP_AT", "0"))
_batches = 0
_local = threading.local()


def database() -> sqlite3.Connection:
    """Return this thread's connection."""
    if getattr(_local, "it", None) is None:
        _local.it = sqlite3.connect(os.environ["ZONE_DB"], timeout=30, isolation_level=None)
        _local.it.execute("PRAGMA synchronous = OFF")
    connection: sqlite3.Connection = _local.it
    return connection


def make(path: str) -> None:
    """Make the file, without rows."""
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, key INTEGER NOT NULL)")
        db.execute("CREATE TABLE handled (job TEXT, id INTEGER, zone TEXT, epoch INTEGER, pid INTEGER)")
        db.execute("CREATE TABLE refused (job TEXT, offset INTEGER, zone TEXT, epoch INTEGER, pid INTEGER)")


def _batch(after: int) -> list[tuple[int, int]]:
    query = "SELECT id, key FROM rows WHERE id > ? ORDER BY id LIMIT ?"
    return database().execute(query, (after, BATCH)).fetchall()


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
    rows = _batch(ctx.start_offset)
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
        rows = _batch(offset)
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
    rows = _batch(ctx.start_offset)
    if rows:
        _handle(ctx, ctx.mine(rows, key=1, offset=0))
        await ctx.save(rows[-1][0])
