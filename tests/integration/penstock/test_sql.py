"""Rows of real tables are read by ranges, claimed and changed: over each driver, in SQLite and in PostgreSQL."""

from __future__ import annotations

import asyncio
import inspect
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import psycopg
import pytest
from psycopg.rows import dict_row

import penstock
from penstock.sql import Table
from tests.support.docs import ROOT
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.sql_claimer import opened

DRIVERS = ["sqlite3", "psycopg", "psycopg async", "asyncpg"]
CLAIMED = {"sqlite3": "real"}


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


class Shop:
    """A database, and a connection over the driver under test."""

    def __init__(self, driver: str, address: str) -> None:
        self.driver = driver
        self.address = address
        self._loop = asyncio.new_event_loop()
        self.connection = self.opened()

    def opened(self) -> Any:
        """Return one more connection over the driver."""
        if self.driver == "psycopg async":
            return self.wait(psycopg.AsyncConnection.connect(self.address, row_factory=dict_row))
        if self.driver == "asyncpg":
            return self.wait(asyncpg.connect(self.address))
        connection = opened(self.address)
        connection.row_factory = sqlite3.Row if self.driver == "sqlite3" else dict_row
        return connection

    def wait(self, given: Any) -> Any:
        """Return what is given, or what it is when awaited."""
        return self._loop.run_until_complete(given) if inspect.isawaitable(given) else given

    def do(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements over a connection of their own. Return the rows of the last one."""
        with closing(opened(self.address)) as other:
            for statement in statements:
                cursor = other.execute(statement)
            rows = cursor.fetchall() if cursor.description else []
            other.commit()
        return rows

    def make(self, rows: int = 0, *, key: str = "integer", table: str = "prizes") -> None:
        claimed = CLAIMED.get(self.driver, "timestamptz")
        columns = f"id {key} PRIMARY KEY, winner text, state text NOT NULL, claimed_at {claimed}"
        self.do(f"DROP TABLE IF EXISTS {table}", f"CREATE TABLE {table} ({columns})")
        with closing(opened(self.address)) as other:
            mark = "?" if self.driver == "sqlite3" else "%s"
            other.cursor().executemany(
                f"INSERT INTO {table} (id, winner, state) VALUES ({mark}, {mark}, 'new')",
                [(number, f"user-{number}") for number in range(rows)],
            )
            other.commit()

    def late(self, *keys: int) -> None:
        """Have the claims of these rows be an hour old."""
        by = "3600" if self.driver == "sqlite3" else "interval '1 hour'"
        self.do(f"UPDATE prizes SET claimed_at = claimed_at - {by} WHERE id IN ({', '.join(map(str, keys))})")

    def states(self) -> dict[str, int]:
        return dict(self.do("SELECT state, count(*) FROM prizes GROUP BY state"))

    def close(self) -> None:
        self.wait(self.connection.close())
        self._loop.close()


@contextmanager
def shop_of(request: pytest.FixtureRequest, folder: Path, driver: str) -> Iterator[Shop]:
    address = str(folder / "shop.db") if driver == "sqlite3" else request.getfixturevalue("postgres").url
    shop = Shop(driver, address)
    try:
        yield shop
    finally:
        shop.close()


@pytest.fixture(params=DRIVERS)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    with shop_of(request, tmp_path, request.param) as made:
        yield made


@pytest.fixture(params=["sqlite3", "psycopg"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """One driver for each database."""
    with shop_of(request, tmp_path, request.param) as made:
        yield made


def prizes(**options: Any) -> Table:
    return Table("prizes", **{"waiting": {"state": "new"}, **options})


def keys(pairs: list[tuple[Any, Any]]) -> list[Any]:
    return [key for key, _ in pairs]


# ---- ranges


def test_ranges_of_the_key_cover_all_rows_that_wait_in_their_order(shop: Shop) -> None:
    shop.make(10)
    shop.do("UPDATE prizes SET state = 'paid' WHERE id IN (0, 4)")
    table, found, after = prizes(columns=["winner", "state"]), [], ""
    while pairs := shop.wait(table.key_range(shop.connection, after, 3)):
        found.append(pairs)
        after = str(pairs[-1][0])
    assert [keys(pairs) for pairs in found] == [[1, 2, 3], [5, 6, 7], [8, 9]]
    assert found[0][0] == (1, {"winner": "user-1", "state": "new"})


@pytest.mark.parametrize("kind", ["text", "uuid"])
def test_a_key_may_be_a_text_or_a_uuid(shop: Shop, kind: str) -> None:
    shop.make(key=kind)
    given = [str(UUID(int=number << 96)) for number in (9, 10, 300)] if kind == "uuid" else ["10", "9", "a%s ?b"]
    for each in given:
        shop.do(f"INSERT INTO prizes (id, state) VALUES ('{each}', 'new')")
    first = shop.wait(prizes().key_range(shop.connection, "", 1))
    rest = shop.wait(prizes().key_range(shop.connection, str(first[0][0]), 9))
    assert keys(first) + keys(rest) == sorted(given)
    assert shop.wait(prizes().change(shop.connection, given[2], {"state": "paid"}))
    assert sorted(keys(shop.wait(prizes().claim(shop.connection, 9)))) == sorted(given[:2])


def test_conditions_are_values_lists_nulls_and_sql(shop: Shop) -> None:
    shop.make(8)
    shop.do("UPDATE prizes SET winner = NULL WHERE id < 6", "UPDATE prizes SET state = 'late' WHERE id IN (1, 5, 7)")
    table = Table("prizes", waiting={"state": ["new", "late"], "winner": None}, where="id % 2 = 1 OR id = 4")
    assert keys(shop.wait(table.key_range(shop.connection, "", 9))) == [1, 3, 4, 5]
    assert keys(shop.wait(table.claim(shop.connection, 9))) == [1, 3, 4, 5]
    assert shop.wait(table.change_many(shop.connection, range(8), {"state": "x"})) == {"1", "3", "4", "5"}


def test_values_are_bound(shop: Shop) -> None:
    shop.make(2)
    odd = "'; DROP TABLE prizes; -- %s $1 ? :x"
    assert shop.wait(prizes().change(shop.connection, "1", {"winner": odd, "state": odd}))
    assert shop.wait(Table("prizes", waiting={"state": odd}).key_range(shop.connection, "", 9)) == [(1, {})]
    assert shop.states() == {"new": 1, odd: 1}


# ---- claims


def test_a_row_that_is_claimed_is_not_claimed_again_before_its_lease_has_passed(shop: Shop) -> None:
    shop.make(6)
    table = prizes(columns=["winner"], lease="10m")
    assert shop.wait(table.claim(shop.connection, 4)) == [(n, {"winner": f"user-{n}"}) for n in range(4)]
    assert keys(shop.wait(table.claim(shop.connection, 4))) == [4, 5]
    assert shop.wait(table.claim(shop.connection, 4)) == []
    shop.late(1, 2)
    assert shop.wait(prizes(lease="2h").claim(shop.connection, 4)) == []
    assert shop.wait(table.change(shop.connection, 2, {"state": "paid"}))
    assert keys(shop.wait(table.claim(shop.connection, 4))) == [1]


def test_a_claim_is_part_of_the_transaction_that_is_open(shop: Shop) -> None:
    shop.make(3)
    if shop.driver == "asyncpg":
        transaction = shop.connection.transaction()
        shop.wait(transaction.start())
        assert len(shop.wait(prizes().claim(shop.connection, 2))) == 2
        shop.wait(transaction.rollback())
    else:
        shop.wait(shop.connection.execute("UPDATE prizes SET winner = 'x'"))
        assert len(shop.wait(prizes().claim(shop.connection, 2))) == 2
        shop.wait(shop.connection.rollback())
    assert len(shop.wait(prizes().claim(shop.connection, 9))) == 3
    other = shop.opened()  # the claim was committed
    assert shop.wait(prizes().claim(other, 9)) == []
    shop.wait(other.close())


@contextmanager
def claimer(shop: Shop, most: int = 0) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.support.sql_claimer", shop.address, str(most)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def test_of_two_processes_that_claim_at_once_each_row_goes_to_one(database: Shop) -> None:
    database.make(2_000)
    with claimer(database) as first, claimer(database) as second:
        go(first)
        go(second)
        claimed = [[int(key) for key in process.communicate()[0].split()] for process in (first, second)]
    assert sorted(claimed[0] + claimed[1]) == list(range(2_000))
    if database.driver != "sqlite3":  # there, who waits for the file may wait until the other is done
        assert all(claimed)


def test_the_rows_of_a_claimer_that_was_killed_come_back_after_the_lease(database: Shop) -> None:
    database.make(20)
    with claimer(database, most=12) as process:
        go(process)
        assert process.stdout is not None
        claimed = {int(key) for _ in range(2) for key in process.stdout.readline().split()}
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    table = prizes(lease="30m")
    left = set(keys(database.wait(table.claim(database.connection, 50))))
    assert (len(claimed), left) == (12, set(range(20)) - claimed)
    database.late(*claimed)
    assert set(keys(database.wait(table.claim(database.connection, 50)))) == claimed


def test_a_row_that_another_transaction_holds_is_passed_over(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with shop_of(request, tmp_path, "psycopg") as shop:
        shop.make(4)
        with closing(opened(shop.address)) as other:
            other.execute("UPDATE prizes SET winner = 'held' WHERE id = 0")
            assert keys(shop.wait(prizes().claim(shop.connection, 2))) == [1, 2]


# ---- changes


def test_a_change_applies_once(shop: Shop) -> None:
    shop.make(5)
    table = prizes()
    assert shop.wait(table.change(shop.connection, "3", {"state": "paid"})) is True
    assert shop.wait(table.change(shop.connection, "3", {"state": "paid"})) is False
    assert shop.wait(table.change(shop.connection, 99, {"state": "paid"})) is False
    assert shop.wait(table.change_many(shop.connection, ["1", "2", "3"], {"state": "paid"})) == {"1", "2"}
    assert shop.wait(table.change_many(shop.connection, [], {"state": "paid"})) == frozenset()
    assert shop.states() == {"new": 2, "paid": 3}


def test_of_two_transactions_that_change_one_row_one_does(database: Shop) -> None:
    """The second one waits for the first, and finds the row changed."""
    database.make(1)
    with closing(opened(database.address)) as first:
        first.execute("UPDATE prizes SET state = 'paid' WHERE id = 0")
        asked = subprocess.Popen(
            [sys.executable, "-c", CHANGE, database.address], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        with asked:
            assert asked.stdout is not None
            assert asked.stdout.readline() == "asking\n"
            first.commit()
            assert asked.communicate()[0] == "False\n"


CHANGE = """
import sys
from penstock.sql import Table
from tests.support.sql_claimer import opened
connection = opened(sys.argv[1])
print("asking", flush=True)
print(Table("prizes", waiting={"state": "new"}).change(connection, 0, {"state": "paid"}))
"""


# ---- errors


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Table("prizes; drop table x"), "table 'prizes; drop table x': is no name; use 1 to 63"),
        (lambda: Table(""), "table '': is no name"),
        (lambda: Table("a.b.c"), "table 'b.c': is no name"),
        (lambda: Table('p"q'), "is no name"),
        (lambda: Table("p]q"), "is no name"),
        (lambda: Table(7), "table 7: is no name"),  # type: ignore[arg-type]
        (lambda: Table("p", key=""), "table p: key '': is no name"),
        (lambda: Table("p", columns="winner"), r"give a list of names, as \['winner'\]"),
        (lambda: Table("p", columns=["winner", "x y"]), "column 'x y': is no name"),
        (lambda: Table("p", waiting={"1": 2}), "column '1': is no name"),
        (lambda: Table("p", lease="soon"), "lease"),
        (lambda: Table("p", lease="10ms"), "too short; use 1s"),
    ],
)
def test_a_table_that_is_none_is_refused_when_it_is_made(make: Callable[[], Table], why: str) -> None:
    with pytest.raises(penstock.UsageError, match=why):
        make()


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (Table("prises", waiting={"state": "new"}), "table prises: .*prises.*; check its name"),
        (Table("prizes", key="idd", waiting={"state": "new"}), "idd.*; check `key`, `columns`"),
        (Table("prizes", columns=["winer"], waiting={"state": "new"}), "winer.*; check `key`"),
        (Table("prizes", waiting={"stat": "new"}), "stat.*; check `key`"),
    ],
)
def test_what_the_database_does_not_have_is_named(shop: Shop, table: Table, why: str) -> None:
    shop.make(1)
    calls: list[Callable[[], Any]] = [
        lambda: table.key_range(shop.connection, "", 1),
        lambda: table.claim(shop.connection, 1),
    ]
    for call in calls:
        with pytest.raises(penstock.UsageError, match=why):
            shop.wait(call())
    assert shop.wait(prizes().key_range(shop.connection, "", 9)) == [(0, {})], "the connection is of use still"


def test_a_claim_without_its_column_or_of_another_type_says_so(shop: Shop) -> None:
    shop.make(1)
    with pytest.raises(penstock.UsageError, match=r"taken_at.*`claim` needs the column"):
        shop.wait(prizes(claimed_at="taken_at").claim(shop.connection, 1))
    if shop.driver != "sqlite3":
        with pytest.raises(penstock.UsageError, match="`claimed_at` is a timestamptz"):
            shop.wait(prizes(claimed_at="winner").claim(shop.connection, 1))
        with pytest.raises(penstock.UsageError, match=r"number|integer"):
            shop.wait(prizes().key_range(shop.connection, "abc", 1))


def test_what_a_call_cannot_take_is_refused(shop: Shop) -> None:
    shop.make(1)
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: prizes().claim(shop.connection, 0), "limit 0: use 1 or more"),
        (lambda: prizes().key_range(shop.connection, "", "5"), "limit '5'"),  # type: ignore[call-overload]
        (lambda: prizes().change(shop.connection, None, {"state": "x"}), "None is no key"),  # type: ignore[call-overload]
        (lambda: prizes().change(shop.connection, 1, {}), "no values"),
        (lambda: prizes().change(shop.connection, 1, {"a b": 1}), "column 'a b': is no name"),
        (lambda: Table("prizes").change(shop.connection, 1, {"state": "x"}), "say what `waiting` is"),
        (lambda: prizes().change_many(shop.connection, range(10_001), {"state": "x"}), "10001 keys at once"),
    ]
    for call, why in calls:
        with pytest.raises(penstock.UsageError, match=why):
            shop.wait(call())


def test_a_connection_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(penstock.UsageError, match=r"builtins.str is no connection .* sqlite3, psycopg \(3\) or"):
        prizes().claim("sqlite:///shop.db", 1)  # type: ignore[call-overload]


def test_a_row_whose_key_is_null_or_no_number_or_text_is_named(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.execute("CREATE TABLE prizes (id, state)")
        shop.execute("INSERT INTO prizes VALUES (NULL, 'new'), (1.5, 'old')")
        shop.commit()
        with pytest.raises(penstock.UsageError, match="has the key null; name a column"):
            prizes().key_range(shop, "", 1)
        with pytest.raises(penstock.UsageError, match=r"has the key '1.5' \(float\)"):
            Table("prizes", waiting={"state": "old"}).key_range(shop, "", 1)


def test_trouble_of_the_database_comes_as_the_driver_raises_it(tmp_path: Path) -> None:
    with (
        closing(sqlite3.connect(tmp_path / "shop.db", timeout=0)) as shop,
        closing(opened(str(tmp_path / "shop.db"))) as b,
    ):
        shop.execute("CREATE TABLE prizes (id integer primary key, state)")
        shop.execute("INSERT INTO prizes VALUES (1, 'new')")
        shop.commit()
        b.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            prizes().change(shop, 1, {"state": "paid"})
        assert not shop.in_transaction
        b.rollback()
        assert prizes().change(shop, 1, {"state": "paid"})
