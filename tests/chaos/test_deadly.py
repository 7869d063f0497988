"""An item of a batch that takes down every process that runs it."""

from pathlib import Path

import anyio
import pytest

from streams.messages.batch import Counts
from tests.support.batches_chaos import open_batch_world
from tests.support.batches_chaos_app import DEADLY, DEADLY_ITEM

MOST_DEATHS = 8
"""Five before its chunk is suspected, and three at which it is seen at work."""


@pytest.mark.timeout(300)
async def test_an_item_that_takes_its_process_down_fails_alone(tmp_path: Path) -> None:
    async with open_batch_world(tmp_path) as world:
        executor = world.new_node("executor1", "executor")
        for node in (world.new_node("conductor1", "conductor"), executor):
            await node.start()
            await node.ready()
        await world.submit("deadly", DEADLY, 30, 0.0)
        with anyio.fail_after(200):
            while not await world.is_over():
                if await executor.ended(0.5) is not None:
                    await executor.start()
        record = await world.instances.get("deadly")
    assert (record.state, record.counts) == ("done", Counts(succeeded=29, failed=1))
    assert record.reasons == (f'item {DEADLY_ITEM}: "its process died while it ran, 3 times"',)
    assert 3 < executor.kills <= MOST_DEATHS
