"""Nodes that stop without ending, and all of them killed at once."""

import signal
from collections import defaultdict
from pathlib import Path

import anyio
import pytest

from streams.messages.fetch import SliceCompleted
from tests.chaos.conftest import AssertWhole
from tests.support.chaos import Form, World, eventually, open_world
from tests.support.chaos_nodes import ChaosNode

SLOW = {"late": 1.0, "late_ms": 1_000}
"""Every answer takes so long that a slice is in hand whenever one looks."""


async def held_by(world: World, name: str) -> set[str]:
    """Return the slices that a node holds by the ledgers."""
    return {
        f"{source}/{piece.slice_id}"
        for source, ledger in (await world.ledgers()).items()
        for piece in ledger.open
        if piece.holder == name
    }


async def stop_and_wake(world: World, node: ChaosNode) -> None:
    """Stop a node that holds slices until others have taken all of them, then let it go on."""
    held: set[str] = set()

    async def holds() -> bool:
        nonlocal held
        held = await held_by(world, node.name)
        return len(held) >= 2

    await eventually(holds, 20, f"{node.name} holds nothing")
    node.signal(signal.SIGSTOP)
    held = await held_by(world, node.name)

    async def is_free() -> bool:
        return not held & await held_by(world, node.name)

    await eventually(is_free, 20, f"nobody takes over from {node.name}")
    node.signal(signal.SIGCONT)


async def late_ends(world: World) -> int:
    """Return how many readings ended although a later holder had taken the slice, or had completed it already."""
    history = await world.history()
    fences = defaultdict(list)
    for event in history.events:
        if isinstance(event, SliceCompleted):
            fences[event.platform, event.source, event.slice_id].append(event.fence)
    return sum(len(told) - 1 for told in fences.values())


@pytest.mark.timeout(1800)
async def test_late_completion_of_a_stopped_fetcher_is_refused(
    tmp_path: Path, form: Form, assert_whole: AssertWhole
) -> None:
    async with open_world(tmp_path) as world:
        await world.node("sleeper")
        await world.node("worker")
        live_ms = form.pick(4_000, 30_000)
        orders, history_ms = form.pick(400, 4_000), form.pick(15_000, 60_000)
        await world.add_mall(orders=orders, history_ms=history_ms, live_ms=live_ms, faults=SLOW)
        for _ in range(form.pick(1, 5)):
            await stop_and_wake(world, world.nodes["sleeper"])
        verdict = await world.verdict("late completion", form, within_s=90)
        late = world.facts["late_ends"] = await late_ends(world)
        assert_whole(verdict)
        assert late > 0


@pytest.mark.timeout(1800)
async def test_all_nodes_killed_at_once_resume_alone(tmp_path: Path, form: Form, assert_whole: AssertWhole) -> None:
    chance = form.chance("all nodes")
    async with open_world(tmp_path) as world:
        nodes = [await world.node(f"n{number}") for number in (1, 2, 3)]
        live_ms = form.pick(4_000, 30_000)
        await world.add_mall(shops=4, orders=form.pick(800, 8_000), live_ms=live_ms, live_share=0.6)
        for _ in range(form.pick(1, 10)):
            await anyio.sleep(chance.uniform(1.0, form.pick(2, 3)))
            for node in nodes:
                node.signal(signal.SIGKILL)
            for node in nodes:
                assert await node.ended(5) == -signal.SIGKILL
            for node in nodes:
                await node.start()
        assert_whole(await world.verdict("all nodes", form))
