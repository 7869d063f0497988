"""Runs one job in the background of its caller: a page is published while the next one is requested."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType

import anyio
from anyio.abc import TaskGroup

from actors.runtime.supervisor import one_error

Job = Callable[[], Awaitable[None]]


class Prefetching:
    """An async context manager. It yields a function that starts a job as soon as the job before it is done. The block
    ends after the last job.

    If a job fails, the block ends at once with its error. Most windows have no orders, so it starts nothing until the
    first job."""

    def __init__(self) -> None:
        self._group: TaskGroup | None = None
        self._place: anyio.Semaphore | None = None

    async def __aenter__(self) -> Callable[[Job], Awaitable[None]]:
        return self._start

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._group is None:
            return None
        with one_error():
            return await self._group.__aexit__(kind, error, trace)

    async def _start(self, job: Job) -> None:
        if self._group is None or self._place is None:
            self._place = anyio.Semaphore(1, fast_acquire=True)
            self._group = await anyio.create_task_group().__aenter__()
        await self._place.acquire()
        self._group.start_soon(_run, job, self._place)


async def _run(job: Job, place: anyio.Semaphore) -> None:
    try:
        await job()
    finally:
        place.release()
