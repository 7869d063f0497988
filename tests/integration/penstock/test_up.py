"""A node as a process: it comes up, is seen, drains, dies, and ends clearly when nothing else helps."""

import json
import os
import signal
import socket
from pathlib import Path

import anyio
import pytest

from actors.runtime.membership import TTL_S
from penstock.node.last_end import LAST_S
from streams.embedded.server import EmbeddedServer, embedded_server
from streams.link.connection import Connection, connect
from streams.link.credentials import Credentials
from streams.publish.publisher import Publisher
from streams.pull.puller import Puller
from streams.subjects import Namespace
from streams.topology.specs import wanted
from streams.topology.topology import apply
from tests.support.command import node, penstock, penstock_within
from tests.support.moments import a_moment
from tests.support.processes import free_ports
from tests.support.server import add_consumer, add_stream, connected, stream_state

LOGINS = """
accounts {
  APP { jetstream: enabled, users: [
    { user: admin, password: "secret-of-admin" }
    { user: node, password: "secret-of-node", permissions: { publish: ">", subscribe: ">" } } ] }
}
"""


@pytest.fixture
async def ready(connection: Connection, namespace: Namespace) -> Namespace:
    await apply(connection, wanted(namespace, profile="fast"))
    return namespace


def on(server: EmbeddedServer, namespace: Namespace) -> tuple[str, ...]:
    return ("--nats", server.url, "--namespace", namespace.name)


def own_door() -> str:
    """Return an address for HTTP that no other node has, as nodes of tests beside this one have the usual one."""
    [port] = free_ports(1)
    return f"127.0.0.1:{port}"


async def test_a_node_comes_up_is_listed_and_leaves_with_exit_code_0(server: EmbeddedServer, ready: Namespace) -> None:
    named = ("--name", "n1", "--zone", "eu", "--labels", "cn,fast", "--http", own_door())
    async with node(*on(server, ready), *named) as up:
        told = await up.logged("node.ready")
        assert set(told["actors"].values()) == {"running"}
        listed = (await penstock("nodes", *on(server, ready), "--json")).json()
        assert [(one["node"], one["zone"], one["labels"]) for one in listed] == [("n1", "eu", ["cn", "fast"])]
        assert await up.end(signal.SIGTERM) == 0
        await up.logged("node.stopped")
    assert (await penstock("nodes", *on(server, ready), "--json")).json() == []


async def test_a_node_without_a_database_does_not_load_sqlalchemy(server: EmbeddedServer, ready: Namespace) -> None:
    """It takes a third of what a node imports."""
    python = ("-X", "importtime", "-m", "penstock", "up")
    async with node(*on(server, ready), "--sink", "none", "--http", own_door(), command=python) as up:
        await up.logged("node.ready")
        loaded = {line.rpartition("|")[2].strip() for line in up.text.splitlines() if line.startswith("import time")}
    assert "actors.batch.desk" in loaded
    assert loaded.isdisjoint({"sqlalchemy", "asyncpg", "sqlite3"})


async def test_a_person_reads_what_a_node_serves_and_only_warnings(server: EmbeddedServer, ready: Namespace) -> None:
    named = ("--name", "n1", "--http", own_door())
    async with node(*on(server, ready), *named, environment={"PENSTOCK_LOG_FORM": "text"}) as up:
        with anyio.fail_after(30):
            while "  Stop     Ctrl-C" not in up.text:
                await up.news()
        assert up.text.startswith("The node n1 is ready.\n  Server   nats://")
        assert await up.end(signal.SIGTERM) == 0
    assert "node.stopped" not in up.text


async def test_a_killed_node_is_gone_from_the_others_view_within_its_ttl_and_a_second(
    server: EmbeddedServer, ready: Namespace
) -> None:
    async with node(*on(server, ready), "--name", "n1", "--roles", "monitor") as first:
        async with node(*on(server, ready), "--name", "n2", "--roles", "monitor") as second:
            await second.logged("node.ready")
            await first.logged("node.joined", node="n2")
            second.process.kill()
            killed_s = anyio.current_time()
            await first.logged("node.left", node="n2")
            assert anyio.current_time() - killed_s <= TTL_S + 1 + 30  # and what a busy machine adds


async def test_without_init_a_node_refuses_and_says_what_to_do(
    server: EmbeddedServer, connection: Connection, namespace: Namespace
) -> None:
    refused = await penstock("up", *on(server, namespace))
    assert refused.code == 1
    assert "penstock init" in refused.err
    made = await penstock("init", *on(server, namespace), "--profile", "fast", "--json")
    assert made.code == 0
    assert made.json()["is_applied"]
    assert f"bucket {namespace.bucket('NODES')}: made" in made.json()["differences"]
    again = await penstock("init", *on(server, namespace), "--profile", "fast")
    assert "everything is there" in again.out


