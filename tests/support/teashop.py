"""A shop over real HTTP, written from its API page: nothing here is shared with the kit or with the mall.

GET /v2/orders?updated_from=…&updated_to=…&limit=…&cursor=…     header x-api-key
Unix seconds. Orders after `updated_from` and up to and including `updated_to`. limit up to 50, default 10.
{"data": {"orders": [{"number": 7, "rev": 3, "changed": 1700000000, …}]}, "meta": {"count": 120, "next_cursor": "…"}}

POST /graphql   {"query": …, "variables": {"first", "after", "since", "until"}}, half-open, ISO with offset
{"data": {"orders": {"nodes": [{"id", "updatedAt"}], "pageInfo": {"hasNextPage", "endCursor"}}}}
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, NamedTuple

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
KEY = "tea-key-4711-very-secret"
PARTIAL = """
name = "teapart"
settle = "1m"
[request]
path = "/v1/numbers"
params = { day_from = "{window.start}", day_to = "{window.end}" }
headers = { x-session = "{account.session}" }
[window]
format = "unix_s"
step = "1s"
[pages]
size = 1000
[record]
key = "number"
[detail]
batch = 20
rows = "found"
key = "number"
version = { kind = "number", path = "rev" }
[detail.request]
path = "/v1/details"
params = { numbers = "{detail.keys}" }
headers = { x-session = "{account.session}" }
[login]
take = { session = "session", code = "cookie:refresh" }
[login.request]
path = "/v1/login"
body = { key = "{account.code}" }
[[errors]]
body = "fault.code"
equals = "out"
outcome = "login"
"""
"""The file of the shop whose list has the numbers of orders alone."""


class TeaOrder(NamedTuple):
    number: int
    rev: int
    changed_s: int


class Teashop:
    """The shop. `url` has no slash at its end. `requests` counts those for orders."""

    def __init__(self, orders: list[TeaOrder]) -> None:
        self.orders = sorted(orders, key=lambda order: (order.changed_s, order.number))
        self.url = ""
        self.requests = 0
        self.logins: list[str] = []
        """The keys that were shown, in their order."""
        self.session_length = 60
        self.login_s = 0.0
        """How long a login takes, after the key was used."""
        self.refuses = 0.0
        """This part of the requests is answered by 429, without a header."""
        self.changes_each = 0
        """Each so many requests an order of the middle changes: it has the next revision, and the time of now."""
        self.odd_rows = 0
        """So many rows before the others have nothing in them."""
        self.unresolved = frozenset[int]()
        """Orders of which the GraphQL server cannot resolve a field: their nodes are null, with an error."""
        self.counts_pages = False
        """The total counts the orders of one answer."""
        self.most = 1_000_000
        """So many orders of a window are found, on all pages together."""
        self.deepest = 1_000_000
        """A next page that begins there or later is refused, as is one whose name has expired."""
        self.empties = 0
        """Each so many answers are an empty list beside an error, under HTTP 200."""
        self.lacking: dict[int, int] = {}
        """So many answers to requests for the details of an order do not have it yet."""
        self.hidden: dict[int, int] = {}
        """So many requests for the details of an order are answered by 404."""
        self.behind_s = 0
        """So far its clock is behind ours. It refuses windows that have not ended by it, and requests whose time (`at`)
        is another by more than five minutes."""
        self.largest_batch = self._answers = 0
        self.detail_requests: list[list[str]] = []
        """The orders of each."""
        self._chance = random.Random(7)
        self._session_left = 0

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._be_nasty])
        app.router.add_get("/v2/orders", self._list)
        app.router.add_get("/v2/oops", self._oops)
        app.router.add_post("/graphql", self._graphql)
        app.router.add_post("/v1/login", self._login)
        app.router.add_get("/v1/numbers", self._numbers)
        app.router.add_get("/v1/details", self._details)
        return app

    @web.middleware
    async def _be_nasty(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._answers += 1
        if self._chance.random() < self.refuses:
            return web.Response(status=429, text="slow down")
        answer = await handler(request)
        answer.headers["date"] = format_datetime(datetime.fromtimestamp(time.time() - self.behind_s, UTC), usegmt=True)
        if self.changes_each and self._answers % self.changes_each == 0 and self.orders:
            order = self.orders.pop(len(self.orders) // 2)
            self.orders.append(TeaOrder(order.number, order.rev + 1, int(time.time())))
            self.orders.sort(key=lambda each: (each.changed_s, each.number))
        return answer

    async def _list(self, request: web.Request) -> web.Response:
        self.requests += 1
        if request.headers.get("x-api-key") != KEY:
            return web.json_response({"error": {"code": "E01", "message": "the key is not known"}}, status=401)
        if self.empties and self.requests % self.empties == 0:
            return web.json_response({"data": {"orders": []}, "meta": {"count": 0}, "error": {"message": "overloaded"}})
        query = request.query
        try:
            since, until = int(query.get("updated_from", "0")), int(query.get("updated_to", "99999999999"))
            limit, at = min(50, int(query.get("limit", "10"))), int(query.get("cursor") or "0")
        except ValueError as error:
            return web.json_response({"error": {"code": "E02", "message": str(error)}}, status=400)
        if refused := self._refused_by_clock(until, int(query.get("at", time.time() - self.behind_s))):
            return refused
        if at >= self.deepest:
            return web.json_response({"error": {"code": "E03", "message": "the cursor has expired"}}, status=400)
        found = [order for order in self.orders if since < order.changed_s <= until][: self.most]
        rows: list[dict[str, Any]] = [
            {"number": order.number, "rev": order.rev, "changed": order.changed_s, "buyer": {"name": "x"}}
            for order in found[at : at + limit]
        ]
        rows = [{} for _ in range(self.odd_rows)] + rows
        following = str(at + limit) if at + limit < len(found) else None
        count = len(rows) if self.counts_pages else len(found)
        return web.json_response({"data": {"orders": rows}, "meta": {"count": count, "next_cursor": following}})

    def _refused_by_clock(self, until_s: int, sent_s: int) -> web.Response | None:
        now_s = time.time() - self.behind_s
        if abs(sent_s - now_s) > 300:
            return web.json_response({"error": {"code": "E04", "message": "the timestamp is expired"}}, status=403)
        if self.behind_s and until_s > now_s:
            return web.json_response({"error": {"code": "E05", "message": "updated_to is in the future"}}, status=400)
        return None

    async def _login(self, request: web.Request) -> web.Response:
        shown = (await request.json())["key"]
        if shown != (f"refresh-{len(self.logins)}" if self.logins else KEY):
            return web.json_response({"fault": {"text": f"{shown} was used before"}}, status=401)
        self.logins.append(shown)
        await asyncio.sleep(self.login_s)
        self._session_left = self.session_length
        answer = web.json_response({"session": f"session-{len(self.logins)}"})
        answer.set_cookie("other", "1")
        answer.set_cookie("refresh", f"refresh-{len(self.logins)}")
        return answer

    def _is_in(self, request: web.Request) -> bool:
        self.requests += 1
        self._session_left -= 1
        return self._session_left >= 0 and request.headers.get("x-session") == f"session-{len(self.logins)}"

    async def _numbers(self, request: web.Request) -> web.Response:
        if not self._is_in(request):
            return web.json_response({"fault": {"code": "out"}})
        since, until = (int(request.query[name]) for name in ("day_from", "day_to"))
        return web.json_response([{"number": each.number} for each in self.orders if since <= each.changed_s < until])

    async def _details(self, request: web.Request) -> web.Response:
        if not self._is_in(request):
            return web.json_response({"fault": {"code": "out"}})
        wanted = request.query["numbers"].split(",")
        self.largest_batch = max(self.largest_batch, len(wanted))
        self.detail_requests.append(wanted)
        hidden = [number for number, left in self.hidden.items() if left and str(number) in wanted]
        if hidden:
            self.hidden |= {number: self.hidden[number] - 1 for number in hidden}
            return web.json_response({"fault": {"code": "unknown"}}, status=404)
        found = [order for order in self.orders if str(order.number) in wanted and not self.lacking.get(order.number)]
        self.lacking = {key: left - (left > 0 and str(key) in wanted) for key, left in self.lacking.items()}
        rows = [order._asdict() for order in found]
        return web.json_response({"found": rows})

    async def _oops(self, _request: web.Request) -> web.Response:
        return web.json_response({"error": {"code": 4711, "message": "the app is not subscribed"}})

    async def _graphql(self, request: web.Request) -> web.Response:
        self.requests += 1
        asked = await request.json()
        variables = asked["variables"]
        if "nodes" not in asked["query"]:
            return web.json_response({"errors": [{"message": "Field 'orders' has no field 'rows'"}]})
        since, until = (datetime.fromisoformat(variables[name]).timestamp() for name in ("since", "until"))
        found = [order for order in self.orders if since <= order.changed_s < until]
        after = tuple(int(part) for part in (variables.get("after") or "0-0").split("-"))  # a place, and no number
        rest = [order for order in found if (order.changed_s, order.number) > after]
        page = rest[: variables["first"]]
        nodes = [
            {"id": f"gid://{order.number}", "updatedAt": datetime.fromtimestamp(order.changed_s, UTC).isoformat()}
            if order.number not in self.unresolved
            else None
            for order in page
        ]
        errors = [
            {"message": f"no customer of {page[at].number}", "path": ["orders", "nodes", at, "customer"]}
            for at, node in enumerate(nodes)
            if node is None
        ]
        end = f"{page[-1].changed_s}-{page[-1].number}" if page else None
        info = {"hasNextPage": len(page) < len(rest), "endCursor": end}
        answer: dict[str, Any] = {"data": {"orders": {"nodes": nodes, "pageInfo": info}}}
        return web.json_response(answer | ({"errors": errors} if errors else {}))


@asynccontextmanager
async def open_teashop(orders: list[TeaOrder]) -> AsyncIterator[Teashop]:
    """Run the shop while the block lasts."""
    shop = Teashop(orders)
    runner = web.AppRunner(shop.app(), access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        shop.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield shop
    finally:
        await runner.cleanup()
