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
    async with open_world(tmp_path) as world:
        await world.node("right", skew_ms=0)
        await world.node("ahead", skew_ms=off_s * 1000)
        await world.node("behind", skew_ms=-off_s * 1000)
        await world.add_mall(shops=9, orders=900, history_ms=20_000, live_ms=form.pick(500, 60_000), live_share=0.6)
        world.facts["off_s"] = off_s
        assert_whole(await world.verdict("clocks", form, within_s=60 + 2 * off_s))
