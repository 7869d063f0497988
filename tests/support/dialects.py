"""A platform's shop without a socket: what an adapter asks goes straight to the mall's dialect, and its answer back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from platforms.adapter import Account, Adapter, Detailing, Page, Request, Response, Row
from platforms.bounds import Window
from platforms.mall.config import MallConfig
from platforms.mall.dialects.dialect import Answer, Clerk, MallCall, MallRefusal
from platforms.mall.dialects.registry import DIALECTS, mall_as
from platforms.mall.listing import Shop
from platforms.reading import Reading, ReadingResult
from platforms.registry import adapter_named

START_MS = 1_700_000_000_000
TOKEN = "token-7-1"
LATER_MS = 3_600_000  # how long after its last change a shop is read


class StillShop:
    """A shop of a platform at one moment, `LATER_MS` after the end of its history."""

    def __init__(self, platform: str, **changes: Any) -> None:
        self.dialect = DIALECTS[platform]
        settings: dict[str, Any] = {"orders": 400, "history_ms": 7_200_000, "change_share": 0.3, **changes}
        self.config: MallConfig = mall_as(platform, **settings)
        self.now_ms = START_MS + LATER_MS
        (plan,) = self.config.plans(START_MS)
        keeps_changes = self.config.listing == "changes"
        self.shop = Shop(plan, keeps_changes=keeps_changes, by_arrival=self.config.by_arrival)
        self.shop.shelf.advance(self.now_ms)
        self.requests = 0

    def answer(self, request: Request) -> Response:
        """Return what the platform answers."""
        self.requests += 1
        clerk = Clerk(self.shop, self.config, self.now_ms, TOKEN)
        try:
            answer = self.dialect.answer(call_of(request), clerk)
        except MallRefusal as refused:
            answer = refused.answer
        return response_of(answer)

    def last(self) -> dict[int, int]:
        """Return the last version of each order, by its number."""
        return {number: int(str(version)) for number, (_, version, *_) in enumerate(self.shop.truth())}


def account_of(platform: str, url: str = "https://shop.example.com") -> Account:
    """Return the account that the platform's dialect takes."""
    dialect = DIALECTS[platform]
    return Account("s1", {"base_url": url + dialect.base, "access_token": TOKEN, **dialect.account})


def call_of(request: Request) -> MallCall:
    """Return a request as the platform gets it."""
    path = "/" + request.url.split("://", 1)[1].partition("/")[2]
    headers = {name.lower(): value for name, value in request.headers}
    return MallCall(request.method, path, dict(request.params), headers, request.body)


def response_of(answer: Answer) -> Response:
    headers = {name.lower(): value for name, value in answer.headers.items()}
    return Response(answer.status, {"content-type": "application/json", **headers}, answer.body)


def read_window(shop: StillShop, window: Window, adapter: Adapter | None = None) -> tuple[list[Row], ReadingResult]:
    """Read a window to its end. Every answer must be one that may be read."""
    adapter = adapter or adapter_named(shop.dialect.name)
    account, rows = account_of(shop.dialect.name), list[Row]()
    reading = Reading(adapter.declaration, window)
    while (ask := reading.next()) is not None:
        response = shop.answer(adapter.request(ask.window, ask.page, account, shop.now_ms))
        outcome = adapter.outcome(response)
        assert outcome is None, (outcome, response.body[:300])
        page = adapter.page(response)
        if adapter.declaration.detail_batch:
            page = _whole(shop, adapter, page)
        rows += reading.feed(page)
    return rows, reading.result


def _whole(shop: StillShop, adapter: Adapter, page: Page) -> Page:
    """Return the page with the whole orders, as the detail requests bring them."""
    assert isinstance(adapter, Detailing)
    account, batch, listed = account_of(shop.dialect.name), adapter.declaration.detail_batch, page.rows
    page.rows = []
    for at in range(0, len(listed), batch):
        asked = listed[at : at + batch]
        response = shop.answer(adapter.detail_request([row.key for row in asked], account, shop.now_ms))
        whole = adapter.detail_page(response, asked)
        assert whole.bad == []
        page.rows += whole.rows
    return page


def versions(rows: list[Row]) -> Mapping[int, int]:
    """Return the highest version of each order, by its number: the mall's own count of changes."""
    found: dict[int, int] = {}
    for row in rows:
        body = msgspec.json.decode(row.body)
        number = int(row.key[-7:])
        found[number] = max(found.get(number, 0), body["version"])
    return found
