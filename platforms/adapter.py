"""The declaration and the answers of an adapter: data and plain functions, no I/O.

The engine owns the connection, the limiter, retries, windows, the ledger and the clock. It gets a `Request` from an
adapter, sends it, and passes the `Response` back: first to `outcome`, which says whether the body may be trusted at
all, then to `page`. `reading` decides the order of the requests of one window, from the declaration.

All times are whole milliseconds UTC. Windows are half-open. `bounds` has how a platform writes and compares times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Annotated, Literal, NamedTuple, Protocol, runtime_checkable

import msgspec
from msgspec import Meta, Struct

from platforms.bounds import Bounds, Window

MINUTE_MS = 60_000
DAY_MS = 86_400_000

Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]


class Account(Struct, frozen=True):
    """One shop's resolved credentials, and `base_url`. The values never show in a repr, log or traceback."""

    name: str
    values: Mapping[str, str] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Account({self.name!r}, values hidden: {', '.join(sorted(self.values))})"


class Request(Struct, frozen=True):
    """One HTTP request. `params` are still to be encoded and added to `url`. Redirects must not be followed."""

    method: str
    url: str
    params: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def __repr__(self) -> str:
        return f"Request({self.method} {self.url.partition('?')[0]}, {len(self.params)} params, headers hidden)"


class Response(Struct, frozen=True):
    """One HTTP answer, wholly read. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


LONGEST_KEY = 512
"""Characters. An index of the database has to hold it."""
LARGEST = 2**63 - 1
"""Of a version and of a time: what a database's 64-bit column holds."""


def content_version(body: bytes) -> int:
    """Return the version of a row whose platform has none: a hash of its content."""
    return int.from_bytes(blake2b(body, digest_size=8).digest(), "big") >> 1


class Row(NamedTuple):
    """One order as the platform lists it. The reader sets a row aside that is out of these bounds.

    `modified_ms` is the time by which the window selects. None: the answer does not state it for certain, and the row
    is never cut off. `body` is the row's own JSON, byte for byte."""

    key: str
    version: int
    modified_ms: int | None
    body: bytes


class BadRow(NamedTuple):
    """A row that cannot be trusted and is set aside alone. `body` is its first 4 KiB. `listed`: the row of the list, if
    the details have no such order. They may have it later."""

    key: str | None
    reason: str
    body: bytes
    listed: Row | None = None


class Page(Struct):
    """One answer, read. `next` is the platform's opaque token or the next URL. `total` counts the whole window.
    `has_more`: the platform says that there is more, with or without a `next`. `is_unsure`: it does not say for certain
    that this is all, as it tells of an error beside the rows, or leaves out the flag that ends its lists."""

    rows: list[Row]
    next: str | None = None
    total: int | None = None
    server_time_ms: int | None = None
    bad: list[BadRow] = msgspec.field(default_factory=list)
    has_more: bool = False
    is_unsure: bool = False


EMPTY_PAGE = Page(rows=[], total=0)
"""The page that stands for an `Empty` outcome. No code changes it."""


class Later(Struct, frozen=True, tag="later"):
    """A passing failure of the platform: try again after the wait (milliseconds) or our own. Counts as an attempt.
    `reason`: what the platform said, if it said anything. `is_partial`: it may never pass, as it concerns some rows of
    the answer. `Adapter.page` sets these aside."""

    after_ms: int | None = None
    reason: str = ""
    is_partial: bool = False


class SlowDown(Struct, frozen=True, tag="throttled"):
    """We were too fast: slow the source down, give the slice back. Does not count as an attempt. `reason` as above."""

    after_ms: int | None = None
    reason: str = ""


class Login(Struct, frozen=True, tag="login"):
    """The credentials are not valid any more: refresh them (see `Refreshing`), else pause the source and alert.
    `reason` as above."""

    reason: str = ""


class Split(Struct, frozen=True, tag="split"):
    """The window is too wide or too deep for the platform: `Reading.split()`."""


class Park(Struct, frozen=True, tag="park"):
    """This shop cannot go on without a person: park the source with the reason."""

    reason: str


class Bug(Struct, frozen=True, tag="bug"):
    """This request can never succeed: set this slice aside with the reason, the source goes on."""

    reason: str


class Empty(Struct, frozen=True, tag="empty"):
    """An error that means 'no orders': `Reading.feed(EMPTY_PAGE)`."""


Outcome = Later | SlowDown | Login | Split | Park | Bug | Empty


class WindowRules(Struct, frozen=True):
    """The limits of a window. `longest_ms` bounds one request, `look_back_ms` how far back the platform remembers."""

    time: Literal["updated", "created", "ingested", "none"] = "updated"
    bounds: Bounds = Bounds()
    longest_ms: Positive = DAY_MS
    look_back_ms: Positive | None = None


class PageRules(Struct, frozen=True):
    """How one window is read.

    `one`: a window is halved until it fits one answer. `next` is used only when it can be halved no further.
    `token`, `link`: follow `Page.next` to its end. size: the requested page size. A platform without a total must
    respect it. has_next: an answer that is not the last one names the next, so a full one that names none is the last.
    has_live_total: each page counts anew, so the last one has the total at the end, and no further request is needed.
    Leave it out if a token may carry the first count along. numbered: any page can be asked for, by its number (from 0
    here) or by the offset of its first row. Some pages, or what cannot be halved, is read so, from the last. deepest:
    the platform lists no row from this offset on, 0 for no limit. sort: `ascending` if the rows come in the order of
    the windowed time, earliest first. Then a list without an upper bound needs not be read beyond the window.
    most_requests ends a reading that would not end by itself. counts_rows: the total counts the rows of a list that may
    have an order more than once. has_end: an answer says whether it is the last one. One that is, and has fewer rows
    than `size`, proves a window of one answer without a total, and with end_is_proof (tokens that hold a place in the
    list) a window of many. An empty one after a full one does not: a token that has died may get it."""

    style: Literal["one", "token", "link"] = "one"
    size: Positive = 100
    has_next: bool = False
    has_total: bool = False
    has_live_total: bool = False
    numbered: Literal["", "number", "offset"] = ""
    deepest: NotNegative = 0
    sort: Literal["", "ascending"] = ""
    most_requests: Positive = 5_000
    counts_rows: bool = False
    has_end: bool = False
    end_is_proof: bool = False


