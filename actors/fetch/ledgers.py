"""The ledgers of all sources as this node sees them, and the one way to change one.

A change is a pure function from a ledger to the next one and a result. Changes of one source that arrive while a
write is under way are folded into the next write, so that a busy source costs one compare-and-set for many moves; a
lost race reads again and applies them again. The watch keeps a cache of raw bytes: a ledger is decoded only where
somebody asks for it, so following thousands of quiet sources costs next to nothing.

Under redelivery: a change must be harmless when it is applied to a ledger that it has already changed, since a write
whose answer was lost may be applied twice.
When it cannot go on: a ledger that is missing, broken by hand or not to be written is told to whoever asked for it; the
others go on. Nothing is dropped from the cache for a failed write: the next one conflicts, and reads again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from actors.fetch.rules.ledger import Ledger
from actors.fetch.sources import SourceKey, source_of
from actors.runtime.live import Live
from streams.bucket import Bucket
from streams.entries import Entry
from streams.errors import RevisionConflict
from streams.races import step_aside

LATEST_MS = 10**15
"""Beyond this the name of a slice cannot be written any more."""

R = TypeVar("R")
Move = Callable[[Ledger], tuple[Ledger, R]]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Ledger).decode


class Contended(Exception):
    """A change lost its race `tries` times in a row; somebody else is at work on this source (FETCH-36)."""

    def __init__(self, source: SourceKey, tries: int) -> None:
        super().__init__(
            f"could not change the ledger of {source}: lost the race {tries} times; it is tried again later"
        )


class MissingLedger(Exception):
    """The source has no ledger. It is never made anew on its own, since that would skip all that was not yet read."""

    def __init__(self, source: SourceKey) -> None:
        super().__init__(
            f"{source} has no ledger; if it was deleted, say where to begin: penstock sources rewind {source} TIME"
        )


class BrokenLedger(msgspec.DecodeError):
    """What stands under the source's key is no ledger: somebody wrote it by hand. Only this source stops."""

    def __init__(self, source: SourceKey, why: str) -> None:
        super().__init__(
            f"the ledger of {source} cannot be read: {why}; put a whole one back, or "
            f"delete it and begin anew: penstock sources rewind {source} TIME"
        )


def read_ledger(source: SourceKey, raw: bytes) -> Ledger:
    """Return the ledger that the bytes hold. Raises BrokenLedger, also for a record that no move can have made."""
    try:
        ledger = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BrokenLedger(source, str(error)) from error
    if not 0 <= ledger.start_ms <= ledger.watermark_ms <= ledger.frontier_ms < LATEST_MS:
        raise BrokenLedger(source, "start, watermark and frontier do not rise from 0")
    for piece in (*ledger.open, *ledger.holes):
        if not 0 <= piece.start_ms < piece.end_ms < LATEST_MS:
            raise BrokenLedger(source, f"a slice of [{piece.start_ms}, {piece.end_ms})")
    if any(each.kind == "b" and each.end_ms is None for each in ledger.passes):
        raise BrokenLedger(source, "a backfill without an end")
    return ledger


class _Stored:
    """A ledger at a revision: its bytes, until somebody asks for the record."""

    __slots__ = ("_ledger", "_raw", "revision", "source")

    def __init__(self, source: SourceKey, revision: int, *, raw: bytes = b"", ledger: Ledger | None = None) -> None:
        self.source = source
        self.revision = revision
        self._raw = raw
        self._ledger = ledger

    def is_broken(self) -> bool:
        try:
            self.ledger()
        except BrokenLedger:
            return True
        return False

    def ledger(self) -> Ledger:
        """Return the record. Raises BrokenLedger."""
        if self._ledger is None:
            self._ledger, self._raw = read_ledger(self.source, self._raw), b""
        return self._ledger


def _stored(entry: Entry[bytes]) -> _Stored:
    return _Stored(source_of(entry.key), entry.revision, raw=entry.raw)


class _Asked(Generic[R]):
    """One change, and who waits for it."""

    __slots__ = ("future", "move", "tries")

    def __init__(self, move: Move[R], tries: int) -> None:
        self.move = move
        self.tries = tries
        self.future: asyncio.Future[R] = asyncio.get_running_loop().create_future()


