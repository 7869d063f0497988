"""Splits and reduces that never come back, in a coroutine or a thread (row 89), that hold up the loop of their process
for some seconds, or that nobody waits for any more."""

from __future__ import annotations

import threading
import time
from collections import Counter

import anyio
import pytest

import penstock
from actors.batch.executor import steps
from streams.link.connection import Connection
from streams.reads.log import count_of
from tests.support.batches import LONG_S, plant


class Log:
    """What the task of one test did."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        self.began = anyio.Event()
        self.ended = anyio.Event()
        self.thread_gate = threading.Event()


log = Log()


@pytest.fixture(autouse=True)
def fresh_log() -> None:
    log.__init__()  # type: ignore[misc] # the tasks hold the object


@penstock.batch("endless-split", step_timeout_s=0.2, attempts=2)
class EndlessSplit:
    async def split(self, ctx: penstock.SplitContext) -> None:
        log.runs["split"] += 1
        await anyio.sleep_forever()

    def map(self, item: int) -> None:
        log.runs["map"] += 1


@penstock.batch("endless-reduce", step_timeout_s=3, attempts=1)
class EndlessReduce:
    """Its split has to end within the same time."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        log.runs["split"] += 1
        await ctx.commit(1, 2)

    def map(self, item: int) -> None:
        log.runs["map"] += 1

    def reduce(self, ctx: penstock.ReduceContext) -> None:
        log.runs["reduce"] += 1
        log.thread_gate.wait()


@pytest.mark.parametrize(
    ("task", "told", "runs"),
    [
        ("endless-split", "splitting: TimeoutError: took longer than 0.2 s", {"split": 2}),
        ("endless-reduce", "reducing: TimeoutError: took longer than 3 s", {"split": 1, "map": 2, "reduce": 1}),
    ],
)
async def test_a_step_that_never_comes_back_fails_after_its_time(
    connection: Connection, task: str, told: str, runs: dict[str, int]
) -> None:
    async with plant(connection, [task]) as node:
        view = await node.run(task)
        log.thread_gate.set()
    assert (view.state, view.reason) == ("failed", f"{told}, its step_timeout_s")
    assert log.runs == runs


@penstock.batch("deaf-split")
class DeafSplit:
    """Does not look whether it was cancelled."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        log.began.set()
        try:
            await anyio.sleep_forever()
        finally:
            log.ended.set()

    def map(self, item: int) -> None:
        raise AssertionError("there is none")


async def test_a_split_that_does_not_see_that_it_was_cancelled_is_ended(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "BEAT_S", 0.05)
    async with plant(connection, ["deaf-split"]) as node:
        await node.submit("deaf-split", id="mine")
        with anyio.fail_after(LONG_S):
            await log.began.wait()
            assert not log.ended.is_set()
            await node.desk.cancel("mine")
            await log.ended.wait()
        view = await node.until("mine", "cancelled")
    assert (view.reason, view.items) == ("", None)


@penstock.batch("commits-on", chunk_items=1)
class CommitsOn:
    """Its split stores its chunks when it is let go, whoever cancels it. Its input: whether it comes to an end."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        log.began.set()
        with anyio.CancelScope(shield=True):
            await log.ended.wait()
            await ctx.commit(*range(100))
        if not ctx.input:
            await anyio.sleep_forever()

    def map(self, item: int) -> None:
        raise AssertionError("nobody asked for it")


@pytest.mark.parametrize("comes_to_an_end", [True, False])
async def test_a_split_leaves_nothing_of_a_batch_that_was_deleted_meanwhile(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, *, comes_to_an_end: bool
) -> None:
    monkeypatch.setattr(steps, "BEAT_S", 0.05)
    stream, items = connection.namespace.stream("ITEMS"), connection.namespace.pattern("items", "mine", ">")
    async with plant(connection, ["commits-on"], drain_s=LONG_S) as node:
        await node.submit("commits-on", comes_to_an_end, id="mine")
        with anyio.fail_after(LONG_S):
            await log.began.wait()
            await node.desk.cancel("mine")
            await node.desk.delete("mine")
        log.ended.set()  # a node that stops ends the work in hand
    assert await count_of(connection, stream, items) == 0


@penstock.batch("held-up", attempts=1)
class HeldUp:
    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(1)

    async def map(self, item: int) -> None:
        return None

    async def reduce(self, ctx: penstock.ReduceContext) -> None:
        log.runs["reduce"] += 1
        time.sleep(5.0)  # noqa: ASYNC251  # code that should be in a thread
        with anyio.move_on_after(1.0):  # what came again meanwhile is looked at
            await log.ended.wait()


async def test_a_step_that_holds_up_its_process_for_some_seconds_is_not_begun_again(connection: Connection) -> None:
    async with plant(connection, ["held-up"]) as node:
        view = await node.run("held-up")
        record = await node.record(view.instance_id)
    assert (view.state, record.step_attempts, log.runs["reduce"]) == ("done", 1, 1)
