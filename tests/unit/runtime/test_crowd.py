"""One action on many things, several at a time."""

import anyio
import pytest

from actors.runtime.crowd import for_each


async def test_so_many_are_at_work_at_the_same_time_and_begin_in_their_order() -> None:
    begun: list[int] = []
    busy, most = 0, 0

    async def act(thing: int) -> None:
        nonlocal busy, most
        begun.append(thing)
        busy += 1
        most = max(most, busy)
        for _ in range(20):  # while the others begin
            await anyio.lowlevel.checkpoint()
        busy -= 1

    await for_each(range(10), act, at_once=4)
    assert (begun, busy, most) == (list(range(10)), 0, 4)


async def test_the_error_of_one_is_raised_and_the_others_are_cancelled() -> None:
    ended: list[int] = []

    async def act(thing: int) -> None:
        if thing == 2:
            raise ValueError("the third")
        await anyio.sleep_forever()
        ended.append(thing)

    with pytest.raises(ValueError, match="the third"):
        await for_each(range(3), act)
    assert not ended
