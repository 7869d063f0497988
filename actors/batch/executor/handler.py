"""What an application gives for a task: its functions, as the executor calls them."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from actors.batch.executor.contexts import ItemContext, ReduceContext, SplitContext
from actors.batch.tasks import TaskRecord

__all__ = ["NextRound", "Reject", "Skip", "TaskHandler"]


class NextRound(Exception):
    """The item goes round again, for this reason; what asks others for their answer says so."""


class Skip(Exception):
    """The item needs nothing done; it counts as skipped, with this reason."""


class Reject(Exception):
    """The item cannot succeed: it has failed, for this reason, and does not go round again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHandler:
    """One task as this process serves it. `run` takes one item and its context, `run_many` a list of both and returns
    an answer for each; one of the two is there. An answer is any JSON value, or an exception in its place. `check` says
    of an item whose end nobody knows whether it happened; None: it does not know either."""

    record: TaskRecord
    split: Callable[[SplitContext], Awaitable[None]]
    reduce: Callable[[ReduceContext], Awaitable[object]]
    decode: Callable[[Any], Any]
    run: Callable[[Any, ItemContext], Awaitable[object]] | None = None
    run_many: Callable[[Sequence[Any], Sequence[ItemContext]], Awaitable[Sequence[object]]] | None = None
    check: Callable[[Any, ItemContext], Awaitable[bool | None]] | None = None
    concurrency: int = 1
    """Items of one chunk that run at the same time."""
    is_loop: bool = False
    """Whether `run_many` runs one after the other: short lists then, so that a node can stop between two."""
    chunks: int = 2
    """Chunks that this process works on at the same time."""
