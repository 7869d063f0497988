"""A batch that was deleted, and one that came later under its id: nothing of the first reaches the second."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from msgspec import Raw
from msgspec.structs import replace

import penstock
from actors.batch.executor.handler import TaskHandler
from actors.batch.executor.steps import Steps
from actors.batch.instances import Instances, UnknownInstance
from actors.batch.items import BatchItems, StreamEnds
from actors.batch.removal import Removal
from actors.batch.rules.record import Instance, Seal
from actors.batch.rules.refusals import BatchRefused
from actors.batch.tasks import TaskRecord
from actors.batch.views import upload_name
from streams.buckets.files import Files
from streams.clock import now_ms
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection, connect
from streams.messages.batch import Chunk
from streams.publish.publisher import Publisher
from streams.reads.log import last_entry
from tests.support.batches import LONG_S, Plant, plant
from tests.support.moments import a_moment
from tests.support.proxy import proxy


@penstock.batch("same-id-split")
class SameIdSplit:
    """Each of its splits waits until it is let go, and then looks whether it still counts."""

    began: dict[str, anyio.Event]
    may_end: dict[str, anyio.Event]
    saw: dict[str, bool]
    has_item = anyio.Event()
    may_run = anyio.Event()

    async def split(self, ctx: penstock.SplitContext) -> None:
        SameIdSplit.began[ctx.input].set()
        await SameIdSplit.may_end[ctx.input].wait()
        SameIdSplit.saw[ctx.input] = ctx.is_cancelled
        await ctx.commit(ctx.input)

    async def map(self, item: str) -> None:
        SameIdSplit.has_item.set()
        await SameIdSplit.may_run.wait()

    async def reduce(self, ctx: penstock.ReduceContext) -> dict[str, Any]:
        return {"items": [result.item async for page in ctx.read() for result in page]}


def _renew() -> None:
    SameIdSplit.began = {name: anyio.Event() for name in ("old", "new")}
    SameIdSplit.may_end = {name: anyio.Event() for name in ("old", "new")}
    SameIdSplit.saw = {}
    SameIdSplit.has_item, SameIdSplit.may_run = anyio.Event(), anyio.Event()


async def _cancel_and_delete(node: Plant, instance_id: str) -> None:
    await node.desk.cancel(instance_id)
    await node.until(instance_id, "cancelled")
    await node.desk.delete(instance_id)


async def test_a_split_that_ends_late_is_none_of_a_later_batch_of_its_id(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    _renew()
    SameIdSplit.may_run.set()
    run, is_over = Steps.run, anyio.Event()

    async def watched(self: Steps, handler: TaskHandler, record: Instance, **named: Any) -> None:
        try:
            await run(self, handler, record, **named)
        finally:
            if record.input == Raw(b'"old"'):
                is_over.set()

    monkeypatch.setattr(Steps, "run", watched)
    async with plant(connection, ["same-id-split"]) as node:
        with anyio.fail_after(LONG_S):
            await node.submit("same-id-split", "old", id="same")
            await SameIdSplit.began["old"].wait()
            await _cancel_and_delete(node, "same")
            await node.submit("same-id-split", "new", id="same")
            await SameIdSplit.began["new"].wait()
            SameIdSplit.may_end["old"].set()
            await is_over.wait()
            SameIdSplit.may_end["new"].set()
        view = await node.until("same", "done")
    assert SameIdSplit.saw["old"], "it learns that it does not count"
    assert view.result == {"items": ["new"]}


async def test_items_that_an_earlier_batch_of_the_id_commits_late_do_not_run(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later batch has its items already, and none of them has run yet."""
    _renew()
    stage, is_late = BatchItems.stage, anyio.Event()

    async def watched(self: BatchItems, instance_id: str, *place: Any, created_ms: int = 0) -> None:
        await stage(self, instance_id, *place, created_ms=created_ms)
        if created_ms == first.created_ms:
            is_late.set()

    monkeypatch.setattr(BatchItems, "stage", watched)
    async with plant(connection, ["same-id-split"]) as node:
        with anyio.fail_after(LONG_S):
            first = await node.submit("same-id-split", "old", id="same")
            await SameIdSplit.began["old"].wait()
            await _cancel_and_delete(node, "same")
            await node.submit("same-id-split", "new", id="same")
            await SameIdSplit.began["new"].wait()
            SameIdSplit.may_end["new"].set()
            await SameIdSplit.has_item.wait()
            SameIdSplit.may_end["old"].set()
            await is_late.wait()
            SameIdSplit.may_run.set()
            view = await node.until("same", "done")
    assert view.result == {"items": ["new"]}


