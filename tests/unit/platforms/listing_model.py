"""A model of how platforms list and page: a set of orders, bounds, pages, and what moves while one reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import msgspec

from platforms.adapter import Declaration, Page, PageRules, Row, WindowRules
from platforms.bounds import Bounds
from platforms.reading import Ask, Reading

Paging = Literal["keyset", "offset", "none"]
Numbered = Literal["", "number", "offset"]


class Listed(NamedTuple):
    """An order as it is listed now; sorts as the platform does, by time and then by key."""

    modified_ms: int
    key: str
    version: int


class ModelPlatform:
    """Lists `orders`, half-open, in pages of `size`, with a total. `paging` says what a token holds on to."""

    def __init__(
        self,
        orders: list[Listed],
        *,
        size: int,
        paging: Paging,
        has_total: bool = True,
        numbered: Numbered = "",
        shuffle: Callable[[list[Listed]], list[Listed]] = list,
    ) -> None:
        self.orders = set(orders)
        self.size = size
        self.paging = paging
        self.has_total = has_total
        self.numbered = numbered
        self.shuffle = shuffle

    def answer(self, ask: Ask) -> Page:
        window = ask.window
        rows = sorted(order for order in self.orders if window.start_ms <= order.modified_ms < window.end_ms)
        rows = self.shuffle(rows)
        begin = self._begin(rows, ask.page)
        shown = rows[begin : begin + self.size]
        return Page(
            [row_of(order) for order in shown],
            self._token(begin + len(shown), shown) if begin + len(shown) < len(rows) else None,
            len(rows) if self.has_total else None,
        )

    def _begin(self, rows: list[Listed], token: str | int | None) -> int:
        if token is None:
            return 0
        if isinstance(token, int):
            return token * self.size if self.numbered == "number" else token
        if self.paging == "offset":
            return int(token)
        modified, key = msgspec.json.decode(token, type=tuple[int, str])
        return sum((row.modified_ms, row.key) <= (modified, key) for row in rows)

    def _token(self, end: int, shown: list[Listed]) -> str | None:
        match self.paging:
            case "none":
                return None
            case "offset":
                return str(end)
            case "keyset":
                return msgspec.json.encode((shown[-1].modified_ms, shown[-1].key)).decode()


def row_of(order: Listed) -> Row:
    return Row(order.key, order.version, order.modified_ms, b"{}")


def declaration(
    style: Literal["one", "token", "link"] = "one",
    *,
    size: int = 3,
    has_total: bool = True,
    step_ms: int = 1,
    most_requests: int = 5_000,
    has_live_total: bool = False,
    numbered: Numbered = "",
    deepest: int = 0,
) -> Declaration:
    return Declaration(
        name="model",
        window=WindowRules(bounds=Bounds(step_ms=step_ms), longest_ms=1_000_000),
        pages=PageRules(
            style=style,
            size=size,
            has_total=has_total,
            has_live_total=has_live_total,
            numbered=numbered,
            deepest=deepest,
            most_requests=most_requests,
        ),
    )


def read_all(reading: Reading, platform: ModelPlatform) -> Iterator[list[Row]]:
    """Yield what is handed out after each answer, so that a test may move orders in between."""
    while (ask := reading.next()) is not None:
        yield reading.feed(platform.answer(ask))
