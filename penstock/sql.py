"""Rows of a table that wait for a flow: read by ranges of their key or claimed, and changed at most once.

    import penstock.sql

    def prizes(shard):
        return penstock.sql.Table(f"prizes_{shard}", columns=["winner"], waiting={"state": "new"})

    @penstock.flow("pay-prizes", rate=200)
    class PayPrizes:
        def split(self, ctx): return list(range(8))
        def load(self, ctx, shard, limit): return prizes(shard).key_range(connection, ctx.after, limit)
        def execute(self, ctx, row):
            if not prizes(ctx.shard).change(connection, ctx.key, {"state": "paid"}):
                raise penstock.Skip("is not new any more")

`connection` is one of sqlite3 or of psycopg, or one of asyncpg or psycopg's AsyncConnection. Await the call with the
last two. SQLite 3.35 or later, PostgreSQL 12 or later. If a transaction is open on the connection, the call is a part
of it, and you commit. Else it is a transaction of its own, committed when the call returns. `autocommit=False` of
sqlite3 always has one open.

Names of tables and columns are checked and quoted, values are bound. Errors of the database come as the driver raises
them, except what a wrong name or type causes: UsageError.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, Protocol, TypeVar, overload
from uuid import UUID

from actors.runtime.rules.setting_values import BadSetting, Duration, span_ms
from penstock.errors import UsageError

__all__ = ["AsyncDatabase", "Database", "Key", "Table"]

Key = int | str
Pair = tuple[Key, dict[str, Any]]
"""A row's key, and its columns by name."""
T = TypeVar("T")

MOST_ROWS = 10_000
"""Rows of one statement: PostgreSQL and SQLite take 32,766 values."""
SHORTEST_LEASE_MS = 1_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}", re.ASCII)
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}", re.ASCII)
_NOW_SQLITE = "((julianday('now') - 2440587.5) * 86400.0)"
_WRONG_STATES = {"42P01": "table", "42703": "column", "42804": "type", "42883": "type", "22P02": "type"}
"""PostgreSQL's codes of what is wrong in a `Table`."""


class Database(Protocol):
    """A connection of sqlite3, or psycopg's Connection."""

    def commit(self) -> None: ...

    def cursor(self, *args: Any, **kwargs: Any) -> Any: ...


class AsyncDatabase(Protocol):
    """A connection of asyncpg, or psycopg's AsyncConnection."""

    def execute(self, *args: Any, **kwargs: Any) -> Awaitable[Any]: ...


class _Kind(NamedTuple):
    """How a driver writes names and values."""

    is_sqlite: bool
    mark: Callable[[int], str]
    run: Callable[[Any, str, list[Any]], Any]
    """Returns the rows. Async if `is_async`."""
    is_async: bool = False
    percent: str = "%"


