"""How Penstock reads the mall: by one page and splitting (`mall`), or by token (`mall_token`).

By link it is read from a file, `mall_link.toml`. An account has `base_url`, `shop`, and `token` or `key` if the mall
wants one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import Raw, Struct

from platforms.adapter import (
    Account,
    BadRow,
    Declaration,
    Later,
    Outcome,
    Page,
    PageRules,
    RateBucket,
    Request,
    Response,
    Row,
    WindowRules,
)
from platforms.bounds import Window
from platforms.errors import BadDeclaration, BrokenContract, Garbled
from platforms.mending import read_json
from platforms.outcomes import json_outcome, usual_outcome
from platforms.times import TimeStyle, time_reader
from platforms.urls import check_base_url

_MINUTE_MS = 60_000


class _Listing(Struct):
    orders: list[Raw]
    total: int | None = None
    next_page_token: str | None = None
    server_time_ms: int | None = None


class _Head(Struct, gc=False):
    id: str
    version: int
    modified_ms: int


class _Granted(Struct):
    access_token: str


_LISTING = msgspec.json.Decoder(_Listing)
_HEAD = msgspec.json.Decoder(_Head)
_read_time = time_reader(TimeStyle("unix_ms"))


class MallAdapter:
    """Half-open unix milliseconds, a total, and a settling delay of three seconds."""

    def __init__(self, style: Literal["one", "token"] = "one") -> None:
        self._declaration = Declaration(
            name="mall" if style == "one" else "mall_token",
            window=WindowRules(longest_ms=24 * 60 * _MINUTE_MS),
            pages=PageRules(style=style, size=100, has_total=True, has_live_total=True),
            settle_ms=3_000,
            overlap_ms=1_000,
            rate=(RateBucket(per_second=20_000, burst=20_000, scope="address"),),
            account=("base_url", "shop"),
            timeout_s=5.0,
        )

    @property
    def declaration(self) -> Declaration:
        return self._declaration

    def request(self, window: Window, page: str | int | None, account: Account, now_ms: int) -> Request:
        values = account.values
        asked = self._declaration.window.bounds.request(window)
        assert asked.lower is not None  # both bounds are declared
        assert asked.upper is not None
        params = [("shop", _value(account, "shop")), ("from", asked.lower), ("to", asked.upper)]
        params.append(("limit", str(self._declaration.pages.size)))
        if page is not None:
            params.append(("page_token", str(page)))
        headers = (("authorization", f"Bearer {values['token']}"),) if "token" in values else ()
        return Request("GET", f"{_base_url(account)}/orders", tuple(params), headers)

    def outcome(self, response: Response) -> Outcome | None:
        usual = usual_outcome(response, longest_wait_ms=self._declaration.longest_wait_ms)
        if usual is None and response.body.startswith(b'{"error"'):
            return Later() if b'"busy"' in response.body else None
        return usual or json_outcome(response)

    def page(self, response: Response) -> Page:
        try:
            listing = read_json(_LISTING.decode, response.body)
        except msgspec.ValidationError as error:
            raise BrokenContract(f"the mall's answer is no listing: {error}") from error
        except msgspec.DecodeError as error:
            raise Garbled(f"the mall's answer is no whole JSON: {error}") from error
        page = Page([], listing.next_page_token, listing.total, listing.server_time_ms)
        decode, rows, new = _HEAD.decode, page.rows, tuple.__new__
        for raw in listing.orders:
            try:
                head = decode(raw)
                rows.append(new(Row, (head.id, head.version, _read_time(head.modified_ms), bytes(raw))))
            except (msgspec.DecodeError, ValueError) as error:
                page.bad.append(BadRow(None, str(error), bytes(raw)[:4096]))
        return page

    def refresh(self, account: Account, now_ms: int) -> Request:
        body = json.dumps({"key": account.values.get("key", "")}).encode()
        return Request("POST", f"{_base_url(account)}/_mall/login", (), (("content-type", "application/json"),), body)

    def login_outcome(self, response: Response) -> Outcome | None:
        return self.outcome(response)

    def refreshed(self, response: Response) -> Mapping[str, str]:
        try:
            return {"token": msgspec.json.decode(response.body, type=_Granted).access_token}
        except msgspec.DecodeError as error:
            raise BrokenContract("the mall's login gave no token") from error


def _base_url(account: Account) -> str:
    return check_base_url(f"account {account.name}: base_url", _value(account, "base_url"))


def _value(account: Account, name: str) -> str:
    value = account.values.get(name)
    if not value:
        raise BadDeclaration(f"account {account.name}: {name}", "is missing; set it with the source")
    return value