class Ledgers:
    """A live view of every ledger, and `move` to change one."""

    def __init__(self, bucket: Bucket[bytes], tasks: TaskGroup) -> None:
        self._bucket = bucket
        self._tasks = tasks
        self._live = Live(bucket, _stored)
        self._asked: dict[SourceKey, deque[_Asked[Any]]] = {}

    def on_change(self, listener: Callable[[SourceKey], None]) -> Callable[[], None]:
        """Call `listener` with each source whose ledger was changed, by anybody; it must be short. Return its
        remover."""
        return self._live.on_change(lambda key: listener(source_of(key)))

    def known(self) -> list[SourceKey]:
        return [stored.source for _, stored in self._live.items()]

    def peek(self, source: SourceKey) -> Ledger | None:
        """Return the ledger as last seen, perhaps a moment old; None if there is none. Raises BrokenLedger."""
        stored = self._live.get(source.key)
        return None if stored is None else stored.ledger()

    async def move(self, source: SourceKey, move: Move[R], *, tries: int = 10) -> R:
        """Change the ledger by `move` and return its result once stored; a move that returns the same ledger writes
        nothing. Raises Contended, MissingLedger, BrokenLedger, StreamError (the change may or may not have been
        stored), and what `move` raises."""
        asked = _Asked(move, tries)
        line = self._asked.get(source)
        if line is None:
            self._asked[source] = deque([asked])
            self._tasks.start_soon(self._write, source)
        else:
            line.append(asked)
        return await asked.future

    async def create(self, source: SourceKey, ledger: Ledger) -> None:
        """Store the first ledger of a source. Raises RevisionConflict if there is one."""
        self._written(source, await self._bucket.create(source.key, _encode(ledger)), ledger)

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Follow the bucket for ever; started once the present ledgers are known."""
        await self._live.run(task_status=task_status)

    # ---- what is written

    async def _write(self, source: SourceKey) -> None:
        """Store what was asked of one source, all that waits at a time in one write, until nothing waits."""
        line = self._asked[source]
        try:
            while line:
                batch = list(line)
                line.clear()
                await self._store(source, batch)
        finally:
            del self._asked[source]
            _cancel(line)

    async def _store(self, source: SourceKey, batch: list[_Asked[Any]]) -> None:
        try:
            await self._settle(source, batch)
        except Exception as error:  # whatever it is, it is for those who asked; the other sources go on
            _refuse(batch, error)
        except BaseException:
            _cancel(batch)
            raise

    async def _settle(self, source: SourceKey, batch: list[_Asked[Any]]) -> None:
        """Decide on what is cached; before a change is taken for void or refused, or after a lost race, on what is
        stored."""
        stored, is_fresh, lost = self._live.get(source.key), False, 0
        while any(not asked.future.done() for asked in batch):
            if stored is None or (not is_fresh and stored.is_broken()):
                stored, is_fresh = await self._read(source), True
            before = stored.ledger()
            after, results, errors = _apply_all(batch, before)
            if (after is before or errors) and not is_fresh:
                stored = None
                continue
            if after is not before:
                try:
                    revision = await self._bucket.compare_and_set(source.key, _encode(after), stored.revision)
                except RevisionConflict as conflict:
                    lost += 1
                    await self._lost(source, batch, lost, stored.revision, conflict)
                    stored = None
                    continue
                self._written(source, revision, after)
            _answer(results, errors)

    def _written(self, source: SourceKey, revision: int, ledger: Ledger) -> None:
        self._live.learn(source.key, _Stored(source, revision, ledger=ledger), revision)

    async def _lost(
        self, source: SourceKey, batch: list[_Asked[Any]], lost: int, revision: int, conflict: RevisionConflict
    ) -> None:
        """Fail those that have lost too often; let the others try again, soon and not in step with their rivals."""
        if conflict.actual is not None and conflict.actual < revision:
            self._live.drop(source.key)  # the server's memory is older than ours: it was put back to an earlier state
        _refuse([asked for asked in batch if lost >= asked.tries], Contended(source, lost))
        await step_aside(lost)

    async def _read(self, source: SourceKey) -> _Stored:
        """Return the newer one of what a read says and what is known."""
        entry = await self._bucket.get(source.key)
        if entry is None:
            self._live.drop(source.key)
            raise MissingLedger(source)
        read = _stored(entry)
        self._live.learn(source.key, read, entry.revision)
        return self._live.get(source.key) or read


Results = list[tuple[_Asked[Any], Any]]
Errors = list[tuple[_Asked[Any], Exception]]


def _apply_all(batch: list[_Asked[Any]], ledger: Ledger) -> tuple[Ledger, Results, Errors]:
    """Apply in order the moves whose askers still wait; one that raises is its asker's affair alone."""
    results: Results = []
    errors: Errors = []
    for asked in batch:
        if asked.future.done():
            continue
        try:
            ledger, result = asked.move(ledger)
        except Exception as error:  # the asker's own function: whatever it raises goes to the asker
            errors.append((asked, error))
        else:
            results.append((asked, result))
    return ledger, results, errors


def _answer(results: Results, errors: Errors) -> None:
    for asked, result in results:
        if not asked.future.done():
            asked.future.set_result(result)
    for asked, error in errors:
        _refuse([asked], error)


def _refuse(batch: Iterable[_Asked[Any]], error: Exception) -> None:
    for asked in batch:
        if not asked.future.done():
            asked.future.set_exception(error)


def _cancel(batch: Iterable[_Asked[Any]]) -> None:
    for asked in batch:
        asked.future.cancel()


@asynccontextmanager
async def open_ledgers(bucket: Bucket[bytes]) -> AsyncIterator[Ledgers]:
    """Open the ledgers without a watch: for commands and tests that change one and go."""
    async with anyio.create_task_group() as tasks:
        yield Ledgers(bucket, tasks)
