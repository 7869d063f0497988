"""A TCP proxy between a client and the server: a network that loses, delays, dribbles, cuts, and talks nonsense."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Literal

import anyio

Side = Literal["client", "server"]
"""Whom something is sent to."""


class Count:
    """How many pieces with a text in them were sent to one side, held back or not."""

    def __init__(self, to: Side, text: bytes) -> None:
        self.to = to
        self.number = 0
        self._text = text
        self._more = asyncio.Event()

    def take(self, chunk: bytes) -> None:
        if self._text in chunk:
            self.number += 1
            self._more.set()
            self._more = asyncio.Event()

    async def reaches(self, number: int, within_s: float = 30.0) -> None:
        """Wait until there were so many."""
        async with asyncio.timeout(within_s):
            while self.number < number:
                await self._more.wait()


class Proxy:
    """`url` is where clients connect. Troubles last until `heal`, or until `cut`, which heals."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._writers: dict[Side, list[asyncio.StreamWriter]] = {"client": [], "server": []}
        self._lost: Side | None = None
        self._delay_s = 0.0
        self._drip_s = 0.0
        self._counts: list[Count] = []
        self._stop_at: dict[Side, Callable[[bytes], bool]] = {}
        self._flows: dict[Side, asyncio.Event] = {"client": asyncio.Event(), "server": asyncio.Event()}
        self._holds: dict[Side, asyncio.Event] = {"client": asyncio.Event(), "server": asyncio.Event()}
        for flow in self._flows.values():
            flow.set()
        self._refuses = False
        self._serving = 0
        self.port = 0
        self.accepted = 0
        """Links so far."""

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def open_links(self) -> int:
        return sum(not writer.is_closing() for writer in self._writers["client"])

    def mute(self) -> None:
        """Lose from now on what the server says; what clients say still arrives."""
        self.lose("client")

    def lose(self, to: Side) -> None:
        """Lose from now on what is sent to one side; the other direction goes on."""
        self._lost = to

    def delay(self, seconds: float) -> None:
        """Hold up every piece of data, in both directions, for so long."""
        self._delay_s = seconds

    def freeze(self) -> None:
        """Hold up all data, in both directions, until `heal`; then it goes on in order, nothing lost."""
        for side in self._flows:
            self.hold(side)

    def hold(self, to: Side, *, at: bytes | Callable[[bytes], bool] = b"") -> None:
        """Hold back what is sent to one side, on all links, until `heal`; the other direction goes on. It begins with
        the first piece in which `at` is (or of which it is true), and with the next piece if none is given. Then all
        goes on in order, nothing lost; what is held when the links are `cut` is lost."""
        if at == b"":
            self._flows[to].clear()
        self._stop_at[to] = at if callable(at) else lambda chunk: at in chunk

    async def holds(self, to: Side, within_s: float = 30.0) -> None:
        """Return once something that is sent to a side is held back."""
        async with asyncio.timeout(within_s):
            await self._holds[to].wait()

    def count(self, to: Side, text: bytes) -> Count:
        """Count from now on what is sent to one side and has a text in it."""
        self._counts.append(Count(to, text))
        return self._counts[-1]

    def dribble(self, seconds: float) -> None:
        """Let one byte through, and the next one only so many seconds later."""
        self._drip_s = seconds

    def say(self, text: bytes, to: Side) -> None:
        """Put bytes of our own among what is sent to one side of every link."""
        for writer in self._writers[to]:
            if not writer.is_closing():
                writer.write(text)

    def release(self, to: Side) -> None:
        """Let through what is sent to one side; the other direction stays as it is."""
        self._stop_at.pop(to, None)
        self._flows[to].set()
        self._holds[to].clear()

    def refuse(self) -> None:
        """Break every link, and take none until `heal`, as if nobody listened."""
        self.cut()
        self._refuses = True

    def heal(self) -> None:
        """Let everything through again, on the links that there are."""
        self._lost, self._delay_s, self._drip_s, self._refuses = None, 0.0, 0.0, False
        for side in self._flows:
            self.release(side)

    def cut(self) -> None:
        """Break every link; new ones are let through, and heard."""
        self.heal()
        for writers in self._writers.values():
            for writer in writers:
                writer.transport.abort()
            writers.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._serving += 1
        try:
            await self._serve(reader, writer)
        finally:
            self._serving -= 1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.transport.abort()
            return
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:  # the server is down: as if nobody listened
            writer.transport.abort()
            return
        self._writers["client"].append(writer)
        self._writers["server"].append(to_writer)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._copy(reader, to_writer, "server"))
            tasks.create_task(self._copy(to_reader, writer, "client"))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: Side) -> None:
        with suppress(OSError):
            while chunk := await reader.read(65536):
                await self._may_pass(chunk, to)
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                while self._drip_s and len(chunk) > 1:
                    writer.write(chunk[:1])
                    chunk = chunk[1:]
                    await asyncio.sleep(self._drip_s)
                if self._lost != to:
                    writer.write(chunk)
                    await writer.drain()
        writer.close()

    async def end(self) -> None:
        """Break every link, and wait until nothing of them is left."""
        quiet = 0
        while quiet < 5:  # a link that was just taken is not served yet
            self.cut()
            await asyncio.sleep(0)
            quiet = 0 if self._serving else quiet + 1

    async def _may_pass(self, chunk: bytes, to: Side) -> None:
        for count in self._counts:
            if count.to == to:
                count.take(chunk)
        if to in self._stop_at and self._stop_at[to](chunk):
            self._flows[to].clear()
        if not self._flows[to].is_set():
            self._holds[to].set()
            await self._flows[to].wait()


@asynccontextmanager
async def proxy(target_port: int) -> AsyncIterator[Proxy]:
    """Run a proxy to a port of this machine."""
    running = Proxy(target_port)
    server = await asyncio.start_server(running.serve, "127.0.0.1", 0)
    running.port = server.sockets[0].getsockname()[1]
    try:
        yield running
    finally:
        server.close()
        with anyio.move_on_after(5, shield=True):  # a test that is cancelled leaves no link either
            await running.end()
            await server.wait_closed()
