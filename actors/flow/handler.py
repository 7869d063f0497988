"""A flow as an application declares it, and what its code gets."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Struct

from actors.flow.flows import FlowLimits


class FlowContext(Struct, frozen=True, kw_only=True):
    """What a call of the user's code is about. `shard`: empty in `split`. `after`: in `load`, the key of the last row
    that was read of this shard, empty at its start. A loader that reads its table in the order of the key begins behind
    it. A loader that claims its rows, or reads those first that wait longest, ignores it. `key` and `attempt` (from 1):
    in `execute`."""

    flow: str
    shard: str = ""
    after: str = ""
    key: str = ""
    attempt: int = 1


class FlowHandler(Struct, frozen=True, kw_only=True):
    """A flow's code. `split(context)` returns the names of shards. `load(context, shard, limit)` returns rows with
    their keys. Both are guarded: they raise exceptions only. `rate`: rows a second, declared. 0: no limit."""

    flow: str
    limits: FlowLimits
    rate: float
    attempts: int
    split: Callable[[FlowContext], Awaitable[Any]]
    load: Callable[[FlowContext, str, int], Awaitable[Any]]
    loads_at_once: int = 4
    """Shards that one node loads at the same time."""


LONGEST_KEY = 180
"""Characters of a row's key."""
MOST_ROW_BYTES = 250_000


class BadRows(ValueError):
    """What a loader returned is not rows with keys."""


class RowBody(Struct, frozen=True, array_like=True):
    """A row in flight."""

    shard: str
    row: msgspec.Raw


class LoadedRow(Struct, frozen=True):
    """A row as a loader gave it. `id`: of its job."""

    key: str
    id: str
    body: msgspec.Raw


def rows_of(answer: Any, shard: str) -> list[LoadedRow]:
    """Return the rows of a loader's answer: pairs of a key and a row, or a mapping from one to the other. Raises
    BadRows."""
    pairs = answer.items() if isinstance(answer, dict) else () if answer is None else answer
    found: dict[str, LoadedRow] = {}
    try:
        for pair in pairs:
            key, row = pair
            loaded = _row(key, row, shard)
            if loaded.key in found:
                raise BadRows(f"shard {shard!r}: key {loaded.key!r} is there twice; give each row a key of its own")
            found[loaded.key] = loaded
    except (TypeError, ValueError) as error:
        if isinstance(error, BadRows):
            raise
        raise BadRows(f"shard {shard!r}: `load` must return pairs of a key and a row: {error}") from error
    return list(found.values())


def _row(key: Any, row: Any, shard: str) -> LoadedRow:
    text = str(key) if isinstance(key, int) and not isinstance(key, bool) else key
    if not isinstance(text, str) or not 1 <= len(text) <= LONGEST_KEY or not text.isprintable():
        raise BadRows(f"shard {shard!r}: key {str(key)[:80]!r}: use 1 to {LONGEST_KEY} printable characters")
    try:
        body = msgspec.json.encode(RowBody(shard, msgspec.Raw(msgspec.json.encode(row))))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadRows(f"shard {shard!r}: row {text!r} cannot be written as JSON: {error}") from error
    if len(body) > MOST_ROW_BYTES:
        raise BadRows(f"shard {shard!r}: row {text!r} has {len(body)} bytes, at most {MOST_ROW_BYTES}; load its key")
    return LoadedRow(text, f"{shard}:{text}", msgspec.Raw(body))
