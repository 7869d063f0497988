"""The functions that an application gives for a task, as the executor calls them."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from actors.batch.executor.contexts import ItemContext, ReduceContext, SplitContext
from actors.batch.tasks import TaskRecord
from streams.messages.batch import FieldSeen


class NextRound(Exception):
    """The item runs again in the next round, for this reason. Calls to external programs raise it."""


class Skip(Exception):
    """The item needs no work. It counts as skipped, with this reason."""


class Reject(Exception):
    """The item cannot succeed. It has failed, for this reason, and does not run again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHandler:
    """One task as this process serves it. `run` takes one item and its context. `run_many` takes a list of both and
    returns an answer for each. One of the two is set. An answer is any JSON value, or an exception in its place.
    `check` says whether an item of unknown end happened. `None`: it does not know either."""

    record: TaskRecord
    split: Callable[[SplitContext], Awaitable[None]]
    reduce: Callable[[ReduceContext], Awaitable[object]]
    decode: Callable[[Any], Any]
    run: Callable[[Any, ItemContext], Awaitable[object]] | None = None
    run_many: Callable[[Sequence[Any], Sequence[ItemContext]], Awaitable[Sequence[object]]] | None = None
    check: Callable[[Any, ItemContext], Awaitable[bool | None]] | None = None
    fields: Callable[[], tuple[FieldSeen, ...] | None] = lambda: None
    """Returns the fields that the code takes of a row. `None`: any."""
    concurrency: int = 1
    """Items of one chunk that run at the same time. With `is_loop`: lists of them."""
    is_loop: bool = False
    """Whether `run_many` runs items one after the other. Then lists are short, so that a node can stop between two."""
    is_thread: bool = False
    """Whether the items' code runs in threads, and cannot be cancelled."""
    chunks: int = 2
    """Chunks that this process works on at the same time."""
