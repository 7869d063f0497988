"""Callers who change a batch in the same moment: what each of them was told holds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import ClassVar

import penstock
from actors.batch.instances import UnknownInstance
from actors.batch.rules.refusals import BatchRefused
from actors.batch.views import View
from streams.link.connection import Connection
from tests.support.batches import Plant, plant


@penstock.batch("met-at-once", is_idempotent=False, chunk_items=3)
class MetAtOnce:
    ran: ClassVar[Counter[int]] = Counter()

    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*range(7))

    async def map(self, item: int) -> None:
        self.ran[item] += 1


async def answer(call: Awaitable[View]) -> View | Exception:
    try:
        return await call
    except (BatchRefused, UnknownInstance) as refused:
        return refused


async def done(node: Plant) -> str:
    MetAtOnce.ran.clear()
    view = await node.run("met-at-once")
    assert (view.state, view.counts.succeeded, set(MetAtOnce.ran.values())) == ("done", 7, {1})
    MetAtOnce.ran.clear()
    return view.instance_id


async def test_of_retries_at_once_one_is_done_and_the_others_say_that_they_are_not(connection: Connection) -> None:
    async with plant(connection, ["met-at-once"]) as node:
        name = await done(node)
        answers = await asyncio.gather(*[answer(node.desk.retry(name, [item])) for item in range(3)])
        ran = [item for item, told in enumerate(answers) if isinstance(told, View)]
        assert len(ran) == 1, answers
        others = {str(told) for told in answers if not isinstance(told, View)}
        assert others == {f"{name} is running; only what is done, failed or cancelled can be retried"}
        await node.until(name, "done")
        assert MetAtOnce.ran == Counter(ran)


async def test_a_retry_that_meets_a_delete_says_that_the_batch_is_gone(connection: Connection) -> None:
    async with plant(connection, ["met-at-once"]) as node:
        name = await done(node)
        deleted, retried = await asyncio.gather(answer(node.desk.delete(name)), answer(node.desk.retry(name, [0])))
        assert isinstance(deleted, View) != isinstance(retried, View), (deleted, retried)
        if isinstance(deleted, View):
            assert isinstance(retried, UnknownInstance), retried
