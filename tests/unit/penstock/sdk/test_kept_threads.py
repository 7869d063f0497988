"""The threads in which a flow's plain functions run are kept, and left behind where a call never returns."""

import threading
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from actors.flow.handler import StillRunning
from penstock.sdk.batch_code import CodeEnded
from penstock.sdk.flows import _KeptThreads


def kept() -> _KeptThreads:
    """Threads for a loader that makes the call that it is given in place of a context."""

    def make(call: Callable[[], Any], shard: str, limit: int) -> Any:
        return call()

    return _KeptThreads(make)


async def call(threads: _KeptThreads, make: Callable[[], Any], shard: str = "7") -> Any:
    return await threads.call(make, shard, 1)  # type: ignore[arg-type] # the loader takes it


pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])


async def test_calls_one_after_the_other_run_in_one_thread() -> None:
    threads = kept()
    found = {await call(threads, threading.current_thread) for _ in range(5)}
    assert [thread.name for thread in found] == ["flow"]
    assert found != {threading.current_thread()}


async def test_calls_at_the_same_time_run_in_threads_of_their_own() -> None:
    threads, together = kept(), threading.Barrier(3)
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(call, threads, lambda: together.wait(10))


async def test_what_a_call_raises_is_raised_and_the_thread_goes_on() -> None:
    threads = kept()
    first = await call(threads, threading.current_thread)
    with pytest.raises(ZeroDivisionError):
        await call(threads, lambda: 1 / 0)
    with pytest.raises(CodeEnded, match="SystemExit: 3"):
        await call(threads, lambda: exec("raise SystemExit(3)"))
    assert await call(threads, threading.current_thread) is first


async def test_a_call_that_does_not_end_is_left_behind_and_its_shard_has_no_other_one_meanwhile() -> None:
    threads, begun, may_end = kept(), threading.Event(), threading.Event()
    left: list[threading.Thread] = []

    def hang() -> None:
        left.append(threading.current_thread())
        begun.set()
        may_end.wait(10)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call, threads, hang)
        await anyio.to_thread.run_sync(begun.wait, 10)
        tasks.cancel_scope.cancel()
    assert await call(threads, threading.current_thread, "8") not in left
    with pytest.raises(StillRunning, match="shard '7': the last call ran out of time and runs on"):
        await call(threads, threading.current_thread)
    may_end.set()
    await anyio.to_thread.run_sync(left[0].join, 10)
    assert not left[0].is_alive(), "its thread ends with the call"
    assert await call(threads, threading.current_thread) not in left


async def test_of_two_calls_of_a_shard_that_are_left_behind_each_one_counts() -> None:
    threads, ends = kept(), [threading.Event(), threading.Event()]
    begun: list[threading.Thread] = []

    def hang(end: threading.Event) -> None:
        begun.append(threading.current_thread())
        end.wait(10)

    async with anyio.create_task_group() as tasks:
        for end in ends:
            tasks.start_soon(call, threads, lambda end=end: hang(end))
        with anyio.fail_after(10):
            while len(begun) < 2:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    for end in reversed(ends):
        with pytest.raises(StillRunning):
            await call(threads, threading.current_thread)
        end.set()
        with anyio.fail_after(10):
            while sum(thread.is_alive() for thread in begun) == 2:
                await anyio.lowlevel.checkpoint()
    await anyio.to_thread.run_sync(begun[0].join, 10)
    await anyio.to_thread.run_sync(begun[1].join, 10)
    assert await call(threads, threading.current_thread) not in begun
