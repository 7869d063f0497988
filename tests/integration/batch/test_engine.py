"""Batches from the split to the one result: every item's end is counted once, whatever happens on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import penstock
from actors.batch.instances import InstanceExists, UnknownInstance
from actors.batch.items import BatchItems
from actors.batch.rules.record import Instance
from actors.batch.rules.refusals import BatchRefused
from actors.batch.tasks import UnknownTask
from streams.errors import OutcomeUnknown, RevisionConflict
from streams.link.connection import Connection
from streams.messages.batch import ChunkResult, Counts
from tests.support.batches import LONG_S, Plant, plant_in_its_own_task
from tests.support.moments import a_moment

QUICK: dict[str, Any] = {"retry_base_s": 0.01, "retry_cap_s": 0.02}


class Log:
    """What the tasks of one test did: the tasks are made once a process, tests come one after the other."""

    def __init__(self) -> None:
        self.ran: Counter[int] = Counter()
        self.unmarked: list[int] = []
        self.begun: list[str] = []
        self.at_work: Counter[str] = Counter()
        self.is_mended = False
        self.splits = 0
        self.reduces = 0
        self.gate = anyio.Event()
        self.gates = {name: anyio.Event() for name in ("first", "second")}
        self.began = anyio.Event()
        self.items: BatchItems


log = Log()


@pytest.fixture(autouse=True)
def fresh_log() -> None:
    log.__init__()  # type: ignore[misc] # the tasks hold the object


async def count(ctx: penstock.ReduceContext) -> dict[str, int]:
    """Reduce to how many items ended how."""
    ends: Counter[str] = Counter()
    async for page in ctx.read(3):
        ends.update(result.status for result in page)
    return dict(ends)


@penstock.batch("plain", concurrency=1, attempts=3, chunk_items=4, **QUICK)
class Plain:
    """Items say what shall become of them."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        log.splits += 1
        for item in ctx.input:
            await ctx.commit(item)

    async def map(self, item: Any, ctx: penstock.ItemContext) -> Any:
        log.ran[ctx.index] += 1
        match item:
            case "reject":
                raise penstock.Reject("no such shop")
            case "skip":
                raise penstock.Skip("was there")
            case "always":
                raise OSError("busy")
            case "once" if ctx.attempt == 1:
                raise OSError("busy")
            case "gate":
                log.began.set()
                await log.gate.wait()
            case "odd":
                return object()
        return {"ran": ctx.attempt} if item == "tell" else None

    async def reduce(self, ctx: penstock.ReduceContext) -> dict[str, int]:
        log.reduces += 1
        return await count(ctx)


@penstock.batch("breaking", attempts=2, chunk_items=2, **QUICK)
class Breaking:
    """Its split and its reduce break until the call that its input names, each after it did half of its work."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        log.splits += 1
        await ctx.commit(*range(40))
        if log.splits < ctx.input["splits"]:
            raise OSError("the file went away")
        await ctx.commit(*range(40, 50))

    async def map_many(self, items: list[int]) -> None:
        log.ran.update(items)

    async def reduce(self, ctx: penstock.ReduceContext) -> dict[str, Any]:
        log.reduces += 1
        async with penstock.write_sheet(ctx, "out.jsonl", ["n"]) as sheet:
            await sheet.write([{"n": log.reduces}])
        if log.reduces < ctx.input.get("reduces", 2):
            raise OSError("the disk is full")
        return {"files": sheet.names, **await count(ctx)}


@penstock.batch("once-only", is_idempotent=False, chunk_items=3, attempts=2, **QUICK)
class OnceOnly:
    """Items that may not begin twice. Of those begun, item 2 has happened, of item 1 nobody knows, others have not."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*range(6))

    async def map(self, item: int, ctx: penstock.ItemContext) -> None:
        log.ran[item] += 1
        begun, _ = await log.items.begun(ctx.instance_id, item // 3, ctx.attempt)
        if ctx.index not in begun:
            log.unmarked.append(item)
        if item == 5 and ctx.attempt == 1:
            raise OSError("busy")

    async def check(self, item: int) -> bool | None:
        return {1: None, 2: True}.get(item, False)

    async def reduce(self, ctx: penstock.ReduceContext) -> dict[str, int]:
        return await count(ctx)


@penstock.batch("fragile", most_failures=0.25, chunk_items=1, attempts=1)
class Fragile:
    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*ctx.input)

    async def map(self, item: str) -> None:
        if item == "bad" and not log.is_mended:
            raise ValueError("bad")

    async def reduce(self, ctx: penstock.ReduceContext) -> dict[str, int]:
        return await count(ctx)


