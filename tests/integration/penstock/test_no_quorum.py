"""Commands while two servers of three are gone: they end in time, say what is so, and what to do."""

from contextlib import suppress
from pathlib import Path

import anyio

from streams.clock import monotonic_s
from streams.errors import Refused, StreamError
from streams.link.connection import Connection, connect
from streams.topology.topology import is_passing
from tests.support.command import Ended, node, penstock
from tests.support.moments import a_moment
from tests.support.processes import ServerProcess, cluster, urls_of
from tests.support.server import leader_of, make_topology, topology_for

WITHIN_S = 20.0
ASKED = (
    ("doctor", "--json"),
    ("why", "1"),
    ("jobs", "peek", "t", "1"),
    ("batch", "show", "b"),
    ("nodes",),
    ("schedules", "list"),
    ("tokens", "list"),
    ("dead", "list"),
)
LEADERLESS = ("KV_PENSTOCK_RECURRING", "KV_PENSTOCK_TOKENS", "KV_PENSTOCK_INSTANCES", "PENSTOCK_DEAD")


async def test_commands_say_that_most_of_the_servers_are_away(tmp_path: Path) -> None:
    told: dict[str, Ended] = {}
    took_s: dict[str, float] = {}

    async def run(*words: str) -> None:
        began_s = monotonic_s()
        told[" ".join(words)] = await penstock(*words, "--nats", urls)
        took_s[" ".join(words)] = monotonic_s() - began_s

    async with cluster(tmp_path) as servers, connect(urls_of(servers), name="test") as connection:
        urls = urls_of(servers)
        await make_topology(connection, topology_for(connection))
        await _led_by(servers[0], connection, "KV_PENSTOCK_NODES")
        for stream in LEADERLESS:
            await _led_by(servers[1], connection, stream)
        async with node("--nats", urls, "--roles", "desk") as running:
            await running.logged("node.ready")
            for server in servers[1:]:
                server.kill()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run, "doctor")  # the servers do not know yet that nobody leads
                await _until_nobody_leads(servers[0].url)
                for words in ASKED:
                    tasks.start_soon(run, *words)
    assert {name: ended.code for name, ended in told.items()} == dict.fromkeys(told, 1)
    assert max(took_s.values()) < WITHIN_S, took_s
    checks = {check["name"]: check for check in told["doctor --json"].json()["checks"]}
    assert "start the servers of the cluster that are down" in checks["jetstream"]["do"]
    assert not any("may have been done" in ended.err for ended in told.values()), "they only read"
    for name, ended in told.items():
        if name.startswith("doctor"):
            continue
        expected = "cannot be known" if name in ("nodes", "tokens list") else "`penstock doctor`"
        assert expected in ended.err, name


async def _led_by(server: ServerProcess, connection: Connection, stream: str) -> None:
    while await leader_of(connection, f"STREAM.INFO.{stream}") != server.name:
        with suppress(StreamError):
            await connection.api(f"STREAM.LEADER.STEPDOWN.{stream}", {"placement": {"preferred": server.name}})


async def _until_nobody_leads(url: str) -> None:
    async with connect(url, name="test") as connection:
        with anyio.fail_after(60):
            for asked in ("INFO", *(f"STREAM.INFO.{stream}" for stream in LEADERLESS)):
                while await _is_led(connection, asked):
                    await a_moment()


async def _is_led(connection: Connection, asked: str) -> bool:
    try:
        told = await connection.api(asked, timeout_s=1.0)
    except Refused as error:
        return not is_passing(error)
    except StreamError:
        return True
    return bool(told.get("cluster", {"leader": True}).get("leader"))
