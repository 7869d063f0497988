"""The ledgers of all sources as this node sees them, and the one way to change one.

A change is a pure function from a ledger to the next one and a result. Changes of one source that arrive during a write
are folded into the next write, so a busy source needs one compare-and-set for many moves. After a revision conflict the
ledger is read and the changes are applied again. The watch keeps a cache of raw bytes. A ledger is decoded only when it
is needed, so following thousands of quiet sources costs next to nothing.

A node follows the ledgers only while it tends sources or leads the monitor (`followed`). Otherwise it reads a ledger
when it changes one, and keeps what it wrote lately. What it was told lately is as good (`told`): a slice whose offer
carries the ledger costs no read, if it is taken and finished soon.

Under redelivery: a change must be harmless when it is applied to a ledger that it has already changed, since a write
whose reply was lost may be applied twice. When it cannot go on: if a ledger is missing, broken by hand or cannot be
written, its callers get the error. The others go on. A failed write drops nothing from the cache: the next one
conflicts, and reads again.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from actors.fetch.rules.ledger import Ledger
from actors.fetch.sources import SourceKey, source_of
from actors.runtime.live import Live
from streams.buckets.bucket import Bucket
from streams.buckets.entries import Entry
from streams.clock import monotonic_s
from streams.errors import RevisionConflict
from streams.races import step_aside

LATEST_MS = 10**15
"""Beyond this a slice's name cannot be written."""

LIKELY_S = 30.0
"""So long is a ledger that is not followed taken to be as this node left it. If it is not, a write costs a conflict."""
MOST_IN_HAND = 2_048
"""Ledgers that are kept though they are not followed: many times as many as a node reads slices at once."""

R = TypeVar("R")
Move = Callable[[Ledger], tuple[Ledger, R]]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Ledger).decode


class Contended(Exception):
    """A change had `tries` revision conflicts in a row. Another node is at work on this source (FETCH-36)."""

    def __init__(self, source: SourceKey, tries: int) -> None:
        super().__init__(
            f"could not change the ledger of {source}: lost the race {tries} times; it is tried again later"
        )


class MissingLedger(Exception):
    """The source has no ledger. No new one is created automatically, since that would skip everything not read yet."""

    def __init__(self, source: SourceKey) -> None:
        super().__init__(
            f"{source} has no ledger; if it was deleted, say where to begin: penstock sources rewind {source} TIME"
        )


class BrokenLedger(msgspec.DecodeError):
    """The value under the source's key is no ledger: somebody wrote it by hand. Only this source stops."""

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
    """A ledger at a revision. It keeps the bytes until the record is needed."""

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


class _Change(Generic[R]):
    """One change, and the future of its caller."""

    __slots__ = ("future", "move", "tries")

    def __init__(self, move: Move[R], tries: int) -> None:
        self.move = move
        self.tries = tries
        self.future: asyncio.Future[R] = asyncio.get_running_loop().create_future()


