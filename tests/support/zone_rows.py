"""The SQLite file of rows that zoned jobs of tests scan: `ZONE_DB` names it.

`ZONE_BATCH`: rows of one batch, 50 by default.
"""

import os
import sqlite3
import threading

from tests.support.sqlite import sqlite_file

BATCH = int(os.environ.get("ZONE_BATCH", "50"))
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
    with sqlite_file(path) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, key INTEGER NOT NULL)")
        db.execute("CREATE TABLE handled (job TEXT, id INTEGER, zone TEXT, epoch INTEGER, pid INTEGER)")
        db.execute("CREATE TABLE refused (job TEXT, offset INTEGER, zone TEXT, epoch INTEGER, pid INTEGER)")


def batch(after: int) -> list[tuple[int, int]]:
    """Return the next rows: number and key."""
    query = "SELECT id, key FROM rows WHERE id > ? ORDER BY id LIMIT ?"
    return database().execute(query, (after, BATCH)).fetchall()
