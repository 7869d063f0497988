"""The mall's HTTP face.

    GET  /orders?shop=s1&from=…&to=…&limit=…[&page_token=…]    what a shop lists now
    GET  /_mall/truth?shop=s1     JSON lines: [key, version, modified_ms, visible_ms, crc32] of each order in the end
    POST /_mall/faults            a `Faults` object, or {"preset": "demo"}: from now on
    POST /_mall/login             {"key": …}: an access token
    GET  /_mall/stats             requests, of each kind, faults dealt, and how few would do (`ideal_requests`)
    GET  /_mall/state             shops, times, orders

With `MallConfig.platform` the mall speaks as that platform does, at its paths, in place of /orders. Faults strike
requests for orders only. A wait in here is the simulated platform's slowness, not a test's.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from email.utils import formatdate

import anyio
import msgspec
from aiohttp import web

from platforms.mall.config import MallConfig
from platforms.mall.dialects.dialect import Answer, Clerk, Dialect, MallCall, MallRefusal
from platforms.mall.dialects.registry import DIALECTS
from platforms.mall.faults import PRESETS, Dealer, FaultName, Faults
from platforms.mall.listing import BadQuery, Shop, bounds, ideal_requests, list_orders
from platforms.mall.points import PointBucket

_TRUTH_LINES = 2_000
_MAINTENANCE = "<!doctype html><title>Back soon</title><p>We are improving the shop for you."
_DRAIN_S = 0.5

Clock = Callable[[], int]


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Mall:
    """A running mall. `url` has no slash at its end."""

    def __init__(self, config: MallConfig, clock: Clock, start_ms: int) -> None:
        self.config = config
        self.start_ms = start_ms
        keeps_changes = config.listing == "changes"
        self.shops = {
            plan.shop: Shop(
                plan,
                keeps_changes=keeps_changes,
                by_arrival=config.by_arrival,
                has_two_lists=config.has_two_lists,
            )
            for plan in config.plans(start_ms)
        }
        self.kinds: Counter[str] = Counter()
        """How many requests for orders there were of each kind: list, empty (a list without rows), repeated (a list
        that was asked for before in the same words), detail, login, refused, throttled, and spoilt by another fault."""
        self.dealer = Dealer(config.faults, config.seed)
        self.points = PointBucket(config.points, config.points_per_s) if config.points else None
        self.url = ""
        self._clock = clock
        self._logins = 0
        self._token_no = 1
        self._token_used = 0
        self._requests = 0
        self._asked: set[object] = set()

    @property
    def requests(self) -> int:
        """How many requests for orders there were."""
        return self._requests

    def now_ms(self) -> int:
        """Return the time by the mall's own clock."""
        return self._clock() + self.config.clock_offset_ms

    def state(self) -> dict[str, object]:
        """Return the facts that a caller needs. `last_visible_ms` is when all of the truth is listed."""
        events = [event for shop in self.shops.values() for event in shop.events]
        return {
            "url": self.url,
            "shops": list(self.shops),
            "orders": sum(shop.plan.orders for shop in self.shops.values()),
            "versions": len(events),
            "start_ms": self.start_ms,
            "history_start_ms": self.start_ms - self.config.history_ms,
            "end_ms": self.start_ms + self.config.live_ms,
            "last_visible_ms": max((event.visible_ms for event in events), default=self.start_ms),
            "now_ms": self.now_ms(),
        }

    def app(self) -> web.Application:
        """Return the routes."""
        app = web.Application(client_max_size=1 << 20)
        if not self.config.platform:
            app.router.add_get("/orders", self._orders)
        app.router.add_get("/_mall/truth", self._truth)
        app.router.add_get("/_mall/state", self._state)
        app.router.add_get("/_mall/stats", self._stats)
        app.router.add_post("/_mall/faults", self._faults)
        app.router.add_post("/_mall/login", self._login)
        if self.config.platform:
            app.router.add_route("*", "/{tail:.*}", self._speak)
        return app

    def ideal_requests(self, page_size: int, longest_ms: int, *, until_ms: int | None = None) -> int:
        """Return how few requests list what is listed now, up to a time."""
        least, is_shuffled = 0, self.config.ties == "shuffled"
        for shop in self.shops.values():
            for shelf in shop.shelves.values():
                shelf.advance(self.now_ms())
                _, last = shelf.between(0, until_ms or self.now_ms() + 1)
                times_ms = [row[0] for row in shelf.listed[:last]]
                least += ideal_requests(times_ms, page_size, longest_ms, is_shuffled=is_shuffled)
        return least

    async def _orders(self, request: web.Request) -> web.StreamResponse:
        self._requests += 1
        now_ms = self.now_ms()
        fault = self.dealer.deal(now_ms) or self._bad(request.query)
        bearer = request.headers.get("Authorization")
        if bearer == f"Bearer {self._token()}" or fault == "expire":  # what is refused uses nothing up
            self._use_token(fault)
        if self.config.needs_token and bearer != f"Bearer {self._token()}":
            self.kinds["login"] += 1
            return _json_error(401, "token_expired")
        if fault in ("late", "hang"):
            await anyio.sleep(self.dealer.faults.late_ms / 1000 if fault == "late" else self.dealer.faults.hang_s)
        refusal = _refusal(fault, self.dealer.faults)
        if refusal is not None:
            self.kinds["throttled" if fault == "throttle" else "spoilt"] += 1
            return self._told(refusal, now_ms)
        if self.points is not None and not self.points.take(1, now_ms):
            self.kinds["throttled"] += 1
            return self._told(_json_error(429, "too_fast"), now_ms)
        try:
            body = self._list(request, now_ms, drift=fault == "drift")
        except BadQuery as error:
            self.kinds["refused"] += 1
            return _json_error(400, str(error))
        is_spoilt = fault in ("cut", "hang", "half")
        self._count("spoilt" if is_spoilt else "list", request.query_string, is_empty=body.startswith(b'{"orders":[]'))
        if fault in ("cut", "hang"):
            return await _cut(request, body if fault == "cut" else b"")
        answer = web.Response(body=body if fault != "half" else body[: len(body) // 2], content_type="application/json")
        return self._told(answer, now_ms)

    async def _speak(self, request: web.Request) -> web.StreamResponse:
        """Answer as the platform that the config names."""
        self._requests += 1
        now_ms, dialect = self.now_ms(), DIALECTS[self.config.platform]
        fault = self.dealer.deal(now_ms)
        self._use_token(fault)
        answer = await self._answer(request, dialect, fault, now_ms)
        body = answer.body
        if fault == "cut":
            return await _cut(request, body)
        made = web.Response(
            body=body[: len(body) // 2] if fault == "half" and answer.status == 200 else body,
            status=answer.status,
            headers=dict(answer.headers),
            content_type="application/json",
        )
        return self._told(made, now_ms)

    async def _answer(self, request: web.Request, dialect: Dialect, fault: FaultName | None, now_ms: int) -> Answer:
        faults = self.dealer.faults
        if fault == "late":
            await anyio.sleep(faults.late_ms / 1000)
        if fault in ("throttle", "object"):
            self.kinds["throttled"] += 1
            return dialect.spoil(faults.retry_after_s)
        if fault in ("error", "html"):
            self.kinds["spoilt"] += 1
            return Answer({"message": "out of paper"}, 500 if fault == "error" else 502)
        shop = self.shops["s1"]
        shop.shelf.advance(now_ms)
        clerk = Clerk(shop, self.config, now_ms, self._token(), self.points)
        headers = {name.lower(): value for name, value in request.headers.items()}
        call = MallCall(request.method, request.path, dict(request.query), headers, await request.read())
        try:
            answer = dialect.answer(call, clerk)
        except MallRefusal as refused:
            answer = refused.answer
        is_spoilt = fault in ("cut", "half")
        self._count("spoilt" if is_spoilt else answer.kind, clerk.asked, is_empty=clerk.is_empty)
        return answer

    def _use_token(self, fault: FaultName | None) -> None:
        self._token_used += 1
        if fault == "expire" or 0 < self.config.token_requests < self._token_used:
            self._token_no, self._token_used = self._token_no + 1, 0

    def _count(self, kind: str, asked: object, *, is_empty: bool) -> None:
        self.kinds[kind] += 1
        if kind == "list":
            self.kinds["empty"] += is_empty
            self.kinds["repeated"] += asked in self._asked
            self._asked.add(asked)

    def _told(self, answer: web.Response, now_ms: int) -> web.Response:
        """Add what all answers tell: the mall's own clock where it is not ours, and what is left of its limit."""
        if self.config.clock_offset_ms:
            answer.headers["Date"] = formatdate(now_ms / 1000, usegmt=True)
        left = self.dealer.left(now_ms) if self.config.tells_limits else None
        if left is not None:
            limit = max(1, int(self.dealer.faults.rate_per_s))
            told = {"X-RateLimit-Limit": limit, "X-RateLimit-Remaining": left, "X-RateLimit-Reset": 0 if left else 1}
            answer.headers.update({name: str(value) for name, value in told.items()})
        if self.points is not None and not self.config.platform:
            used = self.points.most - int(self.points.left(now_ms))
            answer.headers.update(
                {"X-Mall-Calls": f"{used}/{self.points.most}", "X-Mall-Back": f"{self.points.per_s:g}"}
            )
        return answer

    def _bad(self, query: Mapping[str, str]) -> FaultName | None:
        at_ms = self.dealer.faults.bad_at_ms
        if not at_ms:
            return None
        with suppress(BadQuery):
            low, high = bounds(query, self.config)
            return "error" if low <= at_ms < high else None
        return None

    def _list(self, request: web.Request, now_ms: int, *, drift: bool) -> bytes:
        query = request.query
        shop = self.shops.get(query.get("shop", ""))
        if shop is None:
            raise BadQuery("no such shop")
        return list_orders(shop, query, self.config, now_ms, f"{self.url}/orders", drift=drift)

    async def _truth(self, request: web.Request) -> web.StreamResponse:
        shop = self.shops.get(request.query.get("shop", ""))
        if shop is None:
            return _json_error(404, "no such shop")
        answer = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await answer.prepare(request)
        orders = shop.truth()
        for at in range(0, len(orders), _TRUTH_LINES):
            await answer.write(msgspec.json.Encoder().encode_lines(orders[at : at + _TRUTH_LINES]))
        await answer.write_eof()
        return answer

    async def _state(self, request: web.Request) -> web.Response:
        return web.json_response(self.state())

    async def _stats(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "requests": self._requests,
                "kinds": dict(self.kinds),
                "ideal": self.ideal_requests(self.config.page_size, self.config.history_ms + self.config.live_ms),
                "faults": dict(self.dealer.dealt),
                "logins": self._logins,
            }
        )

    async def _faults(self, request: web.Request) -> web.Response:
        try:
            wanted = json.loads(await request.read())
            preset = wanted.get("preset") if isinstance(wanted, dict) else None
            self.dealer.set(PRESETS[preset] if preset is not None else msgspec.convert(wanted, Faults))
        except (ValueError, KeyError, msgspec.ValidationError) as error:
            return _json_error(400, f"no such faults: {error}")
        return web.json_response(msgspec.to_builtins(self.dealer.faults))

    async def _login(self, request: web.Request) -> web.Response:
        self._logins += 1
        return web.json_response({"access_token": self._token()})

    def _token(self) -> str:
        return f"token-{self.config.seed}-{self._token_no}"


def _refusal(fault: FaultName | None, faults: Faults) -> web.Response | None:
    match fault:
        case "throttle":
            headers = {"Retry-After": str(faults.retry_after_s)} if faults.retry_after_s >= 0 else {}
            return web.json_response({"error": {"code": "too_fast"}}, status=429, headers=headers)
        case "error":
            return web.Response(status=500, text="out of paper")
        case "html":
            return web.Response(text=_MAINTENANCE, content_type="text/html")
        case "object":
            return web.json_response({"error": {"code": "busy", "message": "try again"}})
        case "redirect":
            return web.Response(status=301, headers={"Location": "http://elsewhere.invalid/orders"})
    return None


def _json_error(status: int, code: str) -> web.Response:
    return web.json_response({"error": {"code": code}}, status=status)


async def _cut(request: web.Request, body: bytes) -> web.StreamResponse:
    """Promise the whole body, send half of it, and hang up."""
    answer = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(body) or 2)})
    if body:
        await answer.prepare(request)
        await answer.write(body[: len(body) // 2])
    if request.transport is not None:
        request.transport.abort() if not body else request.transport.close()
    return answer


@asynccontextmanager
async def open_mall(
    config: MallConfig, *, clock: Clock = wall_clock_ms, start_ms: int | None = None
) -> AsyncIterator[Mall]:
    """Run a mall while the block lasts. `start_ms` (by the mall's clock) is by default now. The same seed and start
    make the same orders."""
    start = clock() + config.clock_offset_ms if start_ms is None else start_ms
    mall = Mall(config, clock, start)
    runner = web.AppRunner(mall.app(), access_log=None, shutdown_timeout=_DRAIN_S, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, config.host, config.port)
        await site.start()
        mall.url = f"http://{config.host}:{runner.addresses[0][1]}"
        yield mall
    finally:
        await runner.cleanup()
