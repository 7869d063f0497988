"""Runs items one by one, each marked in the log before it begins: items that may not run twice, and items of a chunk
whose executors have died.

The mark of a round is one message that lists indexes. It is written by compare-and-set, so if two executors hold the
same round, one goes on and the other stops.

For items that may not run twice the mark lists all that have begun. An executor that takes the round over later finds
items that have begun and have no end. Their end is not known, so the task's `check` decides, if there is one, or the
item ends as `unknown`. So does an item that exceeded its time and may still run, unless `check` says that it happened.
An executor that leaves items to another round, or to a retry, marks once more, so that no other holder of this round
begins them.

For a chunk whose executors have died the mark lists the items at which they did, and at last the item that runs now. An
item that ran at three deaths kills its process: it has failed, and the others go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

import anyio
from msgspec import Raw

from actors.batch.executor.contexts import as_json, text_of
from actors.batch.executor.handler import TaskHandler
from actors.batch.executor.lanes import Gate, Item
from actors.batch.executor.retry import retried
from actors.batch.executor.rounds import Round, run_admitted
from actors.batch.items import BatchItems
from actors.batch.rules.rounds import UNKNOWN
from streams.messages.batch import Outcome, Pointer

MOST_DEATHS = 3


async def run_marked(
    handler: TaskHandler,
    turn: Round,
    pointer: Pointer,
    items: Sequence[Item],
    log: BatchItems,
    gate: Gate,
) -> list[Outcome]:
    """Run the items that have not begun, as the gate admits them, and find the end of those that have. Return the
    outcomes in the order of the items. Raises RevisionConflict if another executor holds the round too."""
    marks = await _Marks.read(log, pointer, if_unreadable=[index for index, _ in items])
    begun = marks.indexes
    outcomes: list[Outcome] = []
    waiting: deque[Item] = deque()
    for index, item in items:  # a begun item must get its end in this round, whatever the gate says
        known = await _checked(handler, turn, index, item) if index in begun else None
        if known is not None:
            outcomes.append(known)
        else:
            waiting.append((index, item))
    while admitted := await gate.admit(waiting, 1):
        [(index, item)] = admitted.items
        with admitted.freed():
            await marks.set(marks.indexes if index in begun else [*marks.indexes, index])
            [ended] = await run_admitted(handler, turn, admitted)
        if ended.status == "unknown" and (known := await _checked(handler, turn, index, item)) and known.status == "ok":
            ended = known
        gate.ended([ended])
        outcomes.append(ended)
    if len(outcomes) < len(items):
        await marks.set(marks.indexes)
    return sorted(outcomes, key=lambda outcome: outcome.index)


async def run_suspected(
    handler: TaskHandler,
    turn: Round,
    pointer: Pointer,
    items: Sequence[Item],
    log: BatchItems,
    gate: Gate,
) -> list[Outcome]:
    """Run items of which one may kill its process, as the gate admits them. Meanwhile the process runs no other items
    in this way. Raises RevisionConflict if another executor holds the round too."""
    marks = await _Marks.read(log, pointer)
    deaths = marks.indexes
    why = as_json(f"its process died while it ran, {MOST_DEATHS} times", "")
    outcomes = [Outcome(index, "failed", why) for index, _ in items if deaths.count(index) >= MOST_DEATHS]
    waiting = deque((index, item) for index, item in items if deaths.count(index) < MOST_DEATHS)
    while admitted := await gate.admit(waiting, 1):
        with admitted.freed():
            await marks.set([*deaths, admitted.items[0][0]])
            ended = await run_admitted(handler, turn, admitted)
        gate.ended(ended)
        outcomes += ended
    await marks.set(deaths)
    return sorted(outcomes, key=lambda outcome: outcome.index)


class _Marks:
    """The marks of one round, for the executor that runs it."""

    def __init__(self, log: BatchItems, pointer: Pointer, indexes: Sequence[int], seq: int) -> None:
        self.indexes = indexes
        self._log = log
        self._place = pointer.instance_id, pointer.chunk, pointer.round
        self._seq = seq

    @classmethod
    async def read(cls, log: BatchItems, pointer: Pointer, *, if_unreadable: Sequence[int] = ()) -> _Marks:
        place = pointer.instance_id, pointer.chunk, pointer.round
        return cls(log, pointer, *await log.begun(*place, if_unreadable=if_unreadable))

    async def set(self, indexes: Sequence[int]) -> None:
        """Mark these indexes, and no others. Raises RevisionConflict if another executor has marked meanwhile."""
        begin = partial(self._log.begin, *self._place, indexes, expected_seq=self._seq, mark=self._log.next_mark())
        self._seq = await retried(begin)
        self.indexes = indexes


async def _checked(handler: TaskHandler, turn: Round, index: int, item: Raw) -> Outcome | None:
    """Return how a begun item has ended. `None`: it certainly did not happen, and may run."""
    text = UNKNOWN
    if handler.check is not None:
        try:
            value = handler.decode(item)
            with anyio.fail_after(handler.record.item_timeout_ms / 1000):
                happened = await handler.check(value, turn.context(index))
            if happened is not None:
                return Outcome(index, "ok") if happened else None
        except Exception as error:  # the border to the user's code
            text = f"{text}; asking failed: {type(error).__name__}: {text_of(error)}"
    return Outcome(index, "unknown", as_json(text, ""))
