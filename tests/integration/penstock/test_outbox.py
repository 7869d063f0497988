"""Jobs of an outbox are handed over once each, whatever dies in between; on SQLite and on PostgreSQL."""

import json
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from sqlalchemy import Row, create_engine, select, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

from penstock.errors import Unavailable, UsageError
from penstock.node.outbox_relay import Moved, relay, relay_once
from penstock.sdk.calls import ServiceClient
from penstock.sdk.client import Client, connect
from penstock.sdk.outbox import Outbox
from streams.link.connection import connect as connect_to_server
from streams.subjects import Namespace
from tests.support.command import penstock, plain_environment
from tests.support.engine import logging_of
from tests.support.moments import a_moment
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.processes import free_ports
from tests.support.programs import program

FAR_S = 3600


@pytest.fixture(scope="module")
def desk(binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a node's server."""
    folder, (port,) = tmp_path_factory.mktemp("desk"), free_ports(1)
    environment = plain_environment(PENSTOCK_DATA=str(folder), PENSTOCK_HTTP="off", PENSTOCK_LOG_FORM="json")
    up = [sys.executable, "-m", "penstock", "up", "--port", str(port), "--sink", "none"]
    with program(up, folder, environment) as node:
        node.until(lambda lines: any('"event":"node.ready"' in line for line in lines))
        yield f"nats://127.0.0.1:{port}"


@pytest.fixture
async def client(desk: str) -> AsyncIterator[Client]:
    async with connect(desk) as opened:
        yield opened


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database's URL, as for `penstock outbox relay --db`."""
    if request.param == "sqlite":
        (tmp_path / "shop.db").touch()
        return f"sqlite:///{tmp_path / 'shop.db'}"
    url: str = request.getfixturevalue("postgres").url
    return url


@pytest.fixture
def topic() -> str:
    """A topic of the test's own."""
    return f"t{secrets.token_hex(6)}"


@pytest.fixture
async def outbox(engine: AsyncEngine, topic: str) -> Outbox:
    """An outbox of the test's own."""
    made = Outbox(f"outbox_{topic}")
    async with engine.begin() as connection:
        await connection.run_sync(made.create)
    return made


@pytest.fixture
async def engine(database: str) -> AsyncIterator[AsyncEngine]:
    opened = create_async_engine(database.replace("://", "+aiosqlite://" if "sqlite" in database else "+asyncpg://"))
    yield opened
    await opened.dispose()


async def add(engine: AsyncEngine, outbox: Outbox, topic: str, *ids: str, delay: float = FAR_S) -> None:
    async with AsyncSession(engine) as session, session.begin():
        for id_ in ids:
            await session.run_sync(outbox.add, topic, {"id": id_}, id=id_, delay=delay)


async def rows(engine: AsyncEngine, outbox: Outbox) -> list[Row[Any]]:
    async with engine.connect() as connection:
        return list(await connection.execute(select(outbox.rows).order_by("seq")))


async def jobs(client: Client, topic: str) -> dict[str, int]:
    """Return the delayed jobs' due times by id."""
    return {job.id: job.due_ms async for job in client.jobs.list(topic)}


async def limit(desk: str, topic: str, most_waiting: int) -> None:
    """Have the topic take only so many jobs."""
    async with connect_to_server(desk, name="test", namespace=Namespace()) as connection:
        ask = {"topic": topic, "set": {"most_waiting": most_waiting}}
        await ServiceClient(connection, "jobs", 10.0).request("topic", json.dumps(ask).encode())


async def test_what_was_committed_is_handed_over_once_and_due_from_its_adding_on(
    engine: AsyncEngine, outbox: Outbox, topic: str, client: Client
) -> None:
    async with AsyncSession(engine) as session:
        await session.run_sync(outbox.add, topic, id="rolled back")
        await session.rollback()
    await add(engine, outbox, topic, "a", "b")
    due = {row.job_id: row.due_ms for row in await rows(engine, outbox)}
    assert await relay_once(engine, client.jobs, outbox=outbox) == Moved(handed_over=2)
    assert await jobs(client, topic) == due
    assert await rows(engine, outbox) == []
    assert await relay_once(engine, client.jobs, outbox=outbox) == Moved()


async def test_a_running_relay_sees_what_is_committed_and_the_same_id_again_changes_nothing(
    engine: AsyncEngine, outbox: Outbox, topic: str, client: Client
) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: relay(engine, client.jobs, outbox=outbox, poll_s=0.01))
        await add(engine, outbox, topic, "now", delay=0)
        (held,) = await client.jobs.reserve_many(topic, wait=20)
        assert (held.id, held.body) == ("now", {"id": "now"})
        await add(engine, outbox, topic, "now", "last", delay=0)
        (last,) = await client.jobs.reserve_many(topic, wait=20)
        tasks.cancel_scope.cancel()
    assert last.id == "last"
    assert (await client.jobs.count(topic)).reserved == 2
    await held.finish()


