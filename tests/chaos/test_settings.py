"""Settings that change ten times a second, some of them nonsense."""

from pathlib import Path

import anyio
import msgspec
import pytest

from tests.chaos.conftest import AssertWhole
from tests.support.chaos import SETTINGS, Form, World, eventually, open_world

EVERY_S = 0.1
GOOD = (
    {"slice": "1s"},
    {"slice": "3s", "max_open": 3},
    {"slice": "7s", "overlap_before": "0s", "overlap_after": "0s"},
    {"settle": "2s", "concurrency": 1},
    {"concurrency": 32, "max_open": 64},
    {"rate": 200, "burst": 20},
    {"timeout": "2s", "request_timeout": "1s"},
    {"pin": ""},
)
BAD = (
    b"",
    b"{",
    b"null",
    b"\xff\xfe\x00",
    b'{"slice": 5}',
    b'{"slice": "-1s"}',
    b'{"slice": "400d"}',
    b'{"retries": -1}',
    b'{"concurency": 3}',
    b'{"overlap_before": "1h"}',
    b'{"rate": 1e400}',
    b"[" * 500,
)


async def flap(world: World, form: Form, times: int) -> None:
    """Write settings, every second one of them a bad one; then a bad one that stays for a while, and a good one."""
    chance = form.chance("settings")
    for number in range(times):
        good = msgspec.json.encode({**SETTINGS, **chance.choice(GOOD)})
        await world.settings.put("fetch.mall", chance.choice(BAD) if number % 2 else good)
        await anyio.sleep(EVERY_S)
    await world.settings.put("fetch.mall", b'{"slice": "1s", "retries": "many"}')
    for node in world.nodes.values():
        await node.logged("settings.refused")
    await world.settings.put("fetch.mall", msgspec.json.encode({**SETTINGS, "slice": "2s"}))


@pytest.mark.timeout(1800)
async def test_flapping_settings_leave_no_gap(tmp_path: Path, form: Form, assert_whole: AssertWhole) -> None:
    async with open_world(tmp_path) as world:
        nodes = [await world.node(name) for name in ("n1", "n2")]
        times = form.pick(24, 600)
        live_ms = form.pick(500, 60_000)
        await world.add_mall(shops=4, history_ms=60_000, live_ms=live_ms, orders=form.pick(800, 8_000))
        await flap(world, form, times)
        verdict = await world.verdict("settings flapping", form)
        refused = [sum(1 for _ in node.lines("settings.refused")) for node in nodes]
        world.facts |= {"writes": times, "refused": refused}
        assert_whole(verdict)
        assert all(node.is_running for node in nodes)

        async def has_converged() -> bool:
            ledgers = await world.ledgers()
            return all(
                piece.end_ms - piece.start_ms <= 2_000
                for ledger in ledgers.values()
                for piece in ledger.open
                if piece.kind == "t"
            )

        await eventually(has_converged, 10, "the last settings are not in force")
