"""Who is called back: a real HTTP server on loopback that checks each call's signature, as the how-to says."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import anyio
from aiohttp import web

SECRET = "a secret that both sides know"
VARIABLE = "OUR_CALLBACK_KEY"
WITHIN_S = 90.0


class Called(NamedTuple):
    """One call: its event's id, its body, and what it was answered."""

    event_id: str
    body: dict[str, Any]
    status: int


def is_signed(header: str, body: bytes, secret: str = SECRET) -> bool:
    """Check a signature, and that it is of now."""
    told = dict(part.split("=", 1) for part in header.split(","))
    mac = hmac.new(secret.encode(), f"{told['t']}.".encode() + body, hashlib.sha256)
    return hmac.compare_digest(mac.hexdigest(), told["v1"]) and abs(time.time() - int(told["t"])) < 300


class Receiver:
    """`answers`: statuses of the next calls, 200 after them. `path` answers so; `/elsewhere` is where redirects lead,
    and must never be called."""

    def __init__(self) -> None:
        self.port = 0
        self.secret = SECRET
        self.answers: list[int] = []
        self.calls: list[Called] = []
        self.unsigned = 0
        self.strayed = 0
        self.before: Callable[[], None] = lambda: None
        self._news = anyio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/told?shop=7"

    @property
    def host(self) -> str:
        """As the operator lists it."""
        return f"127.0.0.1:{self.port}"

    async def receive(self, request: web.Request) -> web.Response:
        raw = await request.read()
        self.before()
        if not is_signed(request.headers["Penstock-Signature"], raw, self.secret) or request.query != {"shop": "7"}:
            self.unsigned += 1
            return web.Response(status=403)
        status = self.answers.pop(0) if self.answers else 200
        self.calls.append(Called(request.headers["Penstock-Event-Id"], json.loads(raw), status))
        self._news.set()
        self._news = anyio.Event()
        return web.Response(status=status, headers={"Location": "/elsewhere"} if 300 <= status < 400 else None)

    async def stray(self, _request: web.Request) -> web.Response:
        self.strayed += 1
        return web.Response()

    async def until(self, is_enough: Callable[[list[Called]], object], within_s: float = WITHIN_S) -> list[Called]:
        """Wait until the calls are enough."""
        with anyio.fail_after(within_s):
            while not is_enough(self.calls):
                await self._news.wait()
        return self.calls

    def taken(self, moment: str) -> list[Called]:
        """Return the calls of a moment that were answered with 200."""
        return [call for call in self.calls if call.body["event"] == moment and call.status == 200]


@asynccontextmanager
async def receiver() -> AsyncIterator[Receiver]:
    """Run one until the block ends."""
    made = Receiver()
    app = web.Application()
    app.router.add_post("/told", made.receive)
    app.router.add_route("*", "/elsewhere", made.stray)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        made.port = runner.addresses[0][1]
        yield made
    finally:
        await runner.cleanup()
