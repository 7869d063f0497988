"""A server whose disk is full: it takes nothing, and once there is room again nothing that was taken is missing."""

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from tests.chaos.conftest import AssertWhole
from tests.support.chaos import Form, World, eventually, open_world
from tests.support.disks import fill, small_disk

SIZE = "64m"
FULL_S = 2.0
AWAKE_S = 2.5


@pytest.fixture(name="small_disk")
def _small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", SIZE) as folder:
        yield folder


async def goes_on(world: World) -> bool:
    """True if slices are taken within some seconds, and leases too: each stream may have failed by itself."""
    before, leases = await world.takes(), world.bucket("LEASES")

    async def has_moved() -> bool:
        await leases.put("probe", b"1", ttl_s=60, timeout_s=1.0)
        return await world.takes() > before + 4

    try:
        await eventually(has_moved, AWAKE_S, "nothing is taken")
    except TimeoutError:
        return False
    return True


@pytest.mark.timeout(1800)
async def test_full_disk_loses_nothing_that_was_taken(
    tmp_path: Path, form: Form, assert_whole: AssertWhole, small_disk: Path
) -> None:
    async with open_world(tmp_path, store=small_disk / "server") as world:
        nodes = [await world.node(name) for name in ("n1", "n2")]
        for node in nodes:
            await node.logged("node.ready")
        rounds, restarts = form.pick(1, 5), 0
        await world.add_mall(
            shops=4, orders=rounds * 800, history_ms=20_000, live_ms=form.pick(2_000, rounds * 6_000), live_share=0.8
        )
        for _ in range(rounds):
            await anyio.sleep(0.7)
            ballast = fill(small_disk)
            await anyio.sleep(FULL_S)
            ballast.unlink()
            if not await goes_on(world):  # a stream that could not be written stays so until the server is started anew
                await world.server.restart()
                restarts += 1
        verdict = await world.verdict("disk full", form)
        world.facts["restarts"] = restarts
        assert_whole(verdict)
        assert all(node.is_running for node in nodes)