async def test_a_split_of_a_batch_that_was_cancelled_and_deleted_learns_it(connection: Connection) -> None:
    _renew()
    async with plant(connection, ["same-id-split"]) as node:
        with anyio.fail_after(LONG_S):
            await node.submit("same-id-split", "old", id="gone")
            await SameIdSplit.began["old"].wait()
            await _cancel_and_delete(node, "gone")
            while node.engine.instances.seen("gone") is not None:
                await a_moment()
            SameIdSplit.may_end["old"].set()
            while "old" not in SameIdSplit.saw:
                await a_moment()
    assert SameIdSplit.saw["old"]


@penstock.batch("same-id-map")
class SameIdMap:
    """An item named `old` stands still in its thread until it is let go."""

    began = threading.Event()
    may_end = threading.Event()

    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(ctx.input)

    def map(self, item: str) -> str:
        if item == "old":
            SameIdMap.began.set()
            SameIdMap.may_end.wait(LONG_S)
        return item

    async def reduce(self, ctx: penstock.ReduceContext) -> dict[str, Any]:
        return {"ends": [result.info async for page in ctx.read() for result in page]}


async def test_an_item_that_ends_late_is_none_of_a_later_batch_of_its_id(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.batch.conductor.REOFFER_MS", 50)
    async with plant(connection, ["same-id-map"]) as node:
        with anyio.fail_after(LONG_S):
            await node.submit("same-id-map", "old", id="same")
            await anyio.to_thread.run_sync(SameIdMap.began.wait)
            await _cancel_and_delete(node, "same")
            await node.submit("same-id-map", "new", id="same")
            await node.until("same", "running")
            SameIdMap.may_end.set()
        view = await node.until("same", "done")
    assert view.result == {"ends": ["new"]}


@penstock.batch("same-id-stalled")
class SameIdStalled:
    """Each of its items waits until it is let go."""

    began: dict[str, anyio.Event]
    may_end: dict[str, anyio.Event]

    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(ctx.input)

    async def map(self, item: str) -> str:
        SameIdStalled.began[item].set()
        await SameIdStalled.may_end[item].wait()
        return item

    async def reduce(self, ctx: penstock.ReduceContext) -> dict[str, Any]:
        return {"ends": [result.info async for page in ctx.read() for result in page]}


async def test_a_result_that_a_lost_link_held_back_is_none_of_a_later_batch_of_its_id(
    connection: Connection, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its executor tries to store it until the link is back, and the id is another batch's by then."""
    monkeypatch.setattr("actors.batch.conductor.REOFFER_MS", 50)
    SameIdStalled.began = {name: anyio.Event() for name in ("old", "new")}
    SameIdStalled.may_end = {name: anyio.Event() for name in ("old", "new")}
    place = connection.namespace.subject("results", "same", "0", "1")
    async with (
        plant(connection, [], roles=("conductor", "desk")) as node,
        proxy(server.port) as wire,
        connect(wire.url, name="cut off", namespace=connection.namespace) as other,
        plant(other, ["same-id-stalled"], name="n2", roles=("executor",)),
    ):
        with anyio.fail_after(LONG_S):
            await node.submit("same-id-stalled", "old", id="same")
            await SameIdStalled.began["old"].wait()
            wire.refuse()
            SameIdStalled.may_end["old"].set()
            await _cancel_and_delete(node, "same")
            async with plant(connection, ["same-id-stalled"], name="n3", roles=("executor",)):
                await node.submit("same-id-stalled", "new", id="same")
                await SameIdStalled.began["new"].wait()
                wire.heal()
                while await last_entry(connection, connection.namespace.stream("ITEMS"), place) is None:
                    await a_moment()
                SameIdStalled.may_end["new"].set()
                view = await node.until("same", "done")
    assert view.result == {"ends": ["new"]}


class _Slow(BatchItems):
    """Items whose removal waits until it is let go."""

    async def drop(self, instance_id: str, task: str, upto: StreamEnds) -> None:
        self.is_near.set()
        await self.may_go.wait()
        await super().drop(instance_id, task, upto)

    is_near: anyio.Event
    may_go: anyio.Event


async def _one(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def test_a_delete_that_stood_still_leaves_a_later_batch_of_its_id(
    connection: Connection, publisher: Publisher
) -> None:
    async with plant(connection, [], roles=("conductor",)) as node:
        instances: Instances = node.engine.instances
        files = Files(connection, publisher, connection.namespace.bucket("FILES"))
        slow = _Slow(connection, publisher)
        slow.is_near, slow.may_go = anyio.Event(), anyio.Event()
        old = Instance(instance_id="same", task="nobody", created_ms=1, state="done", ended_ms=10**14, deleted_ms=1)
        new = Instance(instance_id="same", task="nobody", created_ms=2, step_fence=1)
        await instances.create(old)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Removal(instances, slow, files).remove, old)
            await slow.is_near.wait()
            file = upload_name("same")
            await files.put(file, _one(b"a\n1\n"))
            await Removal(instances, node.items, files).remove(old)
            await instances.create(new)
            await node.items.stage("same", 1, 0, [Chunk(first=0, items=(Raw(b"1"),))], created_ms=2)
            slow.may_go.set()
        assert (await node.record("same")).created_ms == 2
        subject = connection.namespace.subject("items", "same", "1", "0")
        assert await last_entry(connection, connection.namespace.stream("ITEMS"), subject) is not None
        assert await files.info(file) is not None, "it was sent before the old one was gone"


async def test_an_id_whose_delete_is_under_way_is_free_at_once(connection: Connection, publisher: Publisher) -> None:
    async with plant(connection, [], roles=("conductor",)) as node:
        half = Instance(instance_id="half", task="nobody", created_ms=1, state="done", deleted_ms=now_ms())
        await node.engine.tasks.declare(TaskRecord(task="nobody"))
        await node.engine.instances.create(half)
        view = await node.submit("nobody", id="half")
        assert view.created_ms > 1, "else it is an answer about a batch that is about to go"
        assert (await node.record("half")).created_ms == view.created_ms


async def test_no_item_of_a_batch_that_is_being_deleted_counts_as_lost(
    connection: Connection, publisher: Publisher
) -> None:
    async with plant(connection, [], roles=("conductor",)) as node:
        seal = Seal(fence=1, chunks=1, items=1, digest="d")
        await node.engine.tasks.declare(TaskRecord(task="nobody"))
        half = Instance(
            instance_id="half", task="nobody", created_ms=1, state="done", deleted_ms=now_ms(), step_fence=1, seal=seal
        )
        await node.engine.instances.create(half)
        with pytest.raises(UnknownInstance):
            await node.desk.items.page("half")


async def test_a_cursor_is_of_one_batch_and_that_of_a_sheet_of_one_pass(connection: Connection) -> None:
    async with plant(connection, [], roles=("conductor",)) as node:
        await node.engine.tasks.declare(TaskRecord(task="nobody"))

        async def made(created_ms: int) -> None:
            chunk = Chunk(first=0, items=(Raw(b"%d" % created_ms),) * 3)
            await node.items.stage("same", created_ms, 0, [chunk], created_ms=created_ms)
            seal = Seal(fence=created_ms, chunks=1, items=3, digest="d")
            facts: dict[str, Any] = {"state": "done", "ended_ms": now_ms(), "step_fence": created_ms, "seal": seal}
            await node.engine.instances.create(
                Instance(instance_id="same", task="nobody", created_ms=created_ms, **facts)
            )

        await made(1)
        page, head = await node.desk.items.page("same", most=1), await node.desk.items.sheet("same")
        assert len((await node.desk.items.page("same", cursor=head.cursor)).items) == 3
        await node.engine.instances.move("same", lambda before: replace(before, passes=2))
        with pytest.raises(BatchRefused, match="was retried while its sheet was made") as refused:
            await node.desk.items.page("same", cursor=head.cursor)
        assert refused.value.code == "state"
        assert [each.item for each in (await node.desk.items.page("same", cursor=page.cursor)).items] == [1, 1]
        await node.desk.delete("same")
        await made(2)
        for cursor in (page.cursor, head.cursor):
            with pytest.raises(BatchRefused, match="its id is another instance's now; begin at the first") as refused:
                await node.desk.items.page("same", cursor=cursor)
            assert refused.value.code == "not_found"
        assert [each.item for each in (await node.desk.items.page("same")).items] == [2, 2, 2]
