"""Jobs added in a transaction of your own database, and handed over afterwards.

    outbox = penstock.Outbox()
    outbox.create(engine)  # or, for your migrations: outbox.table(Base.metadata)

    with Session(engine) as session, session.begin():
        session.add(order)
        outbox.add(session, "close-order", {"order": order.id}, id=f"close-{order.id}", delay=1800)

In asyncio SQLAlchemy's own way to call such functions does:

        await session.run_sync(outbox.add, "close-order", {"order": order.id}, id=f"close-{order.id}", delay=1800)

The job is a row of that transaction: a rollback takes it back, and no commit is without it. A relay hands committed
rows over and removes them (`penstock outbox relay`, or `relay` of penstock/node/outbox_relay.py in a process of your
own). A job is due so long after `add`, by the clock of the process that calls it, whenever it is handed over.
"""

from typing import Any, TypeAlias, Unpack

from msgspec import Raw
from sqlalchemy import BigInteger, Column, Connection, Engine, Identity, Index, Integer, MetaData, Row, Table, Text
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.sql.dml import Insert

from actors.jobs.rules.job_rules import BadJob, make_job
from actors.jobs.rules.topic_settings import TopicSettings
from penstock.api.forms.jobs import OutboxOptions
from penstock.errors import UsageError
from penstock.sdk.client_jobs import new_job
from streams.clock import SYSTEM, Clock
from streams.job_messages import Job, NewJob

__all__ = ["TABLE", "Outbox", "Transaction", "job_of"]

TABLE = "penstock_outbox"
Transaction: TypeAlias = Connection | Session | scoped_session[Any]
"""What a user's transaction is open on."""


class Outbox:
    """The jobs of one database that are still to be handed over, in a table of their own."""

    def __init__(self, name: str = TABLE, *, schema: str | None = None, clock: Clock = SYSTEM) -> None:
        self.rows = _table(MetaData(), name, schema)
        self._clock = clock

    def table(self, metadata: MetaData) -> Table:
        """Return the table as one of `metadata`, so that migrations made from it know it."""
        return _table(metadata, self.rows.name, self.rows.schema)

    def create(self, where: Engine | Connection) -> None:
        """Create the table if it is missing."""
        self.rows.create(where, checkfirst=True)

    def add(self, where: Transaction, topic: str, body: object = None, **options: Unpack[OutboxOptions]) -> str:
        """Add a job to the transaction that is open on `where`; return its id, a fresh one if none is given.

        The options are those of `client.jobs.add` but for `on_same` and `nonce`. If a job of this id is there when this
        one is handed over, that one stands. Raises UsageError for what no job may be; nothing is stored then."""
        if not isinstance(where, Connection | Session | scoped_session):
            raise UsageError(_not_here(where))
        if unknown := options.keys() - OutboxOptions.__optional_keys__:
            raise TypeError(f"a job in an outbox has no option {min(unknown)!r}")
        asked = new_job(topic, body, **options)
        now_ms = self._clock.now_ms()
        try:
            job = make_job(asked, TopicSettings(), now_ms=now_ms, fresh_id=asked.id)
        except BadJob as error:
            raise UsageError(f"outbox: {error}") from error
        where.execute(self._insert(asked, job))
        return job.id

    def _insert(self, asked: NewJob, job: Job) -> Insert:
        """Take moments as they were worked out; what was left to the topic is left to it again."""
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
    """Rows are handed over in the order of `seq`, which is nearly that of their adding. No number is used twice: a
    relay that comes late with its answer must not remove another job's row.

    `next_ms`: not before; null if refused for good, and kept with the `reason` until a person acts (set it to 0 to have
    the job tried again, or delete the row)."""
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
