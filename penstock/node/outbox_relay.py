"""Relay: hands the jobs of an outbox over, and removes the rows of those that are there.

    async with penstock.connect() as client:
        await relay(engine, client.jobs)

Committed rows are read in batches, added in their order, and removed once the answer says that the jobs are there. A
relay that dies in between, or one whose answer was lost, leads to the same adds again. Each is known by its row, for a
day after its job has ended, and makes no second job.

Several relays at once share the work: on PostgreSQL each holds the rows of its batch (`FOR UPDATE SKIP LOCKED`). On
SQLite rows are read without a lock, since holding one would stop the application: two relays there add the same jobs,
which is harmless and no use.

A job that is refused keeps its row, with the reason, and blocks no other; see the table in penstock/sdk/outbox.py. So
does one that expired before it could be handed over. One that finds its topic full is tried again later. While the
database or all nodes are away, everything waits.
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
from streams.job_messages import LARGEST_BODY, NewJob, is_json

log = logging.getLogger(__name__)

__all__ = ["JobAdder", "Moved", "relay", "relay_once"]

BATCH = 200
POLL_S = 0.1
"""How often to look for new rows; a look at a table without any costs a glance at its index."""
FULL_MS, AWAY_MS = 10_000, 1_000
"""When to try a job again whose topic was full, or which nobody took at the moment."""
AGAIN = Backoff(growth="exponential", base_ms=200, cap_ms=10_000, spread=0.0)
"""How long to wait while database or nodes are away: at first, and at most."""
HANGS_S = 60.0
TELL_S = 10.0
MOST_REASON = 1_000

P = ParamSpec("P")
T = TypeVar("T")


class JobAdder(Protocol):
    """Where jobs are added: `client.jobs`."""

    async def add_many(self, jobs: Sequence[NewJob], /) -> Sequence[Added | NotAdded]: ...


class Moved(NamedTuple):
    """What became of rows: handed over, refused for good, to be tried again later."""

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
    """Hand over what is committed, until cancelled. Raises UsageError if the table is missing, and NotAccepted if this
    client may not add jobs."""
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
    """Hand over what is committed by now, and return what became of it. Raises as `relay`, and also what the database
    and the client raise when they are away; what was handed over by then stays so."""
    work, total = _Relay(engine, jobs, outbox or Outbox(), batch), Moved()
    began_ms = SYSTEM.now_ms()  # what is put off is not tried again
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
        """Hand over one batch of what is to be tried by now; return what became of its rows."""
        async with _connected(self._engine) as run:
            rows = await run(self._take, now_ms)
            if not rows:
                return Moved()
            answers = await self._add(rows)
            reach("outbox.handed_over")
            return await run(self._settle, rows, answers)

    def _take(self, connection: Connection, now_ms: int) -> Sequence[Row[Any]]:
        """Return the next rows. On PostgreSQL they are ours until the transaction ends; on SQLite nothing is locked."""
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
        """Return what became of the rows' jobs, in order. What cannot travel in a message is not sent."""
        sent = [row for row in rows if _can_travel(row)]
        with one_error():
            told = await self._jobs.add_many([job_of(row) for row in sent])
        answers = {row.seq: answer for row, answer in zip(sent, told, strict=True)}
        return [answers.get(row.seq, _NO_BODY) for row in rows]

    def _settle(self, connection: Connection, rows: Sequence[Row[Any]], answers: Sequence[Added | NotAdded]) -> Moved:
        """Remove the rows of jobs that are there, write the reason to the others, and commit."""
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
    """False for a body that would spoil the message in which it goes beside others."""
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
    """Return the database's own words, without the statement that SQLAlchemy puts behind them."""
    words = error.orig if isinstance(error, DBAPIError) else error
    return f"{words}" or type(words).__name__


class _Report:
    """Tells from time to time how many jobs were handed over."""

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
    """Connect; what was not committed by the end is rolled back. A cancellation waits for the database, which takes
    milliseconds: drivers do not survive one in the middle."""
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
