"""The gateway while the server is away, before a slow reader, over TLS, and as a node runs it."""

import asyncio
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import pytest
from aiohttp import ClientSession, ClientTimeout

from penstock.api.http import connections, door, limits
from penstock.api.http.connections import BoundedConnection
from penstock.node.config import Config
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.integration.api.test_limits import CLOSE, GET, POST, connected_to, exchange
from tests.integration.api.test_rest import add, call, reserve, settle, until_counted
from tests.support.command import node
from tests.support.gateway import RunningGateway, running_gateway
from tests.support.moments import a_moment
from tests.support.server import connected


async def test_while_the_server_is_away_the_gateway_says_so_and_goes_on_afterwards(
    own_server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with connected(own_server) as connection, Publisher(connection) as publisher:
        async with running_gateway(connection, publisher) as gateway:
            async with ClientSession(gateway.url, timeout=ClientTimeout(total=60)) as client:
                await add(client, "t", {"id": "1"})
                (job,) = await reserve(client, "t")
                pushed = await client.post("/v1/topics/t/reservations")
                await own_server.stop()
                with anyio.fail_after(30):
                    while (await _status(client, "GET", "/ready")) == 200:
                        await a_moment()
                assert await call(client, "GET", "/health") == {"status": "ok"}
                for method, path in (("GET", "/v1/topics/t/jobs/1"), ("POST", "/v1/topics/t/jobs")):
                    async with client.request(method, path, json={"id": "2"}) as response:
                        told = await response.json(content_type=None)
                        assert (response.status, told["code"]) == (503, "unavailable")
                        assert "Retry-After" in response.headers
                        assert "jobs." not in told["detail"], "names of the broker are not for clients"
                with anyio.fail_after(30):
                    assert (await pushed.content.read()).startswith(b"retry: 1000")  # to its end
                (ended,) = [line for line in caplog.records if line.getMessage() == "gateway.push_ended"]
                assert ended.__dict__["fields"]["topic"] == "t"
                await own_server.restart()
                with anyio.fail_after(30):
                    while (await _status(client, "GET", "/ready")) != 200:
                        await a_moment()
                assert (await settle(client, "finish", job["receipt"]))[0]["code"] == "ok"
                assert (await add(client, "t", {"id": "3"}))["is_new"]


async def _status(client: ClientSession, method: str, path: str) -> int:
    async with client.request(method, path) as response:
        return response.status


async def test_a_client_that_fetches_no_answers_is_cut_off(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "WRITE_S", 0.3)
    async with running_gateway(connection, publisher) as gateway:
        shared = gateway.gateway.shared
        async with ClientSession(gateway.url) as client:
            await add(client, "t", [{"delay_ms": 60_000, "body": "x" * 100_000} for _ in range(9)], 200)
        many = b"GET /v1/topics/t/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n"
        async with connected_to(gateway.port) as greedy:
            for _ in range(12):
                await greedy.send(many)
            with anyio.fail_after(30):
                while not greedy.is_broken:
                    await greedy.send(many)
                    await exchange(gateway.port, GET + CLOSE + b"\r\n")
        assert shared.load.working == 0


LIST = b"GET /v1/topics/t/jobs HTTP/1.1\r\nHost: localhost\r\n"


async def a_large_topic(gateway: RunningGateway) -> bytes:
    """Fill a topic, and return the answer that lists it: two megabytes."""
    async with ClientSession(gateway.url) as client:
        for _ in range(4):
            await add(client, "t", [{"delay_ms": 60_000, "body": "x" * 100_000} for _ in range(5)], 200)
    return await exchange(gateway.port, LIST + CLOSE + b"\r\n")


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the gateway's side of each connection keep little of an answer, where the system would keep all of it."""
    made = BoundedConnection.connection_made

    def connection_made(connection: BoundedConnection, transport: asyncio.Transport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        made(connection, transport)

    monkeypatch.setattr(BoundedConnection, "connection_made", connection_made)


@asynccontextmanager
async def a_slow_client(port: int) -> AsyncIterator[socket.socket]:
    """Connect with so little room that what is not read waits at the gateway."""
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        await asyncio.get_running_loop().sock_connect(slow, ("127.0.0.1", port))
        yield slow


@pytest.mark.usefixtures("little_room")
async def test_answers_that_nobody_reads_leave_room_for_others(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MOST_UNREAD_PER_TOKEN", 5_000_000)
    async with running_gateway(connection, publisher) as gateway, AsyncExitStack() as clients:
        whole, loop = await a_large_topic(gateway), asyncio.get_running_loop()
        assert len(whole) > 2_000_000
        with anyio.fail_after(30):
            while (answer := await exchange(gateway.port, LIST + CLOSE + b"\r\n")).startswith(b"HTTP/1.1 200 "):
                slow = await clients.enter_async_context(a_slow_client(gateway.port))
                await loop.sock_sendall(slow, LIST + b"\r\n")
                await loop.sock_recv(slow, 100)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in answer
        assert b"application/problem+json" in answer
        assert b'"code":"busy"' in answer
        async with ClientSession(gateway.url) as client:
            assert (await add(client, "t", {"id": "1"}))["is_new"], "small answers take no room"
        await clients.aclose()
        with anyio.fail_after(30):
            while not (await exchange(gateway.port, LIST + CLOSE + b"\r\n")).startswith(b"HTTP/1.1 200 "):
                await a_moment()


def reserve_of(most: int) -> bytes:
    asked = b'{"most":%d}' % most
    head = b"POST /v1/topics/t/reserve HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head + CLOSE + b"Content-Length: %d\r\n\r\n" % len(asked) + asked


@pytest.mark.usefixtures("little_room")
async def test_jobs_whose_answer_would_wait_with_too_many_others_are_given_back(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MOST_UNREAD_PER_TOKEN", 5_000_000)
    async with running_gateway(connection, publisher) as gateway, AsyncExitStack() as clients:
        loop = asyncio.get_running_loop()
        async with ClientSession(gateway.url) as client:
            for _ in range(14):
                await add(client, "t", [{"body": "x" * 100_000} for _ in range(5)], 200)
            answer = b""
            with anyio.fail_after(30):
                while not answer.startswith(b"HTTP/1.1 503 "):
                    slow = await clients.enter_async_context(a_slow_client(gateway.port))
                    await loop.sock_sendall(slow, reserve_of(20))
                    answer = await loop.sock_recv(slow, 100)
            await until_counted(client, "t", "ready", 30)
            (job,) = await reserve(client, "t")
            assert job["attempt"] == 1, "to be given back is no attempt"


@pytest.mark.usefixtures("little_room")
async def test_a_client_that_reads_slowly_gets_its_answer(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step has its time, and not the whole answer."""
    monkeypatch.setattr(connections, "WRITE_S", 0.1)
    due, look = asyncio.Event(), BoundedConnection._is_read_slowly

    def tell(connection: BoundedConnection, now_s: float) -> None:
        look(connection, now_s)
        due.set()

    monkeypatch.setattr(BoundedConnection, "_is_read_slowly", tell)
    async with running_gateway(connection, publisher) as gateway:
        whole, loop, size = await a_large_topic(gateway), asyncio.get_running_loop(), 0
        async with a_slow_client(gateway.port) as slow:
            with anyio.fail_after(60):
                await loop.sock_sendall(slow, LIST + CLOSE + b"\r\n")
                for step in range(4):
                    while size < (step + 1) * 400_000:
                        part = await loop.sock_recv(slow, 65_536)
                        assert part, f"it was cut off after {size} bytes"
                        size += len(part)
                    due.clear()
                    await due.wait()
                while part := await loop.sock_recv(slow, 65_536):
                    size += len(part)
        assert size == len(whole)


async def test_large_bodies_are_read_a_few_at_a_time(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "MOST_BODY_BYTES", 300_000)
    begun = POST + b"Content-Length: 200000\r\n\r\n" + b" " * 100_000
    async with running_gateway(connection, publisher) as gateway:
        shared = gateway.gateway.shared
        async with connected_to(gateway.port) as first, connected_to(gateway.port) as second:
            await first.send(begun)
            await second.send(begun)
            with anyio.fail_after(30):
                while shared.load.body_bytes < 200_000:
                    await exchange(gateway.port, GET + CLOSE + b"\r\n")
                    await a_moment()
            refused = await exchange(gateway.port, begun + b" " * 50_000)
            assert refused.startswith(b"HTTP/1.1 503 ")
            await first.send(b" " * 100_000)
            assert (await first.answer()).startswith(b"HTTP/1.1 400 ")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl on PATH to make certificates with")
    folder = tmp_path_factory.mktemp("tls")
    command = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out cert.pem -days 1"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([openssl, *command.split(), *names], cwd=folder, check=True, capture_output=True, timeout=30)
    return folder / "cert.pem", folder / "key.pem"


async def test_with_a_certificate_it_speaks_tls(
    connection: Connection, publisher: Publisher, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    config = Config(http="127.0.0.1:0", http_cert=str(cert), http_key=str(key))
    trusting = ssl.create_default_context(cafile=str(cert))
    async with running_gateway(connection, publisher, config) as gateway:
        async with ClientSession() as client:
            async with client.get(f"https://127.0.0.1:{gateway.port}/ready", ssl=trusting) as response:
                assert response.status == 200
        old = ssl.create_default_context(cafile=str(cert))
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, OSError)):
            await asyncio.open_connection("127.0.0.1", gateway.port, ssl=old)


async def test_a_node_serves_http_and_heeds_its_signals_itself(tmp_path: Path) -> None:
    environment = {"PENSTOCK_HTTP": "off", "PENSTOCK_LOG_FORM": "json"}
    arguments = ("--data", str(tmp_path), "--sink", "none", "--http", "127.0.0.1:0")  # a flag is stronger
    async with node(*arguments, environment=environment) as running:
        line = await running.logged("gateway.listens")
        assert line["callers_need"] == "nothing: there are no tokens"
        await running.logged("node.ready")
        async with ClientSession(f"http://127.0.0.1:{line['port']}") as client:
            await add(client, "t", {"id": "1"})
            assert (await reserve(client, "t"))[0]["id"] == "1"
            assert await running.end(signal.SIGTERM) == 0
    assert not [one for one in running.lines if one["logger"].startswith("uvicorn")]


async def test_clients_that_vanish_before_their_answers_are_no_fault_of_the_node(tmp_path: Path) -> None:
    async with node("--data", str(tmp_path), "--sink", "none", "--http", "127.0.0.1:0") as running:
        port = (await running.logged("gateway.listens"))["port"]
        await running.logged("node.ready")
        async with ClientSession(f"http://127.0.0.1:{port}") as client:
            await add(client, "t", [{"delay_ms": 60_000, "body": "x" * 100_000} for _ in range(9)], 200)
            many = b"GET /v1/topics/t/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n"
            for _ in range(20):
                async with connected_to(port) as vanishing:
                    await vanishing.send(many * 8)
            await add(client, "t", {"id": "last"})
        assert await running.end(signal.SIGTERM) == 0
    assert not [one for one in running.lines if one["event"] == "gateway.failed"]
