"""Adds jobs in a transaction of your own database. A relay submits them after the commit.

    outbox = penstock.Outbox()
    outbox.create(engine)  # or, for your migrations: outbox.table(Base.metadata)

    with Session(engine) as session, session.begin():
        session.add(order)
        outbox.add(session, "close-order", {"order": order.id}, id=f"close-{order.id}", delay=1800)

In asyncio use SQLAlchemy's way to call such functions:

        await session.run_sync(outbox.add, "close-order", {"order": order.id}, id=f"close-{order.id}", delay=1800)

The job is a row of that transaction: a rollback removes it, and a commit keeps it. A relay submits committed rows and
removes them (`penstock outbox relay`, or `relay` of penstock/node/outbox_relay.py in a process of your own). The delay
of a job counts from `add`, by the clock of the process that calls it, whenever the relay submits it.
"""

from typing import Any, TypeAlias, Unpack

from msgspec import Raw
from sqlalchemy import BigInteger, Column, Connection, Engine, Identity, Index, Integer, MetaData, Row, Table, Text
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.sql.dml import Insert

from actors.jobs.rules.job_rules import BadJob, make_job
from actors.jobs.rules.topic_settings import TopicSettings
from actors.runtime.rules.spellings import unknown_option
from penstock.api.forms.jobs import OutboxOptions
from penstock.errors import UsageError
from penstock.sdk.client_adds import new_job
from streams.clock import SYSTEM, Clock
from streams.messages.jobs import JobRecord, NewJob

__all__ = ["TABLE", "Outbox", "Transaction", "job_of"]

TABLE = "penstock_outbox"
Transaction: TypeAlias = Connection | Session | scoped_session[Any]
"""Where a user's transaction is open."""


class Outbox:
    """The jobs of one database that are not submitted yet, in a table of their own."""

    def __init__(self, name: str = TABLE, *, schema: str | None = None, clock: Clock = SYSTEM) -> None:
        self.rows = _table(MetaData(), name, schema)
        self._clock = clock

    def table(self, metadata: MetaData) -> Table:
        """Return the table as one of `metadata`, so that generated migrations include it."""
        return _table(metadata, self.rows.name, self.rows.schema)

    def create(self, where: Engine | Connection) -> None:
        """Create the table if it is missing."""
        self.rows.create(where, checkfirst=True)

    def add(self, where: Transaction, topic: str, body: object = None, **options: Unpack[OutboxOptions]) -> str:
        """Add a job to the transaction that is open on `where`, and return its id. Without an id it gets a fresh one.

        The options are those of `client.jobs.add` without `on_same` and `nonce`. If a job of this id exists when the
        relay submits this one, the existing job stays. Raises UsageError for a job that is not valid, and then stores
        nothing."""
        if not isinstance(where, Connection | Session | scoped_session):
            raise UsageError(_not_here(where))
        if unknown := options.keys() - OutboxOptions.__optional_keys__:
            raise TypeError(unknown_option("a job in an outbox", min(unknown), sorted(OutboxOptions.__optional_keys__)))
        asked = new_job(topic, body, **options)
        now_ms = self._clock.now_ms()
        try:
            job = make_job(asked, TopicSettings(), now_ms=now_ms, fresh_id=asked.id)
        except BadJob as error:
            raise UsageError(f"outbox: {error}") from error
        where.execute(self._insert(asked, job))
        return job.id

    def _insert(self, asked: NewJob, job: JobRecord) -> Insert:
        """Insert the times that `new_job` computed. Options that the caller left to the topic stay unset."""
        return self.rows.insert().values(
            topic=job.topic,
            job_id=job.id,
            body=bytes(job.body).decode(),
            due_ms=job.due_ms,
            ttr_ms=asked.ttr_ms,
            priority=job.priority,
            attempts=asked.attempts,
            expires_ms=job.expires_ms or None,
            added_ms=job.added_ms,
            next_ms=0,
        )


def job_of(row: Row[Any]) -> NewJob:
    """Return the job of a row."""
    return NewJob(
        topic=row.topic,
        id=row.job_id,
        body=Raw(row.body.encode()),
        due_ms=row.due_ms,
        ttr_ms=row.ttr_ms,
        priority=row.priority,
        attempts=row.attempts,
        expires_ms=row.expires_ms,
        on_same="keep",
        nonce=f"outbox-{row.seq}-{row.added_ms}",
    )


def _table(metadata: MetaData, name: str, schema: str | None) -> Table:
    """The relay submits rows in the order of `seq`, which is nearly the order of their adding. No number is used twice,
    since a late relay must not remove another job's row.

    `next_ms`: do not submit before. Null: the row was refused for good, and is kept with its `reason` until a person
    acts. The person sets it to 0 to submit the job again, or deletes the row."""
    return Table(
        name,
        metadata,
        Column("seq", BigInteger().with_variant(Integer(), "sqlite"), Identity(), primary_key=True),
        Column("topic", Text, nullable=False),
        Column("job_id", Text, nullable=False),
        Column("body", Text, nullable=False),
        Column("due_ms", BigInteger, nullable=False),
        Column("ttr_ms", BigInteger),
        Column("priority", Text, nullable=False),
        Column("attempts", Integer),
        Column("expires_ms", BigInteger),
        Column("added_ms", BigInteger, nullable=False),
        Column("next_ms", BigInteger),
        Column("reason", Text),
        Index(f"{name}_next", "next_ms", "seq"),
        schema=schema,
        sqlite_autoincrement=True,
    )


def _not_here(where: object) -> str:
    kind = type(where).__name__
    if hasattr(where, "run_sync"):
        return f"outbox: {kind} is asyncio's: `await session.run_sync(outbox.add, topic, body, …)`"
    return f"outbox: {kind} has no transaction to add to; give a SQLAlchemy Session, or a Connection"
