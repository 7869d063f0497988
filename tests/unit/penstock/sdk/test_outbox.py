"""A job in an outbox is a row of the user's own transaction."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from sqlalchemy import Engine, MetaData, Row, create_engine, inspect, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from typer.testing import CliRunner

from penstock.cli.root import app
from penstock.errors import UsageError
from penstock.sdk.outbox import TABLE, Outbox, job_of
from streams.messages.jobs import LARGEST_BODY

NOW_MS = 1_800_000_000_000


class At:
    """A clock that stands still."""

    def now_ms(self) -> int:
        return NOW_MS


@pytest.fixture
def outbox() -> Outbox:
    return Outbox(clock=At())


@pytest.fixture
def engine(tmp_path: Path, outbox: Outbox) -> Iterator[Engine]:
    opened = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    outbox.create(opened)
    yield opened
    opened.dispose()


def rows(engine: Engine, outbox: Outbox) -> list[Row[Any]]:
    with engine.connect() as connection:
        return list(connection.execute(select(outbox.rows).order_by("seq")))


def test_what_is_rolled_back_leaves_no_job(engine: Engine, outbox: Outbox) -> None:
    with Session(engine) as session:
        outbox.add(session, "close-order", {"order": 7})
        session.rollback()
    with engine.connect() as connection, connection.begin() as transaction:
        outbox.add(connection, "close-order", {"order": 8})
        transaction.rollback()
    assert rows(engine, outbox) == []


def test_what_is_committed_has_its_job_with_all_that_was_said_of_it(engine: Engine, outbox: Outbox) -> None:
    with Session(engine) as session, session.begin():
        told = outbox.add(
            session,
            "close-order",
            {"order": "é\x00"},
            id="close 7",
            delay=1800,
            ttr=timedelta(minutes=2),
            priority="high",
            attempts=3,
            expires_in=7200,
        )
    assert told == "close 7"
    (row,) = rows(engine, outbox)
    job = job_of(row)
    assert (job.topic, job.id, job.on_same) == ("close-order", "close 7", "keep")
    assert bytes(job.body) == '{"order":"é\\u0000"}'.encode()
    assert (job.due_ms, job.expires_ms) == (NOW_MS + 1_800_000, NOW_MS + 7_200_000)
    assert (job.delay_ms, job.expires_in_ms) == (0, None)
    assert (job.ttr_ms, job.priority, job.attempts) == (120_000, "high", 3)


def test_what_is_not_said_is_left_to_the_topic(engine: Engine, outbox: Outbox) -> None:
    with Session(engine) as session, session.begin():
        told = [outbox.add(session, "mail") for _ in range(2)]
    jobs = [job_of(row) for row in rows(engine, outbox)]
    assert [job.id for job in jobs] == told
    assert len(set(told)) == 2
    assert {(job.ttr_ms, job.attempts, job.expires_ms, job.due_ms) for job in jobs} == {(None, None, None, NOW_MS)}
    assert bytes(jobs[0].body) == b"null"


def test_a_moment_stands_for_a_delay(engine: Engine, outbox: Outbox) -> None:
    due = datetime(2030, 1, 31, 8, tzinfo=UTC)
    with Session(engine) as session, session.begin():
        outbox.add(session, "mail", Raw(b'{"a": 1}'), due=due)
    (row,) = rows(engine, outbox)
    assert job_of(row).due_ms == round(due.timestamp() * 1000)
    assert row.body == '{"a": 1}'


def test_scoped_sessions_and_connections_are_transactions_too(engine: Engine, outbox: Outbox) -> None:
    session = scoped_session(sessionmaker(engine))
    outbox.add(session, "mail", id="a")
    session.commit()
    session.remove()
    with engine.begin() as connection:
        outbox.add(connection, "mail", id="b")
    assert [row.job_id for row in rows(engine, outbox)] == ["a", "b"]


async def test_asyncio_calls_it_in_sqlalchemys_way(tmp_path: Path, outbox: Outbox) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
    async with engine.begin() as connection:
        await connection.run_sync(outbox.create)
    async with AsyncSession(engine) as session:
        await session.run_sync(outbox.add, "mail", {"to": "a"}, id="a", delay=5)
        await session.commit()
        await session.run_sync(outbox.add, "mail", {"to": "b"}, id="b")
        await session.rollback()
        found = (await session.execute(select(outbox.rows))).all()
        with pytest.raises(UsageError, match=r"await session.run_sync\(outbox.add"):
            outbox.add(session, "mail")  # type: ignore[arg-type]  # what is tested
    await engine.dispose()
    assert [(row.job_id, row.due_ms) for row in found] == [("a", NOW_MS + 5_000)]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"topic": "a.b"}, "topic"),
        ({"topic": ""}, "topic"),
        ({"id": "x" * 256}, "id"),
        ({"id": "a\nb"}, "id"),
        ({"delay": -1}, "delay"),
        ({"delay": float("nan")}, "delay"),
        ({"delay": 1e12}, "delay"),
        ({"delay": True}, "delay"),
        ({"delay": "30"}, "delay"),
        ({"due": datetime(2030, 1, 1)}, "due"),  # noqa: DTZ001
        ({"ttr": 0}, "ttr"),
        ({"ttr": timedelta(days=8)}, "ttr"),
        ({"attempts": 0}, "attempts"),
        ({"priority": "urgent"}, "priority"),
        ({"body": {1, 2}.union}, "body"),
        ({"body": "\ud800"}, "body"),
        ({"body": Raw(b"{")}, "body"),
        ({"body": "x" * LARGEST_BODY}, "body"),
    ],
)
def test_what_no_job_may_be_is_refused_before_anything_is_stored(
    engine: Engine, outbox: Outbox, said: dict[str, Any], told: str
) -> None:
    with Session(engine) as session, session.begin():
        with pytest.raises(UsageError, match=told):
            outbox.add(session, **{"topic": "mail", **said})
    assert rows(engine, outbox) == []


def test_an_engine_is_no_transaction(engine: Engine, outbox: Outbox) -> None:
    with pytest.raises(UsageError, match=r"give a SQLAlchemy Session, or a Connection"):
        outbox.add(engine, "mail")  # type: ignore[arg-type]  # what is tested


def test_migrations_see_the_same_table(engine: Engine) -> None:
    metadata, outbox = MetaData(), Outbox("jobs_to_be")
    table = outbox.table(metadata)
    metadata.create_all(engine)
    assert metadata.tables["jobs_to_be"] is table
    with engine.begin() as connection:
        outbox.add(connection, "mail", id="a")
    assert [row.job_id for row in rows(engine, outbox)] == ["a"]
    assert [index["column_names"] for index in inspect(engine).get_indexes("jobs_to_be")] == [["next_ms", "seq"]]


def test_creating_again_changes_nothing_and_no_number_is_used_twice(engine: Engine, outbox: Outbox) -> None:
    numbers = []
    for _ in range(3):
        outbox.create(engine)
        with engine.begin() as connection:
            outbox.add(connection, "mail")
            numbers.append(connection.execute(select(outbox.rows.c.seq)).scalar_one())
            connection.execute(outbox.rows.delete())
    assert numbers == [1, 2, 3]
    assert inspect(engine).has_table(TABLE)


@pytest.mark.parametrize(
    ("db", "told"),
    [
        ("sqlite:///missing.db", "no such file"),
        ("sqlite://", "no such file"),
        ("mysql://root@db/shop", "no outbox in 'mysql'"),
        ("shop.db", "not a database URL"),
        ("postgresql://shop:secret@db/shop", "a password is never written down here"),
        ("env:NO_SUCH_VARIABLE", "NO_SUCH_VARIABLE"),
    ],
)
def test_the_command_says_what_is_wrong_with_a_database(db: str, told: str) -> None:
    ended = CliRunner().invoke(app, ["outbox", "relay", "--db", db])
    assert ended.exit_code == 2
    assert told in ended.stderr
    assert "secret" not in ended.stderr
