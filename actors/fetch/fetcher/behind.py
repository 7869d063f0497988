"""Lets one job run behind its caller: pages are published while the next one is asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
from anyio.abc import TaskGroup, TaskStatus

from actors.runtime.supervisor import one_error

__all__ = ["one_behind"]

Job = Callable[[], Awaitable[None]]


@asynccontextmanager
async def one_behind() -> AsyncIterator[Callable[[Job], Awaitable[None]]]:
    """Give a function that starts a job as soon as the one before it is done; the block ends when the last one is.

    A job that fails ends the block at once, and its error is the block's. Costs nothing until the first job."""
    place = anyio.Lock()
    group: TaskGroup | None = None

    async def run(job: Job, *, task_status: TaskStatus[None]) -> None:
        async with place:
            task_status.started()
            await job()

    with one_error():
        async with AsyncExitStack() as stack:

            async def start(job: Job) -> None:
                nonlocal group
                if group is None:
                    group = await stack.enter_async_context(anyio.create_task_group())
                await group.start(run, job)

            yield start
