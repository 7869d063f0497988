"""The application that `bench flow_tables` measures: 1,000 tables of a real database, read by ranges of the key or
claimed, and each row changed once.

`FLOW_TABLES_DB`: a SQLite file or a PostgreSQL address. `FLOW_TABLES_DIR`: where each process notes what it
executed."""

from __future__ import annotations

import os
import sqlite3
import struct
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import penstock
import penstock.sql
from streams.clock import now_ms

TABLES = int(os.environ.get("FLOW_TABLES_COUNT", "1000"))
RATE = float(os.environ.get("FLOW_TABLES_RATE", "8000"))
EVERY = "5s"
NOTE = struct.Struct("<QII")
"""When a call ended, how many rows it had, and how many of them it changed."""
_local = threading.local()


def table(shard: str | int) -> penstock.sql.Table:
    return penstock.sql.Table(f"rows_{shard}", columns=["amount"], waiting={"done": 0}, lease="10m")


def is_sqlite(database: str) -> bool:
    return not database.startswith("postgresql")


def connect(database: str) -> Any:
    if is_sqlite(database):
        made = sqlite3.connect(database, timeout=60, isolation_level=None)
        made.execute("PRAGMA synchronous = OFF")
        return made
    import psycopg

    return psycopg.connect(database, autocommit=True)


def make(database: str, rows: int) -> None:
    """Make the tables, with so many rows in each."""
    claimed, db = "real" if is_sqlite(database) else "timestamptz", connect(database)
    numbers = (
        f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {rows - 1}) SELECT i, 5, 0 FROM n"
    )
    if is_sqlite(database):
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("BEGIN")
    for number in range(TABLES):
        db.execute(
            f"CREATE TABLE rows_{number} (id integer PRIMARY KEY, amount integer NOT NULL, done integer NOT NULL, "
            f"claimed_at {claimed})"
        )
        db.execute(f"CREATE INDEX waiting_{number} ON rows_{number} (id) WHERE done = 0")
        db.execute(f"INSERT INTO rows_{number} (id, amount, done) {numbers}")
    if is_sqlite(database):
        db.execute("COMMIT")
    db.close()


def connection() -> Any:
    """Return this thread's connection."""
    if getattr(_local, "it", None) is None:
        _local.it = connect(os.environ["FLOW_TABLES_DB"])
    return _local.it


@contextmanager
def transaction() -> Iterator[Any]:
    db = connection()
    if isinstance(db, sqlite3.Connection):
        db.execute("BEGIN IMMEDIATE")
        with db:
            yield db
    else:
        with db.transaction():
            yield db


def note(count: int, changed: int) -> None:
    path = Path(os.environ["FLOW_TABLES_DIR"]) / f"{os.getpid()}.notes"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, NOTE.pack(now_ms(), count, changed))
    finally:
        os.close(file)


@penstock.flow("tables", rate=RATE, every=EVERY, concurrency=4, most=500)
class Tables:
    def split(self, ctx: penstock.FlowContext) -> list[int]:
        return list(range(TABLES))

    def load(self, ctx: penstock.FlowContext, shard: str, limit: int) -> list[tuple[int | str, dict[str, Any]]]:
        if os.environ.get("FLOW_TABLES_CLAIM"):
            claimed: list[tuple[int | str, dict[str, Any]]] = table(shard).claim(connection(), limit)
            return claimed
        found: list[tuple[int | str, dict[str, Any]]] = table(shard).key_range(connection(), ctx.after, limit)
        return found

    def execute_many(self, contexts: list[penstock.FlowContext], rows: list[Any]) -> None:
        keys: dict[str, list[str]] = defaultdict(list)
        for ctx in contexts:
            keys[ctx.shard].append(ctx.key)
        with transaction() as db:
            changed = sum(len(table(shard).change_many(db, keys[shard], {"done": 1})) for shard in sorted(keys))
        note(len(rows), changed)
