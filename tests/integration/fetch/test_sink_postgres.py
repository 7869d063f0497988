"""Orders in a real PostgreSQL: the same guarantees as in SQLite, and its own ways to say no."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import asyncpg
import pytest

from actors.fetch.stores.batches import fold, store_by_halves
from actors.fetch.stores.postgres import PostgresStore
from actors.fetch.stores.sql import sql_store
from actors.fetch.stores.store import OrderRefused, Store, StoreDown
from tests.support.orders import AT_MS, order
from tests.support.postgres import PostgresServer, postgres_server


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture
async def database(postgres: PostgresServer) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres.url)
    await connection.execute("DROP TABLE IF EXISTS orders, order_changes")
    yield connection
    await connection.close()


@pytest.fixture
async def store(postgres: PostgresServer, database: asyncpg.Connection) -> AsyncIterator[Store]:
    opened = sql_store(postgres.url, history=True)
    await opened.open()
    yield opened
    await opened.close()


async def rows(database: asyncpg.Connection, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in await database.fetch(sql)]


async def changes(database: asyncpg.Connection) -> list[tuple[Any, ...]]:
    return await rows(database, "SELECT order_key, version FROM order_changes ORDER BY change_id")


async def test_higher_version_alone_changes_an_order(store: Store, database: asyncpg.Connection) -> None:
    assert await store.store([order("a", 2), order("b", 5, body='{"名":"é\\u0000"}'.encode())]) == 2
    assert await store.store([order("a", 3), order("b", 5), order("c", 1)]) == 2
    assert await store.store([order("a", 1), order("b", 4)]) == 0
    assert await changes(database) == [("a", 2), ("b", 5), ("a", 3), ("c", 1)]
    assert await rows(database, "SELECT version, modified_ms, fetched_ms, body FROM orders WHERE order_key = 'b'") == [
        (5, AT_MS + 5, AT_MS, '{"名":"é\\u0000"}')
    ]


async def test_without_versions_another_body_alone_is_another_state(store: Store, database: asyncpg.Connection) -> None:
    for at_ms, body, changed in ((1, b'"a"', 1), (5, b'"a"', 0), (6, b'"b"', 1), (4, b'"a"', 0), (7, b'"a"', 1)):
        batch = [order("k", at_ms, body=body, by_content=True), order("v", at_ms, body=b'"same"')]
        assert await store.store(batch) == changed + (at_ms != 4)
    assert [change for change in await changes(database) if change[0] == "k"] == [("k", 1), ("k", 6), ("k", 7)]


async def test_without_versions_a_later_reading_of_the_stored_body_outdates_what_was_read_before(
    store: Store, database: asyncpg.Connection
) -> None:
    for at_ms, body, changed in ((100, b'"a"', 1), (300, b'"a"', 0), (200, b'"b"', 0)):
        assert await store.store([order("k", at_ms, body=body, by_content=True)]) == changed
    assert await rows(database, "SELECT version, body FROM orders") == [(300, '"a"')]
    assert await changes(database) == [("k", 100)]


async def test_without_history_the_changed_orders_are_counted_too(
    postgres: PostgresServer, database: asyncpg.Connection
) -> None:
    store = sql_store(postgres.url)
    assert await store.store([order("a"), order("b")]) == 2
    assert await store.store([order("a"), order("b", 2)]) == 1
    await store.close()
    assert await rows(database, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'") == [("orders",)]


async def test_batch_is_stored_whole_or_not_at_all(store: Store, database: asyncpg.Connection) -> None:
    with pytest.raises(OrderRefused):
        await store.store([order("a"), order("b\0")])
    assert await rows(database, "SELECT * FROM orders") == []
    assert await changes(database) == []


@pytest.mark.parametrize(
    "poison",
    [
        order("nul\0"),
        order("text", body=b'"\xff"'),
        order("big", 2**63),
        order("surrogate\ud800"),
        order("wide", source="".join(chr(0x4E00 + at * 7 % 20_000) for at in range(4_000))),
    ],
    ids=["NUL in a key", "not UTF-8", "beyond 64 bit", "lone surrogate", "too long for an index"],
)
async def test_row_that_the_database_refuses_is_found_and_the_rest_is_stored(
    store: Store, database: asyncpg.Connection, poison: Any
) -> None:
    batch = [*(order(f"{at:03}") for at in range(100)), poison]
    refusals = await store_by_halves(store, batch, is_patient=True)
    assert [(refusal.order, refusal.is_certain) for refusal in refusals] == [(poison, True)]
    assert await rows(database, "SELECT count(*) FROM order_changes") == [(100,)]


async def test_constraint_of_the_users_own_is_a_refusal_without_the_orders_data(
    store: Store, database: asyncpg.Connection
) -> None:
    await database.execute("ALTER TABLE orders ADD CHECK (version < 9)")
    with pytest.raises(OrderRefused) as refused:
        await store.store([order("a", 9, body=b'"ann@example.org"')])
    assert "check constraint" in str(refused.value)
    assert "ann@" not in str(refused.value)


async def test_missing_rights_are_an_outage(
    postgres: PostgresServer, store: Store, database: asyncpg.Connection
) -> None:
    await database.execute("DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN")
    guest = sql_store(postgres.url.replace("penstock@", "guest@"))
    with pytest.raises(StoreDown, match="permission denied"):
        await guest.store([order()])
    await database.execute("GRANT SELECT, INSERT, UPDATE ON orders TO guest")
    assert await guest.store([order()]) == 1  # though it may not create tables
    await guest.close()
    await database.execute("DROP OWNED BY guest; DROP ROLE guest")


async def test_dropped_table_is_an_outage_and_then_made_anew(store: Store, database: asyncpg.Connection) -> None:
    await database.execute("DROP TABLE orders")
    with pytest.raises(StoreDown):
        await store.store([order()])
    assert await store.store([order()]) == 1


async def test_sinks_that_store_the_same_keys_at_once_apply_each_version_once(
    postgres: PostgresServer, database: asyncpg.Connection
) -> None:
    """Eight create the tables together, then race over the same keys in changing order."""
    stores = [sql_store(postgres.url, history=True) for _ in range(8)]

    async def race(store: Store, turn: int) -> None:
        for version in range(1, 11):
            batch = [order(f"{at * (turn + 1) % 50:02}", version) for at in range(50)]
            await store.store(fold(batch))
        await store.close()

    async with anyio.create_task_group() as tasks:
        for turn, store in enumerate(stores):
            tasks.start_soon(race, store, turn)
    applied = await changes(database)
    assert len(applied) == len(set(applied))
    assert await rows(database, "SELECT DISTINCT version FROM orders") == [(10,)]


async def test_server_that_goes_is_down_and_back_when_it_is_back(postgres: PostgresServer, store: Store) -> None:
    await store.store([order("a")])
    postgres.stop()
    try:
        for _ in range(2):  # a broken connection, then a refused one
            with pytest.raises(StoreDown):
                await store.store([order("b")])
    finally:
        postgres.start()
    assert await store.store([order("b")]) == 1


async def test_nobody_there_is_down_and_keeps_the_password_to_itself() -> None:
    store = sql_store("postgresql://ann:secret@127.0.0.1:1/orders")
    assert isinstance(store, PostgresStore)
    with pytest.raises(StoreDown) as down:
        await store.open()
    assert "secret" not in str(down.value)
    assert "127.0.0.1:1" in str(down.value)
    await store.close()


async def test_missing_database_is_down(postgres: PostgresServer) -> None:
    store = sql_store(postgres.url.replace("/postgres", "/nowhere"))
    with pytest.raises(StoreDown, match="nowhere"):
        await store.store([order()])
    await store.close()
