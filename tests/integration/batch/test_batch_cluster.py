"""Items on three servers, one of which is killed: the leader of what hands out their chunks."""

from collections import Counter
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

import penstock
from streams.errors import StreamError
from streams.link.connection import connect
from streams.topology.specs import batch_consumers
from tests.support.batches import plant
from tests.support.moments import a_moment
from tests.support.processes import cluster, urls_of
from tests.support.server import leading

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])  # three servers and an election: once is enough

began: Counter[str] = Counter()
may_end = anyio.Event()


@penstock.batch("long-on-three")
class LongOnThree:
    """The item of its first instance runs until it may end."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit("after" if began else "long")

    async def map(self, item: str) -> None:
        began[item] += 1
        if item == "long":
            await may_end.wait()


async def test_a_leader_that_dies_begins_no_item_again(tmp_path: Path) -> None:
    async with cluster(tmp_path) as servers, connect(urls_of(servers), name="test") as connection:
        async with plant(connection, ["long-on-three"]) as made:
            long = await made.submit("long-on-three")
            spec = batch_consumers(connection.namespace, "long-on-three")[1]
            with anyio.fail_after(60):
                while not began["long"]:
                    await a_moment()
                leader = await leading(servers, connection, f"CONSUMER.INFO.{spec.stream}.{spec.name}")
                leader.kill()
                while True:
                    try:
                        after = await made.submit("long-on-three")
                        break
                    except StreamError:
                        await a_moment()
            assert (await made.until(after.instance_id, "done")).state == "done"
            may_end.set()
            assert (await made.until(long.instance_id, "done")).state == "done"
    assert began["long"] == 1
