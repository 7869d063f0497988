"""Flows over the tables of a SQLite file: `FLOW_DB` names it, `FLOW_TABLES` says how many tables there are.
`FLOW_GROUPS`: as `a=odd,b=even`. `FLOW_LEAD`: for how long rows are in flight beyond the interval. `FLOW_LOAD_S`: how
long a load of `prizes` takes. `FLOW_PREFIX`: before the names of the shards of `plain`, up to a slash.

A row is new (0) or done (1). Each execution writes a line into `runs`, with the time and the node's process."""

import asyncio
import os
import sqlite3
import threading
import time
from typing import Any

import penstock
from streams.clock import monotonic_s
from tests.support.sqlite import sqlite_file

GROUPS = dict(pair.split("=") for pair in os.environ.get("FLOW_GROUPS", "").split(",") if pair)
RATE = float(os.environ.get("FLOW_RATE", "0"))
EVERY = os.environ.get("FLOW_EVERY", "1s")
LEAD = os.environ.get("FLOW_LEAD") or None
LOAD_S = float(os.environ.get("FLOW_LOAD_S", "0"))
_local = threading.local()


def database() -> sqlite3.Connection:
    """Return this thread's connection."""
    if getattr(_local, "it", None) is None:
        _local.it = sqlite3.connect(os.environ["FLOW_DB"], timeout=30, isolation_level=None)
        _local.it.execute("PRAGMA synchronous = OFF")
    connection: sqlite3.Connection = _local.it
    return connection


def make(path: str, tables: int, rows: int) -> None:
    """Make the file, with so many rows in each table."""
    with sqlite_file(path) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE runs (shard TEXT, key INTEGER, at REAL, pid INTEGER)")
        db.execute("CREATE TABLE ticks (due_ms INTEGER, at REAL)")
        db.execute("CREATE TABLE calls (side TEXT, began REAL, ended REAL, pid INTEGER)")
        for number in range(tables):
            db.execute(f"CREATE TABLE prizes_{number} (id INTEGER PRIMARY KEY, state INTEGER NOT NULL)")
            db.execute(f"CREATE INDEX new_{number} ON prizes_{number} (id) WHERE state = 0")
            db.executemany(f"INSERT INTO prizes_{number} VALUES (?, 0)", [(key,) for key in range(rows)])


def tables() -> int:
    return int(os.environ.get("FLOW_TABLES", "10"))


@penstock.flow("prizes", rate=RATE, every=EVERY, lead=LEAD, groups=GROUPS, concurrency=2, most=500)
class Prizes:
    """Rows by the range of their key."""

    def split(self, ctx: penstock.FlowContext) -> list[int]:
        return [] if os.environ.get("FLOW_SLOTS") else list(range(tables()))

    def load(self, ctx: penstock.FlowContext, shard: str, limit: int) -> list[tuple[int, Any]]:
        time.sleep(LOAD_S)
        query = f"SELECT id FROM prizes_{shard} WHERE state = 0 AND id > ? ORDER BY id LIMIT ?"
        return [(key, {"id": key}) for (key,) in database().execute(query, (int(ctx.after or -1), limit))]

    def execute_many(self, contexts: list[penstock.FlowContext], rows: list[Any]) -> None:
        now, pid, db = monotonic_s(), os.getpid(), database()
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT INTO runs VALUES (?, ?, ?, ?)", [(c.shard, int(c.key), now, pid) for c in contexts])
        for context in contexts:
            db.execute(f"UPDATE prizes_{context.shard} SET state = 1 WHERE id = ?", (int(context.key),))
        db.execute("COMMIT")


@penstock.flow("plain", every=EVERY)
class Plain:
    """One row a call, async, by a loader that begins at the start of its table each time."""

    def split(self, ctx: penstock.FlowContext) -> list[str]:
        prefix = os.environ.get("FLOW_PREFIX", "")
        return [f"{prefix}{number}" for number in range(tables())] if os.environ.get("FLOW_PLAIN") else []

    def load(self, ctx: penstock.FlowContext, shard: str, limit: int) -> list[tuple[int, Any]]:
        query = f"SELECT id FROM prizes_{shard.rpartition('/')[2]} WHERE state = 0 LIMIT ?"
        return [(key, {"id": key}) for (key,) in database().execute(query, (limit,))]

    async def execute(self, ctx: penstock.FlowContext, row: dict[str, int]) -> None:
        db = database()
        db.execute("INSERT INTO runs VALUES (?, ?, ?, ?)", (ctx.shard, int(ctx.key), monotonic_s(), os.getpid()))
        db.execute(f"UPDATE prizes_{ctx.shard.rpartition('/')[2]} SET state = 1 WHERE id = ?", (int(ctx.key),))


MOST = int(os.environ.get("FLOW_MOST", "100000"))


@penstock.flow("slotted", every=EVERY, slots=penstock.Slots(1, key="of.side"), most_in_flight=MOST)
class Slotted:
    """Rows of two sides, with one call at once for each. A call says when it began and ended."""

    def split(self, ctx: penstock.FlowContext) -> list[str]:
        return [str(number) for number in range(tables())] if os.environ.get("FLOW_SLOTS") else []

    def load(self, ctx: penstock.FlowContext, shard: str, limit: int) -> list[tuple[int, Any]]:
        query = f"SELECT id FROM prizes_{shard} WHERE state = 0 AND id > ? LIMIT ?"
        found = database().execute(query, (int(ctx.after or -1), limit))
        return [(key, {"of": {"side": key % 2}}) for (key,) in found]

    async def execute(self, ctx: penstock.FlowContext, row: dict[str, dict[str, int]]) -> None:
        side, began_s = f"side-{row['of']['side']}", monotonic_s()
        await asyncio.sleep(float(os.environ.get("FLOW_TAKES", "0.01")))
        db = database()
        db.execute("INSERT INTO calls VALUES (?, ?, ?, ?)", (side, began_s, monotonic_s(), os.getpid()))
        db.execute(f"UPDATE prizes_{ctx.shard} SET state = 1 WHERE id = ?", (int(ctx.key),))


@penstock.job("flow-ticks")
def tick(job: penstock.Job) -> None:
    """Note when an occurrence of a schedule was due, and when it began."""
    database().execute("INSERT INTO ticks VALUES (?, ?)", (job.due_ms, monotonic_s()))
