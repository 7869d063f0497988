"""Somebody removed messages of an instance from the stream by hand: it ends all the same, and tells what was lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

import penstock
from actors.batch.rules.record import Instance, OpenChunk, Seal, faults
from actors.batch.rules.refusals import BatchRefused
from actors.batch.tasks import TaskRecord
from penstock.rows.sheets.parsing import parse_sheet
from streams.link.connection import Connection
from streams.messages.batch import LOST, Chunk, ChunkResult, Counts, Outcome
from streams.reads.log import delete_entry, last_entry
from tests.support.batches import Plant, plant

ITEMS, EACH = 8, 3
ran: Counter[int] = Counter()
is_bad: list[bool] = []


@penstock.batch("robbed", attempts=2, retry_base_s=0.01)
class Robbed:
    """Its result is how each item ended."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        raise AssertionError("the tests store the items")

    async def map(self, item: str) -> None:
        return None

    async def reduce(self, ctx: penstock.ReduceContext) -> dict[str, Any]:
        ends = [
            [result.index, result.item, result.status, result.info] async for page in ctx.read(4) for result in page
        ]
        return {"ends": ends, "counts": [ctx.counts.succeeded, ctx.counts.failed]}


@penstock.batch("robbed-once", attempts=1, chunk_items=EACH, is_idempotent=False)
class RobbedOnce:
    """Its last item fails for a while."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*range(ITEMS))

    async def map(self, item: int) -> None:
        ran[item] += 1
        if item == ITEMS - 1 and is_bad:
            raise ValueError("bad")


@penstock.batch("robbed-sheet", chunk_items=2)
class RobbedSheet:
    async def map(self, item: dict[str, str]) -> None:
        return None


async def sealed(node: Plant, **facts: Any) -> None:
    """Make an instance whose split is over, and which is paused."""
    chunks = [Chunk(first=first, items=(Raw(b'"ok"'),) * min(EACH, ITEMS - first)) for first in range(0, ITEMS, EACH)]
    await node.items.stage("mine", 1, 0, chunks)
    seal = Seal(fence=1, chunks=len(chunks), items=ITEMS, digest="d")
    known: dict[str, Any] = {"state": "running", "task": "robbed", "step_fence": 1, "seal": seal, "is_paused": True}
    await node.engine.instances.create(Instance(instance_id="mine", created_ms=0, **{**known, **facts}))


async def remove(connection: Connection, *tokens: str) -> None:
    """Remove a message as an operator would: for good, by its place in the stream."""
    namespace = connection.namespace
    entry = await last_entry(connection, namespace.stream("ITEMS"), namespace.subject(*tokens))
    assert entry is not None, tokens
    assert await delete_entry(connection, namespace.stream("ITEMS"), entry.seq)


@pytest.mark.parametrize("rob", [[0], [1], [2], [0, 1], [1, 2], [0, 2], [0, 1, 2]], ids=str)
async def test_items_of_a_chunk_that_is_gone_have_failed_and_all_others_end(
    connection: Connection, rob: list[int]
) -> None:
    async with plant(connection, ["robbed"]) as node:
        await sealed(node)
        for number in rob:
            await remove(connection, "items", "mine", "1", str(number))
        await node.desk.resume("mine")
        view = await node.until("mine", "done")
        lost = [index for index in range(ITEMS) if index // EACH in rob]
        assert view.counts == Counts(succeeded=ITEMS - len(lost), failed=len(lost))
        expected = [[at, None, "failed", LOST] if at in lost else [at, "ok", "ok", None] for at in range(ITEMS)]
        assert view.result == {"ends": expected, "counts": [ITEMS - len(lost), len(lost)]}
        page = await node.desk.items.page("mine", status="failed")
        assert [(each.index, each.item, each.info) for each in page.items] == [(at, None, LOST) for at in lost]
        assert f"{len(lost)} items: {LOST}" in view.reasons
        for at in range(ITEMS):
            end = f"it has ended: failed, {LOST}" if at in lost else "it has ended: ok"
            assert (await node.desk.why("mine", at)).reason == end
        await node.desk.retry("mine")
        again = await node.until("mine", "done")
        assert (again.counts, again.passes) == (view.counts, 2)


async def test_what_is_no_chunk_is_as_good_as_gone(connection: Connection) -> None:
    async with plant(connection, ["robbed"]) as node:
        await sealed(node)
        await connection.publish_core(connection.namespace.subject("items", "mine", "1", "1"), b"{not json")
        await node.desk.resume("mine")
        view = await node.until("mine", "done")
    assert view.counts == Counts(succeeded=5, failed=3)


@pytest.mark.parametrize("robbed", [("items", "mine", "1", "0"), ("results", "mine", "0", "1")], ids=lambda at: at[0])
async def test_what_goes_between_two_rounds_keeps_what_was_counted_before(
    connection: Connection, robbed: tuple[str, ...]
) -> None:
    first = ChunkResult(
        chunk=0, round=1, ran=((0, 3),), others=(Outcome(1, "again"),), counts=Counts(succeeded=2), again=1
    )
    async with plant(connection, ["robbed"]) as node:
        await node.items.add_result(Instance(instance_id="mine", task="robbed", created_ms=0), first)
        known = {"released": 1, "open": (OpenChunk(chunk=0, round=2),), "counts": Counts(succeeded=2)}
        await sealed(node, **known)
        await remove(connection, *robbed)
        await node.desk.resume("mine")
        view = await node.until("mine", "done")
        ends = [(await node.desk.why("mine", at)).reason for at in range(ITEMS) if at != 1]
        if robbed[0] == "items":
            assert set(ends) == {"it has ended: ok"}
            assert LOST in (await node.desk.why("mine", 1)).reason
    assert view.counts == Counts(succeeded=7, failed=1)


async def test_a_result_of_an_earlier_pass_that_is_gone_runs_nothing_again(connection: Connection) -> None:
    """Nobody knows any more which of its items succeeded."""
    ran.clear()
    is_bad.append(True)
    async with plant(connection, ["robbed-once"]) as node:
        view = await node.run("robbed-once", id="mine")
        assert view.counts == Counts(succeeded=ITEMS - 1, failed=1)
        await remove(connection, "results", "mine", "0", "1")
        is_bad.clear()
        await node.desk.retry("mine")
        view = await node.until("mine", "done")
        assert view.counts == Counts(succeeded=ITEMS)
        assert ran == Counter([*range(ITEMS), ITEMS - 1])
        await remove(connection, "results", "mine", "2", "1001")
        await node.desk.retry("mine", [0, ITEMS - 1])
        view = await node.until("mine", "done")
        record = await node.record("mine")
    assert (view.counts, view.passes, faults(record)) == (Counts(succeeded=ITEMS), 3, [])
    assert ran == Counter([*range(ITEMS), ITEMS - 1])


async def test_a_cancelled_instance_whose_chunks_are_gone_ends(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.batch.conductor.REOFFER_MS", 50)
    async with plant(connection, [], roles=("conductor",)) as node:
        await node.engine.tasks.declare(TaskRecord(task="robbed"))
        await sealed(node, released=1, open=(OpenChunk(chunk=0, round=1),))
        await remove(connection, "items", "mine", "1", "0")
        await node.desk.cancel("mine")
        assert (await node.until("mine", "cancelled")).counts == Counts(cancelled=ITEMS)


async def test_the_sheet_of_a_robbed_instance_has_a_row_for_what_was_lost(
    connection: Connection, tmp_path: Path
) -> None:
    async def upload() -> AsyncIterator[bytes]:
        yield b"sku\na\nb\nc\n"

    async with plant(connection, ["robbed-sheet"]) as node:
        await node.run("robbed-sheet", upload=upload(), name="rows.csv", id="mine")
        seal = (await node.record("mine")).seal
        assert seal is not None
        await remove(connection, "items", "mine", str(seal.fence), "0")
        await node.desk.retry("mine", [0, 2])
        view = await node.until("mine", "done")
        assert (view.counts, view.passes) == (Counts(succeeded=3), 2)
        _, parts = await node.desk.result("mine")
        (tmp_path / "result.xlsx").write_bytes(b"".join([part async for part in parts]))
    rows = [cells async for page in parse_sheet(tmp_path / "result.xlsx") for _, cells in page]
    assert [(row.get("sku"), row["status"]) for row in rows] == [
        ("", "succeeded"),
        ("", "succeeded"),
        ("c", "succeeded"),
    ]


async def test_a_row_of_a_missing_chunk_is_found_where_no_row_was_empty(connection: Connection) -> None:
    rows = [2, 3, 5, 6, 7, 8]  # row 4 was empty
    chunks = [
        Chunk(first=at, items=tuple(Raw(b'[%d,{"sku":"A%d"}]' % (row, row)) for row in rows[at : at + 2]))
        for at in range(0, 6, 2)
    ]
    async with plant(connection, ["robbed-sheet"]) as node:
        for name, robbed in (("first", 0), ("middle", 1), ("last", 2)):
            await node.items.stage(name, 1, 0, chunks)
            seal = Seal(fence=1, chunks=3, items=6, digest="d")
            facts: dict[str, Any] = {"state": "running", "task": "robbed-sheet", "step_fence": 1, "is_paused": True}
            record = Instance(instance_id=name, created_ms=0, seal=seal, **facts)
            await node.engine.instances.create(record)
            await remove(connection, "items", name, "1", str(robbed))
        assert [(await node.desk.why("first", row=row)).item for row in (5, 8)] == [2, 5]
        assert [(await node.desk.why("middle", row=row)).item for row in (2, 3, 7)] == [0, 1, 4]
        assert [(await node.desk.why("last", row=row)).item for row in (2, 6)] == [0, 3]
        for name, row in (("first", 2), ("middle", 5), ("last", 7)):
            with pytest.raises(BatchRefused, match=f"row {row}: rows near it in {name} are gone"):
                await node.desk.why(name, row=row)
