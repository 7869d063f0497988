"""A store from a database's URL.

sqlite:///orders.db                       a file in the working folder: three slashes, and a relative path
sqlite:////var/lib/penstock/orders.db     a file anywhere: four slashes, and a whole path
sqlite:///orders.db?synchronous=NORMAL    may lose the last commits in a power cut
postgresql://user:password@host/orders    PostgreSQL; postgres:// and postgresql+asyncpg:// say the same
"""

from pathlib import Path
from typing import cast

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from actors.fetch.stores.sqlite import SqliteStore, Synchronous
from actors.fetch.stores.store import Store

_SQLITE = {"sqlite", "sqlite+pysqlite", "sqlite+aiosqlite"}
_POSTGRES = {"postgresql", "postgres", "postgresql+asyncpg"}


def sql_store(url: str, *, history: bool = False) -> Store:
    """Return the store at `url`, not opened yet. With `history`, each change is kept in `order_changes` too.
    Raises ValueError, without the password, for a URL that has none of the forms above."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ValueError("not a database URL: say sqlite:///FILE or postgresql://USER@HOST/DATABASE") from None
    if parsed.drivername in _SQLITE:
        return _sqlite(parsed, history=history)
    if parsed.drivername in _POSTGRES:
        from actors.fetch.stores.postgres import PostgresStore  # not for a node with a file: it brings asyncpg

        return PostgresStore(parsed, history=history)
    raise ValueError(f"no store for {parsed.drivername!r}: say sqlite:///FILE or postgresql://USER@HOST/DATABASE")


def _sqlite(url: URL, *, history: bool) -> SqliteStore:
    if not url.database or url.database == ":memory:":
        raise ValueError("sqlite: name a file (sqlite:///orders.db); what is in memory does not outlive the process")
    unknown = set(url.query) - {"synchronous"}
    if unknown:
        raise ValueError(f"sqlite: unknown option {min(unknown)!r}; there is only synchronous=FULL|NORMAL")
    synchronous = str(url.query.get("synchronous", "FULL")).upper()
    if synchronous not in ("FULL", "NORMAL"):
        raise ValueError(
            f"sqlite: synchronous={synchronous!r}: FULL survives a power cut, NORMAL may lose the last ones"
        )
    return SqliteStore(Path(url.database).absolute(), history=history, synchronous=cast(Synchronous, synchronous))
