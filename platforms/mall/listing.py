"""Answers one listing request from a shelf: bounds, page, total, next. Pure but for the shelf's own clock hand."""

from __future__ import annotations

import random  # noqa: TID251 - seeded disorder is a manner of the platform
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, urlencode
from zoneinfo import ZoneInfo

from platforms.mall.config import MallConfig
from platforms.mall.generator import Plan, last_orders, make_events, order_body
from platforms.mall.shelf import Listed, Shelf

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FOREVER_MS = 1 << 62


class BadQuery(Exception):
    """The caller asked for something that the mall does not understand: a 400."""


class Shop:
    """One shop of the mall: its plan, its events, and what it lists now."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.events = make_events(plan)
        self.shelf = Shelf(self.events)
        self.name = plan.shop.encode()
        self._chance = random.Random(f"{plan.seed}/{plan.shop}/ties")

    def page_of(self, rows: list[Listed], query: Mapping[str, str], config: MallConfig, limit: int) -> list[Listed]:
        """Return the page that a number or an offset names. Orders of one moment are in another order each time if
        nothing else sorts them."""
        if config.ties == "shuffled":
            rows = sorted(rows, key=lambda row: (row[0], self._chance.random()))
        if config.paging == "number":
            begin = (_count(query.get("page", ""), 1) - 1) * limit
        else:
            begin = _count(query.get("offset", ""), 0, least=0)
        if config.past_end == "last" and begin >= len(rows):
            begin = max(0, len(rows) - 1) // limit * limit
        reachable = rows[: config.deepest] if config.deepest else rows
        return reachable[begin : begin + limit]

    def truth(self) -> list[list[object]]:
        """Return [key, version, modified_ms, visible_ms, crc32] of each order as it is in the end."""
        return [list(order) for order in last_orders(self.plan, self.events)]


def list_orders(
    shop: Shop, query: Mapping[str, str], config: MallConfig, now_ms: int, url: str, *, drift: bool
) -> bytes:
    """Return the answer's JSON. With `drift` a page after the first begins one row too far down."""
    shop.shelf.advance(now_ms)
    low, high = bounds(query, config)
    first, last = shop.shelf.between(low, high)
    limit = min(config.page_size, _count(query.get("limit", ""), config.page_size))
    begin = _place(shop.shelf.listed, query.get("page_token", ""), first, last)
    if drift and begin > first:
        begin = min(begin + 1, last)
    end = min(begin + limit, last)
    rows = shop.shelf.listed[begin:end]
    if config.paging in ("number", "offset"):
        rows = shop.page_of(shop.shelf.listed[first:last], query, config, limit)
    body = [b'{"orders":[', b",".join([_row(shop.name, row, config) for row in rows]), b"]"]
    if config.has_total:
        body.append(b',"total":%d' % (last - first))
    if end < last and config.paging in ("token", "link"):
        token = f"o{end - first}" if config.tokens == "offset" else f"k{rows[-1][0]}-{rows[-1][1]}"
        body.append(_next(token, query, config, url))
    body.append(b',"server_time_ms":%d}' % now_ms)
    return b"".join(body)


def bounds(query: Mapping[str, str], config: MallConfig) -> tuple[int, int]:
    """Return the half-open milliseconds that `from` and `to` select, by the mall's own rules. A grain of a second
    means that order times are compared without their milliseconds."""
    low, high = _moment(query.get("from"), config), _moment(query.get("to"), config)
    grain = config.grain_ms
    from_ms = 0 if low is None else -(-low // grain) * grain
    to_ms = _FOREVER_MS if high is None else -(-high // grain) * grain
    if low is not None and config.lower == "excludes" and low % grain == 0:
        from_ms += grain
    if high is not None and config.upper == "includes" and high % grain == 0:
        to_ms += grain
    return from_ms, to_ms


def _moment(text: str | None, config: MallConfig) -> int | None:
    if not text:
        return None
    try:
        match config.times:
            case "unix_ms":
                return int(text)
            case "unix_s":
                return int(text) * 1000
        read = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadQuery(f"{text[:40]!r} is no time") from error
    if read.tzinfo is None:
        if config.times == "iso":
            raise BadQuery(f"{text[:40]!r} has no zone")
        read = read.replace(tzinfo=ZoneInfo(config.zone))
    return (read - _EPOCH) // timedelta(milliseconds=1)


def _count(text: str, default: int, least: int = 1) -> int:
    if text and not (text.isascii() and text.isdecimal() and int(text) >= least):
        raise BadQuery(f"{text[:40]!r} is no count")
    return int(text) if text else default


def _place(listed: list[Listed], token: str, first: int, last: int) -> int:
    """Return where a page begins: after the row that a keyset token names, or so many rows down."""
    if not token:
        return first
    try:
        if token[0] == "o":
            return min(first + int(token[1:]), last)
        modified, number = map(int, token[1:].split("-"))
    except ValueError as error:
        raise BadQuery(f"page_token {token[:40]!r} is none of ours") from error
    low, high = first, last
    while low < high:
        middle = (low + high) // 2
        if listed[middle][:2] <= (modified, number):
            low = middle + 1
        else:
            high = middle
    return low


def _row(shop: bytes, row: Listed, config: MallConfig) -> bytes:
    modified_ms, number, version = row
    if config.times == "unix_ms":
        return order_body(shop, number, version, modified_ms)
    extra = b'"modified_at":"%b",' % time_text(modified_ms, config).encode()
    return order_body(shop, number, version, modified_ms, extra)


def time_text(at_ms: int, config: MallConfig) -> str:
    """Return an order's time in the mall's own writing, without what the grain drops."""
    at_ms = at_ms // config.grain_ms * config.grain_ms
    if config.times == "unix_s":
        return str(at_ms // 1000)
    at = (_EPOCH + timedelta(milliseconds=at_ms)).astimezone(ZoneInfo(config.zone))
    if config.times == "wall":
        return at.replace(tzinfo=None).isoformat(" ", "seconds")
    return at.isoformat(timespec="milliseconds")


def _next(token: str, query: Mapping[str, str], config: MallConfig, url: str) -> bytes:
    if config.paging == "token":
        return b',"next_page_token":"%b"' % token.encode()
    kept = [(name, query[name]) for name in ("shop", "from", "to", "limit") if name in query]
    return b',"next":"%b?%b"' % (url.encode(), urlencode([*kept, ("page_token", token)], quote_via=quote).encode())
