"""Splits that stream: items run while the split still goes on, and what was let out stands whatever becomes of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import penstock
from actors.batch.rules import moves
from penstock.sdk.batches import task_handlers
from penstock.sdk.calls import ServiceClient
from penstock.sdk.client_batches import Batches
from streams.backoff import Backoff
from streams.embedded.server import EmbeddedServer
from streams.errors import OutcomeUnknown
from streams.link.connection import Connection
from streams.messages.batch import Counts
from streams.topology.specs import wanted
from tests.support.batch_streaming_app import ALL, HALF, STREAMED, notes_of
from tests.support.batches import LONG_S, Plant, plant
from tests.support.command import node as node_process
from tests.support.moments import a_moment
from tests.support.server import make_topology


class Log:
    """What the task of one test did, and what its split waits for."""

    def __init__(self) -> None:
        self.ran: Counter[int] = Counter()
        self.splits = 0
        self.five_ran = anyio.Event()
        self.gate = anyio.Event()
        self.refused: set[int] = set()
        """Items that fail."""
        self.is_held = False
        """Whether item 4 waits at the gate, too."""
        self.held = anyio.Event()


log = Log()


@pytest.fixture(autouse=True)
def fresh() -> None:
    log.__init__()  # type: ignore[misc] # the task holds the object


@penstock.batch("streaming", streaming=True, chunk_items=3, attempts=2, retry_base_s=0.01)
class Streaming:
    """Its split commits five items, and goes on as the input says when these have run."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        log.splits += 1
        given = ctx.input or {}
        await ctx.commit(*range(5) if log.splits == 1 else given.get("again", range(5)))
        if log.splits == 1:
            await log.five_ran.wait()
            await log.gate.wait()
        if log.splits <= given.get("fails", 0):
            raise OSError("the file went away")
        if log.splits <= given.get("breaks", 0):
            raise OutcomeUnknown("no answer", subject="items")
        if "again" not in given:
            await ctx.commit(*range(5, 12))

    async def map(self, item: int, ctx: penstock.ItemContext) -> int:
        assert ctx.index == item
        log.ran[item] += 1
        if log.ran.total() == 5:
            log.five_ran.set()
        if item in log.refused:
            raise penstock.Reject("no such shop")
        if item == 4 and log.is_held:
            log.held.set()
            await log.gate.wait()
        return item

    async def reduce(self, ctx: penstock.ReduceContext) -> dict[str, list[int]]:
        return {"items": [result.item async for page in ctx.read(4) for result in page]}


async def half_way(node: Plant, given: Any = None) -> None:
    """Submit an instance, and wait until the five items that its split has committed are counted."""
    await node.submit("streaming", given, id="mine")
    with anyio.fail_after(LONG_S):
        while (await node.record("mine")).counts.ended < 5:
            await a_moment()


async def test_items_run_before_the_split_has_ended_and_reduce_comes_after_all(connection: Connection) -> None:
    async with plant(connection, ["streaming"]) as node:
        await half_way(node)
        view = await node.desk.show("mine")
        page = await node.desk.items.page("mine", most=3)
        assert (view.state, view.items, view.counts) == ("splitting", None, Counts(succeeded=5))
        assert [(each.item, each.status) for each in page.items] == [(0, "ok"), (1, "ok"), (2, "ok")]
        log.gate.set()
        view = await node.until("mine", "done")
    assert (view.items, view.counts, log.splits) == (12, Counts(succeeded=12), 1)
    assert view.result == {"items": list(range(12))}
    assert log.ran == Counter(range(12))


@pytest.mark.parametrize("how", ["fails", "breaks"])
async def test_a_split_begun_again_goes_on_behind_what_stands(connection: Connection, how: str) -> None:
    async with plant(connection, ["streaming"]) as node:
        await half_way(node, {how: 1})
        log.gate.set()
        view = await node.until("mine", "done")
        record = await node.record("mine")
    assert (view.items, view.counts, log.splits) == (12, Counts(succeeded=12), 2)
    assert view.result == {"items": list(range(12))}
    assert log.ran == Counter(range(12))
    assert record.seal is not None
    assert record.seal.fence == record.staged[0].fence + 1


@pytest.mark.parametrize("again", [[100, 101, 102, 103, 104], [0, 1, 2]], ids=["others", "fewer"])
async def test_a_split_that_gives_other_items_fails_and_says_so(connection: Connection, again: list[int]) -> None:
    async with plant(connection, ["streaming"]) as node:
        await half_way(node, {"fails": 1, "again": again})
        log.gate.set()
        view = await node.until("mine", "failed")
    assert view.reason.startswith("splitting: NotTheSame: begun again, it did not give the same first 5 items")
    assert (view.items, view.counts) == (5, Counts(succeeded=5))
    assert log.ran == Counter(range(5))


