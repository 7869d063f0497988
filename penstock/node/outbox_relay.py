"""Relay: adds the jobs of an outbox, and removes the rows of the jobs that were added.

    async with penstock.connect() as client:
        await relay(engine, client.jobs)

The relay reads committed rows in batches, adds their jobs in order, and removes the rows once the answer confirms the
jobs. If a relay dies in between, or its answer is lost, the same adds come again. Each add has its row's id, which
makes no second job until a day after the job has ended.

Several relays share the work. On PostgreSQL each holds the rows of its batch (`FOR UPDATE SKIP LOCKED`). On SQLite a
relay reads rows without a lock, since a lock would stop the application. Two relays there add the same jobs, which is
harmless and no use.

A refused job keeps its row, with the reason, and blocks no other (see the table in penstock/sdk/outbox.py). So does a
job that expired before it was added. If the topic is full, the relay tries again later. While the database or all nodes
are away, it waits.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

import anyio
import anyio.to_thread
from sqlalchemy import Connection, Engine, Row, bindparam, delete, inspect, select, update
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from actors.jobs.rules.job_answers import Added, NotAdded
from actors.runtime.failpoints import reach
from actors.runtime.logs import fields
from actors.runtime.supervisor import one_error
from penstock.errors import Timeout, Unavailable, UsageError
from penstock.sdk.outbox import Outbox, job_of
from streams.backoff import Backoff
from streams.clock import SYSTEM, monotonic_s
from streams.messages.jobs import LARGEST_BODY, NewJob, is_json

log = logging.getLogger(__name__)

__all__ = ["JobAdder", "Moved", "relay", "relay_once"]

BATCH = 200
POLL_S = 0.1
"""How often to look for new rows. A look at an empty table costs one look at its index."""
FULL_MS, AWAY_MS = 10_000, 1_000
"""When to try a job again whose topic was full, or for which no node was there."""
AGAIN = Backoff(growth="exponential", base_ms=200, cap_ms=10_000, spread=0.0)
"""How long to wait while database or nodes are away: at first, and at most."""
HANGS_S = 60.0
TELL_S = 10.0
MOST_REASON = 1_000

P = ParamSpec("P")
T = TypeVar("T")


class JobAdder(Protocol):
    """Adds jobs: `client.jobs`."""

    async def add_many(self, jobs: Sequence[NewJob], /) -> Sequence[Added | NotAdded]: ...


class Moved(NamedTuple):
    """Numbers of rows: added, refused for good, to be tried again later."""

    handed_over: int = 0
    refused: int = 0
    later: int = 0

    def plus(self, other: "Moved") -> "Moved":
        return Moved(*(one + more for one, more in zip(self, other, strict=True)))


async def relay(
    engine: Engine | AsyncEngine,
    jobs: JobAdder,
    *,
    outbox: Outbox | None = None,
    batch: int = BATCH,
    poll_s: float = POLL_S,
) -> None:
    """Add the jobs of committed rows until cancelled. Raises UsageError if the table is missing, and NotAccepted if
    this client may not add jobs."""
    work, report, failures = _Relay(engine, jobs, outbox or Outbox(), batch), _Report(), 0
    while True:
        try:
            moved = await work.step(SYSTEM.now_ms())
        except (SQLAlchemyError, OSError, Unavailable, Timeout) as error:
            if not failures:
                log.warning("outbox.waits", extra=fields(error=_said(error)))
            failures += 1
            await anyio.sleep(AGAIN.wait_s(failures))
            continue
        if failures:
            log.info("outbox.goes_on")
        failures = 0
        report.add(moved)
        if sum(moved) < batch:
            await anyio.sleep(poll_s)


async def relay_once(
    engine: Engine | AsyncEngine, jobs: JobAdder, *, outbox: Outbox | None = None, batch: int = BATCH
) -> Moved:
    """Add the jobs of the rows that are committed by now, and return the numbers. Raises as `relay`, and also the
    errors of a database or client that is away. Jobs that were added by then stay added."""
    work, total = _Relay(engine, jobs, outbox or Outbox(), batch), Moved()
    began_ms = SYSTEM.now_ms()  # a row that was put off is not tried again
    while sum(moved := await work.step(began_ms)):
        total = total.plus(moved)
    return total


class _Relay:
    """One relay's work, a batch at a time."""

    def __init__(self, engine: Engine | AsyncEngine, jobs: JobAdder, outbox: Outbox, batch: int) -> None:
        self._engine = engine
        self._jobs = jobs
        self._table = outbox.rows
        self._batch = batch
        self._is_sure = False

    async def step(self, now_ms: int) -> Moved:
        """Add the jobs of one batch of rows that are due by now, and return the numbers."""
        async with _connected(self._engine) as run:
            rows = await run(self._take, now_ms)
            if not rows:
                return Moved()
            answers = await self._add(rows)
            reach("outbox.handed_over")
            return await run(self._settle, rows, answers)

    def _take(self, connection: Connection, now_ms: int) -> Sequence[Row[Any]]:
        """Return the next rows. PostgreSQL locks them until the transaction ends. SQLite locks nothing."""
        self._check_table(connection)
        of = self._table.c
        due = select(self._table).where(of.next_ms <= now_ms).order_by(of.next_ms, of.seq)
        rows = connection.execute(due.limit(self._batch).with_for_update(skip_locked=True)).all()
        if connection.dialect.name == "sqlite":
            connection.rollback()
        return rows

    def _check_table(self, connection: Connection) -> None:
        table = self._table
        if not self._is_sure and not inspect(connection).has_table(table.name, schema=table.schema):
            raise UsageError(
                f"outbox: there is no table {table.fullname} in {connection.engine.url!r}; make it by "
                "Outbox().create(engine), or by a migration with Outbox().table(metadata)"
            )
        self._is_sure = True

    async def _add(self, rows: Sequence[Row[Any]]) -> list[Added | NotAdded]:
        """Return the answers for the rows' jobs, in order. A job that cannot travel in a message is not sent."""
        sent = [row for row in rows if _can_travel(row)]
        with one_error():
            told = await self._jobs.add_many([job_of(row) for row in sent])
        answers = {row.seq: answer for row, answer in zip(sent, told, strict=True)}
        return [answers.get(row.seq, _NO_BODY) for row in rows]

    def _settle(self, connection: Connection, rows: Sequence[Row[Any]], answers: Sequence[Added | NotAdded]) -> Moved:
        """Remove the rows of added jobs, write the reason to the others, and commit."""
        there = [row.seq for row, answer in zip(rows, answers, strict=True) if isinstance(answer, Added)]
        kept = [(row.seq, answer) for row, answer in zip(rows, answers, strict=True) if isinstance(answer, NotAdded)]
        now_ms = SYSTEM.now_ms()
        changes = [
            {"of_seq": seq, "next_ms": _next_ms(answer, now_ms), "reason": answer.reason[:MOST_REASON]}
            for seq, answer in kept
        ]
        if there:
            connection.execute(delete(self._table).where(self._table.c.seq.in_(there)))
        if changes:
            connection.execute(update(self._table).where(self._table.c.seq == bindparam("of_seq")), changes)
        connection.commit()
        for row, answer in zip(rows, answers, strict=True):
            _tell(row, answer)
        refused = sum(_is_final(answer) for _, answer in kept)
        return Moved(len(there), refused, len(kept) - refused)


