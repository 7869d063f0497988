"""One suite for every adapter: against a real platform, under faults and drift, a closed window is read whole.

The mall's clock is moved by hand, a little before each request, so orders are made, changed and listed late while one
reads, the same in each run."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import aiohttp
import msgspec
import pytest

from platforms.adapter import Account, Row
from platforms.bounds import Window
from platforms.declared import declare
from platforms.errors import BrokenContract
from platforms.mall.config import MallConfig
from platforms.mall.faults import PRESETS, Faults
from platforms.mall.generator import order_body, order_key
from platforms.mall.server import Mall, open_mall
from tests.contract.players import PLAYERS, START_MS, Player
from tests.contract.shell import Ended, Shell

SETTLE_MS = 3_000
SLICE_MS = 97_000  # cut where no round time lies
FAULTS = msgspec.structs.replace(PRESETS["hard"], late_ms=5, retry_after_s=0, hang=0.0, late=0.02)

players = pytest.mark.parametrize("player", PLAYERS, ids=[player.name.replace(" ", "_") for player in PLAYERS])


class HandClock:
    """The mall's clock: stands still unless it is moved."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


class Scene(NamedTuple):
    mall: Mall
    shell: Shell
    clock: HandClock

    def listed(self, window: Window) -> set[tuple[str, int]]:
        """Return the (key, version) pairs that the shop lists for the window now."""
        shop = self.mall.shops["s1"]
        shop.shelf.advance(self.clock.now_ms)
        first, last = shop.shelf.between(window.start_ms, window.end_ms)
        return {(order_key("s1", number), version) for _, number, version in shop.shelf.listed[first:last]}


@asynccontextmanager
async def play(player: Player, **changes: object) -> AsyncIterator[Scene]:
    """Open the player's mall, with changes, and a shell on it."""
    config = msgspec.structs.replace(player.mall, **changes)
    clock = HandClock(player.start_ms - config.clock_offset_ms)
    async with open_mall(config, clock=clock, start_ms=player.start_ms) as mall, aiohttp.ClientSession() as session:
        account = Account("shop", {"base_url": mall.url, "shop": "s1"})
        yield Scene(mall, Shell(session, player.adapter, account), clock)


def pairs(rows: list[Row]) -> set[tuple[str, int]]:
    return {(row.key, row.version) for row in rows}


@players
async def test_a_quiet_window_is_read_exactly_and_proven(player: Player) -> None:
    async with play(player) as scene:
        scene.clock.now_ms = scene.mall.shops["s1"].plan.end_ms + SETTLE_MS
        for start in range(player.start_ms - 3_000_000, player.start_ms - 2_000_000, 333_333):
            window = Window(start, start + 333_333)
            rows, result = await scene.shell.read(window)
            if player.mall.times == "unix_s":  # the platform drops the milliseconds: look where it says that rows lie
                assert all(window.start_ms <= (row.modified_ms or 0) < window.end_ms for row in rows)
            else:
                assert scene.listed(window) <= pairs(rows)
            assert result.is_proven
            assert result.strays == 0
            assert result.bad == ()


@players
async def test_every_order_arrives_in_its_last_version_under_faults_and_drift(player: Player) -> None:
    """Slices are read one after the other, each once, when it has settled; the live part goes on meanwhile."""
    async with play(player, faults=FAULTS) as scene:
        plan, clock = scene.mall.shops["s1"].plan, scene.clock

        def tick() -> None:
            clock.now_ms += 7

        scene.shell.before_each = tick
        got: dict[str, Row] = {}
        start = plan.start_ms - plan.history_ms
        while start < plan.end_ms + SLICE_MS:
            window = Window(start - 1_000, start + SLICE_MS)
            clock.now_ms = max(clock.now_ms, window.end_ms + SETTLE_MS)
            rows, _ = await scene.shell.read(window)
            for row in rows:
                if row.key not in got or row.version > got[row.key].version:
                    got[row.key] = row
            start = window.end_ms
        truth = scene.mall.shops["s1"].truth()
        assert {key: row.version for key, row in got.items()} == {str(order[0]): order[1] for order in truth}
        assert scene.shell.outcomes.total() > 0


@players
async def test_only_what_the_platform_made_is_handed_out_byte_for_byte(player: Player) -> None:
    async with play(player) as scene:
        shop = scene.mall.shops["s1"]
        made = {(order_key("s1", event.number), event.version): event for event in shop.events}
        rows, _ = await scene.shell.read(Window(player.start_ms - 600_000, player.start_ms))
        assert rows
        for row in rows:
            event = made[row.key, row.version]
            body = msgspec.json.decode(row.body)
            said = body.pop("modified_at", None)
            assert body == msgspec.json.decode(order_body(b"s1", event.number, event.version, event.modified_ms))
            assert (said is None) == (player.mall.times == "unix_ms")


