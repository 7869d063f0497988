"""What no client may do to the gateway: by raw bytes on a socket, as an attacker would."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import anyio
import pytest
from aiohttp import ClientSession

from penstock.api.http import connections, door
from penstock.api.http.limits import LARGEST_BODY, LARGEST_HEAD, LONGEST_URL, MOST_HEADERS, MOST_PIPELINED
from penstock.node import http_server as server
from penstock.node.config import Config
from penstock.node.http_server import HEADERS
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.support.gateway import SharedGateway, running_gateway
from tests.support.moments import a_moment

HOST = b"Host: localhost\r\n"
JSON = b"Content-Type: application/json\r\n"
CLOSE = b"Connection: close\r\n"
POST = b"POST /queue HTTP/1.1\r\n" + HOST + JSON
GET = b"GET /health HTTP/1.1\r\n" + HOST


class Socket:
    """One connection, with bytes as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.is_broken = False

    async def send(self, *parts: bytes) -> None:
        """Send what the other side still takes."""
        for part in parts:
            self._writer.write(part)
            try:
                await self._writer.drain()
            except OSError:
                self.is_broken = True
                return

    async def rest(self) -> bytes:
        """Return what comes until the other side closes."""
        received = b""
        with anyio.fail_after(30):
            try:
                while chunk := await self._reader.read(65_536):
                    received += chunk
            except ConnectionResetError:
                pass
        return received

    async def answer(self) -> bytes:
        """Return one answer with a body of known length."""
        with anyio.fail_after(30):
            head = await self._reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            return head + await self._reader.readexactly(length)


@asynccontextmanager
async def connected_to(port: int) -> AsyncIterator[Socket]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Socket(reader, writer)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def exchange(port: int, *parts: bytes) -> bytes:
    async with connected_to(port) as opened:
        await opened.send(*parts)
        return await opened.rest()


CHUNK = b"10000\r\n" + b"x" * 65_536 + b"\r\n"


