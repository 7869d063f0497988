"""The files of a result: of the reduce that made it, whoever writes beside it, before or after."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest

import penstock
from actors.batch.rules import moves
from actors.batch.rules.record import files_at
from streams.buckets.files import Files
from streams.clock import now_ms
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.support.batches import LONG_S, Plant, plant


class Log:
    """What the task of one test did. `holds`: the reduces, by number, that wait before they write; those of `fails`
    fail when they have written."""

    def __init__(self, holds: set[int], fails: set[int]) -> None:
        self.reduces = 0
        self.written = 0
        self.holds, self.fails = holds, fails
        self.reached, self.gate, self.late = anyio.Event(), anyio.Event(), anyio.Event()


log: Log


@penstock.batch("writes-files", attempts=1)
class WritesFiles:
    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(1)

    async def map(self, item: int) -> None:
        if log.reduces < 2:
            raise penstock.Reject("not yet")

    async def reduce(self, ctx: penstock.ReduceContext) -> dict[str, Any]:
        log.reduces += 1
        number = log.reduces
        if number in log.holds:
            log.reached.set()
            await log.gate.wait()
        async with penstock.write_sheet(ctx, "out.jsonl", ["by"]) as sheet:
            await sheet.write([{"by": number}])
        if number in log.holds:
            log.late.set()
        if number in log.fails:
            raise OSError("the disk is full")
        return {"files": sheet.names}


async def told(node: Plant) -> str:
    _, parts = await node.desk.result("mine", "out.jsonl")
    return b"".join([part async for part in parts]).decode().strip()


async def stored(connection: Connection, publisher: Publisher) -> set[str]:
    files = Files(connection, publisher, connection.namespace.bucket("FILES"))
    return {info.name async for info in files.all()}


async def test_a_reduce_that_stood_still_and_wakes_takes_no_files_place(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    global log
    log = Log(holds={1}, fails=set())
    monkeypatch.setattr("actors.batch.executor.steps.BEAT_S", 8.0)  # else the first one sees that it counts no more
    async with plant(connection, ["writes-files"]) as node:
        await node.submit("writes-files", id="mine")
        with anyio.fail_after(LONG_S):
            await log.reached.wait()
            fence = (await node.record("mine")).step_fence
            await node.engine.instances.move("mine", partial(moves.renew_step, fence=fence, now_ms=now_ms()))
            await node.until("mine", "done")
            assert await told(node) == '{"by":2}'
            log.gate.set()
            await log.late.wait()
        assert await told(node) == '{"by":2}'
        first, second = (files_at("mine", each) + "out.jsonl" for each in (fence, fence + 1))
        assert await stored(connection, publisher) == {first, second}
        assert await node.engine.uploads.sweep(0) == 1
        assert await stored(connection, publisher) == {second}
        assert await told(node) == '{"by":2}'


async def test_a_result_keeps_its_files_until_there_is_a_newer_one(
    connection: Connection, publisher: Publisher
) -> None:
    global log
    log = Log(holds=set(), fails={2})
    async with plant(connection, ["writes-files"]) as node:
        view = await node.run("writes-files", id="mine")
        assert (view.counts.failed, await told(node)) == (1, '{"by":1}')
        await node.desk.retry("mine")
        assert (await node.until("mine", "failed")).reason == "reducing: OSError: the disk is full"
        assert len(await stored(connection, publisher)) == 2
        assert await node.engine.uploads.sweep(0) == 1
        assert await told(node) == '{"by":1}'
        await node.desk.retry("mine")
        view = await node.until("mine", "done")
        assert (view.counts.succeeded, await told(node)) == (1, '{"by":3}')
        assert await node.engine.uploads.sweep(0) == 1
        assert await stored(connection, publisher) == {f"{view.files_at}out.jsonl"}
        assert await told(node) == '{"by":3}'


@penstock.batch("writes-its-own")
class WritesItsOwn:
    """Puts its files into the object store itself: one where those of its reduce lie, one under a name of its own."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(1)

    async def map(self, item: int) -> None:
        return None

    async def reduce(self, ctx: penstock.ReduceContext) -> dict[str, Any]:
        async def data(text: bytes) -> Any:
            yield text

        await ctx.files.put(ctx.file_name("one.txt"), data(b"one"))
        await ctx.files.put(f"{ctx.instance_id}/other.txt", data(b"other"))
        return {"files": ["one.txt", "other.txt"]}


async def test_files_that_the_code_puts_there_itself_are_found_by_their_names(
    connection: Connection, publisher: Publisher
) -> None:
    async with plant(connection, ["writes-its-own"]) as node:
        view = await node.run("writes-its-own", id="mine")
        assert await node.engine.uploads.sweep(0) == 0
        for name in ("one.txt", "other.txt"):
            _, parts = await node.desk.result("mine", name)
            assert b"".join([part async for part in parts]).decode() == name.removesuffix(".txt")
        assert await stored(connection, publisher) == {f"{view.files_at}one.txt", "mine/other.txt"}