@pytest.mark.parametrize("redo", [[], [3]], ids=["all", "one"])
async def test_a_split_that_fails_for_good_keeps_what_ran_and_a_retry_goes_on(
    connection: Connection, redo: list[int]
) -> None:
    log.refused = {1, 3}
    async with plant(connection, ["streaming"]) as node:
        await half_way(node, {"fails": 2})
        log.gate.set()
        view = await node.until("mine", "failed")
        assert (view.reason, view.items) == ("splitting: OSError: the file went away", 5)
        assert (view.counts, log.splits) == (Counts(succeeded=3, failed=2), 2)
        log.refused = set()
        await node.desk.retry("mine", redo)
        view = await node.until("mine", "done")
    again = redo or [1, 3]
    assert (view.passes, view.counts) == (2, Counts(succeeded=10 + len(again), failed=2 - len(again)))
    assert log.ran == Counter(range(12)) + Counter(again)


async def test_cancelled_half_way_what_was_committed_is_counted(connection: Connection) -> None:
    async with plant(connection, ["streaming"]) as node:
        await half_way(node)
        assert (await node.desk.cancel("mine")).state == "cancelled"
        log.gate.set()
        view = await node.until("mine", "cancelled")
        assert (view.items, view.counts, view.result) == (5, Counts(succeeded=5), None)


async def test_cancelled_what_runs_ends_and_a_seal_comes_too_late(connection: Connection) -> None:
    log.is_held = True
    async with plant(connection, ["streaming"]) as node:
        await node.submit("streaming", id="mine")
        with anyio.fail_after(LONG_S):
            await log.held.wait()
        assert (await node.desk.cancel("mine")).state == "cancelling"
        log.gate.set()
        view = await node.until("mine", "cancelled")
        record = await node.record("mine")
    assert (view.items, view.counts.ended, view.result, record.seal) == (5, 5, None, None)
    assert view.counts.succeeded >= 2


async def test_a_split_that_fails_waits_for_what_runs(connection: Connection) -> None:
    log.is_held = True
    async with plant(connection, ["streaming"]) as node:
        await node.submit("streaming", id="mine")
        with anyio.fail_after(LONG_S):
            await log.held.wait()
        fence = (await node.record("mine")).step_fence
        failed = await node.engine.instances.move(
            "mine", lambda record: moves.fail_step(record, fence, "no link", Backoff(retries=0), 1)
        )
        assert (failed.state, failed.is_cancelling) == ("splitting", True)
        log.gate.set()
        view = await node.until("mine", "failed")
    assert (view.reason, view.items, view.counts.ended) == ("no link", 5, 5)
    assert view.counts.succeeded >= 2


async def test_paused_half_way_nothing_more_begins_and_resumed_it_ends(connection: Connection) -> None:
    async with plant(connection, ["streaming"]) as node:
        await half_way(node)
        assert (await node.desk.pause("mine")).state == "paused"
        log.gate.set()
        with anyio.fail_after(LONG_S):
            while (await node.record("mine")).seal is None:
                await a_moment()
        assert (await node.desk.show("mine")).state == "paused"
        assert log.ran == Counter(range(5))
        await node.desk.resume("mine")
        view = await node.until("mine", "done")
    assert view.counts == Counts(succeeded=12)
    assert log.ran == Counter(range(12))


async def test_killed_half_way_another_node_goes_on_and_no_item_runs_twice(
    connection: Connection, server: EmbeddedServer, tmp_path: Path
) -> None:
    """Its items may not run twice, and some have run when the splitter is killed."""
    namespace, notes = connection.namespace, tmp_path / "notes"
    await make_topology(connection, wanted(namespace, profile="fast"))
    batches = Batches(ServiceClient(connection, "batch", 30.0), connection)
    arguments = ["--nats", server.url, "--namespace", namespace.name, "--sink", "none", "--http", "off"]
    arguments += ["--roles", "conductor,executor,desk", "--app", "tests.support.batch_streaming_app"]
    told = {"STREAMED_NOTES": str(notes), "PENSTOCK_LOG_FORM": "json"}
    crash = {**told, "PENSTOCK_CRASH_AT": "batch.stage:2"}
    async with node_process(*arguments, "--name", "first", environment=crash) as first:
        await first.logged("node.ready", LONG_S)
        await batches.submit(STREAMED, id="i")
        assert await first.end(within_s=LONG_S) == -9
    ran = set(notes_of(notes))
    assert HALF - 1 in ran
    async with node_process(*arguments, "--name", "second", environment=told):
        view = await batches.wait("i", timeout_s=LONG_S)
    assert (view.state, view.items, view.result) == ("done", ALL, {"in order": True})
    assert (view.counts.succeeded + view.counts.unknown, view.counts.failed) == (ALL, 0)
    began = Counter(notes_of(notes))
    assert ran <= set(began)
    assert len(began) >= view.counts.succeeded
    assert set(began.values()) == {1}


def test_a_place_elsewhere_may_stream_too() -> None:
    penstock.external_batch("streamed-elsewhere", "nats:some.where", streaming=True)
    assert task_handlers()["streamed-elsewhere"].record.is_streaming
