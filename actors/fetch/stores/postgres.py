"""Orders in PostgreSQL, for production: any number of nodes write to one database.

A batch is one statement, so it is one transaction and one round trip. The columns travel as arrays, `unnest` makes rows
of them, and with history the changed rows (`RETURNING`) feed the second insert. Two sinks that store the same keys wait
for each other and do not deadlock, because each batch is in the order of its keys.
"""

from collections.abc import Sequence
from typing import Any

import asyncpg
from sqlalchemy import URL, Connection, bindparam, func, inspect, select, text
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.dialects.postgresql import Insert as PostgresInsert
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.schema import CreateTable
from sqlalchemy.sql.dml import Insert

from actors.fetch.stores.store import OrderRefused, StoreDown, StoreError
from actors.fetch.stores.tables import KEY, NAMES, ORDER_CHANGES, ORDERS, by_kind, rows_of, tables
from streams.clock import now_ms
from streams.messages.fetch import Order

CONNECT_S = 10.0
COMMAND_S = 60.0
"""A reply that takes longer does not come. The batch is stored again."""
CREATING = 0x70656E73746F636B
"""Key of the advisory lock under which tables are created: `create table if not exists` may fail beside another."""


def upsert(*, history: bool, by_content: bool) -> Insert:
    """Return the statement that stores a batch given as one array a column. Its row count is that of changed orders.
    `by_content`: an order with the body that is stored is no change, whatever its version. `confirm` follows."""
    rows = _rows()
    newer = rows.excluded
    is_newer = newer.version > ORDERS.c.version
    stored = rows.on_conflict_do_update(
        index_elements=list(KEY),
        set_={name: newer[name] for name in NAMES if name not in KEY},
        where=is_newer & (newer.body != ORDERS.c.body) if by_content else is_newer,
    )
    if not history:
        return stored
    changed = stored.returning(*ORDERS.columns).cte("changed")
    return insert(ORDER_CHANGES).from_select(NAMES, select(*changed.columns))


def _rows() -> PostgresInsert:
    """Return the insert of a batch given as one array a column."""
    arrays = (func.unnest(bindparam(c.name, type_=ARRAY(c.type))).label(c.name) for c in ORDERS.columns)
    return insert(ORDERS).from_select(NAMES, select(*arrays))


def confirm() -> Insert:
    """Return the statement that raises the version of what a batch told apart by content has confirmed. A later reading
    of the stored body outdates what was read before, and is no change. It follows `upsert` in the same transaction,
    which holds all rows of the batch locked, so the rest of the batch has the bodies that are stored."""
    rows = _rows()
    newer = rows.excluded
    return rows.on_conflict_do_update(
        index_elements=list(KEY), set_={"version": newer.version}, where=newer.version > ORDERS.c.version
    )


class PostgresStore:
    """Orders in a PostgreSQL database, over a small pool."""

    def __init__(self, url: URL, *, history: bool) -> None:
        self.name = url.render_as_string(hide_password=True)
        self._history = history
        self._statements = {kind: upsert(history=history, by_content=kind) for kind in (False, True)}
        self._confirm = confirm()
        self._is_ready = False
        self._engine = _engine(url)

    async def open(self) -> None:
        """Make ready to store: connect, create what is missing. Raises StoreDown."""
        try:
            await self._create()
        except _TROUBLE as error:
            raise StoreDown(f"{self.name}: {_error_text(error)}") from error

    async def store(self, orders: Sequence[Order]) -> int:
        """Store a batch in one statement. Orders that only their content tells apart take a transaction of two. See
        Store."""
        stored_ms, changed = now_ms(), 0
        parts = [(kind, zip(*rows_of(part, stored_ms), strict=True)) for kind, part in by_kind(orders)]
        try:
            await self._create()
            for by_content, columns in parts:
                batch = dict(zip(NAMES, map(list, columns), strict=True))
                level = "READ COMMITTED" if by_content else "AUTOCOMMIT"
                async with self._engine.execution_options(isolation_level=level).begin() as connection:
                    changed += (await connection.execute(self._statements[by_content], batch)).rowcount
                    if by_content:
                        await connection.execute(self._confirm, batch)
            return changed
        except _TROUBLE as error:
            raise self._translated(error) from error

    async def close(self) -> None:
        """Close the pool's connections."""
        await self._engine.dispose()

    async def _create(self) -> None:
        """Create missing tables. Look first, since a role that may not create can still use existing ones."""
        if self._is_ready:
            return
        wanted = tables(history=self._history)
        async with self._engine.connect() as connection:
            present = await connection.run_sync(_table_names)
        missing = [table for table in wanted if table.name not in present]
        if missing:
            async with self._engine.execution_options(isolation_level="READ COMMITTED").begin() as connection:
                await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": CREATING})
                for table in missing:
                    await connection.execute(CreateTable(table, if_not_exists=True))
        self._is_ready = True

    def _translated(self, error: Exception) -> StoreError:
        if is_refusal(error):
            return OrderRefused(_error_text(error))
        self._is_ready = False
        return StoreDown(f"{self.name}: {_error_text(error)}")


_TROUBLE = (SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)
_REFUSALS = ("22", "23", "54")
"""Classes of SQLSTATE that blame a row: data exception, integrity constraint, program limit (an index row too long).
https://www.postgresql.org/docs/current/errcodes-appendix.html"""


def is_refusal(error: Exception) -> bool:
    """Return whether the error blames the stored data. Any other error (connection, locks, disk, rights, tables)
    passes, or a person must mend it, and the orders can wait."""
    cause: Any = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause.__cause__, asyncpg.DataError):
        return True
    return str(getattr(cause, "sqlstate", "") or "")[:2] in _REFUSALS


def _engine(url: URL) -> AsyncEngine:
    return create_async_engine(
        url.set(drivername="postgresql+asyncpg"),
        isolation_level="AUTOCOMMIT",
        pool_size=2,
        max_overflow=0,
        connect_args={"timeout": CONNECT_S, "command_timeout": COMMAND_S},
        hide_parameters=True,  # order data is personal data: it has no place in an error's text
    )


def _table_names(connection: Connection) -> list[str]:
    return inspect(connection).get_table_names()


def _error_text(error: Exception) -> str:
    """Return the database's own text, without the statement that SQLAlchemy appends."""
    words = error.orig if isinstance(error, DBAPIError) else error
    return f"{words}" or type(words).__name__
