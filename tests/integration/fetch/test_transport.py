"""The node's HTTP client against servers that cut, hang, flood and lead elsewhere."""

import asyncio
import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest
from aiohttp import web

from actors.runtime.transport import LARGE, BadUrl, PlatformDown, TooMuch, Transport, open_transport
from platforms.adapter import Request, Response

SECRET = "s3cr3t-sign"


@asynccontextmanager
async def a_server(handler: object) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)  # type: ignore[arg-type]  # a coroutine of a request
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def a_socket(reply: bytes) -> AsyncIterator[str]:
    """A server that says the same bytes to everybody and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


async def get(transport: Transport, url: str, *, timeout_s: float = 5.0, most_bytes: int = 1_000) -> Response:
    request = Request("GET", f"{url}/orders", (("sign", SECRET),))
    return await transport.send(request, timeout_s=timeout_s, most_bytes=most_bytes)


async def test_every_status_is_an_answer_and_no_redirect_is_followed() -> None:
    asked: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        asked.append(request.path)
        status = int(request.query.get("status", "302"))
        return web.Response(status=status, headers={"Location": "/elsewhere", "X-Odd": "y"}, text="body")

    async with a_server(handle) as url, open_transport() as transport:
        for status in (200, 302, 307, 404, 429, 500, 599):
            request = Request("GET", f"{url}/orders", (("status", str(status)),))
            answer = await transport.send(request, timeout_s=5, most_bytes=100)
            assert (answer.status, answer.headers["x-odd"], answer.body) == (status, "y", b"body")
    assert set(asked) == {"/orders"}


async def test_links_on_several_lines_are_those_of_one() -> None:
    """As a cache or a proxy in front of a shop adds a line of its own. One that counts beside it counts last."""
    links = (b'Link: <https://a.example/o?page=3>; rel="next"', b'link: <https://a.example/o?page=1>; rel="prev"')
    reply = b"\r\n".join((b"HTTP/1.1 200 OK", *links, b"X-Total: 7", b"X-Total: 8", b"Content-Length: 2", b"", b"[]"))
    async with a_socket(reply) as url, open_transport() as transport:
        answer = await get(transport, url)
    told = '<https://a.example/o?page=3>; rel="next", <https://a.example/o?page=1>; rel="prev"'
    assert (answer.headers["link"], answer.headers["x-total"]) == (told, "8")


async def test_a_request_arrives_as_the_adapter_made_it() -> None:
    got: list[tuple[str, dict[str, str], str | None, bytes]] = []

    async def handle(request: web.Request) -> web.Response:
        got.append((request.method, dict(request.query), request.headers.get("x-a"), await request.read()))
        return web.Response()

    async with a_server(handle) as url, open_transport() as transport:
        request = Request("POST", f"{url}/x", (("from", "2026-11-01 08:00:00"), ("k", "ä&=")), (("X-A", "b"),), b"body")
        await transport.send(request, timeout_s=5, most_bytes=100)
    assert got == [("POST", {"from": "2026-11-01 08:00:00", "k": "ä&="}, "b", b"body")]


@pytest.mark.parametrize("kind", ["announced", "chunked", "gzip"])
async def test_an_answer_over_the_limit_is_left(kind: str) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        if kind == "announced":
            return web.Response(body=b"x" * 5_000)
        if kind == "gzip":  # a megabyte in a kilobyte
            return web.Response(body=gzip.compress(b"x" * 1_000_000), headers={"Content-Encoding": "gzip"})
        answer = web.StreamResponse()
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        for _ in range(50):
            await answer.write(b"x" * 100)
        return answer

    async with a_server(handle) as url, open_transport() as transport:
        with pytest.raises(TooMuch) as told:
            await get(transport, url, most_bytes=2_000)
    assert SECRET not in str(told.value)


def deflated(body: bytes, wbits: int) -> bytes:
    press = zlib.compressobj(wbits=wbits)
    return press.compress(body) + press.flush()


@pytest.mark.parametrize(("encoding", "wbits"), [("gzip", 31), ("deflate", 15)])
async def test_a_bomb_costs_no_more_memory_than_the_limit(encoding: str, wbits: int) -> None:
    """400 MB of zeros in 400 KB, of which a megabyte is allowed."""
    press = zlib.compressobj(wbits=wbits)
    zeros = bytes(1 << 20)
    bomb = b"".join([press.compress(zeros) for _ in range(400)]) + press.flush()

    async def handle(_request: web.Request) -> web.Response:
        return web.Response(body=bomb, headers={"Content-Encoding": encoding})

    async with a_server(handle) as url, open_transport() as transport:
        tracemalloc.start()
        try:
            with pytest.raises(TooMuch):
                await get(transport, url, timeout_s=60, most_bytes=1 << 20)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 8 << 20, "what is allowed, and what is on its way"


async def test_large_answers_of_one_host_are_not_held_at_once() -> None:
    """Six bombs, each of which stops at 24 MB until all have come so far as they may."""
    press = zlib.compressobj(wbits=31)
    zeros = bytes(1 << 20)
    first = b"".join([press.compress(zeros) for _ in range(24)]) + press.flush(zlib.Z_SYNC_FLUSH)
    rest = b"".join([press.compress(zeros) for _ in range(40)]) + press.flush()
    held = 5 * LARGE + (24 << 20)
    ended: list[str] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Encoding": "gzip"})
        await answer.prepare(request)
        await answer.write(first)
        with anyio.fail_after(60):
            while tracemalloc.get_traced_memory()[0] < held and not ended:
                await anyio.lowlevel.checkpoint()
        await answer.write(rest)
        return answer

    async def ask(transport: Transport, url: str) -> None:
        with pytest.raises(TooMuch):
            await get(transport, url, timeout_s=60, most_bytes=32 << 20)
        ended.append(url)

    async with a_server(handle) as url, open_transport() as transport:
        tracemalloc.start()
        try:
            async with anyio.create_task_group() as tasks:
                for _ in range(6):
                    tasks.start_soon(ask, transport, url)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert len(ended) == 6
    assert peak < held + (28 << 20), "one whole, the others up to where they wait; not 144 MB"


COMPRESSED = {
    "gzip": ("gzip", gzip.compress(b"{}" * 100)),
    "in two members": ("x-gzip", gzip.compress(b"{}" * 60) + gzip.compress(b"{}" * 40)),
    "zeros behind it": ("gzip", gzip.compress(b"{}" * 100) + bytes(10)),
    "deflate": ("Deflate", zlib.compress(b"{}" * 100)),
    "deflate without a head": ("deflate", deflated(b"{}" * 100, -15)),
    "plain": ("identity", b"{}" * 100),
    "no encoding of ours": ("utf-8", b"{}" * 100),
}


@pytest.mark.parametrize(("encoding", "body"), COMPRESSED.values(), ids=COMPRESSED.keys())
async def test_a_compressed_answer_within_the_limit_is_read(encoding: str, body: bytes) -> None:
    accepted: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        accepted.append(request.headers["Accept-Encoding"])
        return web.Response(body=body, headers={"Content-Encoding": encoding})

    async with a_server(handle) as url, open_transport() as transport:
        assert (await get(transport, url)).body == b"{}" * 100
    assert accepted == ["gzip, deflate"]


async def test_an_answer_without_a_body_is_none_whatever_it_says_of_its_encoding() -> None:
    async with a_socket(b"HTTP/1.1 204 No Content\r\nContent-Encoding: gzip\r\n\r\n") as url:
        async with open_transport() as transport:
            assert (await get(transport, url)).body == b""


CHARSETS = {
    "none": ("application/json", "Müller, 東京", "utf-8"),
    "its own": ("application/json; charset=utf-8", "Müller, 東京", "utf-8"),
    "a wrong one": ("application/json; charset=iso-8859-1", "Müller, 東京", "utf-8"),
    "an unknown one": ("application/json; charset=klingon", "Müller, 東京", "utf-8"),
    "no charset": ("application/json; charset=rot13", "Müller, 東京", "utf-8"),
    "of China": ('application/json; Charset="GBK"', "Müller, 東京", "gbk"),
    "of Japan": ("text/json;charset=Shift_JIS", "東京", "shift-jis"),
    "two bytes a sign": ("application/json; charset=utf-16", "Müller", "utf-16"),
    "of Europe": ("application/json; charset=ISO-8859-1", "Müller, 5 €", "cp1252"),
}


@pytest.mark.parametrize(("kind", "text", "encoding"), CHARSETS.values(), ids=CHARSETS.keys())
async def test_a_body_in_another_charset_becomes_utf_8(kind: str, text: str, encoding: str) -> None:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(body=text.encode(encoding), headers={"Content-Type": kind})

    async with a_server(handle) as url, open_transport() as transport:
        assert (await get(transport, url)).body.decode() == text


async def test_a_body_that_is_not_in_its_charset_stays_as_it_is() -> None:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(body=b"{\x81\xff", headers={"Content-Type": "text/plain; charset=cp1252"})

    async with a_server(handle) as url, open_transport() as transport:
        assert (await get(transport, url)).body == b"{\x81\xff"


BROKEN = {
    "nothing": b"",
    "no HTTP": b"SSH-2.0-OpenSSH\r\n",
    "cut in the body": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
    "cut in a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nhalf",
    "cut in the head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "no gzip": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nhalf",
    "gzip cut off": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 30\r\n\r\n"
    + gzip.compress(b"0123456789" * 1000)[:30],
    "a header without end": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
}


@pytest.mark.parametrize("reply", BROKEN.values(), ids=BROKEN.keys())
async def test_what_is_no_whole_answer_is_trouble_that_passes(reply: bytes) -> None:
    async with a_socket(reply) as url, open_transport() as transport:
        with pytest.raises(PlatformDown) as told:
            await get(transport, url)
    assert SECRET not in str(told.value)
    assert "/orders" in str(told.value)


async def test_a_server_that_hangs_is_left_in_time() -> None:
    async def handle(_request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        return web.Response()

    async with a_server(handle) as url, open_transport() as transport:
        with pytest.raises(PlatformDown) as told:
            await get(transport, url, timeout_s=0.1)
    assert SECRET not in str(told.value)


async def test_a_server_that_drips_is_left_in_time() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Length": "1000"})
        await answer.prepare(request)
        for _ in range(1_000):
            await answer.write(b"x")
            await asyncio.sleep(0.02)  # the server's own slowness, not the test's
        return answer

    async with a_server(handle) as url, open_transport() as transport:
        with pytest.raises(PlatformDown):
            await get(transport, url, timeout_s=0.1)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://no-such-host.invalid", "https://127.0.0.1:1"])
async def test_nobody_there_is_trouble_that_passes(url: str) -> None:
    async with open_transport() as transport:
        with pytest.raises(PlatformDown) as told:
            await get(transport, url)
    assert SECRET not in str(told.value)


async def test_a_url_that_must_not_be_called_is_not() -> None:
    async with open_transport() as transport:
        with pytest.raises(BadUrl):
            await get(transport, f"http://user:{SECRET}@127.0.0.1:1")


async def test_an_abandoned_answer_leaves_the_client_fit() -> None:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(body=b"x" * (5_000 if request.query.get("big") else 10))

    async with a_server(handle) as url, open_transport(connections=1) as transport:
        for _ in range(3):
            with pytest.raises(TooMuch):
                await transport.send(Request("GET", url, (("big", "1"),)), timeout_s=5, most_bytes=100)
            assert (await transport.send(Request("GET", url), timeout_s=5, most_bytes=100)).body == b"x" * 10
