"""How long the event loop serves one task before others have their turn."""

import gc
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio


@asynccontextmanager
async def longest_turn_ms() -> AsyncIterator[Callable[[], float]]:
    """Give a function that returns the longest turn of the loop in the block so far, in milliseconds of the thread's
    own processor time. So a busy machine makes no turn longer, and no turn has to collect what earlier tests left."""
    longest_s = since_s = 0.0

    def so_far_ms() -> float:
        return 1000 * max(longest_s, time.thread_time() - since_s)

    async def turn() -> None:
        nonlocal longest_s, since_s
        while True:
            longest_s, since_s = so_far_ms() / 1000, time.thread_time()
            await anyio.lowlevel.checkpoint()

    gc.collect()
    gc.freeze()
    try:
        async with anyio.create_task_group() as tasks:
            since_s = time.thread_time()
            tasks.start_soon(turn)
            yield so_far_ms
            tasks.cancel_scope.cancel()
    finally:
        gc.unfreeze()
