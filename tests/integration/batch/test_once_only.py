"""Items that may not run twice: whatever is cancelled, retried, late or cut off, none begins a second time."""

from __future__ import annotations

import time
from collections import Counter, deque
from functools import partial
from typing import Any

import anyio
import pytest
from msgspec import Raw

import penstock
from actors.batch.executor.chunks import Chunks
from actors.batch.executor.lanes import Admitted, Item
from actors.batch.executor.one_by_one import run_marked
from actors.batch.executor.rounds import Round
from actors.batch.items import BatchItems
from actors.batch.rules.record import Instance, OpenChunk, Seal
from actors.runtime.rates.shares import Shares
from actors.runtime.rates.slot_client import NodeSlots
from penstock.sdk.batches import task_handlers
from streams.embedded.server import EmbeddedServer
from streams.errors import RevisionConflict
from streams.link.connection import Connection, connect
from streams.messages.batch import Chunk, Counts, Pointer
from streams.publish.publisher import Publisher
from streams.topology.specs import wanted
from tests.support.batches import OpenGate, Plant, plant
from tests.support.proxy import proxy
from tests.support.server import make_topology

ITEMS = 6
ran: Counter[int] = Counter()
gates: dict[str, anyio.Event] = {}
POINTER = Pointer(step="map", task="once", instance_id="mine", chunk=0, round=1)


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()
    gates.update(began=anyio.Event(), end=anyio.Event())


@penstock.batch("once", is_idempotent=False, attempts=1)
class Once:
    """Its first item waits at a gate."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*range(ITEMS))

    async def map(self, item: int) -> None:
        ran[item] += 1
        if item == 0:
            gates["began"].set()
            await gates["end"].wait()


@penstock.batch("once-asked", is_idempotent=False, attempts=1)
class OnceAsked:
    """It knows of its first item that it happened, and of the second that it did not."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        raise AssertionError("the tests store the items")

    async def map(self, item: int) -> None:
        ran[item] += 1

    async def check(self, item: int) -> bool | None:
        return {0: True, 1: False}.get(item)


@penstock.batch("once-late", is_idempotent=False, attempts=3, item_timeout_s=2, retry_base_s=0.01)
class OnceLate:
    def map(self, item: int) -> None:
        ran[item] += 1
        time.sleep(3.0 if item < 2 else 0.0)

    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(0, 1, 2)

    def check(self, item: int) -> bool:
        return item == 0


def record(task: str, **facts: Any) -> Instance:
    """Return an instance whose one chunk is open."""
    seal = Seal(fence=1, chunks=1, items=ITEMS, digest="d")
    open_chunks = (OpenChunk(chunk=0, round=1),)
    return Instance(
        instance_id="mine",
        task=task,
        created_ms=0,
        state="running",
        step_fence=1,
        seal=seal,
        released=1,
        open=open_chunks,
        **facts,
    )


async def store(node: Plant, made: Instance) -> None:
    await node.items.stage("mine", 1, 0, [Chunk(first=0, items=tuple(Raw(b"%d" % item) for item in range(ITEMS)))])
    await node.engine.instances.create(made)


async def wait_for(event: anyio.Event) -> None:
    with anyio.fail_after(30):
        await event.wait()


