"""The border to the user's code of a batch: whatever the code does ends its own item or step, and nothing else.

Exceptions that would end the program (SystemExit, KeyboardInterrupt, GeneratorExit, a CancelledError that the code
raises itself) are failures like any other. Plain functions run in threads. If a plain function never returns, its item
fails and its thread is left behind. The thread is a daemon, so the process can still end.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import anyio

from actors.batch.executor.handler import NextRound
from actors.batch.executor.lanes import running_in
from actors.runtime.closing import is_run_by

__all__ = ["CodeEnded", "as_failure", "each_in_a_thread", "guarded", "in_a_thread"]

Call = Callable[[], object]


class CodeEnded(NextRound):
    """The code raised an exception that would have ended the program."""


def guarded(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return the function wrapped so that it raises exceptions only, and no cancellations of its own."""

    async def run(*arguments: Any) -> Any:
        task = asyncio.current_task()
        try:
            return await function(*arguments)
        except Exception:
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            if isinstance(error, GeneratorExit) and not is_run_by(task):
                raise
            raise as_failure(error) from error

    return run


async def in_a_thread(call: Call) -> Any:
    """Run the call in a thread and return its result. A cancellation leaves the thread behind."""
    [answer] = await _Row([call]).answers(within_s=None)
    if isinstance(answer, Exception):
        raise answer
    return answer


async def each_in_a_thread(calls: Sequence[Call], *, within_s: float) -> list[object]:
    """Make the calls one after the other in a thread, and return the result or the exception of each. A call that takes
    longer than `within_s` gets a TimeoutError. The calls after it run in another thread."""
    answers: list[object] = []
    while len(answers) < len(calls):
        answers += await _Row(calls[len(answers) :]).answers(within_s=within_s)
    return answers


class _Row:
    """Calls that one thread makes in their order, until it is left behind."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self._answers: list[object] = []
        self._lock = threading.Lock()
        self._is_left = False
        self._began_s = 0.0
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._admitted = running_in()

    async def answers(self, *, within_s: float | None) -> list[object]:
        """Return the answers of all calls. If a call takes too long, return the answers before it and its
        TimeoutError."""
        self._began_s = time.monotonic()
        work = partial(contextvars.copy_context().run, self._work)
        threading.Thread(target=work, name="batch item", daemon=True).start()
        if self._admitted is not None:  # `_end` runs in this loop, so not before this
            self._admitted.use()  # until the thread ends, though it may be left behind
        try:
            while not self._ended.is_set():
                left_s = None if within_s is None else self._began_s + within_s - time.monotonic()
                if left_s is not None and left_s <= 0 and self._leave(within_s or 0.0):
                    return [*self._answers, TimeoutError()]
                with anyio.move_on_after(left_s):
                    await self._ended.wait()
        finally:
            with self._lock:
                self._is_left = True
        return self._answers

    def _leave(self, within_s: float) -> bool:
        """Leave the thread behind. Return False if the thread has begun its next call meanwhile."""
        with self._lock:
            is_late = len(self._answers) < len(self._calls) and time.monotonic() >= self._began_s + within_s
            if is_late:
                self._is_left, self._answers = True, list(self._answers)
            return is_late

    def _work(self) -> None:
        try:
            self._call_each()
        finally:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._ended.set()
        if self._admitted is not None:
            self._admitted.free()

    def _call_each(self) -> None:
        told = self._answers
        for call in self._calls:
            with self._lock:
                if self._is_left:
                    return
                self._began_s = time.monotonic()
            answer = _answer(call)
            with self._lock:
                told.append(answer)


def _answer(call: Call) -> object:
    try:
        return call()
    except Exception as error:  # the border to the user's code
        return error
    except BaseException as error:
        return as_failure(error)


def as_failure(error: BaseException) -> CodeEnded:
    """Return what stands for an error of user code that would end the node."""
    return CodeEnded(f"{type(error).__name__}: {error}".removesuffix(": "))
