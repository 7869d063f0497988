"""Requests of several slices that share the places and the rate of a platform."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import anyio

from actors.fetch.budget import Budgets
from actors.fetch.fetcher.clocks import PlatformClocks
from actors.fetch.fetcher.decisions import ReadSlice
from actors.fetch.fetcher.session import AttemptTime, PlatformSession
from actors.fetch.rules.ledger import OpenSlice
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.sources import SourceKey
from platforms.adapter import Account, Request, Response
from platforms.bounds import Window
from platforms.declared import declare
from streams.clock import SYSTEM, monotonic_s
from tests.support.engine import adapter_table

ADAPTER = declare(adapter_table())
SHOP = Account("s1", {"base_url": "http://127.0.0.1:1", "shop": "s1"})
SETTINGS = FetchSettings(rate=20, burst=1, concurrency=1)


class SlowFirst:
    """A platform that takes its time for the first answer."""

    def __init__(self) -> None:
        self.sent_s: list[float] = []

    async def send(self, request: Request, *, timeout_s: float, most_bytes: int) -> Response:
        self.sent_s.append(monotonic_s())
        if len(self.sent_s) == 1:
            await anyio.sleep(0.4)
        return Response(200, {}, b'{"orders": [], "total": 0}')


async def test_requests_that_wait_for_a_place_do_not_go_together_when_it_is_free() -> None:
    budgets, platform, logins = Budgets(None), SlowFirst(), cast(Any, None)

    async def ask(number: int) -> None:
        work = ReadSlice(SourceKey("mall", "s1"), OpenSlice("t", number, 0, 1_000), SETTINGS)
        session = PlatformSession(
            work,
            ADAPTER,
            SHOP,
            transport=cast(Any, platform),
            budgets=budgets,
            logins=logins,
            time=AttemptTime(SETTINGS, anyio.CancelScope()),
            clock=SYSTEM,
            clocks=PlatformClocks(),
            stamp=SYSTEM.now_ms,
            learned=None,
        )
        await session._send(lambda now_ms: ADAPTER.request(Window(0, 1_000), None, SHOP, now_ms))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(ask, number)
    assert min(after - before for before, after in pairwise(platform.sent_s)) > 0.025
