"""Orders in a SQLite file: only a higher version changes one, whatever comes again, and however many write."""

import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.fetch.stores import sqlite
from actors.fetch.stores.batches import fold
from actors.fetch.stores.sql import sql_store
from actors.fetch.stores.sqlite import SqliteStore
from actors.fetch.stores.store import OrderRefused, StoreDown
from streams.messages.fetch import Order
from tests.support.orders import AT_MS, order
from tests.support.sqlite import sqlite_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore(path, history=True)
    yield opened
    await opened.close()


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    with sqlite_file(path) as connection:
        found: list[tuple[object, ...]] = connection.execute(sql).fetchall()
        return found


def versions(path: Path) -> list[tuple[str, int]]:
    found = rows(path, "SELECT order_key, version FROM orders ORDER BY order_key")
    return [(str(key), int(str(version))) for key, version in found]


def changes(path: Path) -> list[tuple[str, int]]:
    found = rows(path, "SELECT order_key, version FROM order_changes ORDER BY change_id")
    return [(str(key), int(str(version))) for key, version in found]


async def test_higher_version_replaces_a_lower_one(store: SqliteStore, path: Path) -> None:
    assert await store.store([order("a", 1, body=b'{"n":1}')]) == 1
    assert await store.store([order("a", 3, body=b'{"n":3}')]) == 1
    assert rows(path, "SELECT version, modified_ms, fetched_ms, body FROM orders") == [
        (3, AT_MS + 3, AT_MS, '{"n":3}'),
    ]


async def test_lower_or_equal_version_changes_nothing(store: SqliteStore, path: Path) -> None:
    await store.store([order("a", 2, body=b'"first"')])
    assert await store.store([order("a", 2, body=b'"again"')]) == 0
    assert await store.store([order("a", 1, body=b'"older"')]) == 0
    assert rows(path, "SELECT version, body FROM orders") == [(2, '"first"')]
    assert changes(path) == [("a", 2)]


async def test_without_versions_another_body_alone_is_another_state(store: SqliteStore, path: Path) -> None:
    for at_ms, body, changed in ((1, b'"a"', 1), (5, b'"a"', 0), (6, b'"b"', 1), (4, b'"a"', 0), (7, b'"a"', 1)):
        versioned = order("v", at_ms, body=b'"same"')
        known = max(version for key, version in [("v", 0), *versions(path)] if key == "v") if at_ms > 1 else 0
        stored = await store.store([order("k", at_ms, body=body, by_content=True), versioned])
        assert stored == changed + (at_ms > known)
    assert [change for change in changes(path) if change[0] == "k"] == [("k", 1), ("k", 6), ("k", 7)]


async def test_without_versions_a_later_reading_of_the_stored_body_outdates_what_was_read_before(
    store: SqliteStore, path: Path
) -> None:
    for at_ms, body, changed in ((100, b'"a"', 1), (300, b'"a"', 0), (200, b'"b"', 0)):
        assert await store.store([order("k", at_ms, body=body, by_content=True)]) == changed
    assert rows(path, "SELECT version, body FROM orders") == [(300, '"a"')]
    assert changes(path) == [("k", 100)]


async def test_mixed_batch_counts_and_records_what_changed_alone(store: SqliteStore, path: Path) -> None:
    await store.store([order("a", 1), order("b", 5)])
    assert await store.store([order("a", 2), order("b", 5), order("c", 1)]) == 2
    assert changes(path) == [("a", 1), ("b", 5), ("a", 2), ("c", 1)]


async def test_without_history_there_is_no_table_for_it(path: Path) -> None:
    store = SqliteStore(path)
    assert await store.store([order("a"), order("b")]) == 2
    assert await store.store([order("a"), order("b", 2)]) == 1
    await store.close()
    assert rows(path, "SELECT name FROM sqlite_master WHERE type = 'table'") == [("orders",)]


async def test_batch_larger_than_a_statement_is_one_transaction(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "MOST_ROWS", 7)
    good = [order(f"{at:03}") for at in range(20)]
    with pytest.raises(OrderRefused):
        await store.store([*good, order("z", 2**63)])
    assert versions(path) == []
    assert await store.store(good) == 20


deliveries = st.lists(st.builds(order, st.sampled_from(["a", "b", "c"]), st.integers(0, 4)), min_size=1, max_size=25)


@given(deliveries, st.lists(st.integers(1, 6), min_size=1), st.integers(0, 10))
@settings(max_examples=40, deadline=None)
def test_any_interleaving_ends_in_the_highest_version_and_applies_each_once(
    sent: list[Order], sizes: list[int], repeated: int
) -> None:
    stream = [*sent, *sent[:repeated]]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "orders.db")
        anyio.run(store_in_batches, path, stream, sizes)
        applied = changes(path)
        assert versions(path) == sorted({o.order_key: o.version for o in fold(stream)}.items())
    assert len(applied) == len(set(applied))
    for key in {key for key, _ in applied}:
        own = [version for name, version in applied if name == key]
        assert own == sorted(own)


async def store_in_batches(path: Path, stream: list[Order], sizes: list[int]) -> None:
    """Store the stream cut into batches of the given sizes, by two stores in turn."""
    stores = [SqliteStore(path, history=True, synchronous="NORMAL") for _ in range(2)]
    start = turn = 0
    while start < len(stream):
        size = sizes[turn % len(sizes)]
        await stores[turn % 2].store(fold(stream[start : start + size]))
        start, turn = start + size, turn + 1
    for each in stores:
        await each.close()


