"""What this node may spend: requests to a source and to a platform, and orders on their way to the sinks. The stricter
of two limits holds: our settings, or what the platform's adapter declares.

The limits hold for the cluster. A node spends its share of each, evenly, and in no second above it
(actors/runtime/shares.py). The number of concurrent requests shrinks when a platform throttles or times out, and grows
again by success. Nothing here sleeps: a reservation says how long to wait. State: memory only. After a restart a node
begins with a full burst.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio

from actors.fetch.rules.settings import FetchSettings
from actors.fetch.sources import SourceKey
from actors.runtime.rules.pacing import Pace, Rate, RequestWindow, acquire, stop_until, succeeded, throttled, timed_out
from actors.runtime.rules.second_cap import SecondCap
from actors.runtime.shares import FEW, LOOK_MS
from platforms.adapter import RateBucket
from streams.clock import monotonic_s

ROUND_MS = 1_000
SECOND_MS = 1_100


class TooSlow(Exception):
    """The rate is spent for longer than the caller can wait. Nothing was reserved."""

    def __init__(self, wait_ms: int) -> None:
        super().__init__(f"our own rate for it is spent for {wait_ms} ms")
        self.wait_ms = wait_ms


class Budgets:
    """Paces a node's requests and orders. `share(per_s)`: this node's part of a rate of the cluster. `is_heard()`:
    whether the share is still this node's. `now_ms`: a clock that does not go back."""

    def __init__(
        self,
        share: Callable[[float], float],
        *,
        is_heard: Callable[[], bool] = lambda: True,
        now_ms: Callable[[], float] = lambda: monotonic_s() * 1000,
    ) -> None:
        self._share = share
        self._now_ms = now_ms
        self._spent: dict[Hashable, tuple[Pace, SecondCap]] = {}
        self._is_heard = is_heard
        self._prune_at = FEW
        self._windows: dict[str, RequestWindow] = {}
        self._under_way: dict[str, int] = {}
        self._freed: anyio.Event | None = None  # set while a task waits for a place

    async def until_heard(self, wait: Callable[[float], Awaitable[None]]) -> None:
        """Wait while the other nodes do not hear this one: by then they have its share. `wait` takes milliseconds."""
        while not self._is_heard():
            await wait(LOOK_MS)

    def reserve_request(
        self, source: SourceKey, settings: FetchSettings, *, most_ms: float, declared: Sequence[RateBucket] = ()
    ) -> float:
        """Reserve one request to the source, within our settings and the platform's limits as its adapter declares
        them. Return how many milliseconds to wait before sending it. Raises TooSlow."""
        rates: dict[Hashable, Rate | None] = {
            source: self._part(settings.rate, settings.burst),
            source.platform: self._part(settings.platform_rate, settings.burst),
        }
        for number, bucket in enumerate(declared):
            is_own = bucket.scope in ("shop", "app_shop")
            rates[number, source if is_own else source.platform] = self._part_of(bucket)
        return self._reserve(rates, 1, most_ms)

    def reserve_orders(self, source: SourceKey, settings: FetchSettings, orders: int, *, most_ms: float) -> float:
        """Reserve room for orders, so that they do not overload the back end (FETCH-04). Return how many milliseconds
        to wait before publishing them. Raises TooSlow."""
        rate = self._part(settings.inflow, int(settings.inflow) + 1)
        return self._reserve({("inflow", source): rate}, orders, most_ms)

    def hold(self, source: SourceKey, settings: FetchSettings, wait_ms: int) -> None:
        """Send nothing more to the source for `wait_ms`: it has just throttled us."""
        rate = self._part(settings.rate, settings.burst)
        if rate is not None:
            pace, cap = self._spent_of(source)
            self._spent[source] = stop_until(pace, rate, self._now_ms() + wait_ms), cap

    @asynccontextmanager
    async def one_of(self, platform: str, most: int) -> AsyncIterator[None]:
        """Hold one of the platform's places for concurrent requests of this node. Wait for a free one."""
        while self._under_way.get(platform, 0) >= self._window(platform, most).limit:
            if self._freed is None:
                self._freed = anyio.Event()
            await self._freed.wait()
        self._under_way[platform] = self._under_way.get(platform, 0) + 1
        try:
            yield
        finally:
            self._under_way[platform] -= 1
            if self._freed is not None:
                self._freed.set()
                self._freed = None

    def went_well(self, platform: str) -> None:
        """A response arrived: the platform can take a little more at once."""
        window = self._windows.get(platform)
        if window is not None and window.size < window.most:
            self._windows[platform] = succeeded(window)

    def was_throttled(self, platform: str) -> None:
        """The platform said that it was too much at once."""
        self._fall(platform, throttled)

    def timed_out(self, platform: str) -> None:
        """No response arrived in time."""
        self._fall(platform, timed_out)

    def _fall(self, platform: str, fall: Callable[..., RequestWindow]) -> None:
        if platform in self._windows:
            self._windows[platform] = fall(self._windows[platform], self._now_ms(), round_ms=ROUND_MS)

    def _window(self, platform: str, most: int) -> RequestWindow:
        window = self._windows.get(platform)
        if window is None or window.most != most:
            window = self._windows[platform] = RequestWindow(size=most, most=most)
        return window

    def _reserve(self, rates: Mapping[Hashable, Rate | None], cost: int, most_ms: float) -> float:
        """Reserve from every rate, or from none."""
        now_ms, longest_ms = self._now_ms(), 0.0
        after: dict[Hashable, tuple[Pace, SecondCap]] = {}
        for key, rate in rates.items():
            if rate is not None:
                pace, cap = self._spent_of(key)
                pace, wait_ms = acquire(pace, rate, now_ms, cost)
                most = max(rate.per_s, rate.burst)
                cap.room(most, now_ms)
                longest_ms = max(longest_ms, wait_ms, cap.wait_ms(most, now_ms, cost))
                after[key] = pace, cap
        if longest_ms > most_ms:
            raise TooSlow(math.ceil(longest_ms))
        for _, cap in after.values():
            cap.add(cost, now_ms + longest_ms)
        self._spent |= after
        self._prune(now_ms)
        return longest_ms

    def _spent_of(self, key: Hashable) -> tuple[Pace, SecondCap]:
        return self._spent.get(key) or (Pace(), SecondCap())

    def _prune(self, now_ms: float) -> None:
        """Forget rates that are not spent beyond now, and were not used in the last second."""
        if len(self._spent) >= self._prune_at:
            self._spent = {key: spent for key, spent in self._spent.items() if spent[0].spent_ms > now_ms - SECOND_MS}
            self._prune_at = max(FEW, 2 * len(self._spent))

    def _part_of(self, bucket: RateBucket) -> Rate | None:
        """Return this node's part. A limit by address is the node's own, since each node has its own address."""
        if bucket.scope == "address":
            return Rate(bucket.per_second, bucket.burst)
        return self._part(bucket.per_second, bucket.burst)

    def _part(self, per_s: float, burst: int) -> Rate | None:
        own = self._share(per_s) if per_s > 0 else 0.0
        return Rate(own, max(1, int(burst * own / per_s))) if own > 0 else None