async def test_a_relay_killed_before_it_removes_the_rows_makes_no_second_job(
    engine: AsyncEngine, outbox: Outbox, topic: str, client: Client, database: str, desk: str
) -> None:
    ids = [f"{number:03}" for number in range(300)]
    await add(engine, outbox, topic, *ids)
    command = ["outbox", "relay", "--db", database, "--table", outbox.rows.name, "--nats", desk]
    killed = await penstock(*command, PENSTOCK_CRASH_AT="outbox.handed_over:2")
    assert killed.code == -signal.SIGKILL
    assert len(await jobs(client, topic)) == 300
    assert [row.job_id for row in await rows(engine, outbox)] == ids[200:]
    with anyio.fail_after(30):  # PostgreSQL keeps the rows of a killed client locked until it notices
        while not (moved := await relay_once(engine, client.jobs, outbox=outbox)).handed_over:
            await a_moment()
    assert moved == Moved(handed_over=100)
    assert sorted(await jobs(client, topic)) == ids
    assert await rows(engine, outbox) == []


async def test_what_is_refused_stays_with_its_reason_and_blocks_nothing(
    engine: AsyncEngine, outbox: Outbox, topic: str, client: Client
) -> None:
    spoilt: dict[str, dict[str, Any]] = {
        "topic": {"topic": "no.topic"},
        "body": {"body": "{"},
        "expiry": {"due_ms": 1, "expires_ms": 2},
    }
    await add(engine, outbox, topic, "first", *spoilt, "last")
    of = outbox.rows.c
    async with engine.begin() as connection:
        for id_, values in spoilt.items():
            await connection.execute(update(outbox.rows).where(of.job_id == id_).values(**values))
    async with logging_of("penstock") as logged:
        moved = await relay_once(engine, client.jobs, outbox=outbox, batch=2)
    assert moved == Moved(handed_over=2, refused=3)
    assert sorted(await jobs(client, topic)) == ["first", "last"]
    kept = {row.job_id: row for row in await rows(engine, outbox)}
    assert {id_: row.next_ms for id_, row in kept.items()} == dict.fromkeys(spoilt)
    assert "topic" in kept["topic"].reason
    assert "not JSON" in kept["body"].reason
    assert "expires_ms" in kept["expiry"].reason
    assert [facts["job_id"] for facts in logged.of("outbox.refused")] == list(spoilt)
    async with engine.begin() as connection:
        await connection.execute(update(outbox.rows).where(of.job_id == "body").values(body="{}", next_ms=0))
    assert await relay_once(engine, client.jobs, outbox=outbox) == Moved(handed_over=1)
    assert sorted(await jobs(client, topic)) == ["body", "first", "last"]


async def test_another_body_under_an_id_that_is_taken_is_told(
    engine: AsyncEngine, outbox: Outbox, topic: str, client: Client
) -> None:
    await client.jobs.add(topic, {"id": "other"}, id="a", delay=FAR_S)
    await add(engine, outbox, topic, "a")
    async with logging_of("penstock") as logged:
        assert await relay_once(engine, client.jobs, outbox=outbox) == Moved(handed_over=1)
    assert [facts["job_id"] for facts in logged.of("outbox.first_stands")] == ["a"]
    held = await client.jobs.peek(topic, "a")
    assert held is not None
    assert bytes(held.body) == b'{"id":"other"}'


