"""The server is killed -9 and started again under load, and hangs: whatever was acknowledged is there, once."""

import signal
from pathlib import Path

import anyio
import pytest

from tests.chaos.conftest import AssertWhole
from tests.support.chaos import Form, open_world

LIVE_MS = 4_000
LONG_LIVE_MS = 60_000


@pytest.mark.timeout(1800)
async def test_killed_and_restarted_server_costs_nothing(tmp_path: Path, form: Form, assert_whole: AssertWhole) -> None:
    chance = form.chance("server")
    async with open_world(tmp_path) as world:
        for name in ("n1", "n2"):
            await world.node(name)
        live_ms = form.pick(LIVE_MS, LONG_LIVE_MS)
        await world.add_mall(shops=6, orders=form.pick(1_200, 12_000), live_ms=live_ms, live_share=0.6)
        for _ in range(form.pick(2, 10)):
            await anyio.sleep(chance.uniform(0.4, form.pick(1, 2)))
            await world.server.kill()
            world.kills += 1
            await anyio.sleep(chance.uniform(0.0, form.pick(1, 2)))
            await world.server.start()
        for _ in range(form.pick(1, 3)):
            await anyio.sleep(chance.uniform(0.3, form.pick(1, 2)))
            world.server.send_signal(signal.SIGSTOP)
            await anyio.sleep(chance.uniform(3.0, form.pick(3, 8)))
            world.server.send_signal(signal.SIGCONT)
        verdict = await world.verdict("server", form)
        for node in world.nodes.values():
            assert node.is_running
        assert_whole(verdict)
