"""The commands that look and set, as processes: what they print, and how they end."""

import json
import resource
import sys
from pathlib import Path

import anyio
import pytest

from penstock.admin.check import Check
from penstock.admin.doctor import examine
from penstock.api.http.tokens import TokenWish, create_token
from penstock.node.config import Config
from streams.buckets.bucket import Bucket
from streams.clock import now_ms
from streams.embedded.server import EmbeddedServer, embedded_server
from streams.link.connection import Connection, connect
from streams.publish.publisher import Publisher
from streams.subjects import Namespace
from streams.topology.specs import wanted
from streams.topology.topology import apply
from tests.support.command import penstock, plain_environment
from tests.support.processes import free_ports


@pytest.fixture
async def on(server: EmbeddedServer, connection: Connection, namespace: Namespace) -> tuple[str, ...]:
    await apply(connection, wanted(namespace, profile="fast"))
    return ("--nats", server.url, "--namespace", namespace.name)


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


async def test_settings_are_set_shown_and_refused(on: tuple[str, ...]) -> None:
    unknown = await penstock("settings", "set", "mall", "slice=2m", *on)
    assert (unknown.code, "there is no platform mall" in unknown.err, "--ahead" in unknown.err) == (2, True, True)
    done = await penstock("settings", "set", "mall", "slice=2m", "retries=3", "--ahead", *on)
    assert (done.code, done.out) == (0, "mall: retries: (not set) -> 3\nmall: slice: (not set) -> 2m\n")
    assert (await penstock("settings", "get", "mall/one", "slice", *on)).out == "2m\n"
    refused = await penstock("settings", "set", "mall/one", "slice=2", "--ahead", *on)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("penstock: setting slice: '2' has no unit")
    done = await penstock("settings", "set", "mall", "--unset", "retries", "--json", *on)
    assert done.json()["effects"] == {"mall": {"retries": {"before": 3, "after": 5}}}
    listed = (await penstock("settings", "list", "mall", "--json", *on)).json()
    told = {one["name"]: (one["value"], one["from"]) for one in listed["settings"]}
    assert (told["slice"], told["retries"]) == (("2m", "platform"), (5, "built in"))
    assert listed["refused"] == {}


async def test_a_server_without_our_streams_is_named(server: EmbeddedServer, namespace: Namespace) -> None:
    for command in (["nodes"], ["settings", "list"]):
        missing = await penstock(*command, "--nats", server.url, "--namespace", namespace.name)
        assert missing.code == 1
        assert "penstock init" in missing.err
        assert "Traceback" not in missing.err


async def test_config_shows_where_each_value_comes_from_and_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('zone = "eu"\nnats = "nats://h:1"\n')
    environment = {"PENSTOCK_PASSWORD": "env:BROKER_PASSWORD", "BROKER_PASSWORD": "hunter2"}
    shown = (await penstock("config", "--config", str(file), "--nats", "nats://h:2", "--json", **environment)).json()
    assert (shown["config"]["zone"], shown["from"]["zone"]) == ("eu", str(file))
    assert (shown["config"]["nats"], shown["from"]["nats"]) == ("nats://h:2", "the command line")
    assert shown["config"]["password"] == "env:BROKER_PASSWORD"
    assert "hunter2" not in str(shown)


async def test_init_seeds_and_shows_what_differs(
    server: EmbeddedServer, connection: Connection, namespace: Namespace, tmp_path: Path
) -> None:
    seed = tmp_path / "seed.toml"
    seed.write_text("[default]\nretries = 9\n")
    on = ("--nats", server.url, "--namespace", namespace.name)
    trial = await penstock("init", *on, "--seed", str(seed), "--dry-run", "--json")
    assert trial.code == 0
    assert len(trial.json()["differences"]) >= 9
    assert (await connection.api("STREAM.NAMES", {"subject": f"{namespace.name}.>"})).get("streams") is None
    done = await penstock("init", *on, "--seed", str(seed), "--json")
    assert done.json()["seeded"] == {"written": ["default"], "kept": []}
    again = await penstock("init", *on, "--seed", str(seed))
    assert "left default as it is" in again.out


