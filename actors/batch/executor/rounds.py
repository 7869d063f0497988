"""Runs one round of one chunk: the user's code on each item, and the outcomes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import anyio
import msgspec
from msgspec import Raw

from actors.batch.executor.contexts import ItemContext, NotJson, as_json, text_of
from actors.batch.executor.handler import NextRound, Reject, Skip, TaskHandler
from actors.batch.executor.lanes import Admitted, Gate, Item
from actors.batch.rules.rounds import UNKNOWN
from streams.clock import monotonic_s
from streams.messages.batch import NOTHING, Outcome, Status

FEW = 8
LATE = "took longer than allowed"
SHORT_S = 0.1
"""If a list runs one after the other, the next one is longer as long as lists end this soon."""
SLOW_S = 0.01
"""Plain functions whose items take so long run in several threads. Quick ones would only hinder each other."""


class Round(NamedTuple):
    """One round of one chunk: the attempt of each item, and the last attempt of an item. `is_once`: items may not run
    twice."""

    instance_id: str
    attempts: Mapping[int, int]
    most: int
    is_once: bool = False

    def context(self, index: int) -> ItemContext:
        """Return the context of an item for its code."""
        return ItemContext(self.instance_id, index, self.attempts[index])

    def may_repeat(self, index: int) -> bool:
        """Return whether the item may run in another round if it fails."""
        return self.attempts[index] < self.most


async def run_items(handler: TaskHandler, turn: Round, items: Sequence[Item], gate: Gate) -> list[Outcome]:
    """Run the items as the gate admits them, and return the outcomes of those that began, in their order. An item whose
    slot was lost is left out. Never raises errors of the user's code."""
    if handler.run is not None:
        outcomes = await _run_each(handler, turn, items, gate)
    elif handler.is_loop:
        outcomes = await _run_loops(handler, turn, items, gate)
    else:
        outcomes, waiting = list[Outcome](), deque(items)
        while admitted := await gate.admit(waiting, max(1, len(items))):
            ended = await run_admitted(handler, turn, admitted)
            gate.ended(ended)
            outcomes += ended
    return sorted(outcomes, key=lambda outcome: outcome.index)


async def _run_each(handler: TaskHandler, turn: Round, items: Sequence[Item], gate: Gate) -> list[Outcome]:
    """Run items one by one, some at the same time. One worker at a time waits at the gate, so that the gate gets one
    request for each item."""
    outcomes: list[Outcome] = []
    waiting = deque(items)
    at_gate = anyio.Lock(fast_acquire=True)

    async def work() -> None:
        nonlocal outcomes
        while True:
            async with at_gate:
                admitted = await gate.admit(waiting, 1)
            if not admitted:
                return
            ended = await run_admitted(handler, turn, admitted)
            gate.ended(ended)
            outcomes += ended

    if handler.concurrency == 1:
        await work()
    else:
        async with anyio.create_task_group() as tasks:
            for _ in range(min(handler.concurrency, len(items))):
                tasks.start_soon(work)
    return outcomes


