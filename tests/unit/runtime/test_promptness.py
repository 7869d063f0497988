"""A loop counts as prompt once it has turned in time for a while."""

import time

import anyio
import anyio.lowlevel
import pytest

from actors.runtime.promptness import LATE_S, TICKS, Promptness, until_prompt

pytestmark = pytest.mark.anyio


async def test_a_loop_is_prompt_after_some_sleeps_in_time_and_not_after_one_that_was_late() -> None:
    promptness = Promptness()
    while not await promptness.sleep(0.001):
        pass
    assert promptness.is_prompt
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(promptness.sleep, 0.001)
        await anyio.lowlevel.checkpoint()
        _block()
    assert not any([await promptness.sleep(0.0) for _ in range(TICKS - 1)])
    assert promptness.was_prompt


@pytest.mark.parametrize(("most_s", "has_others"), [(0.2, True), (60.0, False)])
async def test_the_wait_for_a_prompt_loop_has_an_end(most_s: float, has_others: bool) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_block_for_ever)
        await until_prompt(most_s, lambda: has_others)
        tasks.cancel_scope.cancel()


def _block() -> None:
    """Do as a handler that does not await."""
    time.sleep(2 * LATE_S)


async def _block_for_ever() -> None:
    while True:
        _block()
        await anyio.lowlevel.checkpoint()