WRITER = """
import anyio, sys
from pathlib import Path
from actors.fetch.stores.sqlite import SqliteStore
from tests.support.orders import order
async def main():
    store = SqliteStore(Path(sys.argv[1]), history=True)
    for version in range(1, 21):
        await store.store([order(f"{at:02}", version) for at in range(50)])
    await store.close()
anyio.run(main)
"""


def test_processes_share_a_new_file(path: Path) -> None:
    """Four processes create the tables and write the same keys at once."""
    root = Path(__file__).parents[3]
    started = [subprocess.Popen([sys.executable, "-c", WRITER, str(path)], cwd=root) for _ in range(4)]
    assert [process.wait(30) for process in started] == [0] * 4
    applied = changes(path)
    assert versions(path) == [(f"{at:02}", 20) for at in range(50)]
    assert len(applied) == len(set(applied))


async def test_locked_file_is_down_and_then_up_again(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_S", 0.05)
    await store.store([order("a")])
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreDown, match="locked"):
        await store.store([order("b")])
    other.execute("ROLLBACK")
    other.close()
    assert await store.store([order("b")]) == 1


async def test_new_file_is_waited_for_while_another_process_creates_it(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        other.rollback()

    monkeypatch.setattr(time, "sleep", sleep)
    await store.open()
    other.close()
    assert waited == [sqlite.RETRY_S]
    assert await store.store([order("a")]) == 1


async def test_new_file_that_stays_locked_is_down(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_S", 0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreDown, match="locked"):
        await store.open()
    other.close()


async def test_full_disk_is_down_and_stores_nothing(store: SqliteStore, path: Path) -> None:
    await store.store([order("a")])
    assert store._connection is not None
    store._connection.execute("PRAGMA max_page_count = 10")  # the same error as a full disk: SQLITE_FULL
    with pytest.raises(StoreDown, match="full"):
        await store.store([order(f"{at:03}", body=b'"' + b"x" * 2_000 + b'"') for at in range(100)])
    assert versions(path) == [("a", 1)]
    assert await store.store([order("b")]) == 1


async def test_missing_folder_is_down(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "none" / "orders.db")
    with pytest.raises(StoreDown):
        await store.open()
    (tmp_path / "none").mkdir()
    assert await store.store([order()]) == 1
    await store.close()


def test_file_that_is_no_database_is_down(path: Path) -> None:
    path.write_text("hello " * 1_000)
    with pytest.raises(StoreDown):
        anyio.run(SqliteStore(path).open)


async def test_deleted_file_is_made_anew_and_nothing_is_written_to_the_old_one(store: SqliteStore, path: Path) -> None:
    await store.store([order("a")])
    for file in path.parent.iterdir():
        file.unlink()
    assert await store.store([order("b")]) == 1
    assert versions(path) == [("b", 1)]


async def test_body_that_is_no_text_is_refused(store: SqliteStore, path: Path) -> None:
    with pytest.raises(OrderRefused, match="UTF-8"):
        await store.store([order("a", body=b'"\xff"')])


async def test_row_that_the_users_own_constraint_forbids_is_refused(store: SqliteStore, path: Path) -> None:
    await store.open()
    with sqlite_file(path) as connection:
        connection.execute(
            "CREATE TRIGGER own BEFORE INSERT ON orders WHEN NEW.version > 9 BEGIN SELECT RAISE(ABORT, 'too new'); END"
        )
    connection.close()
    with pytest.raises(OrderRefused, match="too new"):
        await store.store([order("a"), order("b", 10)])
    assert await store.store([order("a")]) == 1


async def test_text_comes_back_as_it_was(store: SqliteStore, path: Path) -> None:
    key, body = "張-\0-'\"; DROP TABLE orders;--", '{"name": "\\u0000 é 🙂"}'
    await store.store([order(key, body=body.encode())])
    assert rows(path, "SELECT order_key, body FROM orders") == [(key, body)]


async def test_commits_outlive_a_power_cut_by_default(store: SqliteStore) -> None:
    await store.open()
    assert store._connection is not None
    assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert store._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("sqlite:///orders.db", f"sqlite:{Path.cwd() / 'orders.db'}"),
        ("sqlite+aiosqlite:////var/orders.db?synchronous=normal", "sqlite:/var/orders.db"),
        ("postgresql://ann:secret@db/orders", "postgresql://ann:***@db/orders"),
        ("postgres://ann:secret@db/orders", "postgres://ann:***@db/orders"),
        ("postgresql+asyncpg://db/orders", "postgresql+asyncpg://db/orders"),
    ],
)
def test_url_names_the_store(url: str, name: str) -> None:
    assert sql_store(url).name == name


@pytest.mark.parametrize(
    "url",
    [
        "orders.db",
        "mysql://ann:secret@db/orders",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///orders.db?mode=ro",
        "sqlite:///orders.db?synchronous=OFF",
    ],
)
def test_url_that_cannot_be_used_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"sqlite|say") as refused:
        sql_store(url)
    assert "secret" not in str(refused.value)
