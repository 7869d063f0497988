"""The network of the tests does what it is told: one direction waits, the other goes on, and nothing is lost by it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.support.proxy import Proxy, proxy

Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def a_link() -> AsyncIterator[tuple[Proxy, Link, Link]]:
    """Yield a proxy, and a client's and the server's end of one link through it."""
    accepted: asyncio.Queue[Link] = asyncio.Queue()
    server = await asyncio.start_server(lambda *link: accepted.put_nowait(link), "127.0.0.1", 0)
    async with server, proxy(server.sockets[0].getsockname()[1]) as wire:
        mine = await asyncio.open_connection("127.0.0.1", wire.port)
        theirs = await accepted.get()
        yield wire, mine, theirs
        for _, writer in (mine, theirs):
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def test_one_direction_is_held_and_the_other_goes_on() -> None:
    async with a_link() as (wire, (reader, writer), (at_server, from_server)):
        wire.hold("client")
        from_server.write(b"answer")
        writer.write(b"question")
        assert await at_server.readexactly(8) == b"question"
        await wire.holds("client")
        heard = asyncio.ensure_future(reader.readexactly(6))
        writer.write(b"again")
        assert await at_server.readexactly(5) == b"again"
        assert not heard.done()
        wire.heal()
        assert await heard == b"answer"


async def test_it_is_held_from_the_piece_on_that_is_named() -> None:
    async with a_link() as (wire, (_, writer), (at_server, _)):
        wire.hold("server", at=b"stop")
        writer.write(b"one")
        assert await at_server.readexactly(3) == b"one"
        writer.write(b"a stop here")
        await wire.holds("server")
        writer.write(b"and more")
        heard = asyncio.ensure_future(at_server.readexactly(19))
        wire.heal()
        assert await heard == b"a stop hereand more"


async def test_what_is_held_is_lost_when_the_link_is_cut() -> None:
    async with a_link() as (wire, (_, writer), (at_server, _)):
        wire.hold("server")
        writer.write(b"lost")
        await wire.holds("server")
        wire.cut()
        with suppress(ConnectionResetError):
            assert await at_server.read() == b""
        assert wire.open_links == 0
