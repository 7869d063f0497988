"""Two nodes at a platform that takes one request a minute and says so nowhere: real answers, real records, and a clock
that is moved by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise

import aiohttp
import anyio
import pytest
from aiohttp import web

from actors.fetch.budget import Budgets
from actors.fetch.learning import LearnedLimits
from actors.fetch.ledgers import Ledgers, open_ledgers
from actors.fetch.rules.ledger import first_ledger
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.sources import SourceKey
from actors.runtime.rates.requests import OwnRates
from platforms.told_limits import told_limit
from streams.buckets.bucket import Bucket
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.support.engine import ledger_bucket
from tests.support.moments import a_moment
from tests.support.server import make_topology, topology_for

SHOP = SourceKey("slow", "s1")
MINUTE_MS = 60_000
LASTS_MS = 240 * MINUTE_MS
MEETING_MS = 10 * MINUTE_MS
"""By then the limit has been met."""


class HandClock:
    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms


class SlowShop:
    """One request a minute: a bucket of one, or a count in each span of two minutes, which tells its wait."""

    def __init__(self, clock: HandClock, *, is_named: bool) -> None:
        self._clock = clock
        self._is_named = is_named
        self._taken: list[int] = []
        self.url = ""
        self.answers: list[tuple[int, int]] = []
        self.began_ms = clock.ms

    async def answer(self, _request: web.Request) -> web.StreamResponse:
        now_ms = self._clock.ms
        most, span_ms = (2, 2 * MINUTE_MS) if self._is_named else (1, MINUTE_MS)
        self._taken = [at_ms for at_ms in self._taken if at_ms > now_ms - span_ms]
        is_free = len(self._taken) < most
        self.answers.append((now_ms - self.began_ms, 200 if is_free else 429))
        if is_free:
            self._taken.append(now_ms)
            return web.json_response([])
        left_s = -(-(self._taken[0] + span_ms - now_ms) // 1_000)
        return web.Response(status=429, headers={"Retry-After": str(left_s)} if self._is_named else {})

    def later(self, from_ms: int) -> list[int]:
        return [status for at_ms, status in self.answers if at_ms >= from_ms]


@asynccontextmanager
async def opened(shop: SlowShop) -> AsyncIterator[None]:
    app = web.Application()
    app.router.add_get("/", shop.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        shop.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        yield
    finally:
        await runner.cleanup()


class SlowReader:
    """What one node knows, and when it comes next. The nodes' turns are dealt from one rate, as the governor does."""

    def __init__(self, ledgers: Ledgers, shared: Bucket[bytes], rates: OwnRates, clock: HandClock) -> None:
        self.ledgers = ledgers
        self.next_ms = clock.ms
        self.sent = 0
        self._clock = clock
        self._budgets = Budgets(rates, now_ms=clock.now_ms)
        self._learned = LearnedLimits(ledgers, shared, self._budgets, clock)
        self._settings = FetchSettings()

    async def turn(self, shop: SlowShop, http: aiohttp.ClientSession) -> None:
        """Send a request, if the node may."""
        settings, learned, budgets = self._settings, self._learned, self._budgets
        if held_ms := learned.held_ms(SHOP):
            budgets.hold(SHOP, held_ms)
        with budgets.request(SHOP, learned.within(SHOP, settings)) as spending:
            wait_ms = spending.take(most_ms=LASTS_MS)
        if wait_ms:
            self.next_ms = self._clock.ms + max(1, int(wait_ms))
            return
        self.sent += 1
        async with http.get(shop.url) as answer:
            if answer.status == 200:
                await learned.answered(SHOP, settings, (), told_limit(answer.headers))
                return
            named_s = answer.headers.get("Retry-After")
        verdict = await learned.refused(SHOP, settings, (), int(named_s) * 1_000 if named_s else None)
        if not verdict.is_chance:
            budgets.hold(SHOP, verdict.wait_ms)
        self.next_ms = self._clock.ms + verdict.wait_ms

    async def knows(self, other: Ledgers) -> None:
        """Wait until the node has heard of what the other one has written."""
        with anyio.fail_after(30):
            while self.ledgers.peek(SHOP) != other.peek(SHOP):
                await a_moment()


@pytest.mark.parametrize("is_named", [False, True])
async def test_two_nodes_at_one_request_a_minute_are_never_refused_twice_in_a_row(
    connection: Connection, publisher: Publisher, is_named: bool
) -> None:
    await make_topology(connection, topology_for(connection))
    clock = HandClock()
    shop, rates = SlowShop(clock, is_named=is_named), OwnRates(clock.now_ms)
    shared = Bucket(connection, publisher, connection.namespace.bucket("DIGESTS"), bytes)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(opened(shop))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        nodes = []
        for number in range(2):
            ledgers = await stack.enter_async_context(open_ledgers(ledger_bucket(connection, publisher)))
            if not number:
                await ledgers.create(SHOP, first_ledger(clock.ms))
            await tasks.start(ledgers.run)
            await stack.enter_async_context(ledgers.followed())
            nodes.append(SlowReader(ledgers, shared, rates, clock))
        one, other = nodes
        await one.knows(other.ledgers)
        while clock.ms < shop.began_ms + LASTS_MS:
            node, idle = sorted(nodes, key=lambda each: (each.next_ms, each.sent))
            clock.ms = max(clock.ms, node.next_ms)
            await node.turn(shop, http)
            await idle.knows(node.ledgers)
            node.next_ms = max(node.next_ms, clock.ms + 1)
    later = shop.later(MEETING_MS)
    assert not any(first == second == 429 for first, second in pairwise(later)), shop.answers
    assert later.count(429) <= 0.05 * len(later)
    assert shop.later(60 * MINUTE_MS).count(200) >= 0.55 * (LASTS_MS / MINUTE_MS - 60)
    assert one.sent > 20 < other.sent