class Ledgers:
    """A live view of every ledger while somebody needs it, and `move` to change one."""

    def __init__(self, bucket: Bucket[bytes], tasks: TaskGroup) -> None:
        self._bucket = bucket
        self._tasks = tasks
        self._live = Live(bucket, _stored)
        self._followers = 0
        self._followers_changed = anyio.Event()
        self._synced = anyio.Event()
        self._in_hand: OrderedDict[SourceKey, float] = OrderedDict()
        """Sources whose ledgers were read or written last while none are followed, each with the time."""
        self._changes: dict[SourceKey, deque[_Change[Any]]] = {}

    def on_change(self, listener: Callable[[SourceKey], None]) -> Callable[[], None]:
        """Call `listener` with each source whose ledger any node changed. It must be short. Return a function that
        removes the listener."""
        return self._live.on_change(lambda key: listener(source_of(key)))

    def known(self) -> list[SourceKey]:
        return [stored.source for _, stored in self._live.items()]

    def peek(self, source: SourceKey) -> Ledger | None:
        """Return the ledger as last seen, perhaps a moment old. `None`: there is none. While ledgers are not followed,
        it is as this node changed it last, and `None` if that was long ago. Raises BrokenLedger."""
        stored = self._live.get(source.key)
        return None if stored is None else stored.ledger()

    async def move(self, source: SourceKey, move: Move[R], *, tries: int = 10) -> R:
        """Change the ledger by `move` and return its result once stored. A move that returns the same ledger writes
        nothing. Raises Contended, MissingLedger, BrokenLedger, StreamError (the change may or may not have been
        stored), and what `move` raises."""
        change = _Change(move, tries)
        line = self._changes.get(source)
        if line is None:
            self._changes[source] = deque([change])
            self._tasks.start_soon(self._write, source)
        else:
            line.append(change)
        return await change.future

    async def create(self, source: SourceKey, ledger: Ledger) -> None:
        """Store the first ledger of a source. Raises RevisionConflict if there is one."""
        self._written(source, await self._bucket.create(source.key, _encode(ledger)), ledger)

    def to_tell(self, source: SourceKey, ledger: Ledger) -> tuple[int, bytes]:
        """Return the revision and the bytes of a ledger for another node's `told`. (0, b""): something else is known
        by now."""
        known = self._live.get(source.key)
        if known is None or known.is_broken() or known.ledger() is not ledger:
            return 0, b""
        return known.revision, _encode(ledger)

    def told(self, source: SourceKey, revision: int, raw: bytes) -> None:
        """Take a ledger as another node has seen it a moment ago. While all are followed, it is known anyway."""
        if self._followers or revision <= self._live.revision(source.key):
            return
        stored = _Stored(source, revision, raw=raw)
        if not stored.is_broken():
            self._live.learn(source.key, stored, revision)
            self._keep(source)

    @property
    def is_followed(self) -> bool:
        """Return whether every ledger is known as it is."""
        return self._synced.is_set()

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """Have the ledgers followed by `run`. The block begins once the present ones are known."""
        self._count_followers(1)
        try:
            await self._synced.wait()
            yield
        finally:
            self._count_followers(-1)

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Follow the bucket for ever, whenever somebody needs it (`followed`)."""
        task_status.started()
        while True:
            if not self._followers:
                self._synced = anyio.Event()
                self._live.forget()
                await self._until(lambda: self._followers > 0)
            self._in_hand.clear()
            async with anyio.create_task_group() as tasks:
                await tasks.start(self._live.run)
                self._synced.set()
                await self._until(lambda: not self._followers)
                self._synced = anyio.Event()  # at once: who comes now waits for the next reading
                tasks.cancel_scope.cancel()

    def _count_followers(self, more: int) -> None:
        self._followers += more
        self._followers_changed.set()

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._followers_changed = anyio.Event()
            await self._followers_changed.wait()

    # ---- writing

    async def _write(self, source: SourceKey) -> None:
        """Store the changes of one source, all that wait at a time in one write, until none wait."""
        line = self._changes[source]
        try:
            while line:
                batch = list(line)
                line.clear()
                await self._store(source, batch)
                await asyncio.sleep(0)  # what the stored changes allow goes on first, and joins the next write
        finally:
            del self._changes[source]
            _cancel(line)

    async def _store(self, source: SourceKey, batch: list[_Change[Any]]) -> None:
        try:
            await self._settle(source, batch)
        except Exception as error:  # the callers get any error, and the other sources go on
            _refuse(batch, error)
        except BaseException:
            _cancel(batch)
            raise

    async def _settle(self, source: SourceKey, batch: list[_Change[Any]]) -> None:
        """Decide on the cached record. Decide on the stored one before a change is void or refused, and after a
        conflict."""
        stored, is_fresh, lost = self._known(source), False, 0
        while any(not change.future.done() for change in batch):
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
        self._keep(source)

    def _known(self, source: SourceKey) -> _Stored | None:
        """Return what is most likely stored."""
        is_likely = self.is_followed or monotonic_s() < self._in_hand.get(source, -math.inf) + LIKELY_S
        return self._live.get(source.key) if is_likely else None

    def _keep(self, source: SourceKey) -> None:
        """Keep a ledger that is not followed, and forget the one that was kept longest."""
        if self._followers:
            return
        self._in_hand[source] = monotonic_s()
        self._in_hand.move_to_end(source)
        if len(self._in_hand) > MOST_IN_HAND:
            oldest, _ = self._in_hand.popitem(last=False)
            self._live.drop(oldest.key)

    async def _lost(
        self, source: SourceKey, batch: list[_Change[Any]], lost: int, revision: int, conflict: RevisionConflict
    ) -> None:
        """Fail the changes with too many conflicts. Let the others try again, soon and out of step."""
        if conflict.actual is not None and conflict.actual < revision:
            self._live.drop(source.key)  # the server was put back to an earlier state
        _refuse([change for change in batch if lost >= change.tries], Contended(source, lost))
        await step_aside(lost)

    async def _read(self, source: SourceKey) -> _Stored:
        """Return the newer one of the stored and the known record."""
        entry = await self._bucket.get(source.key)
        if entry is None:
            self._live.drop(source.key)
            raise MissingLedger(source)
        read = _stored(entry)
        self._live.learn(source.key, read, entry.revision)
        self._keep(source)
        return self._live.get(source.key) or read


Results = list[tuple[_Change[Any], Any]]
Errors = list[tuple[_Change[Any], Exception]]


def _apply_all(batch: list[_Change[Any]], ledger: Ledger) -> tuple[Ledger, Results, Errors]:
    """Apply in order the moves whose callers still wait. If one raises, only its caller gets the error."""
    results: Results = []
    errors: Errors = []
    for change in batch:
        if change.future.done():
            continue
        try:
            ledger, result = change.move(ledger)
        except Exception as error:  # a caller's own function: the caller gets whatever it raises
            errors.append((change, error))
        else:
            results.append((change, result))
    return ledger, results, errors


def _answer(results: Results, errors: Errors) -> None:
    for change, result in results:
        if not change.future.done():
            change.future.set_result(result)
    for change, error in errors:
        _refuse([change], error)


def _refuse(batch: Iterable[_Change[Any]], error: Exception) -> None:
    for change in batch:
        if not change.future.done():
            change.future.set_exception(error)


def _cancel(batch: Iterable[_Change[Any]]) -> None:
    for change in batch:
        change.future.cancel()


@asynccontextmanager
async def open_ledgers(bucket: Bucket[bytes]) -> AsyncIterator[Ledgers]:
    """Open the ledgers without a watch, for commands and tests that change one and end."""
    async with anyio.create_task_group() as tasks:
        yield Ledgers(bucket, tasks)
