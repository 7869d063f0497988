"""The items of one chunk: they run at the same time, and the ends of a slow one are stored while it runs."""

from __future__ import annotations

import threading
from collections import Counter

import anyio
import pytest

import penstock
from actors.batch.rules import rounds
from streams.link.connection import Connection
from streams.messages.batch import Counts
from tests.support.batches import plant


class Ran:
    """How often each item ran: the tasks are made once a process, tests come one after the other."""

    def __init__(self) -> None:
        self.items: Counter[int] = Counter()
        self.gate = anyio.Event()


log = Ran()


@pytest.fixture(autouse=True)
def fresh_log() -> None:
    log.__init__()  # type: ignore[misc] # the tasks hold the object


@penstock.batch("slow-ends", concurrency=1)
class SlowEnds:
    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*range(12))

    async def map(self, item: int) -> None:
        log.items[item] += 1
        await anyio.sleep(0.03)


@penstock.batch("slow-ends-once", is_idempotent=False)
class SlowEndsOnce(SlowEnds):
    pass


@pytest.mark.parametrize("task", ["slow-ends", "slow-ends-once"])
async def test_the_ends_of_a_slow_chunk_are_stored_while_it_runs(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    monkeypatch.setattr(rounds, "OPEN_S", 0.05)
    async with plant(connection, [task]) as node:
        view = await node.run(task)
        results = await node.results(view.instance_id)
    assert view.counts == Counts(succeeded=12)
    assert log.items == Counter(range(12))
    assert {result.chunk for result in results} == {0, 1}
    assert len([result for result in results if result.chunk == 0]) > 2


TOGETHER = 4
"""Fewer than the first chunk has."""


class Together:
    """Its items end when so many are at work at the same time. One item comes alone."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*range(1 + TOGETHER))


@penstock.batch("together-async", chunk_items=1 + TOGETHER)
class TogetherAsync(Together):
    async def map(self, item: int) -> None:
        log.items[item] += 1
        if log.items.total() > TOGETHER:
            log.gate.set()
        await log.gate.wait()


@penstock.batch("together-plain", chunk_items=1 + TOGETHER, item_timeout_s=5, attempts=1)
class TogetherPlain(Together):
    meeting = threading.Barrier(TOGETHER)

    def map(self, item: int) -> None:
        if item:
            self.meeting.wait()
        else:
            threading.Event().wait(0.02)  # a slow item: the others run beside each other


async def test_items_of_a_chunk_run_at_the_same_time_unasked(connection: Connection) -> None:
    async with plant(connection, ["together-async", "together-plain"]) as node:
        for task in ("together-async", "together-plain"):
            assert (await node.run(task)).counts == Counts(succeeded=1 + TOGETHER)
