"""A thread of a place's own: it hands back what a function ends with, and can be left alone."""

import asyncio
import threading
from contextvars import ContextVar

import pytest

from actors.jobs.worker.threads import WorkThread

FROM: ContextVar[str] = ContextVar("FROM", default="nowhere")


async def test_function_runs_in_one_thread_with_the_callers_context() -> None:
    thread = WorkThread("job-test-0")
    FROM.set("the place")
    seen = [await thread.run(lambda it: (it, threading.get_ident(), FROM.get()), n) for n in range(2)]
    thread.close()
    (first, first_error), (second, second_error) = seen
    assert first_error is second_error is None
    assert isinstance(first, tuple)
    assert isinstance(second, tuple)
    assert (first[0], second[0]) == (0, 1)
    assert first[1] == second[1] != threading.get_ident()
    assert first[2] == "the place"


@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(3), GeneratorExit(), StopIteration(), asyncio.CancelledError()]
)
async def test_whatever_a_function_raises_is_handed_back(error: BaseException) -> None:
    thread = WorkThread("job-test-0")

    def fail(_: object) -> None:
        raise error

    assert await thread.run(fail, None) == (None, error)
    assert await thread.run(str, 7) == ("7", None)  # the thread lives on
    thread.close()


async def test_who_waits_can_go_away_and_the_thread_does_not_keep_the_process() -> None:
    thread, go_on, begun, ended = WorkThread("job-test-0"), threading.Event(), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def wait(_: object) -> None:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(30)
        ended.set()

    waiting = asyncio.create_task(thread.run(wait, None))
    await begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert all(each.daemon for each in threading.enumerate() if each.name == "job-test-0")
    go_on.set()
    thread.close()
    assert await asyncio.to_thread(ended.wait, 10)
    await asyncio.sleep(0)  # what it ends with is told to nobody