@penstock.batch("narrow", item_concurrency=2, concurrency=8, chunk_items=5)
class Narrow:
    """Notes how many of its items are at work at the same time."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*range(30))

    async def map(self, item: int) -> None:
        log.ran[0] += 1
        log.ran[1] = max(log.ran[0], log.ran[1])
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        log.ran[0] -= 1

    async def reduce(self, ctx: penstock.ReduceContext) -> dict[str, int]:
        return await count(ctx)


@penstock.batch("two-places", main_concurrency=2)
class TwoPlaces:
    """Notes which instances begin, in their order, and how many are at work. Those that are told so wait at a gate."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        log.begun.append(ctx.instance_id)
        log.at_work["now"] += 1
        log.at_work["most"] = max(log.at_work["most"], log.at_work["now"])
        if ctx.input:
            await log.gates[ctx.input].wait()

    async def map(self, item: int) -> None:
        raise AssertionError("there is none")

    async def reduce(self, ctx: penstock.ReduceContext) -> None:
        log.at_work["now"] -= 1


@penstock.batch("slow", item_rate=100, chunk_items=10)
class Slow:
    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*range(60))

    async def map_many(self, items: list[int]) -> None:
        log.ran.update(items)

    async def reduce(self, ctx: penstock.ReduceContext) -> dict[str, int]:
        return await count(ctx)


TASKS = ("plain", "breaking", "once-only", "fragile", "narrow", "two-places", "slow")


@pytest.fixture
async def node(connection: Connection) -> AsyncIterator[Plant]:
    async with plant_in_its_own_task(connection, TASKS) as running:
        log.items = running.items
        yield running


async def test_every_item_ends_as_its_code_says(node: Plant) -> None:
    items = ["ok", "tell", "reject", "skip", "always", "once", "odd", "ok", "ok"]
    view = await node.run("plain", items)
    assert (view.state, view.items) == ("done", 9)
    assert view.counts == Counts(succeeded=6, failed=2, skipped=1)
    assert view.result == {"ok": 6, "failed": 2, "skipped": 1}
    assert (log.ran[4], log.ran[5], log.ran[2]) == (3, 2, 1)
    page = await node.desk.items.page(view.instance_id)
    told = [(each.index, each.item, each.status, each.info) for each in page.items]
    assert told[1] == (1, "tell", "ok", {"ran": 1})
    assert told[2] == (2, "reject", "failed", "no such shop")
    assert told[4] == (4, "always", "failed", "OSError: busy")
    assert "cannot be written as JSON" in told[6][3]["not_told"]
    assert sorted(view.reasons) == ['item 2: "no such shop"', 'item 4: "OSError: busy"']


@pytest.mark.three_servers
async def test_hundreds_of_items_are_each_run_once(node: Plant) -> None:
    view = await node.run("plain", ["ok"] * 600)
    assert (view.state, view.counts) == ("done", Counts(succeeded=600))
    assert log.ran == Counter(range(600))


async def test_an_instance_without_items_is_done(node: Plant) -> None:
    view = await node.run("plain", [])
    assert (view.state, view.items, view.result) == ("done", 0, {})