async def test_a_full_topic_is_tried_again_later(
    engine: AsyncEngine, outbox: Outbox, topic: str, client: Client, desk: str
) -> None:
    await limit(desk, topic, 1)
    await add(engine, outbox, topic, "fits", "too many")
    moved = await relay_once(engine, client.jobs, outbox=outbox, batch=1)
    assert moved == Moved(handed_over=1, later=1)
    (row,) = await rows(engine, outbox)
    assert row.job_id == "too many"
    assert row.next_ms > row.added_ms
    await limit(desk, topic, 0)
    async with engine.begin() as connection:
        await connection.execute(update(outbox.rows).values(next_ms=0))  # ten seconds go by
    assert await relay_once(engine, client.jobs, outbox=outbox) == Moved(handed_over=1)


async def test_a_thousand_rows_and_two_relays_give_a_thousand_jobs(
    engine: AsyncEngine, outbox: Outbox, topic: str, client: Client
) -> None:
    ids = [f"{number:04}" for number in range(1_000)]
    await add(engine, outbox, topic, *ids)
    told: list[Moved] = []

    async def hand_over() -> None:
        told.append(await relay_once(engine, client.jobs, outbox=outbox, batch=100))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hand_over)
        tasks.start_soon(hand_over)
    assert sorted(await jobs(client, topic)) == ids
    assert await rows(engine, outbox) == []
    if engine.dialect.name == "postgresql":
        assert sum(moved.handed_over for moved in told) == 1_000, "each row was one relay's"


async def test_rows_wait_while_no_node_answers(
    engine: AsyncEngine, outbox: Outbox, topic: str, client: Client, desk: str
) -> None:
    await add(engine, outbox, topic, "a")
    async with connect(desk, namespace="nobody", timeout_s=0.1) as alone:
        with pytest.raises(Unavailable):
            await relay_once(engine, alone.jobs, outbox=outbox)
        async with logging_of("penstock") as logged, anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: relay(engine, alone.jobs, outbox=outbox))
            told = await logged.first("outbox.waits")
            tasks.cancel_scope.cancel()
    assert "no node answers" in told["error"]
    assert await relay_once(engine, client.jobs, outbox=outbox) == Moved(handed_over=1)


async def test_a_database_that_goes_is_waited_for(postgres: PostgresServer, topic: str, client: Client) -> None:
    url, outbox = postgres.url.replace("://", "+asyncpg://"), Outbox(f"outbox_{topic}")
    shop, engine = create_async_engine(url, poolclass=NullPool), create_async_engine(url)
    async with shop.begin() as connection:
        await connection.run_sync(outbox.create)
    async with logging_of("penstock") as logged, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: relay(engine, client.jobs, outbox=outbox, poll_s=0.01))
        await add(shop, outbox, topic, "before", delay=0)
        assert await client.jobs.reserve_many(topic, wait=20)
        postgres.stop()
        await logged.first("outbox.waits")
        postgres.start()
        await add(shop, outbox, topic, "after", delay=0)
        (held,) = await client.jobs.reserve_many(topic, wait=20)
        tasks.cancel_scope.cancel()
    assert held.id == "after"
    assert len(logged.of("outbox.waits")) == 1, "told once"
    await engine.dispose()


async def test_an_engine_without_asyncio_will_do(tmp_path: Path, topic: str, client: Client, desk: str) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    engine, outbox = create_engine(url), Outbox()
    with pytest.raises(UsageError, match=r"no table penstock_outbox in sqlite://.*; make it by Outbox\(\).create"):
        await relay_once(engine, client.jobs)
    outbox.create(engine)
    with engine.begin() as connection:
        outbox.add(connection, topic, id="by the function", delay=FAR_S)
    assert await relay_once(engine, client.jobs) == Moved(handed_over=1)
    with engine.begin() as connection:
        outbox.add(connection, topic, id="by the command", delay=FAR_S)
    ended = await penstock("outbox", "relay", "--db", url, "--nats", desk, "--once", "--json")
    assert (ended.code, ended.json()) == (0, {"handed_over": 1, "refused": 0, "later": 0})
    assert sorted(await jobs(client, topic)) == ["by the command", "by the function"]
    engine.dispose()
