"""What the user's own code gets: to commit items, to see one item, to read how all of them ended."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import msgspec
from msgspec import Raw

from actors.batch.items import BatchItems
from actors.batch.rules.record import Instance, Seal, files_at, is_step_over, made_so_far
from actors.runtime.rules.depth import DEEPEST, is_too_deep
from actors.runtime.rules.texts import printable
from streams.buckets.files import Files
from streams.messages.batch import (
    CHUNK_BYTES,
    LOST,
    NOTHING,
    Chunk,
    ChunkResult,
    Counts,
    Outcome,
    Status,
    last_outcomes,
    lost_parts,
)

BUFFERED = 8
"""Chunks that are collected before they are stored: one wait for eight messages."""
AT_ONCE = 8
T = TypeVar("T")


class NotJson(ValueError):
    """The value from the user's code cannot be written as JSON."""


def as_json(value: object, what: str) -> Raw:
    """Return a value's JSON, which every reader can follow. Raises NotJson, which names the value as `what`."""
    try:
        if isinstance(value, Raw):
            msgspec.json.decode(value)  # its text may be in another encoding, or hold a number that is none
        raw = value if isinstance(value, Raw) else Raw(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise NotJson(
            f"{what} cannot be written as JSON: {error}; use text, numbers, lists, dicts or structs"
        ) from error
    except RecursionError:
        raw = None
    if raw is None or is_too_deep(raw):
        raise NotJson(f"{what} is nested more deeply than {DEEPEST} levels")
    return raw


def text_of(error: object) -> str:
    """Return an error's text, made fit to be stored. The user's code may yield half a character, or no text."""
    try:
        text = str(error)
    except BaseException:  # errors of the user's code
        text = "it cannot be told"
    return printable(text)


FEW_ITEMS, CHUNKS_AHEAD = 8, 16
"""The size of the first chunks. A later one has at most a sixteenth of the items before it."""


class NotTheSame(ValueError):
    """A repeated streaming split gave other items than before."""

    def __init__(self, items: int) -> None:
        super().__init__(
            f"begun again, it did not give the same first {items} items, which may have run; give them in a fixed order"
        )


class _Step:
    """The common part of a split and a reduce."""

    def __init__(self, record: Instance, files: Files, latest: Callable[[], Instance | None]) -> None:
        self.instance_id = record.instance_id
        self.task = record.task
        self.files = files
        self.done: int = 0
        self.total: int | None = None
        self._record = record
        self._latest = latest
        self._was_there = False

    @property
    def is_cancelled(self) -> bool:
        """Whether the instance was cancelled, or deleted after that. Writes from then on do not count."""
        latest = self._latest()
        is_gone = latest is None and self._was_there
        self._was_there |= latest is not None
        return is_gone or is_step_over(latest, self._record)

    @property
    def input(self) -> Any:
        """The input of the instance, as plain values."""
        return msgspec.json.decode(self._record.input)

    def read_input(self, type_: type[T]) -> T:
        """Return the input as `type_`. Raises msgspec.ValidationError."""
        return msgspec.json.decode(self._record.input, type=type_)

    def progress(self, done: int, total: int | None = None) -> None:
        """Report to people how far this step is. It is cheap: call it as often as you like."""
        self.done, self.total = done, total


class SplitContext(_Step):
    """For a split: `commit` any number of items, in an order that a repeat gives again."""

    def __init__(
        self,
        record: Instance,
        files: Files,
        latest: Callable[[], Instance | None],
        items: BatchItems,
        *,
        chunk_items: int,
        version: str = "",
    ) -> None:
        super().__init__(record, files, latest)
        self._items = items
        self._chunk_items = chunk_items
        self._version = version
        self._behind = made_so_far(record)
        self._open: list[Raw] = []
        self._open_bytes = 0
        self._full: list[Chunk] = []
        self._chunks = self._behind.chunks if self._behind is not None else 0
        self._count = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self._storing = anyio.Lock()

    async def commit(self, *items: object) -> None:
        """Add items, each any JSON value or struct. They are stored some thousand at a time. Nothing runs before the
        split has ended, unless it streams. When a streaming split begins again, its earlier items stand. `commit` only
        checks that they come again. Raises NotJson, NotTheSame, and the broker's errors, and the split begins again."""
        for item in items:
            self._add(as_json(item, f"item {self._count}"))
            if len(self._full) >= BUFFERED:
                await self._store()

    def _add(self, item: Raw) -> None:
        size = len(bytes(item))
        if size > CHUNK_BYTES:
            raise NotJson(
                f"item {self._count}: {size} bytes, at most {CHUNK_BYTES}; put it into a file, and its name here"
            )
        if self._behind is not None and self._count < self._behind.items:
            self._pass_over(item, self._behind)
            return
        if self._open and (len(self._open) >= self._most_items() or self._open_bytes + size > CHUNK_BYTES):
            self._close()
        self._open.append(item)
        self._open_bytes += size
        self._count += 1

    def _most_items(self) -> int:
        """Return how many items the open chunk may have: few at first, so that a small batch has some for each worker,
        and more with each chunk."""
        return min(self._chunk_items, max(FEW_ITEMS, (self._count - len(self._open)) // CHUNKS_AHEAD))

    def _pass_over(self, item: Raw, behind: Seal) -> None:
        self._digest.update(bytes(item) + b"\n")
        self._count += 1
        if self._count == behind.items and self._digest.hexdigest() != behind.digest:
            raise NotTheSame(behind.items)

    def _close(self) -> None:
        if self._open:
            self._digest.update(b"".join(bytes(item) + b"\n" for item in self._open))
            self._full.append(Chunk(first=self._count - len(self._open), items=tuple(self._open)))
            self._open, self._open_bytes = [], 0

    async def _store(self) -> Seal:
        async with self._storing:  # a streaming split is stored beside the user's code, too
            full = self._full[:]
            made = Seal(
                fence=self._record.step_fence,
                chunks=self._chunks + len(full),
                items=self._count - len(self._open),
                digest=self._digest.hexdigest(),
                version=self._version,
            )
            created_ms = self._record.created_ms
            await self._items.stage(self.instance_id, made.fence, self._chunks, full, created_ms=created_ms)
            del self._full[: len(full)]
            self._chunks = made.chunks
        self.done = self._count
        return made

    async def made(self) -> Seal:
        """Store the committed items, and return the seal of the split so far. For the executor."""
        self._close()
        return await self._store()

    async def seal(self) -> Seal:
        """Store the rest, and return the seal of the split. For the executor. Raises NotTheSame."""
        if self._behind is not None and self._count < self._behind.items:
            raise NotTheSame(self._behind.items)
        return await self.made()


class ItemContext(msgspec.Struct, frozen=True):
    """One item's place, and its attempt, from 1. `key` is the same for every attempt of this item. Pass it to systems
    that recognise a repeat by a key."""

    instance_id: str
    index: int
    attempt: int

    @property
    def key(self) -> str:
        return f"{self.instance_id}.{self.index}"


class ItemResult(msgspec.Struct, frozen=True):
    """How one item ended. `info`: what its code returned, or why it failed. `item`: `None` if somebody removed its
    chunk from the stream by hand."""

    index: int
    item: Any
    status: Status
    info: Any


class ReduceContext(_Step):
    """For a reduce: `read` how all items ended, in their order."""

    def __init__(
        self, record: Instance, files: Files, latest: Callable[[], Instance | None], items: BatchItems
    ) -> None:
        super().__init__(record, files, latest)
        self._items = items

    @property
    def counts(self) -> Counts:
        """How many items ended with each status."""
        return self._record.counts

    def file_name(self, name: str) -> str:
        """Return the name under which to put a file of the result into `files`. Each run of a reduce has its own place,
        and readers look into the place of the one whose result counts."""
        return files_at(self.instance_id, self._record.step_fence) + name

    async def read(self, page: int = 1_000) -> AsyncIterator[list[ItemResult]]:
        """Yield the results of all items, in the items' order, `page` at a time. The last page is shorter."""
        held: list[ItemResult] = []
        async for results in self.chunks():
            held += results
            while len(held) >= page:
                yield held[:page]
                del held[:page]
        if held:
            yield held

    async def chunks(self) -> AsyncIterator[list[ItemResult]]:
        """Yield the same, as many items at a time as were stored together: they are at most 256 KiB. A thread decodes
        them: wide rows take ten milliseconds."""
        seal = self._record.seal
        assert seal is not None
        upto, held = 0, list[ChunkResult]()  # results of missing chunks
        for first in range(0, seal.chunks, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, seal.chunks))
            for chunk, results in await self._items.with_results(self._record, numbers):
                if chunk is None:
                    held += results
                    continue
                for lost in lost_parts(upto, chunk.first):
                    yield self._ended(lost, held)
                upto, held = chunk.first + len(chunk.items), []
                self.done = upto
                yield await anyio.to_thread.run_sync(self._ended, chunk, results)
                await anyio.lowlevel.checkpoint()
        for lost in lost_parts(upto, seal.items):
            yield self._ended(lost, held)

    def _ended(self, chunk: Chunk, results: Sequence[ChunkResult]) -> list[ItemResult]:
        return _results(chunk, list(last_outcomes(chunk, results)), is_lost=self._record.gone > 0)


def _results(chunk: Chunk, ends: Sequence[Outcome | None], *, is_lost: bool) -> list[ItemResult]:
    decode = msgspec.json.decode
    return [
        ItemResult(chunk.first + at, decode(item), *_end(end, decode, is_lost=is_lost))
        for at, (item, end) in enumerate(zip(chunk.items, ends, strict=True))
    ]


def _end(end: Outcome | None, decode: Callable[[Raw], Any], *, is_lost: bool) -> tuple[Status, Any]:
    if end is None:
        return ("failed", LOST) if is_lost else ("cancelled", None)
    return end.status, None if end.info is NOTHING else decode(end.info)
