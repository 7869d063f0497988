"""Work over many things leaves the loop its turns."""

import anyio
from anyio.lowlevel import checkpoint

from actors.runtime.pieces import in_pieces


async def test_the_loop_has_turns_in_between_and_the_order_stays() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(others)
        assert [number async for number in in_pieces(range(100), hold_s=0)] == list(range(100))
        assert turns >= 100
        turns = 0
        assert [number async for number in in_pieces(range(100), hold_s=60)] == list(range(100))
        assert turns == 0
        tasks.cancel_scope.cancel()
