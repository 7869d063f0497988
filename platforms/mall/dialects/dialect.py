"""What a dialect is, and what dialects share. Nothing here comes from the code that reads platforms."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from msgspec import Struct

from platforms.mall.config import MallConfig
from platforms.mall.generator import order_key
from platforms.mall.listing import Listing, Shop, half_open, look
from platforms.mall.points import PointBucket
from platforms.mall.shelf import Listed

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBERS_FROM = 2_000_000_000_000  # of platforms whose keys are numbers


class MallCall(Struct, frozen=True):
    """A request. Header names are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def form(self) -> dict[str, str]:
        return dict(parse_qsl(self.body.decode(), keep_blank_values=True))


class Answer(Struct, frozen=True):
    """What the platform says. kind: as what it is counted."""

    content: object
    status: int = 200
    headers: Mapping[str, str] = {}
    kind: str = "list"

    @property
    def body(self) -> bytes:
        return json.dumps(self.content, ensure_ascii=False).encode()


class MallRefusal(Exception):
    """The platform takes the request for wrong."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        super().__init__(str(answer.content))


class Inquiry(NamedTuple):
    """What a caller wants of the list: the bounds as they were sent, where the page begins, and its size."""

    low_ms: int | None
    high_ms: int | None
    begin: int
    size: int


class Clerk:
    """Looks things up for a dialect while it answers one request. `asked`: the list was asked so."""

    def __init__(
        self, shop: Shop, config: MallConfig, now_ms: int, token: str, points: PointBucket | None = None
    ) -> None:
        self.config = config
        self.points = points
        self.now_ms = now_ms
        self.token = token
        self.asked: Inquiry | None = None
        self.is_empty = False
        self._shop = shop

    def list(self, question: Inquiry, *, newest: bool = False, by_key: bool = False) -> Listing:
        """Return the page that is listed now."""
        self.asked = question
        low_ms, high_ms = half_open(question.low_ms, question.high_ms, self.config)
        seen = look(
            self._shop, low_ms, high_ms, question.begin, question.size, self.config, newest=newest, by_key=by_key
        )
        self.is_empty = not seen.rows
        return seen

    def find(self, number: int) -> Listed | None:
        """Return an order as it is listed now."""
        return self._shop.shelf.newest.get(number)

    def changed_ms(self, row: Listed) -> int:
        """Return when the order was changed, which is not always the time by which it is listed."""
        return self._shop.changed_ms(row)


class Dialect(NamedTuple):
    """A platform. manners: the changes of the mall's config. account: what a caller needs, beside the address, whose
    path is `base`, and a token. answer: raises MallRefusal. spoil: the answer to a caller that is too fast."""

    name: str
    manners: Mapping[str, Any]
    account: Mapping[str, str]
    answer: Callable[[MallCall, Clerk], Answer]
    spoil: Callable[[int], Answer]
    base: str = ""


# ---- logins

FIRST_TOKEN = "token-7-1"
"""The first token of a mall with the usual seed."""
REFRESH_TOKEN = "refresh-token"


def grant(clerk: Clerk, refresh_token: str | None) -> Answer:
    """Return the answer to a login with a refresh token: a token that is good now, and the next refresh token."""
    if not (refresh_token or "").startswith(REFRESH_TOKEN):
        raise MallRefusal(Answer({"error": "invalid_grant", "message": "no such refresh token"}, 400, kind="refused"))
    said = {"access_token": clerk.token, "expires_in": 3600, "refresh_token": f"{REFRESH_TOKEN}-{clerk.token}"}
    return Answer(said, kind="login")


def oauth(call: MallCall, clerk: Clerk, client: tuple[str | None, str | None]) -> Answer:
    """Return the answer to an OAuth2 login of the client that was named."""
    form = call.form
    if client != (CLIENT_ID, CLIENT_SECRET) or form.get("grant_type") != "refresh_token" or call.method != "POST":
        raise MallRefusal(Answer({"error": "invalid_client"}, 401, kind="refused"))
    return grant(clerk, form.get("refresh_token"))


CLIENT_ID, CLIENT_SECRET = "client-1", "client-secret"
CLIENT = {"client_id": CLIENT_ID, "client_secret": CLIENT_SECRET, "refresh_token": REFRESH_TOKEN}


# ---- keys


def text_key(number: int) -> str:
    return order_key("s1", number)


def number_key(number: int) -> int:
    return _NUMBERS_FROM + number


def number_of(key: str | int) -> int:
    """Return the order's number from its key of either form."""
    return int(str(key)[-7:])


# ---- times


def wall_ms(text: str, hours: int, pattern: str = "%Y-%m-%d %H:%M:%S") -> int:
    """Return a wall time as milliseconds. ValueError."""
    read = datetime.strptime(text, pattern).replace(tzinfo=timezone(timedelta(hours=hours)))
    return int(read.timestamp()) * 1000


def wall(at_ms: int, hours: int, pattern: str = "%Y-%m-%d %H:%M:%S") -> str:
    return _at(at_ms, hours).strftime(pattern)


def iso_ms(text: str) -> int:
    """Return a time that names its zone. ValueError."""
    read = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if read.tzinfo is None:
        raise ValueError(f"{text!r} has no zone")
    return (read - _EPOCH) // timedelta(milliseconds=1)


def iso(at_ms: int, hours: int = 0, timespec: str = "milliseconds") -> str:
    text = _at(at_ms, hours).isoformat(timespec=timespec)
    return text if hours else text.replace("+00:00", "Z")


def _at(at_ms: int, hours: int) -> datetime:
    return (_EPOCH + timedelta(milliseconds=at_ms)).astimezone(timezone(timedelta(hours=hours)))


def count(text: str | int | None, usual: int, least: int = 1) -> int:
    """Return a number of the request. ValueError."""
    value = usual if text in (None, "") else int(text or 0)
    if value < least:
        raise ValueError(f"{text!r} is too small")
    return value
