"""Answers one listing request from a shelf: bounds, page, total, next. Pure but for the shelf's own clock hand."""

from __future__ import annotations

import random  # noqa: TID251 - seeded disorder is a manner of the platform
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import lru_cache
from math import comb
from typing import NamedTuple
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

    def __init__(
        self, plan: Plan, *, keeps_changes: bool = False, by_arrival: bool = False, has_two_lists: bool = False
    ) -> None:
        self.plan = plan
        self.events = make_events(plan)
        self.shelf = Shelf(self.events, keeps_changes=keeps_changes, by_arrival=by_arrival)
        self.shelves = {"": self.shelf}
        self.created = {event.number: event.modified_ms for event in self.events if event.version == 1}
        if has_two_lists:
            by_creation = [event._replace(modified_ms=self.created[event.number]) for event in self.events]
            changes = [event for event in self.events if event.version > 1]
            self.shelves = {"created": Shelf(by_creation), "changed": Shelf(changes)}
        self.name = plan.shop.encode()
        is_other = by_arrival or has_two_lists
        self._changed = {event[2:]: event.modified_ms for event in self.events} if is_other else {}
        self._chance = random.Random(f"{plan.seed}/{plan.shop}/ties")

    def page_of(self, rows: list[Listed], begin: int, limit: int, config: MallConfig) -> list[Listed]:
        """Return the page that begins so many rows down. Orders of one moment are in another order each time if
        nothing else sorts them."""
        if config.ties == "shuffled":
            rows = sorted(rows, key=lambda row: (row[0], self._chance.random()))
        if config.past_end == "last" and begin >= len(rows):
            begin = max(0, len(rows) - 1) // limit * limit
        reachable = rows[: config.deepest] if config.deepest else rows
        return reachable[begin : begin + limit]

    def changed_ms(self, row: Listed) -> int:
        """Return when an order was changed, which is not the time by which it is listed if that is its arrival."""
        return self._changed.get(row[1:], row[0])

    def truth(self) -> list[list[object]]:
        """Return [key, version, modified_ms, visible_ms, crc32] of each order as it is in the end."""
        return [list(order) for order in last_orders(self.plan, self.events)]


class Listing(NamedTuple):
    """A page: its rows, the total as the platform tells it, and where the next page begins, None at the end."""

    rows: list[Listed]
    total: int | None
    end: int | None


def look(
    shop: Shop, low_ms: int, high_ms: int, begin: int, limit: int, config: MallConfig, *, newest: bool, by_key: bool
) -> Listing:
    """Return what the shop lists of [low_ms, high_ms), so many rows down. `newest`: the newest one first. `by_key`:
    sorted by their keys, and not by their times."""
    first, last = shop.shelf.between(low_ms, high_ms)
    rows = shop.shelf.listed[first:last]
    if newest:
        rows.reverse()
    if by_key:
        rows.sort(key=lambda row: row[1:])
    limit = min(config.page_size, limit)
    page = shop.page_of(rows, begin, limit, config)
    end = begin + len(page)
    return Listing(
        page, told_total(rows, shop.plan, low_ms, high_ms, config), end if page and end < len(rows) else None
    )


def told_total(rows: Sequence[Listed], plan: Plan, low_ms: int, high_ms: int, config: MallConfig) -> int | None:
    """Return how many orders the answer says that the window has."""
    if config.totals == "none":
        return None
    if config.totals == "rows":
        return len(rows)
    orders = len({number for _, number, _ in rows}) if config.listing == "changes" else len(rows)
    return orders + (config.totals == "lies" and low_ms <= middle_ms(plan) < high_ms)


def middle_ms(plan: Plan) -> int:
    """Return the middle of the history: a total that lies does so there, a name that changes does so from there on."""
    return plan.start_ms - plan.history_ms // 2


