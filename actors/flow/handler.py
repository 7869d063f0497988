"""A flow as an application declares it, and what its code gets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sized
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import msgspec
from anyio import to_thread
from msgspec import Struct

from actors.flow.flows import FlowLimits


class FlowContext(Struct, frozen=True, kw_only=True):
    """What a call of the user's code is about. `shard`: empty in `split`. `after`: in `load`, the key of the last row
    that was read of this shard, empty at its start. A loader that reads its table in the order of the key begins behind
    it. A loader that claims its rows, or reads those first that wait longest, ignores it. `key` and `attempt` (from 1):
    in `execute`.

    Of a flow in each zone: `zone` is the one in which the call runs. In `split`, `shards` are those that the zone owns,
    and `epoch` is the version of the shard map."""

    flow: str
    shard: str = ""
    after: str = ""
    key: str = ""
    attempt: int = 1
    zone: str = ""
    shards: tuple[int | str, ...] = ()
    epoch: int = 0


class ShardScope(Protocol):
    """The shards of this node's zone, for a flow in each zone. `shard` is as the flow's `split` names it."""

    @property
    def zone(self) -> str: ...

    def split_context(self, flow: str) -> FlowContext:
        """Return what `split` gets."""
        ...

    def since(self, shard: str) -> int | None:
        """Return since which epoch the zone has a shard. `None`: it is another zone's, or this node may not work."""
        ...

    def hold(self, shard: str) -> AbstractContextManager[int | None]:
        """Return the same. The shard goes to no other zone before the block ends. A thread may call it."""
        ...


class FlowHandler(Struct, frozen=True, kw_only=True):
    """A flow's code. `key`: as its class is declared. `scope`: of a flow in each zone. `split(context)` returns the
    names of shards. `load(context, shard, limit)` returns rows with their keys. Both are guarded: they raise exceptions
    only. `rate`: rows a second, declared. 0: no limit."""

    flow: str
    key: str
    limits: FlowLimits
    rate: float
    attempts: int
    split: Callable[[FlowContext], Awaitable[Any]]
    load: Callable[[FlowContext, str, int], Awaitable[Any]]
    scope: ShardScope | None = None
    loads_at_once: int = 4
    """Shards that one node loads at the same time."""


LONGEST_KEY = 180
"""Characters of a row's key."""
FEW_ROWS = 500
MOST_ROW_BYTES = 250_000


class BadRows(ValueError):
    """What a loader returned is not rows with keys."""


class StillRunning(Exception):
    """A call of the user's code that was given up runs on in its thread, so there is no second one."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: the last call ran out of time and runs on; set a limit for its waits")


def reason_of(error: Exception, late: str) -> str:
    """Return what a person reads of a failure of the user's code. `late`: if it ran out of time."""
    return late if isinstance(error, TimeoutError) else str(error) or type(error).__name__


class RowBody(Struct, frozen=True, array_like=True):
    """A row in flight. `since`: since which epoch its shard was the zone's when it was loaded, of a flow in each
    zone."""

    shard: str
    row: msgspec.Raw
    since: int = 0


ROW_PATH = "1."
"""Where a row is in its body, as the first part of a dotted path."""


class LoadedRow(Struct, frozen=True):
    """A row as a loader gave it. `id`: of its job."""

    key: str
    id: str
    body: msgspec.Raw


class Loaded(NamedTuple):
    """A loader's answer. `read`: its rows, the refused ones too. `refused`: why some are left out. `last`: the key of
    the last row that has one."""

    rows: list[LoadedRow]
    read: int = 0
    refused: tuple[str, ...] = ()
    last: str = ""

    @property
    def error(self) -> str:
        """Return why rows are left out. Empty: none are."""
        return "" if not self.refused else f"{len(self.refused)} of {self.read} rows left out: {self.refused[0]}"


def rows_of(answer: Any, shard: str, since: int = 0) -> Loaded:
    """Return the rows of a loader's answer: pairs of a key and a row, or a mapping from one to the other. A row that
    cannot be in flight keeps none of the others back. Raises BadRows if the answer is something else."""
    pairs = answer.items() if isinstance(answer, dict) else () if answer is None else answer
    found: dict[str, LoadedRow] = {}
    refused: list[str] = []
    read, last = 0, ""
    try:
        for pair in pairs:
            if isinstance(pair, str | bytes):
                raise TypeError(f"{str(pair)[:80]!r} is no pair")
            key, row = pair
            read += 1
            try:
                last = _key(key)
                if last in found:
                    raise BadRows(f"key {last!r} is there twice; give each row a key of its own")
                found[last] = LoadedRow(last, f"{shard}:{last}", _body(last, row, shard, since))
            except BadRows as error:
                refused.append(str(error))
    except (TypeError, ValueError) as error:
        raise BadRows(f"`load` must return pairs of a key and a row: {error}") from error
    return Loaded(list(found.values()), read, tuple(refused), last)


async def rows_apart(answer: Any, shard: str, since: int = 0) -> Loaded:
    """Do as `rows_of`, in a thread if there are many: ten thousand would hold up the event loop for a tenth of a
    second."""
    few = not isinstance(answer, Sized) or len(answer) <= FEW_ROWS
    return rows_of(answer, shard, since) if few else await to_thread.run_sync(rows_of, answer, shard, since)


def _key(key: Any) -> str:
    text = str(key) if isinstance(key, int) and not isinstance(key, bool) else key
    if not isinstance(text, str) or not 1 <= len(text) <= LONGEST_KEY or not text.isprintable():
        raise BadRows(f"key {str(key)[:80]!r}: use 1 to {LONGEST_KEY} printable characters")
    return text


def _body(key: str, row: Any, shard: str, since: int) -> msgspec.Raw:
    try:
        raw = msgspec.Raw(msgspec.json.encode(row))
        body = msgspec.json.encode(RowBody(shard, raw, since) if since else (shard, raw))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadRows(f"row {key!r} cannot be written as JSON: {error}") from error
    if len(body) > MOST_ROW_BYTES:
        raise BadRows(f"row {key!r} has {len(body)} bytes, at most {MOST_ROW_BYTES}; load its key")
    return msgspec.Raw(body)