@pytest.mark.parametrize(
    ("status", "parts"),
    [
        pytest.param(413, [POST + b"Content-Length: 1000000000\r\n\r\n", b"x" * 3_000_000], id="42: a gigabyte"),
        pytest.param(413, [POST + b"Expect: 100-continue\r\nContent-Length: 2000000\r\n\r\n"], id="42: asked before"),
        pytest.param(413, [POST + b"Transfer-Encoding: chunked\r\n\r\n", *[CHUNK] * 40], id="43: endless chunks"),
        pytest.param(
            400, [POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"], id="44: two lengths"
        ),
        pytest.param(400, [POST + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd"], id="44: two content lengths"),
        pytest.param(400, [POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"], id="44: another encoding"),
        pytest.param(400, [POST + b"Content-Length : 4\r\n\r\nabcd"], id="44: a space before the colon"),
        pytest.param(400, [POST + b"Content-Length: -1\r\n\r\n"], id="44: less than nothing"),
        pytest.param(400, [b"POST /queue HTTP/1.1\nHost: localhost\n\n"], id="44: bare line ends"),
        pytest.param(
            400,
            [POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nAuthorization: Bearer x\r\n\r\n"],
            id="44: a header behind the body",
        ),
        pytest.param(
            415, [POST + CLOSE + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b"], id="45: gzip"
        ),
        pytest.param(400, [GET + CLOSE + b"Authorization: Bearer a\r\n" * 2 + b"\r\n"], id="39: two tokens"),
        pytest.param(400, [GET + CLOSE + b"Authorization: Bearer a\r\n b\r\n\r\n"], id="41: a folded token"),
        pytest.param(405, [b"TRACE /queue HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n"], id="61: TRACE"),
        pytest.param(405, [b"HEAD /v1/topics HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n"], id="61: HEAD"),
        pytest.param(400, [GET + CLOSE + b"X-HTTP-Method-Override: DELETE\r\n\r\n"], id="61: a method behind"),
        pytest.param(400, [b"CONNECT host:80 HTTP/1.1\r\n" + HOST + b"\r\n"], id="61: CONNECT"),
        pytest.param(400, [b"GET http://other/health HTTP/1.1\r\n" + HOST + b"\r\n"], id="62: another address"),
        pytest.param(400, [b"GET //health HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n"], id="62: an empty part"),
        pytest.param(400, [b"GET /v1/../health HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n"], id="62: dots"),
        pytest.param(400, [b"GET /\x00 HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n"], id="62: NUL"),
        pytest.param(400, ["GET /ü HTTP/1.1\r\n".encode() + HOST + CLOSE + b"\r\n"], id="62: not ASCII"),
        pytest.param(
            422, [b"GET /v1/topics/a%0d%0aX-Evil:1/jobs HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n"], id="65: line ends"
        ),
        pytest.param(
            421, [b"GET /v1/topics HTTP/1.1\r\nHost: evil.example\r\n" + CLOSE + b"\r\n"], id="63: foreign host"
        ),
        pytest.param(
            403, [POST + CLOSE + b"Origin: http://evil.example\r\nCookie: a=b\r\n\r\n"], id="64: foreign page"
        ),
        pytest.param(
            431, [GET + b"".join(b"a%d: b\r\n" % n for n in range(10_000)) + b"\r\n"], id="66: ten thousand headers"
        ),
        pytest.param(431, [GET + b"a: b\r\n" * (MOST_HEADERS + 1) + b"\r\n"], id="66: one header too many"),
        pytest.param(431, [GET + b"a: " + b"x" * LARGEST_HEAD + b"\r\n\r\n"], id="66: a large header"),
        pytest.param(431, [GET + b"a: ", *[b"x" * 65_536] * 40], id="66: an endless header"),
        pytest.param(414, [b"GET /health?" + b"a" * LONGEST_URL + b" HTTP/1.1\r\n" + HOST + b"\r\n"], id="a long URL"),
        pytest.param(414, [b"GET /", *[b"a" * 65_536] * 20], id="an endless URL"),
        pytest.param(400, [b"GET /health HTTP/1.1\r\n" + CLOSE + b"\r\n"], id="no host"),
        pytest.param(400, [b"GET /health HTTP/1.1\r\nHost: localhost:x\r\n" + CLOSE + b"\r\n"], id="63: no port"),
        pytest.param(400, [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], id="HTTP/2"),
        pytest.param(400, [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"], id="TLS"),
        pytest.param(200, [GET + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\nxyz"], id="an upgrade is not made"),
        pytest.param(200, [b"GET /health HTTP/1.0\r\n" + HOST + b"\r\n"], id="HTTP/1.0"),
    ],
)
async def test_what_is_not_taken_is_refused_and_the_rest_of_it_not_read(
    open_gateway: SharedGateway, status: int, parts: list[bytes]
) -> None:
    answer = await exchange(open_gateway.port, *parts)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:300]
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"x-evil" not in answer.lower().partition(b"\r\n\r\n")[0]
    assert b"x-content-type-options: nosniff" in answer
    assert b"\r\nserver:" not in answer.lower()
    assert (await exchange(open_gateway.port, GET + CLOSE + b"\r\n")).startswith(b"HTTP/1.1 200 ")


async def test_what_is_just_within_the_limits_is_taken(open_gateway: SharedGateway, topic: str) -> None:
    filler = b"x: " + b"y" * (LARGEST_HEAD - 200) + b"\r\n"
    assert (await exchange(open_gateway.port, GET + CLOSE + filler + b"\r\n")).startswith(b"HTTP/1.1 200 ")
    body = b'{"body": "' + b"x" * 262_142 + b'"}'
    async with ClientSession(open_gateway.url, headers={"Content-Type": "application/json"}) as client:
        async with client.post(f"/v1/topics/{topic}/jobs", data=body) as response:
            assert response.status == 201
        async with client.post(f"/v1/topics/{topic}/jobs", data=body.replace(b"x", b"xx", 1)) as response:
            assert response.status == 413
        async with client.post("/queue", data=b" " * LARGEST_BODY) as response:
            assert response.status == 400


async def test_a_few_requests_may_run_ahead_of_their_answers(open_gateway: SharedGateway) -> None:
    answers = await exchange(open_gateway.port, (GET + b"\r\n") * 8 + GET + CLOSE + b"\r\n")
    assert answers.count(b"HTTP/1.1 200 ") == 9
    assert (await exchange(open_gateway.port, (GET + b"\r\n") * (MOST_PIPELINED * 5))).count(b"HTTP/1.1 ") < 80


async def test_one_connection_serves_many_requests(open_gateway: SharedGateway) -> None:
    async with connected_to(open_gateway.port) as opened:
        for _ in range(50):
            await opened.send(GET + b"\r\n")
            assert (await opened.answer()).endswith(b'{"status":"ok"}')


async def test_a_whole_answer_has_the_head_that_all_have(open_gateway: SharedGateway) -> None:
    """Its head is written in one step. A HEAD has the length of the body, and no body."""
    head = GET.replace(b"GET", b"HEAD")
    alone = await exchange(open_gateway.port, head + b"\r\n" + GET + CLOSE + b"\r\n")
    of_head, of_get, body = alone.split(b"\r\n\r\n")
    assert body == b'{"status":"ok"}'
    lines = of_get.split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 200 OK"
    assert lines[-3:] == [b"content-type: application/json", b"content-length: 15", b"connection: close"]
    assert [line.partition(b": ")[0] for line in lines[1:-3]] == [b"date", *(name.encode() for name, _ in HEADERS)]
    assert of_head.split(b"\r\n")[2:] == lines[2:-1]


async def test_a_body_in_pieces_is_put_together(open_gateway: SharedGateway, topic: str) -> None:
    body = b'{"command": "pop", "topic": "%b"}' % topic.encode()
    async with connected_to(open_gateway.port) as opened:
        await opened.send(POST + b"Content-Length: %d\r\n\r\n" % len(body))
        for byte in body:
            await opened.send(bytes([byte]))
        assert (await opened.answer()).endswith(b'{"success":true}')
        await opened.send(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        for byte in body:
            await opened.send(b"1\r\n%b\r\n" % bytes([byte]))
        await opened.send(b"0\r\n\r\n")
        assert (await opened.answer()).endswith(b'{"success":true}')


@pytest.mark.parametrize(
    "begun",
    [b"", b"GET /hea", b"GET /health HTTP/1.1\r\nHost: loc", POST + b"Content-Length: 100\r\n\r\n{", GET + b"\r\n"],
    ids=["nothing", "a line", "a head", "a body", "a request before"],
)
async def test_a_client_that_dawdles_is_let_go(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(connections, "READ_S", 1.0)
    monkeypatch.setattr(connections, "IDLE_S", 1.0)
    async with running_gateway(connection, publisher) as gateway, connected_to(gateway.port) as opened:
        await opened.send(begun)
        received = await opened.rest()
    expected = b"" if not begun else b"HTTP/1.1 200 " if begun.endswith(b"\r\n\r\n") else b"HTTP/1.1 408 "
    assert received.startswith(expected)
    assert bool(received) is bool(begun)


async def test_a_client_that_cuts_a_body_leaves_nothing_behind(connection: Connection, publisher: Publisher) -> None:
    async with running_gateway(connection, publisher) as gateway:
        shared = gateway.gateway.shared
        for _ in range(20):
            async with connected_to(gateway.port) as opened:
                await opened.send(POST + b"Content-Length: 500000\r\n\r\n" + b"x" * 100_000)
        with anyio.fail_after(30):
            while shared.load.body_bytes:
                await exchange(gateway.port, GET + CLOSE + b"\r\n")
                await a_moment()
        assert shared.load.working == 0


async def test_beyond_the_most_connections_the_next_one_is_refused_and_the_others_go_on(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 50)
    async with running_gateway(connection, publisher) as gateway, AsyncExitStack() as opened:
        held = [await opened.enter_async_context(connected_to(gateway.port)) for _ in range(50)]
        for each in held:
            await each.send(GET + b"\r\n")
            assert (await each.answer()).startswith(b"HTTP/1.1 200 ")
        loop = asyncio.get_running_loop()
        with socket.create_connection(("127.0.0.1", gateway.port)) as one_more:
            one_more.setblocking(False)
            refused = await loop.sock_recv(one_more, 65_536)
            for part in (GET, b"\r\n"):  # whose request was on its way sees no reset in place of the answer
                await loop.sock_sendall(one_more, part)
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 5" in refused
        await held[7].send(GET + b"\r\n")
        assert (await held[7].answer()).startswith(b"HTTP/1.1 200 ")
        await opened.aclose()
        with anyio.fail_after(30):
            while not (await exchange(gateway.port, GET + CLOSE + b"\r\n")).startswith(b"HTTP/1.1 200 "):
                await a_moment()


async def test_behind_a_proxy_clients_are_told_apart_by_what_it_says(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "FAILED_RATE", 0.001)
    async with running_gateway(connection, publisher, Config(http="127.0.0.1:0", behind_proxy=True)) as gateway:
        await gateway.token("first")
        await gateway.gateway.is_up.wait()
        async with ClientSession(gateway.url, headers={"Authorization": "Bearer wrong"}) as client:

            async def tried(forwarded: str) -> int:
                async with client.get("/v1/topics", headers={"X-Forwarded-For": forwarded}) as response:
                    return response.status

            codes = [await tried("1.2.3.4, 203.0.113.7") for _ in range(25)]
            assert (codes[0], codes[-1]) == (401, 429)
            assert await tried("203.0.113.7, 203.0.113.8") == 401


async def test_an_address_is_slowed_down_before_anybody_asks_for_its_token(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "ADDRESS_RATE", 0.1)
    monkeypatch.setattr(door, "ADDRESS_BURST", 3.0)
    async with running_gateway(connection, publisher, Config(http="127.0.0.1:0", behind_proxy=True)) as gateway:
        token = await gateway.token("first")
        await gateway.gateway.is_up.wait()
        async with ClientSession(gateway.url, headers={"Authorization": f"Bearer {token}"}) as client:

            async def tried(forwarded: str) -> int:
                async with client.get("/health", headers={"X-Forwarded-For": forwarded}) as response:
                    return response.status

            assert [await tried("2001:db8::1") for _ in range(4)] == [200, 200, 200, 429]
            assert await tried("2001:db8::2") == 429, "an IPv6 host owns its /64"
            assert await tried("2001:db8:0:1::1") == 200
            assert await tried("127.0.0.1") == 200


async def test_a_key_that_cannot_be_read_is_named(connection: Connection, publisher: Publisher) -> None:
    config = Config(http="127.0.0.1:0", http_cert="/no/cert.pem", http_key="/no/key.pem")
    with pytest.raises(BaseExceptionGroup) as failed:
        async with running_gateway(connection, publisher, config):
            pass
    assert "http_cert /no/cert.pem" in "".join(map(str, failed.value.exceptions))
