"""Runs one round of one chunk: the user's code on each item, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import anyio
import msgspec
from msgspec import Raw

from actors.batch_worker.contexts import ItemContext, NotJson, as_json
from actors.batch_worker.handler import Again, Reject, Skip, TaskHandler
from streams.batch_messages import NOTHING, Outcome, Status

__all__ = ["Round", "run_items"]


class Round(NamedTuple):
    """One round of a chunk. `may_repeat`: an item that fails may go round again."""

    instance_id: str
    attempt: int
    may_repeat: bool


async def run_items(
    handler: TaskHandler,
    turn: Round,
    items: Sequence[tuple[int, Raw]],
    *,
    is_cancelled: Callable[[], bool],
) -> list[Outcome]:
    """Run the items, and return how each ended, in their order. Never raises for what the user's code does."""
    if is_cancelled():
        return [Outcome(index, "cancelled") for index, _ in items]
    if handler.run_many is not None:
        return await _run_list(handler, turn, items)
    if handler.concurrency == 1:
        return [await _run_one(handler, turn, index, item, is_cancelled) for index, item in items]
    outcomes: dict[int, Outcome] = {}
    waiting = iter(items)

    async def work() -> None:
        for index, item in waiting:
            outcomes[index] = await _run_one(handler, turn, index, item, is_cancelled)

    async with anyio.create_task_group() as tasks:
        for _ in range(min(handler.concurrency, len(items))):
            tasks.start_soon(work)
    return [outcomes[index] for index, _ in items]


async def _run_one(
    handler: TaskHandler, turn: Round, index: int, item: Raw, is_cancelled: Callable[[], bool]
) -> Outcome:
    if is_cancelled():
        return Outcome(index, "cancelled")
    assert handler.run is not None
    try:
        value = handler.decode(item)
        with anyio.fail_after(handler.record.item_timeout_ms / 1000):
            answer = await handler.run(value, ItemContext(turn.instance_id, index, turn.attempt))
        return _ok(index, answer)
    except Exception as error:  # the border to the user's code
        return _failure(index, error, turn)


async def _run_list(handler: TaskHandler, turn: Round, items: Sequence[tuple[int, Raw]]) -> list[Outcome]:
    assert handler.run_many is not None
    decoded: list[tuple[int, Any]] = []
    outcomes: dict[int, Outcome] = {}
    for index, item in items:
        try:
            decoded.append((index, handler.decode(item)))
        except Exception as error:  # the border to the user's types
            outcomes[index] = _failure(index, error, turn)
    if decoded:
        contexts = [ItemContext(turn.instance_id, index, turn.attempt) for index, _ in decoded]
        try:
            with anyio.fail_after(len(decoded) * handler.record.item_timeout_ms / 1000):
                answers = await handler.run_many([value for _, value in decoded], contexts)
            answers = _one_each(answers, len(decoded))
        except Exception as error:  # the border to the user's code
            answers = [error] * len(decoded)
        for (index, _), answer in zip(decoded, answers, strict=True):
            is_error = isinstance(answer, Exception)
            outcomes[index] = _failure(index, answer, turn) if is_error else _ok(index, answer)
    return [outcomes[index] for index, _ in items]


def _one_each(answers: Sequence[object] | None, count: int) -> Sequence[object]:
    if answers is None:
        return [None] * count
    if not isinstance(answers, list | tuple) or len(answers) != count:
        told = f"{len(answers)} answers" if isinstance(answers, list | tuple) else type(answers).__name__
        raise Reject(f"map_many returned {told} for {count} items; return one for each, or nothing")
    return answers


def _ok(index: int, answer: object) -> Outcome:
    if answer is None:
        return Outcome(index, "ok")
    try:
        return Outcome(index, "ok", as_json(answer, "what the item returned"))
    except NotJson as error:  # it was done; only what it told is lost
        return Outcome(index, "ok", as_json({"not_told": str(error)}, ""))


def _failure(index: int, error: object, turn: Round) -> Outcome:
    match error:
        case Skip():
            return Outcome(index, "skipped", _reason(str(error)))
        case Reject():
            return Outcome(index, "failed", _reason(str(error)))
        case msgspec.ValidationError():
            return Outcome(index, "failed", _reason(f"the item does not fit: {error}"))
        case Again():
            said = str(error)
        case TimeoutError():
            said = str(error) or "took longer than allowed"
        case _:
            said = f"{type(error).__name__}: {error}"
    status: Status = "again" if turn.may_repeat else "failed"
    return Outcome(index, status, _reason(said))


def _reason(text: str) -> Raw:
    return as_json(text[:1_000], "") if text else NOTHING
