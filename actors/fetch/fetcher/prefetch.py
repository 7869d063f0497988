"""Runs one job in the background of its caller: a page is published while the next one is requested."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
from anyio.abc import TaskGroup

from actors.runtime.supervisor import one_error

Job = Callable[[], Awaitable[None]]


@asynccontextmanager
async def prefetching() -> AsyncIterator[Callable[[Job], Awaitable[None]]]:
    """Yield a function that starts a job as soon as the job before it is done. The block ends after the last job.

    If a job fails, the block ends at once with its error. Until the first job it starts no task."""
    place = anyio.Semaphore(1, fast_acquire=True)
    group: TaskGroup | None = None

    async def run(job: Job) -> None:
        try:
            await job()
        finally:
            place.release()

    with one_error():
        async with AsyncExitStack() as stack:

            async def start(job: Job) -> None:
                nonlocal group
                if group is None:
                    group = await stack.enter_async_context(anyio.create_task_group())
                await place.acquire()
                group.start_soon(run, job)

            yield start