async def test_what_failed_is_run_again_alone_and_the_result_is_made_anew(node: Plant) -> None:
    view = await node.run("plain", ["ok"] * 5 + ["always"] * 2)
    assert view.counts == Counts(succeeded=5, failed=2)
    before = log.ran.copy()
    await node.desk.retry(view.instance_id, [6])
    view = await node.until(view.instance_id, "done")
    assert (log.ran - before, log.reduces, view.passes) == (Counter({6: 3}), 2, 2)
    assert view.counts == Counts(succeeded=5, failed=2)
    assert sorted(view.reasons) == ['item 5: "OSError: busy"', 'item 6: "OSError: busy"']
    await node.desk.retry(view.instance_id)
    await node.until(view.instance_id, "done")
    assert log.ran - before == Counter({6: 6, 5: 3})
    with pytest.raises(BatchRefused, match="nothing failed"):
        await node.desk.retry((await node.run("plain", ["ok"])).instance_id)


async def test_a_split_that_broke_half_way_leaves_no_item_behind(node: Plant) -> None:
    view = await node.run("breaking", {"splits": 2})
    assert (view.state, view.items, view.counts.succeeded) == ("done", 50, 50)
    assert log.ran == Counter(range(50))
    assert (log.splits, log.reduces) == (2, 2)
    info, data = await node.desk.result(view.instance_id, "out.jsonl")
    assert b"".join([part async for part in data]) == b'{"n":2}\n'
    assert info.name == f"{view.files_at}out.jsonl"


async def test_a_split_that_always_breaks_fails_the_instance_and_says_why(node: Plant) -> None:
    view = await node.run("breaking", {"splits": 9})
    assert (view.state, view.reason) == ("failed", "splitting: OSError: the file went away")
    assert log.ran == Counter()
    log.splits = 9
    await node.desk.retry(view.instance_id)
    assert (await node.until(view.instance_id, "done")).counts == Counts(succeeded=50)


async def test_a_reduce_that_always_breaks_fails_the_instance_and_is_tried_again_alone(node: Plant) -> None:
    view = await node.run("breaking", {"splits": 1, "reduces": 9})
    assert (view.state, view.reason) == ("failed", "reducing: OSError: the disk is full")
    assert view.counts == Counts(succeeded=50)
    before, log.reduces = log.ran.copy(), 9
    await node.desk.retry(view.instance_id)
    assert (await node.until(view.instance_id, "done")).counts == Counts(succeeded=50)
    assert log.ran == before


async def test_the_first_result_of_a_round_counts(node: Plant) -> None:
    view = await node.run("plain", ["ok", "reject"])
    first = await node.results(view.instance_id)
    second = ChunkResult(chunk=0, round=1, by="late", ran=((0, 2),), counts=Counts(succeeded=2))
    assert not await node.items.add_result(await node.record(view.instance_id), second)
    assert await node.results(view.instance_id) == first
    assert (await node.desk.show(view.instance_id)).counts == Counts(succeeded=1, failed=1)


