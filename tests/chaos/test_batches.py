"""Attacks on batches: every item's end is there once, counts are exact, each instance has one result."""

import random
import signal
from pathlib import Path

import anyio
import pytest

from tests.chaos.conftest import AssertWhole
from tests.support.batches_chaos import BatchWorld, open_batch_world
from tests.support.batches_chaos_app import ONCE, SPREAD, STREAMED
from tests.support.chaos import Form, kill_again_and_again
from tests.support.chaos_nodes import ChaosNode

POINTS = ("batch.split", "batch.stage", "batch.seal", "batch.map", "batch.result", "batch.reduce")
"""Every point that an executor passes with an instance, in order; where nothing stands it is killed anywhere."""
SHORT = {
    "executor1": ("batch.stage", "batch.map"),
    "executor2": ("batch.seal", "batch.reduce"),
    "conductor1": ("",),
}
PATIENCE_S = 4.0
"""A node that has not come to its point by then is killed where it is."""


def plans(form: Form) -> dict[str, tuple[str, ...]]:
    """Return what is to happen to each node: where it dies, life after life."""
    if not form.is_long:
        return SHORT
    executors = {f"executor{number}": (*POINTS[number - 1 :], *POINTS, "", *POINTS[:2]) for number in (1, 2, 3)}
    return {**executors, "conductor1": ("",) * 8, "conductor2": ("",) * 8}


async def die(world: BatchWorld, node: ChaosNode, plan: tuple[str, ...], chance: random.Random) -> None:
    """Start a node again and again until all is done that is planned; leave it running."""
    for point in plan:
        await node.start(crash_at=f"{point}:{chance.randint(1, 2)}" if "map" in point or "result" in point else point)
        await node.ready()
        code = await node.ended(PATIENCE_S if point else chance.uniform(0.2, 2.0))
        if code is None:
            await node.kill()
        else:
            assert code == -signal.SIGKILL, f"{node.name} ended with {code} on its way to {point}"
            world.crashes[point] += 1
    await node.start()


@pytest.mark.timeout(1800)
async def test_killed_conductors_and_executors_lose_and_double_no_item(
    tmp_path: Path, form: Form, assert_whole: AssertWhole
) -> None:
    planned = plans(form)
    async with open_batch_world(tmp_path) as world:
        are_killed = anyio.Event()

        async def feed() -> None:
            """Keep small instances coming while nodes are killed, so that there is something to split and to reduce."""
            number = 0
            while not are_killed.is_set():
                await world.submit(f"small-{number}", SPREAD, 2_000, 0.05)
                await world.submit(f"streamed-{number}", STREAMED, 5_000, 0.01)
                number += 1
                with anyio.move_on_after(2.0):
                    await are_killed.wait()

        async with anyio.create_task_group() as feeding:
            async with anyio.create_task_group() as killing:
                for name, plan in planned.items():
                    node = world.new_node(name, name.rstrip("0123456789"))
                    killing.start_soon(die, world, node, plan, form.chance(name))
                await world.submit("once", ONCE, form.pick(200, 2_000), 0.001)
                await world.submit("streamed", STREAMED, 5_000, 0.01)
                await world.submit("first", SPREAD, 2_000, 0.05)
                await world.submit("second", SPREAD, form.pick(2_800, 1_000_000), form.pick(1, 4) / 10)
                if form.is_long:
                    feeding.start_soon(feed)
            are_killed.set()
        verdict = await world.verdict("batches", form, within_s=form.pick(60, 600))
        assert world.crashes, verdict.line()
        assert_whole(verdict)


@pytest.mark.timeout(1800)
async def test_a_killed_server_costs_no_item(tmp_path: Path, form: Form, assert_whole: AssertWhole) -> None:
    async with open_batch_world(tmp_path) as world:
        nodes = await world.begin(form)
        await kill_again_and_again(world, form)
        verdict = await world.verdict("batches and the server", form, within_s=form.pick(60, 600))
        assert all(node.is_running for node in nodes)
        assert_whole(verdict)
