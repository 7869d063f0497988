"""The threads in which a task's plain functions run hold the slots of their items until they end."""

import threading

import pytest

from actors.batch.executor.lanes import Admitted
from actors.runtime.rules.slots_held import SlotCall
from penstock.sdk.batch_code import in_a_thread

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])


async def test_a_thread_that_cannot_start_keeps_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    left: list[list[SlotCall]] = []
    admitted = Admitted([], leave=lambda calls: left.append(list(calls)))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with admitted.within(is_thread=True), pytest.raises(RuntimeError, match="new thread"):
        await in_a_thread(lambda: None)
    assert left == [[]]


async def test_a_slot_is_free_once_the_block_and_the_thread_have_ended() -> None:
    left: list[list[SlotCall]] = []
    with Admitted([], leave=lambda calls: left.append(list(calls))).within(is_thread=True):
        assert await in_a_thread(lambda: 7) == 7
        assert left == []
    assert left == [[]]
