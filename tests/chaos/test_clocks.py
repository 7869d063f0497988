"""Nodes whose clocks are off, beside one whose clock is right: later by so much, and nothing is lost."""

from pathlib import Path

import pytest

from tests.chaos.conftest import AssertWhole
from tests.support.chaos import Form, open_world

OFF_S, LONG_OFF_S = 2, 90
"""The clock error that is promised for, and the one of the fault matrix."""


@pytest.mark.timeout(1800)
async def test_skewed_nodes_lose_nothing(tmp_path: Path, form: Form, assert_whole: AssertWhole) -> None:
    off_s = form.pick(OFF_S, LONG_OFF_S)
    skews_ms = {"right": 0, "ahead": off_s * 1000, "behind": -off_s * 1000}
    async with open_world(tmp_path) as world:
        for name, skew_ms in skews_ms.items():
            await world.node(name, skew_ms=skew_ms)
        for name, skew_ms in skews_ms.items():
            assert await world.nodes[name].ready()
            if skew_ms:
                await world.nodes[name].logged("clock.differs")
        assert not list(world.nodes["right"].lines("clock.differs"))
        # they cut and read while orders come in: what is over before they are ready is past by any clock
        await world.add_mall(shops=9, orders=900, history_ms=2_000, live_ms=form.pick(6_000, 60_000), live_share=0.9)
        world.facts["off_s"] = off_s
        assert_whole(await world.verdict("clocks", form, within_s=60 + 2 * off_s))