class Table:
    """A table whose rows wait for a flow. Cheap to make, so one may be made in each call.

    `name`: as `prizes` or `app.prizes`. `key`: the column whose values are unique in the table: numbers, text or uuid.
    `columns`: what a row brings. `waiting`: the values that a row has while it waits. None stands for null, and a list
    for any of its values. `where`: further conditions, as SQL of yours, never of a user. `claimed_at`: the column of
    `claim`: timestamptz in PostgreSQL, real (seconds since 1970) in SQLite. `lease`: for how long a claim holds.
    Raises UsageError.
    """

    def __init__(
        self,
        name: str,
        *,
        key: str = "id",
        columns: Sequence[str] = (),
        waiting: Mapping[str, object] | None = None,
        where: str = "",
        claimed_at: str = "claimed_at",
        lease: Duration = "5m",
    ) -> None:
        self._name = name
        self._parts = _names("table", name.split(".", 1) if isinstance(name, str) else [name])
        [self._key] = _names(f"table {name}: key", [key])
        if isinstance(columns, str):
            raise UsageError(f"table {name}: columns: give a list of names, as [{columns!r}]")
        self._columns = _names(f"table {name}: column", columns)
        self._waiting = dict(waiting or {})
        _names(f"table {name}: column", self._waiting)
        self._where = where
        [self._claimed_at] = _names(f"table {name}: claimed_at", [claimed_at])
        try:
            lease_ms = span_ms("lease", lease)
        except BadSetting as error:
            raise UsageError(f"table {name}: {error}") from error
        if lease_ms < SHORTEST_LEASE_MS:
            raise UsageError(f"table {name}: lease: {lease!r} is too short; use 1s or more")
        self._lease_s = lease_ms / 1000

    @overload
    def key_range(self, connection: Database, after: Key, limit: int) -> list[Pair]: ...
    @overload
    def key_range(self, connection: AsyncDatabase, after: Key, limit: int) -> Awaitable[list[Pair]]: ...
    def key_range(self, connection: Any, after: Key, limit: int) -> Any:
        """Return up to `limit` rows that wait, in the order of the key, behind the key `after`, each as (key, row).

        Give `ctx.after`. Empty: from the start. Less than `limit` rows: the end. The flow then begins at the start
        again. Needs an index of the key among the rows that wait, if most rows do not."""
        kind = _kind_of(connection)
        made = _Statement(self, kind)
        behind = [] if after == "" else [f"{made.key} > {made.bound_key(after)}"]
        made.text = (
            f"SELECT {made.listed} FROM {made.table} WHERE {made.conditions(behind)} "
            f"ORDER BY {made.key} LIMIT {made.bound(_checked_limit(limit))}"
        )
        return self._ask(connection, kind, made, self._pairs)

    @overload
    def claim(self, connection: Database, limit: int) -> list[Pair]: ...
    @overload
    def claim(self, connection: AsyncDatabase, limit: int) -> Awaitable[list[Pair]]: ...
    def claim(self, connection: Any, limit: int) -> Any:
        """Claim up to `limit` rows that wait, and return them in the order of the key, each as (key, row).

        Whoever claims at the same time gets other rows, and does not wait (PostgreSQL, `for update skip locked`), or
        waits for a moment (SQLite). A row that still waits when its `lease` has passed is claimed again, by the clock
        of the database: its claimer died. A row that is in flight by then stays so."""
        kind = _kind_of(connection)
        made = _Statement(self, kind)
        claimed_at = made.name(self._claimed_at)
        if kind.is_sqlite:
            now, until = _NOW_SQLITE, f"{_NOW_SQLITE} - {made.bound(self._lease_s)}"
        else:
            now = "statement_timestamp()"
            until = f"{now} - make_interval(secs => {made.bound(self._lease_s)})"
        free = (
            f"SELECT {made.key} FROM {made.table} WHERE "
            f"{made.conditions([f'({claimed_at} IS NULL OR {claimed_at} < {until})'])} "
            f"ORDER BY {made.key} LIMIT {made.bound(_checked_limit(limit))}"
        )
        if kind.is_sqlite:
            made.text = (
                f"UPDATE {made.table} SET {claimed_at} = {now} WHERE {made.key} IN ({free}) RETURNING {made.listed}"
            )
        else:  # materialized: a plan that looks twice would lock more rows than it returns
            listed = ", ".join(f"claimed.{made.name(one)}" for one in (self._key, *self._columns))
            made.text = (
                f"WITH free AS MATERIALIZED ({free} FOR UPDATE SKIP LOCKED) "
                f"UPDATE {made.table} AS claimed SET {claimed_at} = {now} FROM free "
                f"WHERE claimed.{made.key} = free.{made.key} RETURNING {listed}"
            )
        return self._ask(connection, kind, made, lambda rows: sorted(self._pairs(rows), key=lambda pair: pair[0]))

    @overload
    def change(self, connection: Database, key: Key, values: Mapping[str, object]) -> bool: ...
    @overload
    def change(self, connection: AsyncDatabase, key: Key, values: Mapping[str, object]) -> Awaitable[bool]: ...
    def change(self, connection: Any, key: Key, values: Mapping[str, object]) -> Any:
        """Set columns of the row, if it still waits. Return whether it did.

        False: another run of the same row has changed it: `raise penstock.Skip(…)`. So `values` has to end the
        waiting, as {"state": "paid"} does."""
        kind = _kind_of(connection)
        return self._ask(connection, kind, self._changing(kind, [key], values), lambda rows: len(rows) == 1)

    @overload
    def change_many(
        self, connection: Database, keys: Collection[Key], values: Mapping[str, object]
    ) -> frozenset[str]: ...
    @overload
    def change_many(
        self, connection: AsyncDatabase, keys: Collection[Key], values: Mapping[str, object]
    ) -> Awaitable[frozenset[str]]: ...
    def change_many(self, connection: Any, keys: Collection[Key], values: Mapping[str, object]) -> Any:
        """Set columns of those rows that still wait, by one statement. Return their keys, as `ctx.key` has them."""
        kind = _kind_of(connection)
        if len(keys) > MOST_ROWS:
            raise UsageError(f"table {self._name}: {len(keys)} keys at once; give at most {MOST_ROWS}")
        made = self._changing(kind, keys, values)
        return self._ask(connection, kind, made, lambda rows: frozenset(str(key) for (key,) in rows))

    def _changing(self, kind: _Kind, keys: Collection[Key], values: Mapping[str, object]) -> _Statement:
        names = _names(f"table {self._name}: column", values)
        if not names:
            raise UsageError(f"table {self._name}: change: no values; give those that end the waiting")
        if not self._waiting and not self._where:
            raise UsageError(f"table {self._name}: say what `waiting` is, as {{'state': 'new'}}: a change names it")
        made = _Statement(self, kind)
        changes = ", ".join(f"{made.name(name)} = {made.bound(values[name])}" for name in names)
        one_of = ", ".join(made.bound_key(key) for key in keys) or "NULL"
        made.text = (
            f"UPDATE {made.table} SET {changes} WHERE {made.conditions([f'{made.key} IN ({one_of})'])} "
            f"RETURNING {made.key}"
        )
        return made

    def _ask(self, connection: Any, kind: _Kind, made: _Statement, finish: Callable[[list[Any]], T]) -> Any:
        if kind.is_async:
            return self._ask_async(connection, kind, made, finish)
        try:
            rows = kind.run(connection, made.text, made.values)
        except Exception as error:
            if (wrong := self._wrong(error)) is not None:
                raise wrong from error
            raise
        return finish(rows)

    async def _ask_async(self, connection: Any, kind: _Kind, made: _Statement, finish: Callable[[list[Any]], T]) -> T:
        try:
            rows = await kind.run(connection, made.text, made.values)
        except Exception as error:
            if (wrong := self._wrong(error)) is not None:
                raise wrong from error
            raise
        return finish(rows)

    def _pairs(self, rows: list[Any]) -> list[Pair]:
        return [(self._key_of(key), dict(zip(self._columns, values, strict=True))) for key, *values in rows]

    def _key_of(self, key: Any) -> Key:
        if isinstance(key, int | str) and not isinstance(key, bool):
            return key
        if isinstance(key, UUID | Decimal):
            return str(key)
        kind = "null" if key is None else f"{str(key)[:40]!r} ({type(key).__name__})"
        raise UsageError(f"table {self._name}: a row has the key {kind}; name a column of numbers, text or uuid as key")

    def _wrong(self, error: Exception) -> UsageError | None:
        """Return the error that says what is wrong in this `Table`, None if the database has another trouble."""
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, sqlite3.Error):
            what = next((word for word in ("table", "column") if text.startswith(f"no such {word}")), "")
        else:
            what = _WRONG_STATES.get(str(getattr(error, "sqlstate", "")), "")
        do = {
            "table": "check its name (PostgreSQL: in lower case, unless it was made in quotes), schema and database",
            "column": "check `key`, `columns` and `waiting`; `claim` needs the column `claimed_at`, too",
            "type": "`claimed_at` is a timestamptz, and values and keys must be of their columns' types",
        }
        return UsageError(f"table {self._name}: {text}; {do[what]}") if what else None


