"""What a node does that has nothing to do."""

from pathlib import Path

import anyio

from streams.buckets.bucket import Bucket
from streams.buckets.entries import Change
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from streams.topology.specs import wanted
from tests.support.command import node
from tests.support.server import make_topology

BEATS, MOST_BEATS = 6, 15
MOST_WAKES = 25 * BEATS
"""A heartbeat comes each 1.5 s. An idle node of two wakes 10 times a second, so 15 times between two of them. It was 60
and more while each look and each heartbeat had a moment of its own."""


async def test_an_idle_node_wakes_a_few_times_a_second(
    server: EmbeddedServer, connection: Connection, publisher: Publisher
) -> None:
    """Counted by its own heartbeats: a node that is held up does less between two of them, and not more."""
    namespace = connection.namespace
    await make_topology(connection, wanted(namespace, profile="fast"))
    on = ("--nats", server.url, "--namespace", namespace.name, "--sink", "none")
    async with node(*on, "--name", "n1") as first, node(*on, "--name", "n2") as second:
        await first.logged("node.ready")
        await second.logged("node.ready")
        wakes: list[int] = []
        with anyio.fail_after(90):
            async with Bucket(connection, publisher, namespace.bucket("NODES"), bytes).watch("n2") as beats:
                while len(wakes) <= MOST_BEATS:
                    if isinstance(await anext(beats), Change):
                        wakes.append(_wakes(second.process.pid))
        fewest = min(wakes[at + BEATS] - wakes[at] for at in range(MOST_BEATS - BEATS + 1))
        assert fewest <= MOST_WAKES, wakes


def _wakes(pid: int) -> int:
    """Return how often a process's first thread has waited so far (Linux)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