_NO_BODY = NotAdded(code="bad", field="body", reason=f"the body is not JSON, or above {LARGEST_BODY} bytes")
_PASSES = ("quota", "unavailable", "unknown")


def _is_final(answer: NotAdded) -> bool:
    return answer.code not in _PASSES


def _next_ms(answer: NotAdded, now_ms: int) -> int | None:
    """Return when to try again, None for never."""
    return None if _is_final(answer) else now_ms + (FULL_MS if answer.code == "quota" else AWAY_MS)


def _can_travel(row: Row[Any]) -> bool:
    """False for a body that would spoil the message that it shares with others."""
    if not isinstance(row.body, str):  # SQLite stores what it is given
        return False
    body = row.body.encode("utf-8", "surrogatepass")
    return len(body) <= LARGEST_BODY and is_json(body)


def _tell(row: Row[Any], answer: Added | NotAdded) -> None:
    job = {"topic": row.topic, "job_id": row.job_id}
    if isinstance(answer, NotAdded):
        event = "outbox.refused" if _is_final(answer) else "outbox.later"
        log.warning(event, extra=fields(**job, code=answer.code, reason=answer.reason))
    elif not answer.is_same_body:
        log.warning("outbox.first_stands", extra=fields(**job, reason="a job of this id with another body was there"))


def _said(error: Exception) -> str:
    """Return the database's own message, without the statement that SQLAlchemy appends."""
    words = error.orig if isinstance(error, DBAPIError) else error
    return f"{words}" or type(words).__name__


class _Report:
    """Logs from time to time how many jobs were added."""

    def __init__(self) -> None:
        self._count = 0
        self._next_s = 0.0

    def add(self, moved: Moved) -> None:
        self._count += moved.handed_over
        if self._count and monotonic_s() >= self._next_s:
            log.info("outbox.handed_over", extra=fields(count=self._count))
            self._count, self._next_s = 0, monotonic_s() + TELL_S


class _Run(Protocol):
    """Runs a function with the connection, off the event loop."""

    async def __call__(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T: ...


@asynccontextmanager
async def _connected(engine: Engine | AsyncEngine) -> AsyncIterator[_Run]:
    """Connect. The end rolls back uncommitted changes. A cancellation waits for the database, which takes milliseconds:
    drivers do not survive a cancellation in the middle."""
    opened = await _shielded(partial(_open, engine))

    async def run(fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        if isinstance(opened, AsyncConnection):
            return await _shielded(partial(opened.run_sync, fn, *args, **kwargs))
        return await _shielded(partial(anyio.to_thread.run_sync, partial(fn, opened, *args, **kwargs)))

    try:
        yield run
    finally:
        if isinstance(opened, AsyncConnection):
            await _shielded(opened.close)
        else:
            await _shielded(partial(anyio.to_thread.run_sync, opened.close))


async def _open(engine: Engine | AsyncEngine) -> Connection | AsyncConnection:
    if isinstance(engine, AsyncEngine):
        return await engine.connect().start()
    return await anyio.to_thread.run_sync(engine.connect)


async def _shielded(call: Callable[[], Awaitable[T]]) -> T:
    """Raises TimeoutError if the database hangs."""
    with anyio.fail_after(HANGS_S, shield=True):
        return await call()
