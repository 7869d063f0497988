"""A thread for a handler that is a plain function: one a place, started with its first job.

The process joins the threads of anyio and of asyncio's executors when it ends, so one function that never returns would
keep a node from ending. These threads are not joined.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import Any, NamedTuple


class _Work(NamedTuple):
    call: Callable[[], object]
    context: Context
    loop: asyncio.AbstractEventLoop
    ended: "asyncio.Future[tuple[object, BaseException | None]]"


class WorkThread:
    """Runs one function at a time. Use it from one task of one loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._is_started = False
        self.is_busy = False
        """A function runs, also if nothing waits for it any more."""

    async def run(self, function: Callable[[Any], object], argument: object) -> tuple[object, BaseException | None]:
        """Return the result of the function, or its exception. If cancelled, this stops waiting. The function runs on,
        and its result is lost."""
        if not self._is_started:
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()
            self._is_started = True
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[tuple[object, BaseException | None]] = loop.create_future()
        self.is_busy = True
        self._work.put(_Work(lambda: function(argument), copy_context(), loop, ended))
        return await ended

    def close(self) -> None:
        """Let the thread end, once its present function has ended."""
        self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            value, error = _outcome(work)
            self.is_busy = False
            with suppress(RuntimeError):  # the loop is closed: no task waits any more
                work.loop.call_soon_threadsafe(_set_result, work.ended, value, error)
            del work, value, error


def _outcome(work: _Work) -> tuple[object, BaseException | None]:
    try:
        return work.context.run(work.call), None
    except BaseException as error:  # the border to the user's code: SystemExit would silently end only this thread
        return None, error


def _set_result(
    ended: "asyncio.Future[tuple[object, BaseException | None]]", value: object, error: BaseException | None
) -> None:
    if not ended.done():
        ended.set_result((value, error))
