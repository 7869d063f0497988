"""Instances of two tenants under one task's rate progress by their weights, over two nodes."""

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from tests.support.batches_chaos import open_batch_world
from tests.support.moments import a_moment

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])  # the nodes are processes of their own

ITEMS = 2_000


def noted(file: Path) -> int:
    return len(file.read_text().split()) if file.exists() else 0


@pytest.mark.timeout(180)
async def test_weights_of_three_and_one_make_three_items_of_one_for_each_of_the_other(tmp_path: Path) -> None:
    notes = {name: tmp_path / f"{name}.notes" for name in ("large", "small")}
    async with open_batch_world(tmp_path, app="tests.support.batch_rates_app") as world:
        for name in ("conductor1", "executor1", "executor2"):
            node = world.new_node(name, name.rstrip("12"))
            await node.start()
            await node.ready()
        await world.submit("large", "each-100", ITEMS, 0.0, tenant="a", weight=3)
        await world.submit("small", "each-100", ITEMS, 0.0, tenant="b", weight=1)

        async def until(is_so: Callable[[], bool]) -> None:
            with anyio.fail_after(90):
                while not is_so():
                    await world.is_over()
                    await a_moment()

        await until(lambda: min(map(noted, notes.values())) >= 25)
        first = {name: noted(file) for name, file in notes.items()}
        await until(lambda: sum(map(noted, notes.values())) >= sum(first.values()) + 1_000)
        begun = {name: noted(file) - first[name] for name, file in notes.items()}
        assert 0.67 <= begun["large"] / sum(begun.values()) <= 0.83
        await world.cancel("large")
        before = noted(notes["small"])
        await until(lambda: noted(notes["small"]) >= before + 300)
        await world.cancel("small")