async def test_init_makes_several_streams_of_jobs_and_does_not_change_their_number(
    server: EmbeddedServer, connection: Connection, namespace: Namespace
) -> None:
    on = ("--nats", server.url, "--namespace", namespace.name)
    for number in ("0", "65"):
        refused = await penstock("init", *on, "--job-streams", number)
        assert (refused.code, refused.err) == (2, f"penstock: --job-streams: {number} is not among 1 to 64\n")
    assert (await penstock("init", *on, "--job-streams", "3")).code == 0
    names = (await connection.api("STREAM.NAMES", {"subject": f"{namespace.name}.>"}))["streams"]
    assert {name for name in names if "_JOBS" in name} == set(Namespace(namespace.name, 3).jobs_streams())
    for more in ((), ("--job-streams", "3")):
        assert "everything is there" in (await penstock("init", *on, *more)).out
    other = await penstock("init", *on, "--job-streams", "2")
    assert other.code != 0
    assert "job_streams is 3, needs 2" in other.err
    assert "delete all streams of jobs" in other.err
    await connection.api(f"STREAM.DELETE.{namespace.stream('JOBS')}")
    assert (await penstock("init", *on, "--adopt")).code == 0
    assert "everything is there" in (await penstock("init", *on, "--job-streams", "3")).out
    for name in Namespace(namespace.name, 3).jobs_streams():
        await connection.api(f"STREAM.DELETE.{name}")
    assert (await penstock("init", *on, "--job-streams", "2", "--adopt")).code == 0
    names = (await connection.api("STREAM.NAMES", {"subject": f"{namespace.name}.>"}))["streams"]
    assert {name for name in names if "_JOBS" in name} == set(Namespace(namespace.name, 2).jobs_streams())


async def test_a_reader_that_goes_away_is_no_trouble(on: tuple[str, ...]) -> None:
    command = f'"{sys.executable}" -m penstock settings list {" ".join(on)} | head -c 1'
    with anyio.fail_after(30):
        done = await anyio.run_process(["bash", "-c", command], env=plain_environment())
    assert done.stderr == b""


async def test_the_doctor_is_content_with_a_server_as_it_should_be(tmp_path: Path, namespace: Namespace) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    async with embedded_server(data / "server", sync_always=True) as server:
        async with connect(server.url, name="init", namespace=namespace) as connection:
            await apply(connection, wanted(namespace, profile="safe"))
        checks = by_name(await examine(Config(data=str(data), namespace=namespace.name, profile="safe")))
    assert {
        name: check.level for name, check in checks.items() if name not in ("nats command", "disk", "open files")
    } == {
        "python": "ok",
        "nats-server": "ok",
        "data folder": "ok",
        "connection": "ok",
        "jetstream": "ok",
        "durability": "ok",
        "store": "ok",
        "topology": "ok",
        "replicas": "warn",
        "clock": "ok",
        "settings": "ok",
        "tokens": "ok",
    }
    assert "power cut" in checks["durability"].found


async def test_the_doctor_names_what_is_wrong_and_what_to_do(
    server: EmbeddedServer, connection: Connection, namespace: Namespace
) -> None:
    await apply(connection, wanted(namespace, profile="fast"))
    await connection.api(f"STREAM.DELETE.{namespace.stream('DEAD')}")
    async with Publisher(connection) as publisher:
        await Bucket(connection, publisher, namespace.bucket("SETTINGS"), bytes).put("fetch.mall", b"{")
    checks = by_name(await examine(Config(nats=server.url, namespace=namespace.name)))
    assert checks["topology"].level == "fail"
    assert "DEAD" in checks["topology"].found
    assert "penstock init" in checks["topology"].do
    assert checks["settings"].level == "fail"
    assert "fetch.mall" in checks["settings"].found
    assert checks["durability"].level == "warn"
    assert all(check.do for check in checks.values() if check.level != "ok")


