"""Runs rounds of chunks: the items of a round, as the task's limits allow, and their one result."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from weakref import WeakValueDictionary

import anyio
from msgspec.structs import replace

from actors.batch.executor.handler import TaskHandler
from actors.batch.executor.lanes import Gate, Item
from actors.batch.executor.one_by_one import run_marked, run_suspected
from actors.batch.executor.retry import retried
from actors.batch.executor.rounds import Round, run_items
from actors.batch.executor.task_gate import TaskGate, TaskKeys
from actors.batch.instances import Instances, UnknownInstance
from actors.batch.items import BatchItems
from actors.batch.rules.record import Instance, is_over
from actors.batch.rules.rounds import (
    attempts_of,
    cancelled,
    gone,
    items_to_run,
    leave_ms,
    may_leave,
    open_s,
    result_of,
    shortened,
)
from actors.runtime.failpoints import reach
from actors.runtime.logs import fields
from actors.runtime.rates.shares import SharedRates
from actors.runtime.rates.slot_client import NodeSlots
from actors.runtime.rules.slot_keys import Slots
from actors.runtime.tracing import traces
from streams.errors import TooLarge
from streams.messages.batch import Chunk, ChunkResult, Outcome, Pointer

log = logging.getLogger(__name__)

TRUSTED = 5
"""Deliveries of a chunk's pointer. After so many the chunk has lost its executors, and one of its items may kill them.
Pointers that stopping nodes give back count too, and running a list item by item is slow, so the limit is not lower."""


class NothingBegan(Exception):
    """Nothing of the work began, because the node stops or other nodes should run it. Any node may take it."""


class Chunks:
    """The chunks of one process. `node` names it in results. `at_once(task)`: how many items of a task may run here at
    the same time. `None`: no limit. `0`: this process has no share. Other processes run the remaining items.
    `slots_of(handler)`: at most how many items of a key run at once in the cluster. `None`: no limit."""

    def __init__(
        self,
        *,
        node: str,
        instances: Instances,
        items: BatchItems,
        rates: SharedRates,
        at_once: Callable[[str], int | None],
        slots: NodeSlots,
        slots_of: Callable[[TaskHandler], Slots | None],
        chance: Callable[[], float],
        stop: anyio.Event,
    ) -> None:
        self._node = node
        self._instances = instances
        self._items = items
        self._rates = rates
        self._at_once = at_once
        self._slots = slots
        self._slots_of = slots_of
        self._chance = chance
        self._keys: dict[str, TaskKeys] = {}
        self._turns: dict[str, anyio.Lock] = {}
        self._rounds: WeakValueDictionary[tuple[str, int, int], anyio.Lock] = WeakValueDictionary()
        self._alone = anyio.Lock()
        self._stop = stop

    def stuck(self, task: str) -> int:
        """Return how many chunks of a task hold a place here and wait for slots only."""
        return self._keys[task].room() if task in self._keys else 0

    async def run(self, handler: TaskHandler, record: Instance, pointer: Pointer, *, deliveries: int) -> None:
        """Run a round of a chunk, and store its one result. `deliveries`: of its pointer, this one included. A pointer
        that comes again while its round runs here, since the link was lost, waits for the end. Raises NothingBegan, and
        the broker's errors."""
        place = record.instance_id, pointer.chunk, pointer.round
        async with self._rounds.setdefault(place, anyio.Lock()):
            await self._run_round(handler, record, pointer, is_suspected=deliveries > TRUSTED)

    async def _run_round(self, handler: TaskHandler, record: Instance, pointer: Pointer, *, is_suspected: bool) -> None:
        chunk = await self._items.chunk(record, pointer.chunk)
        earlier = await self._items.rounds(record, pointer.chunk, pointer.round)
        if earlier is not None and any(each.round == pointer.round for each in earlier):
            return
        if chunk is None or earlier is None:
            log.error("chunk.gone", extra=fields(instance=record.instance_id, chunk=pointer.chunk))
            result = gone(pointer.chunk, pointer.round, self._node)
        else:
            facts = {"task": record.task, "batch": record.instance_id, "chunk": pointer.chunk, "round": pointer.round}
            with traces.span(f"map {record.task}", "consumer", facts, parent=record.traceparent):
                result = await self._result(handler, record, pointer, chunk, earlier, is_suspected=is_suspected)
        reach("batch.map")
        if not await self._instances.is_there(record):
            raise UnknownInstance(record.instance_id)
        await self._store(record, result)
        reach("batch.result")

    async def _store(self, record: Instance, result: ChunkResult) -> None:
        """Store a result. If it is too large for a message, leave out the longest infos of its items."""
        while True:
            try:
                await retried(partial(self._items.add_result, record, result))
            except TooLarge:
                shorter = shortened(result)
                if shorter is None:
                    raise
                result = shorter
            else:
                return

    async def _result(
        self,
        handler: TaskHandler,
        record: Instance,
        pointer: Pointer,
        chunk: Chunk,
        earlier: Sequence[ChunkResult],
        *,
        is_suspected: bool,
    ) -> ChunkResult:
        """Run a round, and return its result. A stopping node leaves items that have not begun to the next round.
        Raises NothingBegan if no item has begun."""
        indexes = items_to_run(chunk, earlier, pointer.round, record.redo)
        outcomes: list[Outcome] = []
        left_ms: int | None = None
        is_once = not handler.record.is_idempotent
        is_cancelled = partial(self._is_cancelled, record)
        if is_once or not record.is_cancelling:  # items that may not run twice may have begun
            attempts = attempts_of(indexes, earlier, pointer.round)
            turn = Round(record.instance_id, attempts, most=handler.record.attempts, is_once=is_once)
            items = [(index, chunk.items[index - chunk.first]) for index in indexes]
            gate = self._gate(handler, record, pointer)
            try:
                outcomes = await self._run(handler, turn, pointer, items, gate, is_suspected=is_suspected)
            finally:
                gate.close()
            outcomes = sorted(outcomes + gate.dropped, key=lambda outcome: outcome.index)
            left_ms = gate.left_ms
        ran = {outcome.index for outcome in outcomes}
        left = [index for index in indexes if index not in ran]
        if is_cancelled():
            outcomes, left = sorted(outcomes + cancelled(left), key=lambda outcome: outcome.index), []
        elif left and ((not outcomes and left_ms is None) or not may_leave(pointer.round)):
            raise NothingBegan
        place, is_rows = (pointer.chunk, pointer.round), handler.record.is_sheet
        made = result_of(chunk, *place, outcomes, earlier, self._node, left=len(left), is_rows=is_rows)
        return replace(made, left_ms=left_ms or 0) if left else made

    def _gate(self, handler: TaskHandler, record: Instance, pointer: Pointer) -> TaskGate:
        task = handler.record.task
        if task not in self._keys:
            self._keys[task] = TaskKeys(self._slots, task, partial(self._slots_of, handler), self._chance)
        return TaskGate(
            self._rates,
            task,
            self._keys[task],
            partial(self._is_over, record),
            self._stop,
            leave_ms=leave_ms(pointer.round),
            open_s=open_s(pointer.round),
        )

    async def _run(
        self,
        handler: TaskHandler,
        turn: Round,
        pointer: Pointer,
        items: Sequence[Item],
        gate: Gate,
        *,
        is_suspected: bool,
    ) -> list[Outcome]:
        """Run the items as the task's limits allow. If the task's items are limited in number, no others run here
        meanwhile."""
        most = self._at_once(handler.record.task)
        turns = self._turns.setdefault(handler.record.task, anyio.Lock())
        outcomes: list[Outcome] = []
        if not handler.record.is_idempotent:
            async with turns if most == 1 else nullcontext():
                return await run_marked(handler, turn, pointer, items, self._items, gate)
        if is_suspected:
            async with self._alone, turns if most is not None else nullcontext():
                return await run_suspected(handler, turn, pointer, items, self._items, gate)
        if most is None:
            return await run_items(handler, turn, items, gate)
        while items:
            async with turns:
                most = self._at_once(handler.record.task) or 1
                outcomes += await run_items(handler, turn, items[:most], gate)
            items = items[most:]
        return outcomes

    def _is_over(self, record: Instance) -> bool:
        return self._at_once(record.task) == 0 or self._is_cancelled(record)

    def _is_cancelled(self, record: Instance) -> bool:
        return record.is_cancelling or is_over(self._instances.seen(record.instance_id), record)