async def test_a_result_on_its_way_is_not_taken_for_stored(node: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three servers refuse the second while the first is on its way, and may yet drop that with their leader."""

    async def refuse(subject: str, *_: object, **__: object) -> None:
        raise RevisionConflict("wrong last sequence", subject=subject, code=400, err_code=10164)

    monkeypatch.setattr(node.items._publisher, "publish", refuse)
    with pytest.raises(OutcomeUnknown, match="on its way"):
        await node.items.add_result(
            Instance(instance_id="mine", task="plain", created_ms=0), ChunkResult(chunk=0, round=1, ran=((0, 1),))
        )


async def test_an_item_that_may_not_run_twice_begins_once_and_may_end_unknown(node: Plant) -> None:
    await node.items.begin("chosen", 0, 1, [0, 1, 2], expected_seq=0)
    view = await node.run("once-only", id="chosen")
    assert view.counts == Counts(succeeded=5, unknown=1)
    assert (log.ran, log.unmarked) == (Counter({0: 1, 3: 1, 4: 1, 5: 2}), [])
    page = await node.desk.items.page("chosen", status="unknown")
    assert [(each.index, each.info) for each in page.items] == [(1, "it was begun, and nobody knows how it ended")]


async def test_too_many_failures_stop_the_rest(node: Plant) -> None:
    view = await node.run("fragile", ["bad"] * 80 + ["good"] * 120)
    assert view.state == "failed"
    assert 50 < view.counts.failed <= 80
    assert view.counts.ended == view.items == 200
    assert "items failed" in view.reason
    log.is_mended = True
    await node.desk.retry(view.instance_id)
    view = await node.until(view.instance_id, "done", "failed")
    assert (view.state, view.counts) == ("done", Counts(succeeded=200))


async def test_cancelled_what_runs_ends_and_the_rest_is_cancelled(node: Plant) -> None:
    view = await node.submit("plain", ["gate"] * 1000)
    with anyio.fail_after(LONG_S):
        while log.ran.total() < 2:  # the first of four of each chunk in hand
            await a_moment()
        assert (await node.desk.cancel(view.instance_id)).state == "cancelling"
        released = (await node.record(view.instance_id)).released
        while not ((seen := node.engine.instances.seen(view.instance_id)) and seen.is_cancelling):
            await a_moment()
    log.gate.set()
    view = await node.until(view.instance_id, "cancelled")
    page = await node.desk.items.page(view.instance_id, status="ok")
    assert [each.index for each in page.items] == [0, 4]
    assert (view.counts, log.ran) == (Counts(succeeded=2, cancelled=998), Counter([0, 4]))
    assert (await node.record(view.instance_id)).released == released < 250
    assert (await node.desk.cancel(view.instance_id)).state == "cancelled"
    assert log.reduces == 0


async def test_cancelled_by_mistake_what_had_not_ended_is_run(node: Plant) -> None:
    view = await node.submit("plain", ["gate"] + ["ok"] * 99)
    with anyio.fail_after(LONG_S):
        await log.began.wait()
    await node.desk.cancel(view.instance_id)
    with pytest.raises(BatchRefused, match="is cancelling"):
        await node.desk.retry(view.instance_id)
    log.gate.set()
    assert (await node.until(view.instance_id, "cancelled")).counts.cancelled > 0
    await node.desk.retry(view.instance_id)
    assert (await node.until(view.instance_id, "done")).counts == Counts(succeeded=100)
    assert log.ran == Counter(range(100))


async def test_paused_nothing_begins_and_resumed_it_ends(node: Plant) -> None:
    view = await node.submit("plain", ["gate", "ok"])
    with anyio.fail_after(LONG_S):
        await log.began.wait()
    assert (await node.desk.pause(view.instance_id)).state == "paused"
    log.gate.set()
    with anyio.fail_after(LONG_S):
        while (await node.desk.show(view.instance_id)).counts.succeeded < 2:
            await a_moment()
    assert (await node.desk.show(view.instance_id)).state == "paused"
    await node.desk.resume(view.instance_id)
    assert (await node.until(view.instance_id, "done")).counts.succeeded == 2


async def test_paused_only_the_chunks_in_hand_end(node: Plant) -> None:
    view = await node.submit("plain", ["gate"] * 100)
    with anyio.fail_after(LONG_S):
        await log.began.wait()
        assert (await node.desk.pause(view.instance_id)).state == "paused"
        log.gate.set()
        while (await node.desk.show(view.instance_id)).counts.succeeded < log.ran.total():
            await a_moment()
    assert (await node.run("fragile", ["good"])).state == "done"
    assert 4 <= log.ran.total() < 40  # a few chunks of four
    assert (await node.desk.show(view.instance_id)).state == "paused"
    await node.desk.resume(view.instance_id)
    assert (await node.until(view.instance_id, "done")).counts.succeeded == 100


async def test_instances_wait_for_their_turn_by_priority_and_tenant(node: Plant) -> None:
    """Two are at work. As one of them ends, those that wait come one by one: first the urgent one, then those of the
    tenant that has none at work, in the order in which they were made, and then the oldest."""
    asked = [("first", "a", 0), ("second", "b", 0), ("oldest", "a", 0), ("c-1", "c", 0), ("c-2", "c", 0)]
    for name, tenant, priority in [*asked, ("urgent", "a", 5)]:
        given = name if name in log.gates else None
        await node.submit("two-places", given, id=name, tenant=tenant, priority=priority)
        with anyio.fail_after(LONG_S):
            while node.engine.instances.seen(name) is None or (given and name not in log.begun):
                await a_moment()
    assert log.begun == ["first", "second"]
    log.gates["second"].set()
    await node.until("oldest", "done")
    log.gates["first"].set()
    await node.until("first", "done")
    assert log.begun == ["first", "second", "urgent", "c-1", "c-2", "oldest"]
    assert log.at_work["most"] == 2


async def test_instances_begin_at_the_tasks_rate(node: Plant) -> None:
    await node.desk.limit("plain", {"main_rate": 4})
    views = [await node.submit("plain", ["ok"]) for _ in range(5)]
    for view in views:
        await node.until(view.instance_id, "done")
    begun = sorted([(await node.desk.show(view.instance_id)).started_ms for view in views])
    assert min(later - earlier for earlier, later in pairwise(begun)) >= 250


async def test_why_counts_those_that_begin_before_an_instance(node: Plant) -> None:
    await node.desk.limit("plain", {"main_rate": 0.01})
    first = await node.submit("plain", ["ok"])
    await node.until(first.instance_id, "done")
    began_ms = (await node.desk.show(first.instance_id)).started_ms
    for name, priority in (("low", 0), ("later", 0), ("urgent", 5)):
        await node.submit("plain", ["ok"], id=name, priority=priority)
        with anyio.fail_after(LONG_S):
            while node.engine.instances.seen(name) is None:
                await a_moment()
    for name, number in (("urgent", 1), ("low", 2), ("later", 3)):
        told = await node.desk.why(name)
        assert (told.code, told.until_ms) == ("rate", began_ms + number * 100_000), name


async def test_the_same_again_is_one_instance_and_another_under_its_id_is_refused(node: Plant) -> None:
    first = await node.run("plain", ["ok"], id="mine")
    again = await node.submit("plain", ["ok"], id="mine")
    assert (again.state, again.created_ms) == ("done", first.created_ms)
    with pytest.raises(InstanceExists, match="with another input"):
        await node.submit("plain", ["other"], id="mine")
    with pytest.raises(InstanceExists):
        await node.submit("plain", ["ok"], id="mine", tenant="another")


async def test_what_there_is_not_is_told(node: Plant) -> None:
    with pytest.raises(UnknownTask, match="no task 'nothing'"):
        await node.submit("nothing")
    with pytest.raises(UnknownInstance, match="no batch 'nothing'"):
        await node.desk.show("nothing")
    with pytest.raises(BatchRefused, match="cursor 'x'"):
        await node.desk.items.page((await node.run("plain", [])).instance_id, cursor="x")


async def test_no_more_items_are_at_work_than_the_task_allows(node: Plant) -> None:
    assert (await node.run("narrow")).result == {"ok": 30}
    assert log.ran[1] == 2


async def test_items_go_at_the_tasks_rate(node: Plant) -> None:
    began_s = anyio.current_time()
    assert (await node.run("slow")).result == {"ok": 60}
    assert anyio.current_time() - began_s >= (60 - 10) / 100  # ten may go at once: a tenth of a second's worth


async def test_cancelled_at_a_low_rate_it_does_not_wait_for_its_turn(node: Plant) -> None:
    await node.desk.limit("slow", {"item_rate": 1})
    view = await node.submit("slow")
    with anyio.fail_after(LONG_S):
        while not log.ran:
            await a_moment()
    began_s = anyio.current_time()
    await node.desk.cancel(view.instance_id)
    ended = await node.until(view.instance_id, "cancelled")
    assert anyio.current_time() - began_s < 30  # sixty items at one a second would take a minute
    assert ended.counts.ended == 60
