"""A webhook: a real HTTP server that takes notices, after refusing as many as it is told to."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import msgspec
from aiohttp import web

from actors.runtime.rules.notices import Notice


class Office:
    """What was taken and refused; with `hang` set it answers when that is."""

    def __init__(self) -> None:
        self.url = ""
        self.refuse = 0
        self.taken: list[Notice] = []
        self.refused = 0
        self.hang: anyio.Event | None = None
        self.asked = anyio.Event()
        self._news = anyio.Event()

    async def receive(self, request: web.Request) -> web.Response:
        notice = msgspec.json.decode(await request.read(), type=Notice)
        if self.hang is not None:
            self.asked.set()
            await self.hang.wait()
        if self.refused < self.refuse:
            self.refused += 1
            return web.Response(status=503)
        self.taken.append(notice)
        self._wake()
        return web.Response()

    def _wake(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def until(self, count: int, within_s: float = 30) -> list[Notice]:
        with anyio.fail_after(within_s):
            while len(self.taken) < count:
                await self._news.wait()
        return self.taken


@asynccontextmanager
async def an_office() -> AsyncIterator[Office]:
    """Run one, at a free port."""
    office = Office()
    app = web.Application()
    app.router.add_post("/notices", office.receive)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        office.url = f"http://127.0.0.1:{runner.addresses[0][1]}/notices"
        yield office
    finally:
        await runner.cleanup()