async def _run_loops(handler: TaskHandler, turn: Round, items: Sequence[Item], gate: Gate) -> list[Outcome]:
    """Run items in lists, each list one after the other in a thread. If items turn out to be slow, `concurrency` lists
    run at the same time. One of them at a time waits at the gate."""
    outcomes: list[Outcome] = []
    waiting = deque(items)
    at_gate = anyio.Lock(fast_acquire=True)
    loops = 1

    async def work() -> None:
        nonlocal outcomes, loops
        most = 1
        while True:
            async with at_gate:
                part = len(waiting) if loops == 1 else math.ceil(len(waiting) / loops)
                admitted = await gate.admit(waiting, max(1, min(most, part)))
            if not admitted:
                return
            began_s = monotonic_s()
            ended = await run_admitted(handler, turn, admitted)
            took_s = monotonic_s() - began_s
            gate.ended(ended)
            outcomes += ended
            if took_s >= SLOW_S * len(admitted.items):
                for _ in range(loops, handler.concurrency):
                    tasks.start_soon(work)
                loops = handler.concurrency
            elif most == 1:
                most = FEW // 2
            most = most * 2 if took_s < SHORT_S else max(1, most // 2)

    async with anyio.create_task_group() as tasks:
        await work()
    return outcomes


async def run_admitted(handler: TaskHandler, turn: Round, admitted: Admitted) -> list[Outcome]:
    """Run items that may begin, and return their outcomes. If their slots are gone, an item whose slot went to a
    newcomer is cancelled, one that may not run twice ends as unknown, and the others are left out: they run again."""
    with admitted.within(is_thread=handler.is_thread), admitted.scope:
        if handler.run is None:
            return await _run_list(handler, turn, admitted.items)
        return [await _run_one(handler, turn, index, item) for index, item in admitted.items]
    ends = (_cut(index, turn, admitted) for index, _ in admitted.items)
    return [outcome for outcome in ends if outcome is not None]


def _cut(index: int, turn: Round, admitted: Admitted) -> Outcome | None:
    key = admitted.replaced(index)
    of = f" of key {key!r}" if key else ""
    if turn.is_once:
        return Outcome(index, "unknown", _reason(f"it was cancelled: its slot{of} was gone; {UNKNOWN}"))
    return None if key is None else Outcome(index, "cancelled", _reason(f"a newer item took its slot{of}"))


async def _run_one(handler: TaskHandler, turn: Round, index: int, item: Raw) -> Outcome:
    assert handler.run is not None
    try:
        value = handler.decode(item)
        with anyio.fail_after(handler.record.item_timeout_ms / 1000):
            answer = await handler.run(value, turn.context(index))
        return _ok(index, answer)
    except Exception as error:  # the border to the user's code
        return _failure(index, error, turn)


async def _run_list(handler: TaskHandler, turn: Round, items: Sequence[tuple[int, Raw]]) -> list[Outcome]:
    decoded: list[tuple[int, Any]] = []
    outcomes: dict[int, Outcome] = {}
    for index, item in items:
        try:
            decoded.append((index, handler.decode(item)))
        except Exception as error:  # the border to the user's types
            outcomes[index] = _failure(index, error, turn)
    if decoded:
        pairs = [(value, turn.context(index)) for index, value in decoded]
        answers = await _all_at_once(handler, pairs)
        for (index, _), answer in zip(decoded, answers, strict=True):
            is_error = isinstance(answer, Exception)
            outcomes[index] = _failure(index, answer, turn) if is_error else _ok(index, answer)
    return [outcomes[index] for index, _ in items]


async def _all_at_once(handler: TaskHandler, pairs: Sequence[tuple[Any, ItemContext]]) -> Sequence[object]:
    assert handler.run_many is not None
    try:
        with anyio.fail_after(len(pairs) * handler.record.item_timeout_ms / 1000):
            answers = await handler.run_many([value for value, _ in pairs], [context for _, context in pairs])
        return _one_each(answers, len(pairs))
    except Exception as error:  # the border to the user's code
        return [error] * len(pairs)


def _one_each(answers: Sequence[object] | None, count: int) -> Sequence[object]:
    if answers is None:
        return [None] * count
    if not isinstance(answers, list | tuple) or len(answers) != count:
        what = f"{len(answers)} answers" if isinstance(answers, list | tuple) else type(answers).__name__
        raise Reject(f"map_many returned {what} for {count} items; return one for each, or nothing")
    return answers


def _ok(index: int, answer: object) -> Outcome:
    if answer is None:
        return Outcome(index, "ok")
    try:
        return Outcome(index, "ok", as_json(answer, "what the item returned"))
    except NotJson as error:  # the item succeeded, only its returned value is lost
        return Outcome(index, "ok", as_json({"not_told": str(error)}, ""))


def _failure(index: int, error: object, turn: Round) -> Outcome:
    match error:
        case Skip():
            return Outcome(index, "skipped", _reason(text_of(error)))
        case Reject() | msgspec.ValidationError():
            return Outcome(index, "failed", _reason(unread(error)))
        case NextRound():
            text = text_of(error)
        case TimeoutError() if turn.is_once:  # its thread may still be at work, or what it waited for
            return Outcome(index, "unknown", _reason(f"{text_of(error) or LATE}; {UNKNOWN}"))
        case TimeoutError():
            text = text_of(error) or LATE
        case _:
            text = unread(error)
    status: Status = "again" if turn.may_repeat(index) else "failed"
    return Outcome(index, status, _reason(text))


def unread(error: object) -> str:
    """Return why an item does not fit the type that its code declares, or what else the code raised."""
    match error:
        case Reject():
            return text_of(error)
        case msgspec.ValidationError():
            return f"the item does not fit: {error}"
        case _:
            return f"{type(error).__name__}: {text_of(error)}"


def _reason(text: str) -> Raw:
    return as_json(text, "") if text else NOTHING
