"""How long the event loop serves one task before others have their turn."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio


@asynccontextmanager
async def longest_turn_ms() -> AsyncIterator[Callable[[], float]]:
    """Give a function that returns the longest turn of the loop in the block so far, in milliseconds of the thread's
    own processor time. So a busy machine makes no turn longer."""
    longest_s = 0.0

    async def turn() -> None:
        nonlocal longest_s
        since_s = time.thread_time()
        while True:
            await anyio.lowlevel.checkpoint()
            now_s = time.thread_time()
            longest_s, since_s = max(longest_s, now_s - since_s), now_s

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(turn)
        yield lambda: longest_s * 1000
        tasks.cancel_scope.cancel()