class _Statement:
    """A statement in the making: the parts that all have in common, and its values."""

    def __init__(self, table: Table, kind: _Kind) -> None:
        self._of = table
        self._kind = kind
        self.text = ""
        self.values: list[Any] = []
        self.table = ".".join(map(self.name, table._parts))
        self.key = self.name(table._key)
        self.listed = ", ".join(map(self.name, (table._key, *table._columns)))

    def name(self, name: str) -> str:
        return f"[{name}]" if self._kind.is_sqlite else f'"{name}"'

    def bound(self, value: Any) -> str:
        self.values.append(value)
        return self._kind.mark(len(self.values))

    def bound_key(self, key: Key) -> str:
        """Bind a key as the database has it: `ctx.key` is text always. PostgreSQL reads it by the type of the column,
        SQLite compares a number with text as text."""
        if isinstance(key, bool) or not isinstance(key, int | str):
            raise UsageError(f"table {self._of._name}: {key!r} is no key; give `ctx.key` or `ctx.after`, or a number")
        text = str(key)
        return self.bound(int(text) if self._kind.is_sqlite and _INTEGER.fullmatch(text) else text)

    def conditions(self, first: list[str]) -> str:
        """Return the conditions of a row that waits, and these."""
        found = list(first)
        for name, value in self._of._waiting.items():
            column = self.name(name)
            if value is None:
                found.append(f"{column} IS NULL")
            elif isinstance(value, list | tuple | set | frozenset):
                found.append(f"{column} IN ({', '.join(map(self.bound, value)) or 'NULL'})")
            else:
                found.append(f"{column} = {self.bound(value)}")
        if self._of._where:
            found.append(f"({self._of._where.replace('%', self._kind.percent)})")
        return " AND ".join(found) or "1 = 1"


