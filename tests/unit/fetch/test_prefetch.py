"""Pages that are published while the next ones are requested."""

from __future__ import annotations

import anyio
import pytest

from actors.fetch.fetcher.prefetch import Prefetching

pytestmark = pytest.mark.anyio


async def test_a_job_runs_beside_its_caller_and_the_next_one_waits_for_it() -> None:
    seen, goes_on = list[str](), anyio.Event()

    async def first() -> None:
        seen.append("first begins")
        await goes_on.wait()
        seen.append("first ends")

    async def second() -> None:
        seen.append("second")

    async with Prefetching() as start:
        await start(first)
        await anyio.wait_all_tasks_blocked()
        seen.append("caller")
        goes_on.set()
        await start(second)
    assert seen == ["first begins", "caller", "first ends", "second"]


async def test_a_job_that_fails_ends_the_block_with_its_own_error() -> None:
    async def failing() -> None:
        raise ValueError("refused")

    async def block() -> None:
        async with Prefetching() as start:
            await start(failing)
            await anyio.sleep_forever()

    with pytest.raises(ValueError, match="refused"):
        await block()


async def test_a_block_that_fails_ends_its_job_and_keeps_its_error() -> None:
    ended = anyio.Event()

    async def job() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    async def block(*, has_job: bool) -> None:
        async with Prefetching() as start:
            if has_job:
                await start(job)
                await anyio.wait_all_tasks_blocked()
            raise KeyError

    with pytest.raises(KeyError):
        await block(has_job=True)
    assert ended.is_set()
    with pytest.raises(KeyError):
        await block(has_job=False)
