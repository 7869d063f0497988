"""Commands while two servers of three are gone: they end in time, say what is so, and what to do."""

from contextlib import suppress
from pathlib import Path

import anyio

from streams.clock import monotonic_s
from streams.connection import connect
from streams.errors import StreamError
from streams.topology import apply
from tests.support.command import Ended, node, penstock
from tests.support.moments import a_moment
from tests.support.processes import cluster, urls_of
from tests.support.server import topology_for

WITHIN_S = 20.0
ASKED = (
    ("doctor", "--json"),
    ("why", "1"),
    ("jobs", "peek", "t", "1"),
    ("batch", "show", "b"),
    ("nodes",),
)


async def test_commands_say_that_most_of_the_servers_are_away(tmp_path: Path) -> None:
    told: dict[str, Ended] = {}
    took_s: dict[str, float] = {}

    async def run(*words: str) -> None:
        began_s = monotonic_s()
        told[words[0]] = await penstock(*words, "--nats", urls)
        took_s[words[0]] = monotonic_s() - began_s

    async with cluster(tmp_path) as servers, connect(urls_of(servers), name="test") as connection:
        urls = urls_of(servers)
        await apply(connection, topology_for(connection))
        async with node("--nats", urls, "--roles", "desk") as running:
            await running.logged("node.ready")
            for server in servers[1:]:
                server.kill()
            await _until_nobody_leads(servers[0].url)
            async with anyio.create_task_group() as tasks:
                for words in ASKED:
                    tasks.start_soon(run, *words)
    assert {name: ended.code for name, ended in told.items()} == dict.fromkeys(told, 1)
    assert max(took_s.values()) < WITHIN_S
    checks = {check["name"]: check for check in told.pop("doctor").json()["checks"]}
    assert "start the servers of the cluster that are down" in checks["jetstream"]["do"]
    for ended in told.values():
        assert "may have been done" not in ended.err  # they only read
    assert "cannot be known" in told.pop("nodes").err
    for ended in told.values():
        assert "`penstock doctor`" in ended.err


async def _until_nobody_leads(url: str) -> None:
    async with connect(url, name="test") as connection:
        with anyio.fail_after(60), suppress(StreamError):
            while True:
                await connection.api("INFO", timeout_s=1.0)
                await a_moment()
