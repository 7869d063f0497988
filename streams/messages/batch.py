"""The messages of batches: chunks of items, the results of their rounds, and pointers at work. JSON, and pure.

A chunk holds items in their order. An item's index counts through the whole instance. A result describes one round of
one chunk: the ranges of items that it ran, and the items among them that did not simply succeed. If an item is in
several rounds, the last one has its end.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from streams.errors import MalformedMessage

Status = Literal["ok", "failed", "again", "unknown", "skipped", "cancelled"]
"""`again`: the item failed and runs once more. All others are an item's end, unless a person retries it."""
AfterState = Literal["done", "clean", "not_done", "over"]
"""How an instance has to end before another one begins. `done`: whatever its items did. `clean`: done, and each item
succeeded or was skipped. `not_done`: failed or cancelled. `over`: in any way."""
NOTHING = Raw(b"null")
CHUNK_ITEMS = 1_000
CHUNK_BYTES = 256 * 1024
"""A chunk is one message, far below the server's limit, and a piece of work that ends in seconds."""
LOST = "its chunk is gone: somebody removed it from the stream"
"""Why an item failed that exists nowhere any more."""
INFO_BYTES = 2_048
"""The most that an item reports about its end, so that a thousand of them still fit one message."""


class Chunk(Struct, frozen=True, kw_only=True):
    """Items `first`, `first` + 1, … of an instance, each any JSON."""

    first: int
    items: tuple[Raw, ...]


class Outcome(Struct, frozen=True, array_like=True):
    """How one item ended. `info`: what its code returned, or why it failed, as JSON."""

    index: int
    status: Status
    info: Raw = NOTHING


class Counts(Struct, frozen=True, kw_only=True):
    """Numbers of items whose end is known. Each item counts in one of them."""

    succeeded: int = 0
    failed: int = 0
    unknown: int = 0
    skipped: int = 0
    cancelled: int = 0

    @property
    def ended(self) -> int:
        """All of them."""
        return self.succeeded + self.failed + self.unknown + self.skipped + self.cancelled


class ChunkResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One round of one chunk. `ran`: half-open ranges of indexes. Items of them without an entry in `others` succeeded
    and returned nothing. `counts` and `again` count the items of `ran`. `attempt`: the highest one that an item of
    `again` has had in this pass. `redone`: how these items had ended in an earlier pass. `left`: items that had not
    begun when their node stopped, or for which there was no slot, and that the next round runs, `left_ms` later.
    `is_gone`: the chunk no longer existed, and its items without an end get none. `created_ms`: of the instance. 0: an
    earlier version wrote the result."""

    chunk: int
    round: int
    by: str = ""
    ran: tuple[tuple[int, int], ...] = ()
    others: tuple[Outcome, ...] = ()
    counts: Counts = Counts()
    again: int = 0
    attempt: int = 0
    redone: Counts = Counts()
    reasons: tuple[str, ...] = ()
    left: int = 0
    left_ms: int = 0
    is_gone: bool = False
    created_ms: int = 0


class Pointer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of work for an executor, which looks at the record and does what it says. `fence` of a split or a reduce,
    `chunk` and `round` of a map."""

    step: Literal["split", "map", "reduce"]
    task: str
    instance_id: str
    fence: int = 0
    chunk: int = 0
    round: int = 0


class BatchEvent(Struct, frozen=True, kw_only=True):
    """An event of an instance for subscribers on `events.batch.<event>.<task>.<instance>` and for a callback. It may
    come twice, then with the same `event_id`. `pass_no`: 1, and one more with each retry. `items`: None before all are
    known. `counts`: of the items that had ended by then."""

    event_id: str
    event: str
    instance_id: str
    task: str
    tenant: str
    pass_no: int
    at_ms: int
    items: int | None
    counts: dict[str, int]
    reason: str = ""


class NewBatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Run `task` on `input`, any JSON, or on `file`, the name of an upload in the object store (`<id>/upload-…`), with
    `input` as its params. `name`: the sender's own name for it. `sheet`: one sheet of a workbook. `encoding`: of a csv,
    by default UTF-8 or GB 18030. `callback`: the URL that is called at the first failure and at the end. `none`: no
    URL. Empty: the task's. `traceparent`: the span that submits it. It begins in `delay_ms`, or at `due_ms`, and not
    before the instance `after` has ended as `after_state` says. The same request again under the same `id` is one
    instance. `nonce`: the same in each try of one call, which makes no second instance though the first was deleted."""

    task: str
    input: Raw = NOTHING
    id: str = ""
    file: str = ""
    name: str = ""
    sheet: str = ""
    encoding: str = ""
    tenant: Annotated[str, Meta(max_length=64)] = ""
    priority: int = 0
    weight: int = 1
    callback: str = ""
    traceparent: str = ""
    delay_ms: int = 0
    due_ms: int | None = None
    after: str = ""
    after_state: AfterState = "done"
    nonce: Annotated[str, Meta(max_length=64)] = ""


class LookAtRows(Struct, frozen=True, kw_only=True):
    """Asks a process that serves `task` how its code reads these rows, each `[number, {cells}]`. Nothing runs. `shown`:
    how many of them to return as the code gets them."""

    task: str
    rows: tuple[Raw, ...] = ()
    shown: int = 0


class FieldSeen(Struct, frozen=True, omit_defaults=True):
    """A field that a task's code takes, or a column of a sheet. `type`: as the code declares it, empty if it does not.
    `is_needed`: a row has to have it."""

    name: str
    type: str = ""
    is_needed: bool = False


class RowSeen(Struct, frozen=True):
    """A row as the task's code gets it, or as it stands in the sheet if the code would not take it."""

    row: int
    item: Raw


class FaultyRow(Struct, frozen=True):
    """A row that would fail before the task's code runs, and why."""

    row: int
    reason: str


class RowsSeen(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a task's code reads some rows. `fields`: what it takes, `None` if it takes any columns. `rows`: the first
    ones. `faults`: the first ones of the `failing` rows that it would not take. `unchecked`: why no code has looked."""

    fields: tuple[FieldSeen, ...] | None = None
    rows: tuple[RowSeen, ...] = ()
    faults: tuple[FaultyRow, ...] = ()
    failing: int = 0
    unchecked: str = ""


_chunks = msgspec.json.Decoder(Chunk)
_results = msgspec.json.Decoder(ChunkResult)
_pointers = msgspec.json.Decoder(Pointer)
_encode = msgspec.json.Encoder().encode


def encode_message(message: Chunk | ChunkResult | Pointer | BatchEvent) -> bytes:
    """Return a message's JSON."""
    return _encode(message)


def decode_chunk(payload: bytes) -> Chunk:
    """Return the chunk, or raise MalformedMessage."""
    try:
        return _chunks.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"{error}") from error


def decode_result(payload: bytes) -> ChunkResult:
    """Return the result, or raise MalformedMessage."""
    try:
        return _results.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"{error}") from error


def decode_pointer(payload: bytes) -> Pointer:
    """Return the pointer, or raise MalformedMessage."""
    try:
        return _pointers.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"{error}") from error


def ranges_of(indexes: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return ascending indexes as half-open ranges."""
    ranges: list[list[int]] = []
    for index in indexes:
        if ranges and ranges[-1][1] == index:
            ranges[-1][1] = index + 1
        else:
            ranges.append([index, index + 1])
    return tuple((start, end) for start, end in ranges)


def lost_parts(first: int, upto: int) -> Iterator[Chunk]:
    """Yield chunks of a usual size that stand for lost items."""
    for start in range(first, upto, CHUNK_ITEMS):
        yield Chunk(first=start, items=(NOTHING,) * min(CHUNK_ITEMS, upto - start))


def last_outcomes(chunk: Chunk, results: Sequence[ChunkResult]) -> Iterator[Outcome | None]:
    """Yield the last outcome of each item of the chunk in these rounds, in the items' order. None: it has not run."""
    ends: dict[int, Outcome] = {}
    for result in sorted(results, key=lambda each: each.round):
        for start, end in result.ran:
            ends.update((index, Outcome(index, "ok")) for index in range(start, end))
        ends.update((outcome.index, outcome) for outcome in result.others)
    return (ends.get(index) for index in range(chunk.first, chunk.first + len(chunk.items)))
