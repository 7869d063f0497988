"""Batches that begin at a time, or after the end of another one."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest
from msgspec.structs import replace

import penstock
from actors.batch.rules import moves
from actors.batch.rules.record import Instance
from actors.batch.rules.refusals import BatchRefused
from actors.batch.rules.unfinished import Unfinished
from streams.clock import now_ms
from streams.link.connection import Connection
from tests.support.batches import Plant, plant

TASK = "one-after-another"


@penstock.batch(TASK, attempts=1)
class OneAfterAnother:
    """Its input is how each item ends."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*ctx.input)

    async def map(self, item: bool) -> None:
        if not item:
            raise penstock.Reject("as it was asked")


def _due_now(record: Instance) -> Instance:
    return replace(record, due_ms=0)


async def ended(plant: Plant, instance_id: str) -> tuple[str, str]:
    view = await plant.until(instance_id, "done", "failed", "cancelled")
    return view.state, view.reason


async def test_a_batch_begins_at_its_time(connection: Connection) -> None:
    async with plant(connection, [TASK]) as node:
        asked_ms = now_ms()
        made = await node.submit(TASK, [True], delay_ms=5_000)
        due_ms = made.due_ms
        assert asked_ms + 4_000 < due_ms < now_ms() + 6_000
        why = await node.desk.why(made.instance_id)
        assert (why.code, why.until_ms, made.waits.startswith("begins at ")) == ("due", due_ms, True)
        view = await node.until(made.instance_id, "done")
        assert due_ms <= view.started_ms < due_ms + 20_000
        at_once = await node.run(TASK, [True], due_ms=1)
        assert at_once.state == "done"