class RateBucket(Struct, frozen=True):
    """One limit of the platform: `per_second` on average, `burst` at once, counted per `scope`. per_second 0: nobody
    has published the number, and `scope` says what it counts by. cost: what the request for a list takes of it.
    detail_cost: that of a detail request, as much by default. 0: nothing."""

    per_second: Annotated[float, Meta(ge=0)] = 0.0
    burst: Positive = 1
    scope: Literal["app", "shop", "app_shop", "address", "endpoint"] = "shop"
    cost: Annotated[float, Meta(ge=0)] = 1.0
    detail_cost: Annotated[float, Meta(ge=0)] | None = None

    def cost_of(self, *, is_detail: bool) -> float:
        """Return what a request takes of the limit."""
        return self.cost if self.detail_cost is None or not is_detail else self.detail_cost

    @property
    def lists_per_s(self) -> float:
        """How many requests for a list are allowed a second. 0: nobody says so, or they cost nothing."""
        return self.per_second / self.cost if self.cost else 0.0


class Declaration(Struct, frozen=True):
    """Everything about a platform that is data.

    settle_ms: how far behind the platform's own clock (`Page.server_time_ms`) a window may end.
    overlap_ms: how much the requested window begins before the slice. The repeats are harmless.
    again_ms: how long after its end a window is read once more. None: as usual. sweep_ms: how often everything is read
    again, 0 for never.
    has_times: rows have the time by which the window selects.
    account: the names that an account's values must have. granted: those that a login brings, before any other request.
    for_login: of `account`, what only the login needs. An account that has all of `granted` can do without.
    detail_batch: the list is partial, and a detail request takes so many keys (see `Detailing`). 0: the list is whole.
    lists: how many lists a window is read from (see `ManyLists`).
    is_version_ordered: False when the version is `content_version`, which shows only that a state differs.
    largest_row, largest_answer: bytes. A bigger row is set aside. A bigger answer must not be read to its end.
    longest_wait_ms: the limit of a platform's own 'retry after'.
    timeout_s: seconds within which one whole answer must arrive."""

    name: str
    window: WindowRules = WindowRules()
    pages: PageRules = PageRules()
    settle_ms: NotNegative = 5 * MINUTE_MS
    overlap_ms: NotNegative = 5_000
    again_ms: tuple[Positive, ...] | None = None
    sweep_ms: NotNegative = 0
    rate: tuple[RateBucket, ...] = ()
    account: tuple[str, ...] = ()
    has_times: bool = True
    granted: tuple[str, ...] = ()
    for_login: tuple[str, ...] = ()
    detail_batch: NotNegative = 0
    lists: Positive = 1
    is_version_ordered: bool = True
    largest_row: Positive = 512 * 1024
    largest_answer: Positive = 64 * 1024 * 1024
    longest_wait_ms: Positive = 15 * MINUTE_MS
    timeout_s: Annotated[float, Meta(gt=0)] = 30.0


class Adapter(Protocol):
    """A platform. Pure: the same arguments give the same answer, without side effects."""

    @property
    def declaration(self) -> Declaration: ...

    def request(self, window: Window, page: str | int | None, account: Account, now_ms: int) -> Request:
        """Return the request for a page of a window: the first one (None), the one that an earlier answer named (text),
        or the one at a place (a number, see `PageRules.numbered`).
        BadDeclaration when the account lacks a value. BrokenContract when `page` leads to another host."""
        ...

    def outcome(self, response: Response) -> Outcome | None:
        """Return what to do instead of reading the body, or None when it may be read."""
        ...

    def page(self, response: Response) -> Page:
        """Return the rows and what follows. BrokenContract when the body does not fit the declaration. Garbled, which
        may pass by itself, when it is no whole JSON, or has an error in place of orders."""
        ...


@runtime_checkable
class ManyLists(Protocol):
    """An adapter whose platform may list the orders of one source in several ways, and each window is read from all of
    them. `lists`: one adapter each, by name, {"": itself} where there is one list. `declaration` says what holds for
    all of them together (see `platforms.lists`)."""

    @property
    def lists(self) -> Mapping[str, Adapter]: ...


@runtime_checkable
class Detailing(Protocol):
    """An adapter whose list may be partial. Its `declaration.detail_batch` says whether it is."""

    def detail_request(self, keys: Sequence[str], account: Account, now_ms: int) -> Request: ...

    def detail_page(self, response: Response, listed: Sequence[Row]) -> Page:
        """Return the whole orders of the listed ones, as `Adapter.page`. One that is not there is a bad row."""
        ...


@runtime_checkable
class Refreshing(Protocol):
    """An adapter that can get fresh credentials by itself. One refresh at a time per account is the caller's duty."""

    def refresh(self, account: Account, now_ms: int) -> Request: ...

    def login_outcome(self, response: Response) -> Outcome | None:
        """Return what to do instead of reading the answer to `refresh`, or None when it may be read."""
        ...

    def refreshed(self, response: Response) -> Mapping[str, str]:
        """Return the account values to replace. BrokenContract when the answer holds none."""
        ...
