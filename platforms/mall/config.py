"""The kind of platform that the mall simulates."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from platforms.mall.faults import NO_FAULTS, Faults
from platforms.mall.generator import Count, Plan, Share

Paging = Literal["one", "token", "link", "number", "offset"]
Totals = Literal["orders", "rows", "lies", "none"]


class MallConfig(Struct, frozen=True):
    """The rules of the simulated platform.

    paging: `one` gives no way to a next page, `token` an opaque token, `link` a URL. `number` takes `page` from 1, and
    `offset` takes `offset` from 0. past_end: a page past the end is empty, or the last page again. deepest: no row
    beyond this one is listed. ties: orders of one moment are sorted by their key, or by `number` and `offset` anew for
    each request. crowd, crowds: see `Plan`. tokens: `keyset` holds its place while orders leave, `offset` drifts, as
    most platforms do. lower, upper: how bounds compare. ignores_end: nobody looks at the upper one. grain_ms: order
    times are dropped to it before they are compared. times, zone: how `from` and `to` are written. page_size: the most
    rows of an answer, whatever is asked for. orders: of all shops together. clock_offset_ms: the mall's clock minus the
    machine's. needs_token: a request for orders needs a token from /_mall/login. token_requests: a token is good for so
    many requests, 0 for no end.

    platform: speak and behave as this platform does (see `dialects`). "" is the mall's own /orders. listing: each order
    once, or once per change. by_arrival: the time of the window is when a version came to be listed. totals: the orders
    of the window, its rows, one more than there are where the window holds the middle of the history, or none.
    has_two_lists: what /orders lists is said by `list`: `created` has each order at the time of its creation, `changed`
    only those that were changed since, at the time of their last change.
    is_renamed: orders of the second half of the history have their key under another name. frozen_share: see `Plan`.
    tells_limits: answers tell what is left of `faults.rate_per_s`. points: requests take points of a bucket that holds
    so many, and points_per_s come back each second. Answers tell of it in the way of their own. 0: no points."""

    host: str = "127.0.0.1"
    port: int = 0
    shops: Annotated[int, Meta(ge=1)] = 1
    orders: Count = 7_000
    seed: int = 7
    paging: Paging = "one"
    tokens: Literal["keyset", "offset"] = "keyset"
    past_end: Literal["empty", "last"] = "empty"
    deepest: Count = 0
    ties: Literal["key", "shuffled"] = "key"
    page_size: Annotated[int, Meta(ge=1)] = 100
    platform: str = ""
    listing: Literal["orders", "changes"] = "orders"
    by_arrival: bool = False
    totals: Totals = "orders"
    is_renamed: bool = False
    has_two_lists: bool = False
    tells_limits: bool = False
    points: Count = 0
    points_per_s: Annotated[float, Meta(gt=0)] = 100.0
    lower: Literal["includes", "excludes"] = "includes"
    upper: Literal["includes", "excludes"] = "excludes"
    ignores_end: bool = False
    grain_ms: Annotated[int, Meta(ge=1)] = 1
    times: Literal["unix_ms", "unix_s", "iso", "wall"] = "unix_ms"
    zone: str = "UTC"
    clock_offset_ms: int = 0
    needs_token: bool = False
    token_requests: Count = 0
    history_ms: Annotated[int, Meta(ge=1)] = 7_200_000
    live_ms: Count = 0
    live_share: Share = 0.3
    change_share: Share = 0.35
    late_share: Share = 0.1
    late_ms: Count = 1_500
    very_late_share: Share = 0.0
    very_late_ms: Count = 0
    tie_share: Share = 0.1
    crowd: Count = 0
    crowds: Count = 1
    frozen_share: Share = 0.0
    faults: Faults = NO_FAULTS

    def plans(self, start_ms: int) -> list[Plan]:
        """Return a plan per shop, `s1` onwards. The first shops take the remainder."""
        each, left = divmod(self.orders, self.shops)
        return [
            Plan(
                shop=f"s{number + 1}",
                seed=self.seed,
                orders=each + (number < left),
                start_ms=start_ms,
                history_ms=self.history_ms,
                live_ms=self.live_ms,
                live_share=self.live_share,
                change_share=self.change_share,
                late_share=self.late_share,
                late_ms=self.late_ms,
                very_late_share=self.very_late_share,
                very_late_ms=self.very_late_ms,
                tie_share=self.tie_share,
                crowd=self.crowd,
                crowds=self.crowds,
                frozen_share=self.frozen_share,
            )
            for number in range(self.shops)
        ]