async def test_cancelled_and_retried_while_an_item_is_at_work_it_does_not_begin_again(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.batch.conductor.REOFFER_MS", 50)
    async with plant(connection, ["once"]) as node:
        view = await node.submit("once")
        await wait_for(gates["began"])
        await node.desk.cancel(view.instance_id)
        view = await node.until(view.instance_id, "cancelled")
        assert view.counts == Counts(unknown=1, cancelled=ITEMS - 1)
        await node.desk.retry(view.instance_id)
        view = await node.until(view.instance_id, "done")
        gates["end"].set()
    assert view.counts == Counts(succeeded=ITEMS - 1, unknown=1)
    assert ran == Counter(range(ITEMS))


async def test_what_a_dead_worker_had_begun_is_asked_for_when_it_is_cancelled(connection: Connection) -> None:
    async with plant(connection, ["once-asked"]) as node:
        await node.items.begin("mine", 0, 1, [0, 1, 2], expected_seq=0)
        await store(node, record("once-asked", is_cancelling=True))
        view = await node.until("mine", "cancelled")
        assert view.counts == Counts(succeeded=1, unknown=1, cancelled=ITEMS - 2)
        await node.desk.retry("mine")
        view = await node.until("mine", "done")
    assert view.counts == Counts(succeeded=ITEMS - 1, unknown=1)
    assert ran == Counter([1, 3, 4, 5])


async def test_an_item_out_of_its_time_is_not_run_beside_its_thread(connection: Connection) -> None:
    async with plant(connection, ["once-late"]) as node:
        view = await node.run("once-late")
        page = await node.desk.items.page(view.instance_id)
    ends = [(each.status, each.info) for each in page.items]
    late = "took longer than allowed; it was begun, and nobody knows how it ended"
    assert ends == [("ok", None), ("unknown", late), ("ok", None)]
    assert ran == Counter(range(3))


class ShutGate(OpenGate):
    async def admit(self, waiting: deque[Item], most: int) -> Admitted:
        return Admitted([])


async def test_who_leaves_items_to_others_lets_nobody_begin_them_in_his_round(
    connection: Connection, publisher: Publisher
) -> None:
    await make_topology(connection, wanted(connection.namespace, profile="fast"))
    turn = Round("mine", dict.fromkeys(range(ITEMS), 1), most=1, is_once=True)
    items, log = [(index, Raw(b"%d" % index)) for index in range(ITEMS)], BatchItems(connection, publisher)
    run = partial(run_marked, task_handlers()["once"], turn, POINTER, items, log)
    refused: list[RevisionConflict] = []

    async def go_on_late() -> None:
        try:
            await run(OpenGate())
        except RevisionConflict as error:
            refused.append(error)

    async with anyio.create_task_group() as first:
        first.start_soon(go_on_late)
        await wait_for(gates["began"])
        assert [(each.index, each.status) for each in await run(ShutGate())] == [(0, "unknown")]
        gates["end"].set()
    assert refused
    assert ran == Counter([0])


async def test_a_round_that_was_answered_for_nobody_is_closed_to_whoever_still_runs_it(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.batch.conductor.REOFFER_MS", 50)
    async with plant(connection, [], roles=("conductor", "desk")) as node:
        await node.engine.tasks.declare(task_handlers()["once"].record)
        refused = anyio.Event()

        async def run_unaware() -> None:
            turn = Round("mine", dict.fromkeys(range(ITEMS), 1), most=1, is_once=True)
            items = [(index, Raw(b"%d" % index)) for index in range(ITEMS)]
            try:
                await run_marked(task_handlers()["once"], turn, POINTER, items, node.items, OpenGate())
            except RevisionConflict:
                refused.set()

        async with anyio.create_task_group() as worker:
            worker.start_soon(run_unaware)
            await wait_for(gates["began"])
            await store(node, record("once", is_cancelling=True))
            view = await node.until("mine", "cancelled")
            gates["end"].set()
    assert view.counts == Counts(unknown=1, cancelled=ITEMS - 1)
    assert refused.is_set()
    assert ran == Counter([0])


async def test_a_lost_answer_costs_no_end_of_an_item(connection: Connection, server: EmbeddedServer) -> None:
    """The mark of the second item is stored, and nobody is told so."""
    async with (
        proxy(server.port) as middle,
        plant(connection, [], roles=("conductor", "desk")) as conductor,
        connect(middle.url, name="worker", namespace=connection.namespace) as other,
        plant(other, ["once"], name="n2", roles=("executor",)),
    ):
        await until_known(conductor, "once")
        view = await conductor.submit("once")
        await wait_for(gates["began"])
        middle.mute()
        gates["end"].set()
        with anyio.fail_after(30):
            while len((await conductor.items.begun(view.instance_id, 0, 1))[0]) < 2:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        middle.cut()
        view = await conductor.until(view.instance_id, "done")
    assert view.counts == Counts(succeeded=ITEMS)
    assert ran == Counter(range(ITEMS))


async def until_known(node: Plant, task: str) -> None:
    with anyio.fail_after(30):
        while task not in node.engine.tasks.known():  # noqa: ASYNC110
            await anyio.sleep(0.02)


async def test_a_round_that_comes_again_while_it_is_at_work_here_waits_for_its_end(connection: Connection) -> None:
    async with plant(connection, [], roles=("conductor", "desk")) as node:
        made = record("once", is_paused=True)
        await store(node, made)
        chunks = Chunks(
            node="n1",
            instances=node.engine.instances,
            items=node.items,
            rates=Shares(lambda _task: None),
            at_once=lambda _task: None,
            slots=NodeSlots(connection, "n1"),
            slots_of=lambda _handler: None,
            chance=lambda: 0.5,
            stop=anyio.Event(),
        )
        async with anyio.create_task_group() as deliveries:
            run = partial(chunks.run, task_handlers()["once"], made, POINTER)
            deliveries.start_soon(partial(run, deliveries=1))
            await wait_for(gates["began"])
            deliveries.start_soon(partial(run, deliveries=2))
            await anyio.wait_all_tasks_blocked()
            gates["end"].set()
        [result] = await node.results("mine")
    assert result.counts == Counts(succeeded=ITEMS)
    assert ran == Counter(range(ITEMS))