async def test_the_doctor_finds_two_servers_that_are_no_cluster_and_one_that_is_away(
    server: EmbeddedServer, connection: Connection, namespace: Namespace, tmp_path: Path
) -> None:
    await apply(connection, wanted(namespace, profile="fast"))
    [closed] = free_ports(1)
    async with (
        embedded_server(tmp_path) as stranger,
        connect(stranger.url, name="other", namespace=namespace) as other,
    ):
        await apply(other, wanted(namespace, profile="fast"))
        both = f"{server.url},{stranger.url}"
        apart = by_name(await examine(Config(nats=both, namespace=namespace.name)))["addresses"]
    assert (apart.level, "no servers of one cluster" in apart.found) == ("fail", True)
    away = f"{server.url},nats://127.0.0.1:{closed}"
    alone = by_name(await examine(Config(nats=away, namespace=namespace.name)))["addresses"]
    assert (alone.level, f"nats://127.0.0.1:{closed}: " in alone.found) == ("warn", True)
    twice = by_name(await examine(Config(nats=f"{server.url},{server.url}", namespace=namespace.name)))["addresses"]
    assert twice.level == "ok"


async def test_the_doctor_finds_a_sink_that_is_away_few_files_and_tokens_that_are_over(
    server: EmbeddedServer, connection: Connection, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await apply(connection, wanted(namespace, profile="fast"))
    [closed] = free_ports(1)
    monkeypatch.setenv("SINK_OF_DOCTOR", f"postgresql://shop:hunter2@127.0.0.1:{closed}/orders")
    async with Publisher(connection) as publisher:
        tokens = Bucket(connection, publisher, namespace.bucket("TOKENS"), bytes)
        at_ms = now_ms()
        await create_token(tokens, TokenWish(name="shop", expires_ms=at_ms + 1), now_ms=at_ms)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1_000, hard))
    try:
        ill = by_name(await examine(Config(nats=server.url, namespace=namespace.name, sink="env:SINK_OF_DOCTOR")))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (ill["sink"].level, ill["open files"].level, ill["tokens"].level) == ("fail", "warn", "fail")
    assert "hunter2" not in ill["sink"].found
    assert "answers nobody" in ill["tokens"].found
    for url, level in (("sqlite:////no-such-folder/orders.db", "fail"), ("sqlite:////tmp/orders.db", "ok")):
        found = by_name(await examine(Config(nats=server.url, namespace=namespace.name, sink=url)))
        assert found["sink"].level == level


async def test_the_doctor_names_a_cause_once(tmp_path: Path) -> None:
    alone = "accounts { A { users: [{ user: a, password: a }] } }\nno_auth_user: a"
    async with embedded_server(tmp_path, config=alone) as server:
        told = [check for check in await examine(Config(nats=server.url)) if check.level == "fail"]
    assert [check.name for check in told] == ["jetstream"]


async def test_the_doctor_ends_with_exit_code_1_when_something_fails(tmp_path: Path) -> None:
    ill = await penstock("doctor", "--nats", "nats://127.0.0.1:9", "--json", PENSTOCK_CONNECT_S="0.5")
    assert ill.code == 1
    assert ill.json()["ok"] is False
    healthy = await penstock("doctor", "--data", str(tmp_path), "--json")
    assert healthy.code == 0
    assert by_name([Check(**one) for one in healthy.json()["checks"]])["connection"].level == "warn"


async def test_the_doctor_asks_the_monitoring_address(tmp_path: Path, namespace: Namespace) -> None:
    async with embedded_server(tmp_path, config='http: "127.0.0.1:-1"', sync_always=False) as server:
        port = _monitor_port(tmp_path, server.pid)
        monitor = f"http://127.0.0.1:{port}"
        found = {
            profile: by_name(
                await examine(Config(nats=server.url, namespace=namespace.name, monitor=monitor, profile=profile))
            )["durability"].level
            for profile in ("fast", "safe")
        }
    assert found == {"fast": "warn", "safe": "fail"}


def _monitor_port(store: Path, pid: int) -> int:
    told = json.loads(next(store.glob(f"*_{pid}.ports")).read_text())
    return int(told["monitoring"][0].rpartition(":")[2])


async def test_the_doctor_notices_a_folder_that_others_may_read(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    checks = by_name(await examine(Config(data=str(tmp_path / "data"))))
    assert (checks["data folder"].level, checks["data folder"].do[-len(str(data)) :]) == ("warn", str(data))