def ideal_requests(times_ms: Sequence[int], page_size: int, longest_ms: int, *, is_shuffled: bool = False) -> int:
    """Return how few requests can list orders of these times (sorted): each window as long as the platform lets it be,
    and each page full. A reader that does not know where orders lie needs more. `is_shuffled`: orders of one moment are
    sorted anew for each request, so each answer has some of them by chance. Then no reader sees all of a moment with
    fewer requests than it takes on average until each has come up."""
    crowds = [count for count in Counter(times_ms).values() if count > page_size] if is_shuffled else []
    if crowds:
        many = {at_ms for at_ms, count in Counter(times_ms).items() if count > page_size}
        times_ms = [at_ms for at_ms in times_ms if at_ms not in many]
    requests = at = 0
    while at < len(times_ms):
        at = min(at + page_size, bisect_left(times_ms, times_ms[at] + longest_ms))
        requests += 1
    return requests + round(sum(draws(count, page_size) for count in crowds))


@lru_cache(maxsize=64)
def draws(count: int, page_size: int) -> float:
    """Return how many draws of a page it takes on average until each of `count` has come up: the sum of the chances
    that so many draws are too few."""
    expected = Fraction(0)
    for left in range(1, count + 1):  # so many that did not come up, by inclusion and exclusion
        missed = Fraction(comb(count - left, page_size), comb(count, page_size))
        expected += (-1) ** (left + 1) * comb(count, left) / (1 - missed)
    return float(expected)


def list_orders(
    shop: Shop, query: Mapping[str, str], config: MallConfig, now_ms: int, url: str, *, drift: bool
) -> bytes:
    """Return the answer's JSON. With `drift` a page after the first begins one row too far down."""
    shelf = shop.shelves.get(query.get("list", ""))
    if shelf is None:
        raise BadQuery(f"list is one of {', '.join(shop.shelves)}")
    shelf.advance(now_ms)
    low, high = bounds(query, config)
    first, last = shelf.between(low, high)
    limit = min(config.page_size, _count(query.get("limit", ""), config.page_size))
    begin = _place(shelf.listed, query.get("page_token", ""), first, last)
    if drift and begin > first:
        begin = min(begin + 1, last)
    end = min(begin + limit, last)
    rows = shelf.listed[begin:end]
    if config.paging in ("number", "offset"):
        rows = shop.page_of(shelf.listed[first:last], _begin(query, config, limit), limit, config)
    body = [b'{"orders":[', b",".join([_row(shop, row, config) for row in rows]), b"]"]
    total = told_total(shelf.listed[first:last], shop.plan, low, high, config)
    if total is not None:
        body.append(b',"total":%d' % total)
    if end < last and config.paging in ("token", "link"):
        token = f"o{end - first}" if config.tokens == "offset" else f"k{rows[-1][0]}-{rows[-1][1]}"
        body.append(_next(token, query, config, url))
    body.append(b',"server_time_ms":%d}' % now_ms)
    return b"".join(body)


def bounds(query: Mapping[str, str], config: MallConfig) -> tuple[int, int]:
    """Return the half-open milliseconds that `from` and `to` select, by the mall's own rules. A grain of a second
    means that order times are compared without their milliseconds."""
    high = None if config.ignores_end else _moment(query.get("to"), config)
    return half_open(_moment(query.get("from"), config), high, config)


def half_open(low: int | None, high: int | None, config: MallConfig) -> tuple[int, int]:
    """Return the half-open milliseconds that a platform's own bounds select."""
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


def _begin(query: Mapping[str, str], config: MallConfig, limit: int) -> int:
    if config.paging == "number":
        return (_count(query.get("page", ""), 1) - 1) * limit
    return _count(query.get("offset", ""), 0, least=0)


def _row(shop: Shop, row: Listed, config: MallConfig) -> bytes:
    modified_ms, number, version = row
    extra = b""
    if config.has_two_lists:
        modified_ms, extra = shop.changed_ms(row), b'"created_ms":%d,' % shop.created[number]
    if config.times != "unix_ms":
        extra = b'"modified_at":"%b",' % time_text(modified_ms, config).encode()
    body = order_body(shop.name, number, version, modified_ms, extra)
    is_renamed = config.is_renamed and modified_ms >= middle_ms(shop.plan)
    return body.replace(b'"id"', b'"order_id"', 1) if is_renamed else body


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
    kept = [(name, query[name]) for name in ("shop", "list", "from", "to", "limit") if name in query]
    return b',"next":"%b?%b"' % (url.encode(), urlencode([*kept, ("page_token", token)], quote_via=quote).encode())
