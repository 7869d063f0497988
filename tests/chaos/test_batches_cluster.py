"""An attack on batches whose servers are three, one of which is killed again and again."""

from pathlib import Path

import anyio
import pytest

from tests.chaos.conftest import AssertWhole
from tests.support.batches_chaos import open_batch_cluster
from tests.support.chaos import Form
from tests.support.processes import wait_until_ready


@pytest.mark.timeout(1800)
async def test_a_killed_server_of_three_costs_no_item(tmp_path: Path, form: Form, assert_whole: AssertWhole) -> None:
    chance = form.chance("cluster")
    async with open_batch_cluster(tmp_path) as (world, servers):
        nodes = await world.begin(form)
        for _ in range(form.pick(1, 10)):
            server = chance.choice(servers)
            await anyio.sleep(chance.uniform(0.3, form.pick(1, 3)))
            server.kill()
            world.server_kills += 1
            await anyio.sleep(chance.uniform(0.0, form.pick(1, 10)))
            server.start()
            await wait_until_ready(server.url)
        verdict = await world.verdict("batches and a cluster", form, within_s=form.pick(60, 600))
        assert all(node.is_running for node in nodes)
        assert_whole(verdict)
