"""A step whose pointer comes a second time: somebody had it before, and may have written some of it."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
from msgspec import Raw
from msgspec.structs import replace

import penstock
from actors.batch.rules import moves
from actors.batch.rules.record import beat_key
from streams.buckets.bucket import Bucket
from streams.errors import OutcomeUnknown
from streams.link.connection import Connection
from streams.messages.batch import Counts, Pointer, encode_message
from streams.publish.publisher import Publisher
from streams.pull.backlog import consumers_pending
from streams.reads.log import purge_subject
from streams.topology.specs import batch_consumers
from tests.support.batches import plant
from tests.support.moments import a_moment

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


@penstock.batch("slow-to-split", chunk_items=1)
class SlowToSplit:
    """Its split waits half way until it is let go."""

    is_half = anyio.Event()
    may_end = anyio.Event()

    async def split(self, ctx: penstock.SplitContext) -> None:
        _runs.append(f"run {len(_runs) + 1}")
        await ctx.commit(*[_runs[-1]] * 8)
        SlowToSplit.is_half.set()
        await SlowToSplit.may_end.wait()
        await ctx.commit(_runs[-1])

    async def map(self, item: str) -> None:
        pass

    async def reduce(self, ctx: penstock.ReduceContext) -> dict[str, Any]:
        return {"runs": sorted({result.item async for page in ctx.read() for result in page})}


async def test_a_split_whose_pointer_was_removed_by_hand_and_offered_again_runs_once(connection: Connection) -> None:
    _runs.clear()
    SlowToSplit.is_half, SlowToSplit.may_end = anyio.Event(), anyio.Event()
    namespace = connection.namespace
    async with plant(connection, ["slow-to-split"]) as node:
        await node.submit("slow-to-split", id="mine")
        with anyio.fail_after(30):
            await SlowToSplit.is_half.wait()
        record = await node.record("mine")
        stream, consumer = namespace.stream("WORK"), batch_consumers(namespace, "slow-to-split")[0].name
        await purge_subject(connection, stream, ">")
        pointer = Pointer(step="split", task=record.task, instance_id="mine", fence=record.step_fence)
        subject = namespace.subject("work", "batch", record.task, "split", "mine", str(record.step_fence))
        async with Publisher(connection) as publisher:
            await publisher.publish(subject, encode_message(pointer))
        with anyio.fail_after(30):
            while (await consumers_pending(connection, stream))[consumer]:
                await a_moment()
        SlowToSplit.may_end.set()
        view = await node.until("mine", "done")
    assert view.result == {"runs": ["run 1"]}
    assert view.items == 9
    assert _runs == ["run 1"]


@penstock.batch("split-late", chunk_items=1)
class SplitLate:
    """Its item waits until it is let go."""

    began = anyio.Event()
    may_end = anyio.Event()

    async def split(self, ctx: penstock.SplitContext) -> None:
        _runs.append("split")
        await ctx.commit(1)

    async def map(self, item: int) -> None:
        SplitLate.began.set()
        await SplitLate.may_end.wait()


async def test_a_splits_pointer_that_comes_after_the_seal_is_forgotten(
    connection: Connection, publisher: Publisher
) -> None:
    """A conductor stood still between its look and the offer, until the beat was gone."""
    _runs.clear()
    SplitLate.began, SplitLate.may_end = anyio.Event(), anyio.Event()
    namespace = connection.namespace
    stream, consumer = namespace.stream("WORK"), batch_consumers(namespace, "split-late")[0].name
    beats = Bucket(connection, publisher, namespace.bucket("BEATS"), bytes)

    async def until_none_waits() -> None:
        with anyio.fail_after(30):
            while (await consumers_pending(connection, stream))[consumer]:
                await a_moment()

    async with plant(connection, ["split-late"]) as node:
        await node.submit("split-late", id="mine")
        with anyio.fail_after(30):
            await SplitLate.began.wait()
        await until_none_waits()
        record = await node.record("mine")
        assert record.state == "running"
        await beats.delete(beat_key(record))
        pointer = Pointer(step="split", task=record.task, instance_id="mine", fence=record.step_fence)
        subject = namespace.subject("work", "batch", record.task, "split", "mine", str(record.step_fence))
        await publisher.publish(subject, encode_message(pointer))
        await until_none_waits()
        SplitLate.may_end.set()
        view = await node.until("mine", "done")
    assert (view.counts, _runs) == (Counts(succeeded=1), ["split"])


@penstock.batch("written-twice", chunk_items=1)
class WrittenTwice:
    """Its first reduce ends after its file was stored, with a link that broke."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(1, 2, 3)

    async def map(self, item: int) -> None:
        pass

    async def reduce(self, ctx: penstock.ReduceContext) -> dict[str, Any]:
        _runs.append(f"reduce {len(_runs) + 1}")
        async with penstock.write_sheet(ctx, "out.jsonl", ["by"]) as sheet:
            await sheet.write([{"by": _runs[-1]}])
        if len(_runs) == 1:
            raise OutcomeUnknown("no answer", subject="instances")
        return {"files": sheet.names, "by": _runs[-1]}


async def test_a_reduce_that_crashed_after_its_file_was_written_leaves_one_result(connection: Connection) -> None:
    _runs.clear()
    async with plant(connection, ["written-twice"]) as node:
        view = await node.run("written-twice", id="mine")
        fence = (await node.record("mine")).step_fence
        late = Raw(b'{"by": "the first one, late"}')
        after = await node.engine.instances.move("mine", lambda record: moves.reduced(record, fence - 1, late, 1))
        _, parts = await node.desk.result("mine")
        told = b"".join([part async for part in parts])
    assert view.result == {"files": ["out.jsonl"], "by": "reduce 2"}
    assert after.result == Raw(b'{"files":["out.jsonl"],"by":"reduce 2"}')
    assert told == b'{"by":"reduce 2"}\n'
    assert _runs == ["reduce 1", "reduce 2"]


async def test_a_doubled_seal_seals_once(connection: Connection) -> None:
    """The first answer was lost, or two executors had the split: whatever comes second changes nothing."""
    _runs.clear()
    async with plant(connection, ["written-twice"]) as node:
        await node.submit("written-twice", id="mine")
        await node.until("mine", "running", "reducing", "done")
        seal = (await node.record("mine")).seal
        assert seal is not None
        fewer = replace(seal, chunks=1, items=1, digest="other")
        async with anyio.create_task_group() as both:
            for each in (seal, fewer, replace(fewer, fence=seal.fence + 1)):
                both.start_soon(
                    node.engine.instances.move, "mine", lambda record, each=each: moves.seal_split(record, each, 1)
                )
        view = await node.until("mine", "done")
        assert (await node.record("mine")).seal == seal
    assert (view.items, view.counts) == (3, Counts(succeeded=3))