@players
async def test_an_order_that_changes_while_one_pages_takes_no_other_with_it(player: Player) -> None:
    """The clock leaps before each request of one reading, so that many orders leave the window under the reader."""
    async with play(player, live_share=0.0, change_share=0.9, history_ms=600_000, live_ms=600_000) as scene:
        window = Window(player.start_ms - 600_000, player.start_ms - 1_000)
        scene.clock.now_ms += SETTLE_MS

        def leap() -> None:
            scene.clock.now_ms += 3_000

        scene.shell.before_each = leap
        before = scene.listed(window)
        rows, result = await scene.shell.read(window)
        after = scene.listed(window)
        assert after < before
        assert after <= pairs(rows) or not result.is_proven
        assert {key for key, _ in after} - {row.key for row in rows} == set()


@pytest.mark.parametrize("name", ["mall", "mall_token", "mall_link"])
async def test_windows_of_nothing_are_proven_empty_in_one_request(name: str) -> None:
    async with play(_player(name)) as scene:
        rows, result = await scene.shell.read(Window(START_MS + 10**9, START_MS + 10**9 + 60_000))
        assert (rows, result.requests, result.is_proven) == ([], 1, True)


async def test_an_expired_token_is_renewed_in_the_middle_of_a_window() -> None:
    async with play(_player("mall_token"), needs_token=True) as scene:
        window = Window(START_MS - 3_600_000, START_MS)
        for _ in range(2):
            scene.mall.dealer.set(Faults(next=("late", "expire", "late", "expire"), late_ms=0))
            rows, result = await scene.shell.read(window)
            assert scene.listed(window) == pairs(rows)
            assert result.is_proven
        assert scene.shell.outcomes["Login"] >= 3


async def test_a_platform_that_sends_us_elsewhere_parks_the_shop() -> None:
    async with play(_player("mall"), faults=Faults(next=("redirect",))) as scene:
        with pytest.raises(Ended, match=r"elsewhere\.invalid"):
            await scene.shell.read(Window(START_MS - 1_000, START_MS))


async def test_a_mall_without_totals_is_read_whole_by_token_and_never_proven() -> None:
    async with play(_player("mall_token"), totals="none") as scene:
        window = Window(START_MS - 1_000_000, START_MS - 500_000)
        rows, result = await scene.shell.read(window)
        assert pairs(rows) == scene.listed(window)
        assert not result.is_proven


async def test_orders_later_than_the_settling_delay_are_found_by_a_later_look() -> None:
    player = _player("mall")
    async with play(player, very_late_share=0.2, very_late_ms=120_000, live_share=1.0, live_ms=600_000) as scene:
        window = Window(START_MS, START_MS + 300_000)
        scene.clock.now_ms = window.end_ms + SETTLE_MS
        first, _ = await scene.shell.read(window)
        scene.clock.now_ms = window.end_ms + 120_000
        again, result = await scene.shell.read(window)
        assert scene.listed(window) == pairs(again)
        assert pairs(again) - pairs(first)
        assert result.is_proven


async def test_a_platform_clock_ten_minutes_off_is_told_with_each_answer() -> None:
    async with play(_player("mall_link"), clock_offset_ms=-600_000) as scene:
        response = await scene.shell._ask(
            scene.shell._adapter.request(Window(1, 2), None, scene.shell.account, 0)  # the answer itself is wanted
        )
        assert response is not None
        page = scene.shell._adapter.page(response)
        assert page.server_time_ms == START_MS == scene.clock.now_ms - 600_000
        assert response.headers["date"] == "Tue, 14 Nov 2023 22:13:20 GMT"


async def test_a_page_that_lies_about_its_filter_is_found_out() -> None:
    """The mall is asked without bounds, as after a misspelt parameter: it lists its whole history."""
    params = {"shop": "{account.shop}", "since": "{window.start}", "till": "{window.end}"}
    adapter = declare(
        {
            "name": "misspelt",
            "request": {"path": "/orders", "params": params},
            "pages": {"total": "total", "size": 50},
            "record": {"rows": "orders", "key": "id", "modified": {"path": "modified_ms", "format": "unix_ms"}},
        }
    )  # fmt: skip
    async with play(Player("misspelt", adapter, MallConfig(orders=500))) as scene:
        with pytest.raises(BrokenContract, match="ignores the window"):
            await scene.shell.read(Window(START_MS - 1_000, START_MS))


def _player(name: str) -> Player:
    return next(player for player in PLAYERS if player.name == name)
