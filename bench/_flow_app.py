"""The application that `bench flow` measures: rows of many tables of a SQLite file, each set to done.

Each call notes when it began, and how many rows it got, in a file that all nodes share. `FLOW_BENCH` names the
folder."""

import os
import sqlite3
import struct
import threading
from pathlib import Path
from typing import Any

import penstock
from streams.clock import monotonic_s

TABLES = {"slow": 100, "fast": 1_000}
RATES = {"slow": 500, "fast": 8_000}
NOTE = struct.Struct("<dI")
_local = threading.local()


def folder() -> Path:
    return Path(os.environ["FLOW_BENCH"])


def make(name: str, rows: int) -> None:
    """Make a flow's tables, with so many rows in each."""
    with sqlite3.connect(folder() / f"{name}.db") as db:
        db.execute("PRAGMA journal_mode = WAL")
        for table in range(TABLES[name]):
            db.execute(f"CREATE TABLE rows_{table} (id INTEGER PRIMARY KEY, done INTEGER NOT NULL)")
            db.executemany(f"INSERT INTO rows_{table} VALUES (?, 0)", [(key,) for key in range(rows)])


def open_db(name: str) -> sqlite3.Connection:
    """Return this thread's connection."""
    opened: dict[str, sqlite3.Connection] = _local.__dict__.setdefault("opened", {})
    if name not in opened:
        opened[name] = sqlite3.connect(folder() / f"{name}.db", timeout=30, isolation_level=None)
        opened[name].execute("PRAGMA synchronous = OFF")
    return opened[name]


class _Rows:
    name: str

    def split(self, ctx: penstock.FlowContext) -> list[int]:
        return list(range(TABLES[self.name])) if (folder() / f"{self.name}.go").exists() else []

    def load(self, ctx: penstock.FlowContext, shard: str, limit: int) -> list[tuple[int, Any]]:
        query = f"SELECT id FROM rows_{shard} WHERE done = 0 AND id > ? ORDER BY id LIMIT ?"
        return [(key, None) for (key,) in open_db(self.name).execute(query, (int(ctx.after or -1), limit))]

    def execute_many(self, contexts: list[penstock.FlowContext], rows: list[Any]) -> None:
        note(self.name, len(rows))
        db = open_db(self.name)
        db.execute("BEGIN IMMEDIATE")
        for ctx in contexts:
            db.execute(f"UPDATE rows_{ctx.shard} SET done = done + 1 WHERE id = ?", (int(ctx.key),))
        db.execute("COMMIT")


def note(name: str, count: int) -> None:
    """Note that so many rows begin now."""
    path = folder() / f"{name}.notes"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, NOTE.pack(monotonic_s(), count))
    finally:
        os.close(file)


@penstock.flow("slow", rate=RATES["slow"], every="5s", concurrency=4, most=50)
class Slow(_Rows):
    name = "slow"


@penstock.flow("fast", rate=RATES["fast"], every="5s", concurrency=4, most=50)
class Fast(_Rows):
    name = "fast"
