"""A node that is told to stop waits for what runs, and gives back what only waits for its turn."""

from __future__ import annotations

from collections import Counter

import anyio
import anyio.lowlevel
import pytest

import penstock
from streams.link.connection import Connection
from streams.messages.batch import Counts
from tests.support.batches import LONG_S, Plant, plant
from tests.support.moments import a_moment

ran: Counter[str] = Counter()
gates: dict[str, anyio.Event] = {}
RATE = 0.5
"""Forty items take eighty seconds; a node that waited for them would be seen."""


class _Waiting:
    """Its first item waits at a gate, if there is one."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*range(ctx.input["items"]))

    async def reduce(self, ctx: penstock.ReduceContext) -> dict[str, int]:
        return {"attempts": max([result.info async for page in ctx.read() for result in page])}


async def note(item: int, ctx: penstock.ItemContext) -> int:
    ran[f"{ctx.instance_id}.{item}"] += 1
    if item == 0 and "began" in gates:
        gates["began"].set()
        await gates["end"].wait()
    return ctx.attempt


@penstock.batch("slowly", item_rate=RATE, attempts=1, concurrency=4)
class Slowly(_Waiting):
    async def map(self, item: int, ctx: penstock.ItemContext) -> int:
        return await note(item, ctx)


@penstock.batch("slowly-once", item_rate=RATE, attempts=1, is_idempotent=False)
class SlowlyOnce(_Waiting):
    async def map(self, item: int, ctx: penstock.ItemContext) -> int:
        return await note(item, ctx)


@penstock.batch("in-lists", item_rate=RATE, attempts=1)
class InLists(_Waiting):
    async def map_many(self, items: list[int], contexts: list[penstock.ItemContext]) -> list[int]:
        return [await note(item, context) for item, context in zip(items, contexts, strict=True)]


TASKS = ("slowly", "slowly-once", "in-lists")


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()
    gates.clear()


@pytest.mark.parametrize("task", TASKS)
async def test_a_stopping_node_gives_back_what_waits_and_keeps_what_ran(connection: Connection, task: str) -> None:
    async with plant(connection, TASKS, drain_s=LONG_S) as first:
        gates.update(began=anyio.Event(), end=anyio.Event())
        await first.submit(task, {"items": 40}, id="mine")
        with anyio.fail_after(LONG_S):
            await gates["began"].wait()
        began_s = anyio.current_time()
        gates["end"].set()
    assert anyio.current_time() - began_s < LONG_S / 2
    gates.clear()
    assert 1 <= ran.total() < 40
    async with plant(connection, TASKS, name="n2") as second:
        await second.desk.limit(task, {"item_rate": 0})
        view = await second.until("mine", "done")
    assert (view.counts, view.result) == (Counts(succeeded=40), {"attempts": 1})
    assert set(ran.values()) == {1}
    assert len(ran) == 40


async def test_nothing_of_a_chunk_began_and_it_is_given_back_as_it_was(connection: Connection) -> None:
    async with plant(connection, TASKS) as first:
        await first.desk.limit("slowly", {"item_rate": 0.01})
        await first.submit("slowly", {"items": 4}, id="head")
        with anyio.fail_after(LONG_S):
            while not ran:
                await a_moment()
        await first.submit("slowly", {"items": 4}, id="mine")
        await _until_open(first, "mine")
    async with plant(connection, TASKS, name="n2") as second:
        await second.desk.limit("slowly", {"item_rate": 0})
        view = await second.until("mine", "done")
        assert {result.round for result in await second.results("mine")} == {1}
    assert view.counts == Counts(succeeded=4)


async def _until_open(node: Plant, instance_id: str) -> None:
    with anyio.fail_after(LONG_S):
        while not (await node.record(instance_id)).open:
            await a_moment()