def _names(what: str, names: Collection[Any]) -> tuple[str, ...]:
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UsageError(f"{what} {name!r}: is no name; use 1 to 63 of A-Z a-z 0-9 _ $, and begin with a letter")
    return tuple(names)


def _checked_limit(limit: Any) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise UsageError(f"limit {limit!r}: use 1 or more rows")
    return limit


# ---- drivers


def _kind_of(connection: object) -> _Kind:
    """Return how to talk over this connection. A driver that was not imported has no connections."""
    if isinstance(connection, sqlite3.Connection):
        if sqlite3.sqlite_version_info < (3, 35):
            raise UsageError(f"SQLite {sqlite3.sqlite_version} is too old; use 3.35 or later")
        return _SQLITE
    psycopg, asyncpg = sys.modules.get("psycopg"), sys.modules.get("asyncpg")
    if psycopg is not None and isinstance(connection, psycopg.Connection):
        return _PSYCOPG
    if psycopg is not None and isinstance(connection, psycopg.AsyncConnection):
        return _PSYCOPG_ASYNC
    if asyncpg is not None and isinstance(connection, (asyncpg.Connection, asyncpg.pool.PoolConnectionProxy)):
        return _ASYNCPG
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    raise UsageError(f"{kind} is no connection that is known here; give one of sqlite3, psycopg (3) or asyncpg")


def _run_sqlite(connection: sqlite3.Connection, text: str, values: list[Any]) -> list[Any]:
    """An update takes the write lock before it reads, and waits for it as long as `timeout` says."""
    was_open, cursor = connection.in_transaction, connection.cursor()
    cursor.row_factory = None
    try:
        rows = cursor.execute(text, values).fetchall()
        if not was_open:
            connection.commit()
    except BaseException:
        if not was_open:
            connection.rollback()
        raise
    finally:
        cursor.close()
    return rows


def _run_psycopg(connection: Any, text: str, values: list[Any]) -> list[Any]:
    rows_of = sys.modules["psycopg"].rows.tuple_row
    was_open = connection.info.transaction_status != 0
    try:
        with connection.cursor(row_factory=rows_of) as cursor:
            rows: list[Any] = cursor.execute(text, values).fetchall()
        if not was_open:
            connection.commit()
    except BaseException:
        if not was_open and not connection.closed:
            connection.rollback()
        raise
    return rows


async def _run_psycopg_async(connection: Any, text: str, values: list[Any]) -> list[Any]:
    rows_of = sys.modules["psycopg"].rows.tuple_row
    was_open = connection.info.transaction_status != 0
    try:
        async with connection.cursor(row_factory=rows_of) as cursor:
            rows: list[Any] = await (await cursor.execute(text, values)).fetchall()
        if not was_open:
            await connection.commit()
    except Exception:
        if not was_open and not connection.closed:
            await connection.rollback()
        raise
    return rows


async def _run_asyncpg(connection: Any, text: str, values: list[Any]) -> list[Any]:
    """Outside a transaction a statement is one. The driver takes a number for a number only, and a key comes as
    text."""
    statement = await connection.prepare(text)
    types = [one.name for one in statement.get_parameters()]
    try:
        given = [
            int(value) if kind in ("int2", "int4", "int8") and isinstance(value, str) else value
            for kind, value in zip(types, values, strict=True)
        ]
    except ValueError as error:
        raise UsageError(f"a key column has numbers: {error}") from error
    rows: list[Any] = [tuple(row) for row in await statement.fetch(*given)]
    return rows


_SQLITE = _Kind(is_sqlite=True, mark=lambda _: "?", run=_run_sqlite)
"""SQLite takes a name in double quotes that it does not know for a text. In brackets it does not."""
_PSYCOPG = _Kind(is_sqlite=False, mark=lambda _: "%s", run=_run_psycopg, percent="%%")
_PSYCOPG_ASYNC = _PSYCOPG._replace(run=_run_psycopg_async, is_async=True)
_ASYNCPG = _Kind(is_sqlite=False, mark=lambda number: f"${number}", run=_run_asyncpg, is_async=True)