async def test_the_embedded_server_says_what_it_promises_and_a_second_node_is_told_where_it_is(tmp_path: Path) -> None:
    data = tmp_path / "data"
    seed = tmp_path / "seed.toml"
    seed.write_text('[default]\nretries = 9\n[platform.mall]\nslice = "2m"\n')
    async with node("--data", str(data), "--seed", str(seed), "--roles", "monitor") as up:
        told = await up.logged("server.embedded")
        assert "power cut" in told["means"]
        await up.logged("node.ready")
        assert data.stat().st_mode & 0o777 == 0o700
        os.kill(json.loads((data / "server" / "server.json").read_text())["pid"], signal.SIGKILL)
        await up.logged("server.restarts")
        await up.logged("connection.resumed")
        found = await penstock("settings", "get", "mall", "--json", "--data", str(data))
        assert (found.json()["retries"], found.json()["slice"]) == (9, "2m")
        second = await penstock("up", "--data", str(data))
        assert second.code == 1
        assert told["url"] in second.err
        assert await up.end(signal.SIGINT) == 0
    assert (await penstock("nodes", "--data", str(data))).code == 1


async def test_a_person_is_told_that_the_node_stops_and_when_it_has(server: EmbeddedServer, ready: Namespace) -> None:
    text = {"PENSTOCK_LOG_FORM": "text", "PENSTOCK_DRAIN_S": "7"}
    async with node(*on(server, ready), "--roles", "monitor", environment=text) as up:
        with anyio.fail_after(60):
            while "  Stop " not in up.text:
                await up.news()
        assert await up.end(signal.SIGINT) == 0
    last = up.text.splitlines()[-2:]
    assert last == ["Stopping: work in hand has 7 s at most. Ctrl-C once more ends it at once.", "Stopped."]


@pytest.mark.parametrize("finishes", [True, False])
async def test_a_stop_finishes_or_gives_back_and_loses_nothing(
    server: EmbeddedServer, connection: Connection, ready: Namespace, finishes: bool
) -> None:
    stream = await add_stream(connection, "CHORES", "chores", ">", retention="workqueue")
    await add_consumer(connection, stream, "drain", ack_wait=60_000_000_000)
    async with Publisher(connection) as publisher:
        for number in range(6):
            await publisher.publish(ready.subject("chores", str(number)), b"")
    drain_s = 30 if finishes else 1
    environment = {"PENSTOCK_NATS": server.url, "PENSTOCK_NAMESPACE": ready.name, "PENSTOCK_DRAIN_S": str(drain_s)}
    command = ("-m", "tests.integration.penstock.draining_node", *(() if finishes else ("for-ever",)))
    async with node(command=command, environment=environment) as up:
        await up.logged("node.ready")
        stopped_s = anyio.current_time()
        assert await up.end(signal.SIGTERM) == 0
        took_s = anyio.current_time() - stopped_s
    assert (await stream_state(connection, stream))["messages"] == (4 if finishes else 6)
    assert took_s < 25 if finishes else took_s >= 1
    if not finishes:
        await up.logged("node.drain_cut_short")
    async with Puller(connection, stream, "drain", capacity=10) as other:
        with anyio.fail_after(20):  # what was only prefetched waits for somebody else now, not for the ack wait
            assert [(await other.receive()).delivered for _ in range(4)] == [2, 2, 2, 2]


async def test_a_login_that_is_taken_back_ends_the_node_clearly(tmp_path: Path, namespace: Namespace) -> None:
    async with embedded_server(tmp_path, config=LOGINS) as server:
        admin = Credentials(user="admin", password="secret-of-admin")
        async with connect(server.url, name="init", namespace=namespace, credentials=admin) as connection:
            await apply(connection, wanted(namespace, profile="fast"))
        login = {"PENSTOCK_USER": "node", "PENSTOCK_PASSWORD": "env:NODE_PASSWORD", "NODE_PASSWORD": "secret-of-node"}
        async with node(*on(server, namespace), "--roles", "monitor", environment=login) as up:
            await up.logged("node.ready")
            settings = tmp_path / "nats.conf"
            settings.write_text(settings.read_text().replace("secret-of-node", "another"))
            server.send_signal(signal.SIGHUP)
            assert await up.end() == 1
            assert up.text.startswith("penstock: ")
            assert "closed the connection for good" in up.text
            assert "Traceback" not in up.text
            assert "secret-of-node" not in up.text + str(up.lines)


async def test_a_permission_that_is_taken_back_ends_the_node_and_names_the_subject(
    tmp_path: Path, namespace: Namespace
) -> None:
    async with embedded_server(tmp_path, config=LOGINS) as server:
        admin = Credentials(user="admin", password="secret-of-admin")
        async with connect(server.url, name="init", namespace=namespace, credentials=admin) as connection:
            await apply(connection, wanted(namespace, profile="fast"))
        login = {"PENSTOCK_USER": "node", "PENSTOCK_PASSWORD": "env:NODE_PASSWORD", "NODE_PASSWORD": "secret-of-node"}
        async with node(*on(server, namespace), "--roles", "monitor", environment=login) as up:
            await up.logged("node.ready")
            settings = tmp_path / "nats.conf"
            settings.write_text(settings.read_text().replace('publish: ">"', 'publish: { deny: "$KV.>" }'))
            server.send_signal(signal.SIGHUP)
            assert await up.end() == 1
            assert "$kv." in up.text.lower()
            assert "permission" in up.text


