"""Workers with different versions of a task's code: an older one leaves alone what a newer one has split."""

from __future__ import annotations

import dataclasses
from collections import Counter

import anyio
import anyio.lowlevel
import msgspec
import pytest

import penstock
from actors.batch.executor.handler import TaskHandler
from actors.batch.rules.record import Instance, Seal
from penstock.sdk.batches import task_handlers
from streams.link.connection import Connection
from streams.messages.batch import Chunk, Counts
from tests.support.batches import LONG_S, Plant, plant
from tests.support.moments import a_moment

ran: Counter[str] = Counter()


class Versioned:
    """Its items are numbers, and its result is the version that reduced them."""

    version = ""

    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*range(ctx.input))

    async def map(self, item: int) -> None:
        ran[self.version] += 1

    async def reduce(self, ctx: penstock.ReduceContext) -> str:
        return self.version


def serving(version: str) -> TaskHandler:
    """Return a version of the task, as an application of that version has it: all under one name."""
    own_name = f"versioned-{version.replace('.', '-')}"
    penstock.batch(own_name, version=version)(type("Own", (Versioned,), {"version": version}))
    handler = task_handlers()[own_name]
    return dataclasses.replace(handler, record=msgspec.structs.replace(handler.record, task="versioned"))


OLD, NEW = serving("1.9"), serving("1.10")


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()


async def split_by(version: str, node: Plant, instance_id: str) -> None:
    """Make an instance whose items that version has made: five chunks of two."""
    await node.items.stage(
        instance_id, 1, 0, [Chunk(first=first, items=(msgspec.Raw(b"1"),) * 2) for first in range(0, 10, 2)]
    )
    seal = Seal(fence=1, chunks=5, items=10, digest="d", version=version)
    await node.engine.instances.create(
        Instance(instance_id=instance_id, task="versioned", created_ms=0, state="running", step_fence=1, seal=seal)
    )


async def test_an_older_worker_serves_its_own_and_a_newer_instance_waits_for_a_newer_one(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    async with plant(connection, [OLD], name="n1") as node:
        await node.desk.limit("versioned", {"main_concurrency": 1})  # what waits for code holds no place
        await split_by("1.10", node, "newer")
        with anyio.fail_after(LONG_S):
            while "instance.waits_for_version" not in caplog.text:
                await a_moment()
        view = await node.run("versioned", 4, id="older")
        assert (view.state, view.result, ran["1.9"]) == ("done", "1.9", 4)
        newer = await node.desk.show("newer")
        assert (newer.counts, newer.waits) == (
            Counts(),
            "waits: its items need version 1.10 of the code; at work is 1.9",
        )
        async with plant(connection, [NEW], name="n2"):
            view = await node.until("newer", "done")
    assert (view.counts, view.result) == (Counts(succeeded=10), "1.10")
    assert ran == Counter({"1.9": 4, "1.10": 10})


async def test_beside_a_newer_worker_an_older_one_steps_aside(connection: Connection) -> None:
    async with plant(connection, [OLD], name="n1"), plant(connection, [NEW], name="n2") as node:
        await split_by("1.10", node, "newer")
        view = await node.until("newer", "done")
    assert (view.counts, view.result) == (Counts(succeeded=10), "1.10")
    assert ran == Counter({"1.10": 10})


async def test_a_newer_worker_goes_on_with_what_an_older_one_has_split(connection: Connection) -> None:
    async with plant(connection, [NEW]) as node:
        await split_by("1.9", node, "older")
        view = await node.until("older", "done")
    assert (view.counts, view.result) == (Counts(succeeded=10), "1.10")


async def test_what_a_split_makes_bears_the_version_of_its_code(connection: Connection) -> None:
    async with plant(connection, [NEW]) as node:
        await node.run("versioned", 3, id="mine")
        seal = (await node.record("mine")).seal
    assert seal is not None
    assert seal.version == "1.10"


async def test_a_cancelled_instance_of_a_newer_version_ends_without_a_newer_worker(connection: Connection) -> None:
    async with plant(connection, [OLD]) as node:
        await split_by("1.10", node, "newer")
        with anyio.fail_after(LONG_S):
            while not (await node.record("newer")).open:
                await a_moment()
        await node.desk.cancel("newer")
        view = await node.until("newer", "cancelled")
    assert view.counts == Counts(cancelled=10)
    assert not ran
