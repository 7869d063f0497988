"""A step whose pointer comes a second time: somebody had it before, and may have written some of it."""

from __future__ import annotations

from typing import Any

import penstock
from streams.connection import Connection
from streams.errors import OutcomeUnknown
from tests.support.batches import plant

_runs: list[str] = []


@penstock.batch("never-the-same", chunk_items=1)
class NeverTheSame:
    """Its split gives other items each time; the first one ends half way, with a link that broke."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        _runs.append(f"run {len(_runs) + 1}")
        for _ in range(4):
            await ctx.commit(*[_runs[-1]] * 8)
            if len(_runs) == 1 and _ == 1:
                raise OutcomeUnknown("no answer", subject="items")

    async def map_many(self, items: list[str]) -> None:
        pass

    async def reduce(self, ctx: penstock.ReduceContext) -> dict[str, Any]:
        found = [result.item async for page in ctx.read() for result in page]
        return {"items": len(found), "runs": sorted(set(found))}


async def test_a_split_that_is_not_the_same_twice_is_no_mixture(connection: Connection) -> None:
    _runs.clear()
    async with plant(connection, ["never-the-same"]) as node:
        view = await node.run("never-the-same")
        record = await node.record(view.instance_id)
    assert view.result == {"items": 32, "runs": ["run 2"]}
    assert record.seal is not None
    assert record.seal.fence == 2
    assert len(_runs) == 2