async def test_a_node_outlives_its_log_and_few_descriptors(server: EmbeddedServer, ready: Namespace) -> None:
    async with node(*on(server, ready), "--name", "mute", "--roles", "monitor", shell="exec 2>/dev/full") as mute:
        async with connected(server, ready) as connection:
            with anyio.fail_after(30):
                while not await _is_listed(connection, "mute"):
                    await a_moment()
            async with node(*on(server, ready), "--roles", "monitor", shell="ulimit -n 64") as poor:
                await poor.logged("node.ready")
                assert await poor.end(signal.SIGTERM) == 0
        assert await mute.end(signal.SIGTERM) == 0


async def _is_listed(connection: Connection, name: str) -> bool:
    bucket = connection.namespace.bucket("NODES")
    return not (await connection.request(f"$JS.API.DIRECT.GET.KV_{bucket}.$KV.{bucket}.{name}")).status


async def test_a_thread_that_the_application_left_keeps_no_process_whose_command_is_over(tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, name='poller').start()\nraise ValueError\n"
    )
    command = ("work", "threaded", "--nats", "nats://127.0.0.1:1")
    refused = await penstock_within(LAST_S + 60, *command, PYTHONPATH=str(tmp_path))
    assert refused.code == 2, "the command's own"
    assert "threaded.py, line 3: ValueError" in refused.err
    assert "poller; start them with daemon=True" in refused.err


@pytest.mark.parametrize(
    ("code", "is_warned"),
    [
        ("x = 1", True),
        ("import penstock\n@penstock.sink\nasync def store(orders): ...", True),
        ("import penstock\n@penstock.job('mail')\nasync def mail(job): ...", False),
        ("import penstock\npenstock.external_batch('mail', 'nats:penstock.ask.app.mail')", False),
    ],
)
async def test_a_module_of_which_nothing_runs_is_told(tmp_path: Path, code: str, is_warned: bool) -> None:
    """A process of `penstock work` serves no sink."""
    (tmp_path / "mails.py").write_text(code)
    command = ("work", "mails", "--nats", "nats://127.0.0.1:9")
    missing = await penstock(*command, PENSTOCK_CONNECT_S="0.1", PYTHONPATH=str(tmp_path))
    assert missing.code == 1
    assert ('"event":"app.serves_nothing"' in missing.err) == is_warned


async def test_a_server_that_is_not_there_is_told_with_its_address() -> None:
    missing = await penstock("up", "--nats", "nats://127.0.0.1:9", PENSTOCK_CONNECT_S="0.5")
    assert missing.code == 1
    assert "127.0.0.1:9" in missing.err
    assert "Traceback" not in missing.err


async def test_a_data_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    file, inner = tmp_path / "file", tmp_path / "data" / "server"
    file.touch()
    inner.parent.mkdir()
    inner.touch()
    for data, code, said in (
        (file, 2, f"data: {file}: File exists; name a folder where this user may write"),
        (inner.parent, 1, f"the store {inner} cannot be used by this user: File exists: choose another folder"),
    ):
        refused = await penstock("up", "--data", str(data))
        assert (refused.code, said in refused.err) == (code, True), refused.err


async def test_an_exporter_that_is_missing_is_named_before_anything_is_opened(tmp_path: Path) -> None:
    missing = await penstock("up", "--data", str(tmp_path / "data"), OTEL_TRACES_EXPORTER="nosuch")
    assert missing.code == 2
    assert missing.err == "penstock: OTEL_TRACES_EXPORTER: no installed package has an exporter 'nosuch'\n"
    assert not (tmp_path / "data").exists()


async def test_systemd_hears_when_a_node_is_ready_that_it_lives_and_that_it_stops(
    server: EmbeddedServer, ready: Namespace
) -> None:
    address = f"@{ready.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0" + address[1:])
        systemd.setblocking(False)
        told: list[bytes] = []

        async def hear(word: bytes) -> None:
            with anyio.fail_after(20):
                while word not in told:
                    await anyio.wait_readable(systemd)
                    told.append(systemd.recv(100))

        variables = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "200000"}
        async with node(*on(server, ready), "--name", "n1", "--roles", "monitor", environment=variables) as up:
            await hear(b"WATCHDOG=1")
            assert told[0] == b"READY=1"
            await up.logged("node.ready")
            told.clear()
            await hear(b"WATCHDOG=1")
            assert await up.end(signal.SIGTERM) == 0
            await hear(b"STOPPING=1")