async def test_what_a_later_batch_costs_does_not_grow_with_those_that_wait(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked, walk = list[int](), Unfinished.__iter__

    def walks(all_: Unfinished) -> Iterator[Instance]:
        walked.append(len(all_))
        return walk(all_)

    monkeypatch.setattr(Unfinished, "__iter__", walks)
    async with plant(connection, [TASK]) as node:
        await node.submit(TASK, [True], id="later", delay_ms=600_000)
        for number in range(40):
            await node.submit(TASK, [True], id=f"later-{number}", delay_ms=600_000)
        await node.desk.start("later-7")
        assert (await node.until("later-7", "done")).counts.succeeded == 1
    assert not walked


async def test_a_batch_begins_after_another_one(connection: Connection) -> None:
    async with plant(connection, [TASK]) as node:
        await node.submit(TASK, [True, False], id="l-first", delay_ms=600_000)
        await node.submit(TASK, [True], id="l-second", after="l-first")
        await node.submit(TASK, [True], id="l-third", after="l-second", after_state="clean")
        await node.submit(TASK, [True], id="l-picky", after="l-first", after_state="clean")
        why = await node.desk.why("l-second")
        assert (why.code, why.reason) == ("after", "it begins when l-first is done; that is pending")
        await node.engine.instances.move("l-first", _due_now)
        assert await ended(node, "l-third") == ("done", "")
        times = [(await node.desk.show(each)) for each in ("l-first", "l-second", "l-third")]
        assert times[0].ended_ms <= times[1].started_ms <= times[1].ended_ms <= times[2].started_ms
        state, reason = await ended(node, "l-picky")
        assert (state, "which is done with 1 items that did not succeed" in reason) == ("failed", True)


async def test_a_predecessor_that_did_not_end_well_is_told_and_both_can_be_retried(connection: Connection) -> None:
    async with plant(connection, [TASK]) as node:
        await node.submit(TASK, [True], id="l-stopped", delay_ms=600_000)
        await node.submit(TASK, [True], id="l-next", after="l-stopped")
        await node.submit(TASK, [True], id="l-last", after="l-next")
        await node.submit(TASK, [True], id="l-else", after="l-stopped", after_state="not_done")
        await node.desk.cancel("l-stopped")
        for instance_id, before in (("l-next", "l-stopped"), ("l-last", "l-next")):
            state, reason = await ended(node, instance_id)
            assert (state, f"after {before} is done, which is" in reason) == ("failed", True)
        assert await ended(node, "l-else") == ("done", "")
        await node.engine.instances.move("l-stopped", _due_now)
        for instance_id in ("l-stopped", "l-next"):
            await node.desk.retry(instance_id)
        assert await ended(node, "l-next") == ("done", "")


async def test_a_predecessor_that_is_deleted_frees_or_fails_what_waits(connection: Connection) -> None:
    async with plant(connection, [TASK]) as node:
        await node.submit(TASK, [True], id="l-gone", delay_ms=600_000)
        await node.submit(TASK, [True], id="l-orphan", after="l-gone")
        await node.desk.cancel("l-gone")
        await node.desk.delete("l-gone")
        state, reason = await ended(node, "l-orphan")
        assert (state, "l-gone" in reason) == ("failed", True)
        with pytest.raises(BatchRefused, match="after l-gone: no batch 'l-gone'"):
            await node.submit(TASK, [True], after="l-gone")
        with pytest.raises(BatchRefused, match="wait for itself"):
            await node.submit(TASK, [True], id="l-own", after="l-own")
        await node.submit(TASK, [True], id="l-gone", after="l-orphan", after_state="over")  # no circle: it is another
        assert await ended(node, "l-gone") == ("done", "")


async def test_why_tells_nothing_of_a_later_batch_of_the_others_id(connection: Connection) -> None:
    """No conductor lives, so the deleted one is not seen."""
    async with plant(connection, [TASK], roles=("desk", "executor")) as node:
        await node.submit(TASK, [True], id="l-gone", delay_ms=600_000)
        await node.submit(TASK, [True], id="l-orphan", after="l-gone")
        await node.engine.instances.remove(await node.record("l-gone"))
        await node.submit(TASK, [True], id="l-gone", delay_ms=600_000)
        why = await node.desk.why("l-orphan")
        assert why.reason == "it begins when l-gone is done; that was deleted, and this is seen within moments"


async def test_a_person_lets_a_batch_begin_that_waits(connection: Connection) -> None:
    async with plant(connection, [TASK]) as node:
        await node.submit(TASK, [True], id="l-far", delay_ms=600_000)
        await node.submit(TASK, [True], id="l-behind", after="l-far")
        assert (await node.desk.start("l-behind")).waits == ""
        assert await ended(node, "l-behind") == ("done", "")
        await node.desk.start("l-far")
        assert await ended(node, "l-far") == ("done", "")
        with pytest.raises(BatchRefused, match="l-far is done; `penstock batch retry l-far`"):
            await node.desk.start("l-far")


async def test_what_is_cancelled_while_it_waits_stays_so(connection: Connection) -> None:
    async with plant(connection, [TASK]) as node:
        await node.submit(TASK, [True], id="l-before", delay_ms=600_000)
        await node.submit(TASK, [True], id="l-dropped", after="l-before")
        assert (await node.desk.cancel("l-dropped")).state == "cancelled"
        await node.engine.instances.move("l-before", _due_now)
        assert await ended(node, "l-before") == ("done", "")
        assert await ended(node, "l-dropped") == ("cancelled", "")


async def test_a_batch_that_ended_while_nobody_looked_frees_what_waits(connection: Connection) -> None:
    async with plant(connection, [TASK]) as node:
        await node.run(TASK, [True], id="l-early")
    async with plant(connection, [TASK], roles=("desk",), name="n2") as node:
        await node.submit(TASK, [True], id="l-late", after="l-early")
        await node.desk.delete("l-early")
        record = await node.record("l-late")
        assert (record.state, record.freed_ms > 0) == ("pending", True)
    with anyio.fail_after(60):
        async with plant(connection, [TASK], name="n3") as node:
            assert await ended(node, "l-late") == ("done", "")


async def test_a_look_that_is_late_undoes_no_retry(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that was stopped between its read of the other one and its write wakes after a person's retries."""
    async with plant(connection, [TASK], roles=("desk", "executor")) as node:
        instances = node.engine.instances
        await node.submit(TASK, [True], id="l-other", delay_ms=600_000)
        await node.submit(TASK, [True], id="l-again", after="l-other")
        held = await node.record("l-again")
        cancelled = await instances.move("l-other", lambda record: moves.cancel(record, now_ms()))
        await instances.follow(held, now_ms())
        assert (await node.record("l-again")).state == "failed"
        for instance_id in ("l-other", "l-again"):
            await node.desk.retry(instance_id)

        async def read_before(_instance_id: str) -> Instance:
            return cancelled

        with monkeypatch.context() as late:
            late.setattr(instances, "get", read_before)
            await instances.follow(held, now_ms())
        assert (await node.desk.show("l-again")).state == "pending"
