"""Platforms at their worst: every fault at once, tokens that expire, wrong clocks, orders that are listed late."""

from pathlib import Path

import msgspec
import pytest

from platforms.mall.faults import PRESETS
from streams.messages.fetch import LateOrders
from tests.chaos.conftest import AssertWhole
from tests.support.chaos import Form, open_world, soon_ms

HARD = {**msgspec.to_builtins(PRESETS["hard"]), "hang_s": 1.0, "expire": 0.03}
OFF_MS = 600_000
AHEAD_MS = 1_500


@pytest.mark.timeout(1800)
async def test_hard_platforms_and_expiring_tokens_lose_nothing(
    tmp_path: Path, form: Form, assert_whole: AssertWhole
) -> None:
    async with open_world(tmp_path) as world:
        for name in ("n1", "n2"):
            await world.node(name)
        live_ms = form.pick(1_000, 60_000)
        for name, needs_token in (("one", True), ("token", True), ("link", False)):
            await world.add_mall(
                name,
                paging=name,
                needs_token=needs_token,
                seed=form.seed,
                faults=HARD,
                orders=form.pick(600, 12_000),
                history_ms=form.pick(20_000, 120_000),
                live_ms=live_ms,
                tokens="offset",
            )
        assert_whole(await world.verdict("hard platforms", form, within_s=form.pick(240, 1_200)))


@pytest.mark.timeout(1800)
async def test_platform_clocks_ten_minutes_off_leave_no_gap(
    tmp_path: Path, form: Form, assert_whole: AssertWhole
) -> None:
    async with open_world(tmp_path) as world:
        for name in ("n1", "n2"):
            await (await world.node(name)).logged("node.ready")  # they ask before the orders of the time are there
        for paging in ("one", "link"):
            await world.add_mall(
                f"behind_{paging}",
                paging=paging,
                clock_offset_ms=-OFF_MS,
                history_ms=2_000,
                live_ms=form.pick(6_000, 60_000),
                live_share=0.9,
            )
            await world.add_mall(  # what it takes for now we take for in ten minutes: most of its history is to come
                f"ahead_{paging}",
                paging=paging,
                clock_offset_ms=OFF_MS,
                history_ms=OFF_MS + 15_000,
                orders=8_000,
                until_ms=soon_ms(AHEAD_MS / 1000),
            )
        assert_whole(await world.verdict("platform clocks", form))


@pytest.mark.timeout(1800)
async def test_orders_listed_after_the_settling_are_found_by_second_looks(
    tmp_path: Path, form: Form, assert_whole: AssertWhole
) -> None:
    async with open_world(tmp_path) as world:
        for name in ("n1", "n2"):
            await (await world.node(name)).logged("node.ready")  # the first looks come before the late orders
        await world.add_mall(
            settings={"again": ["1s", "5s"], "again_slice": "1s"},
            history_ms=15_000,
            live_ms=form.pick(500, 60_000),
            live_share=0.8,
            orders=form.pick(400, 8_000),
            very_late_share=0.3,
            very_late_ms=4_800,
        )
        verdict = await world.verdict("late orders", form)
        history = await world.history()
        late = sum(event.count for event in history.events if isinstance(event, LateOrders))
        world.facts["late_orders"] = late
        assert_whole(verdict)
        assert late > 0
