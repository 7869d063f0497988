"""Who leads the monitors, and who follows."""

import anyio
import pytest

from actors.fetch import hole_notices
from actors.fetch.monitor import LEASE_TTL_S
from streams.buckets.bucket import Bucket
from streams.clock import monotonic_s
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection, connect
from streams.publish.publisher import Publisher
from tests.integration.fetch.leading import WATCHES, until_leading
from tests.support.engine import (
    Node,
    running_node,
)
from tests.support.proxy import proxy


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hole_notices, "TOGETHER_MS", 0)


async def test_one_leads_and_another_takes_over_from_a_dead_one(
    server: EmbeddedServer, connection: Connection, publisher: Publisher
) -> None:
    async with running_node(connection, publisher, roles=WATCHES, node="heir") as heir:
        async with connect(server.url, name="leader", namespace=connection.namespace) as far:
            async with Publisher(far) as far_publisher, anyio.create_task_group() as tasks:
                await until_leading(heir)
                leader = await tasks.start(lead_for_a_while, far, far_publisher)
                assert not leader.engine.monitor.is_leading
                heir.stop.set()  # it leaves in order, and hands over at once
                await heir.has_ended.wait()
                entry = await Bucket(connection, publisher, connection.namespace.bucket("LEASES"), bytes).get("monitor")
                assert entry is None or b'"heir"' not in entry.raw
                await until_leading(leader)
                tasks.cancel_scope.cancel()
    async with running_node(connection, publisher, roles=WATCHES, node="third") as third:
        await until_leading(third)


async def lead_for_a_while(
    connection: Connection, publisher: Publisher, *, task_status: anyio.abc.TaskStatus[Node]
) -> None:
    async with running_node(connection, publisher, roles=WATCHES, node="leader") as node:
        task_status.started(node)
        await anyio.sleep_forever()


async def test_a_leader_that_falls_silent_is_followed_within_two_leases(
    server: EmbeddedServer, connection: Connection, publisher: Publisher
) -> None:
    async with (
        proxy(int(server.url.rpartition(":")[2])) as between,
        connect(between.url, name="leader", namespace=connection.namespace) as far,
        Publisher(far) as far_publisher,
        running_node(far, far_publisher, roles=WATCHES, node="leader") as leader,
    ):
        await until_leading(leader)
        async with running_node(connection, publisher, roles=WATCHES, node="heir") as heir:
            between.freeze()
            began_s = monotonic_s()
            await until_leading(heir)
            assert monotonic_s() - began_s <= 2 * LEASE_TTL_S + 5  # and what a busy machine adds
            assert not leader.engine.monitor.is_leading  # it knows by its own clock
            between.heal()
