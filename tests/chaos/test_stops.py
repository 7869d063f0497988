"""SIGTERM under load: what is in hand is finished, nothing is read twice for it, and the end comes in time."""

from pathlib import Path

import anyio
import pytest

from tests.chaos.conftest import AssertWhole
from tests.support.chaos import Form, open_world
from tests.support.chaos_nodes import ChaosNode

DRAIN_S = 20.0
SLOW = {"late": 0.5, "late_ms": 400}
"""So that there is something in hand at any moment."""


@pytest.mark.timeout(1800)
async def test_sigterm_under_load_doubles_nothing(tmp_path: Path, form: Form, assert_whole: AssertWhole) -> None:
    chance, stops = form.chance("stops"), form.pick(3, 20)
    async with open_world(tmp_path) as world:
        nodes = [await world.node(name) for name in ("n1", "n2", "n3")]
        live_ms = form.pick(1_500, stops * 1_500)
        await world.add_mall(shops=4, orders=form.pick(800, 8_000), live_ms=live_ms, faults=SLOW)
        seconds = []
        for _ in range(stops):
            await anyio.sleep(chance.uniform(0.3, 1.0))
            node: ChaosNode = chance.choice(nodes)
            await node.logged("node.ready", times=node.lives)
            code, took_s = await node.stop()
            seconds.append(round(took_s, 2))
            assert code == 0
            held = [piece for ledger in (await world.ledgers()).values() for piece in ledger.open]
            assert not [piece.slice_id for piece in held if piece.holder == node.name]
            await node.start()
        verdict = await world.verdict("sigterm", form)
        world.facts |= {"stops": stops, "longest_s": max(seconds)}
        assert_whole(verdict)
        assert verdict.rereads == 0
        assert max(seconds) < DRAIN_S
