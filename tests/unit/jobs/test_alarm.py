"""A wait that a ring or the time ends."""

import anyio
import pytest

from actors.jobs.delay_timer.alarm import Alarm


async def test_a_ring_ends_the_wait() -> None:
    alarm = Alarm()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(alarm.wait, None)
            await anyio.lowlevel.checkpoint()
            alarm.ring()
            alarm.ring()


async def test_a_ring_before_the_wait_counts_once() -> None:
    alarm = Alarm()
    alarm.ring()
    with anyio.fail_after(30):
        await alarm.wait(None)
    with pytest.raises(TimeoutError), anyio.fail_after(0):
        await alarm.wait(None)


@pytest.mark.parametrize("seconds", [-1, 0, 0.0001])
async def test_the_time_ends_the_wait(seconds: float) -> None:
    with anyio.fail_after(30):
        await Alarm().wait(seconds)


async def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    alarm = Alarm()
    with anyio.move_on_after(0):
        await alarm.wait(1_000)
    alarm.ring()
    with anyio.fail_after(30):
        await alarm.wait(None)
