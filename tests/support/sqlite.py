"""A SQLite file of a test."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def sqlite_file(path: Path | str) -> Iterator[sqlite3.Connection]:
    """Open a file for one change. It is stored at the end, and the file is closed, which a connection's own `with` does
    not do."""
    with closing(sqlite3.connect(path, timeout=30)) as connection, connection:
        yield connection
