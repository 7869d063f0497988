"""What this node may spend: requests to a source and to a platform, and orders on their way to the sinks. The stricter
of two limits holds: our settings, or what the platform's adapter declares.

The limits hold for the cluster. The governor deals each node its share of those under which it has work (ADR 49). The
sources of a platform have parts of its rate by their weights. The number of concurrent requests shrinks when a platform
throttles or times out, and grows again by success. Nothing here sleeps: a request says how long to wait. State: memory
only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import NamedTuple, Self

import anyio

from actors.fetch.rules.settings import FetchSettings
from actors.fetch.sources import SourceKey
from actors.runtime.rates.requests import OwnRates, RateRequest, WantedRate, WantedRates
from actors.runtime.rules.pacing import Rate, RequestWindow, succeeded, throttled, timed_out
from actors.runtime.rules.texts import span_text
from actors.runtime.rules.waits import Waits
from platforms.adapter import RateBucket
from streams.clock import monotonic_s

ROUND_MS = 1_000
SOURCE, PLATFORM, DECLARED, INFLOW = "source.", "platform.", "declared.", "inflow."
"""Where the keys of the rates begin."""
MOST_KNOWN = 4_096
"""Sources whose limits are kept, since their next requests spend the same."""
NO_SHARES = "no governor deals shares of our rates"


class TooSlow(Exception):
    """The rate is spent for longer than the caller can wait. `is_known`: nobody says so but our own rates. Otherwise no
    governor replies."""

    def __init__(self, wait_ms: float, *, is_known: bool) -> None:
        self.wait_ms = ceil(wait_ms)
        self.is_known = is_known
        why = f"our own rate for it is spent for {span_text(self.wait_ms)}" if is_known else NO_SHARES
        super().__init__(why)


class BudgetLimit(NamedTuple):
    """A rate that a request to a source spends. `name`: for people. `scope`: of a limit that the adapter declares.
    `units`: what the request takes of it."""

    name: str
    wanted: WantedRate
    scope: str = ""
    units: int = 1


def limits_of(
    source: SourceKey, settings: FetchSettings, declared: Sequence[RateBucket], *, is_detail: bool = False
) -> list[BudgetLimit]:
    """Return the rates that a request to the source spends: our settings, and what its adapter declares. `is_detail`:
    it is for the details of orders."""
    rate, burst, weight = settings.rate, settings.burst, settings.weight
    limits = [BudgetLimit("the source's `rate`", WantedRate(f"{SOURCE}{source}", Rate(rate, burst)))]
    if settings.platform_rate > 0:
        of_all = WantedRate(f"{PLATFORM}{source.platform}", Rate(settings.platform_rate, burst), source.source, weight)
        limits.append(BudgetLimit(f"the `platform_rate` of {source.platform}", of_all))
    for number, bucket in enumerate(declared):
        cost = bucket.cost_of(is_detail=is_detail)
        if not bucket.per_second or not cost:
            continue  # it is learned, or this request does not count
        unit = min(each for each in (bucket.cost, bucket.cost_of(is_detail=True)) if each)
        of_bucket = Rate(bucket.per_second / unit, max(1.0, bucket.burst / unit))
        name, units = f"the adapter's limit per {bucket.scope}", ceil(cost / unit)
        if bucket.scope in ("shop", "app_shop"):
            wanted = WantedRate(f"{DECLARED}{number}.{source}", of_bucket)
        else:
            wanted = WantedRate(f"{DECLARED}{number}.{source.platform}", of_bucket, source.source, weight)
        limits.append(BudgetLimit(name, wanted, bucket.scope, units))
    return limits


def inflow_of(source: SourceKey, settings: FetchSettings) -> BudgetLimit:
    """Return the rate of the orders that enter."""
    rate = Rate(settings.inflow, max(1, int(settings.inflow)))
    return BudgetLimit("the source's `inflow` of orders", WantedRate(f"{INFLOW}{source}", rate))


class _KnownLimits(NamedTuple):
    """What a request to a source spends under these settings, and what it takes beside one of each."""

    settings: FetchSettings
    declared: Sequence[RateBucket]
    spends: list[tuple[WantedRates, WantedRate]]
    dearer: list[tuple[tuple[WantedRates, WantedRate], int]]


class Spending:
    """One request, or some orders, that wait for our rates, from `with` on. `dearer`: what the request takes of single
    rates beside one of each, before that."""

    def __init__(self, request: RateRequest, held_ms: Callable[[], float], dearer: Sequence[RateRequest] = ()) -> None:
        self._request, *self._later = (*dearer, request)
        self._held_ms = held_ms

    def __enter__(self) -> Self:
        self._request.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._request.__exit__()

    def _take(self) -> float:
        while not (wait_ms := self._request.take()) and self._later:
            self._request.__exit__()
            self._request = self._later.pop(0)
            self._request.__enter__()
        return wait_ms

    async def wait(self, wait_ms: float) -> None:
        """Wait for as long as `take` said, or until there is something to take."""
        await self._request.wait(wait_ms)

    def take(self, *, most_ms: float) -> float:
        """Return how many milliseconds to wait (`wait`) before the next call. 0: go on. The rates are spent for it.
        Raises TooSlow if it takes longer than `most_ms`."""
        held_ms = self._held_ms()
        wait_ms = held_ms or self._take()
        if wait_ms:
            expected_ms = held_ms or self._request.expected_ms()
            if max(wait_ms, expected_ms or 0.0) > most_ms:
                self._request.put_off()
                raise TooSlow(max(wait_ms, expected_ms or 0.0), is_known=expected_ms is not None)
        return wait_ms


class Budgets:
    """Paces a node's requests and orders. `rates`: where the node gets its shares. `None`: no node lives, so this
    process has the whole rates. `now_ms`: a clock that does not go back."""

    def __init__(
        self, rates: WantedRates | None, *, now_ms: Callable[[], float] = lambda: monotonic_s() * 1000
    ) -> None:
        self._own = OwnRates(now_ms)
        self._rates: WantedRates = rates or self._own
        self._now_ms = now_ms
        self._held: Waits[SourceKey] = Waits()
        self._windows: dict[str, RequestWindow] = {}
        self._under_way: dict[str, int] = {}
        self._limits: dict[tuple[SourceKey, bool], _KnownLimits] = {}
        self._freed: anyio.Event | None = None  # set while a task waits for a place

    def request(
        self,
        source: SourceKey,
        settings: FetchSettings,
        declared: Sequence[RateBucket] = (),
        *,
        is_detail: bool = False,
    ) -> Spending:
        """Return one request to the source, within our settings and the platform's limits as its adapter declares
        them. `is_detail`: it is for the details of orders."""
        known = self._limits.get((source, is_detail))
        if known is None or known.settings is not settings or known.declared is not declared:
            known = self._know_limits(source, settings, declared, is_detail=is_detail)
        dearer = [RateRequest([spend], count) for spend, count in known.dearer]
        return Spending(RateRequest(known.spends), lambda: self._held_ms(source), dearer)

    def _know_limits(
        self, source: SourceKey, settings: FetchSettings, declared: Sequence[RateBucket], *, is_detail: bool
    ) -> _KnownLimits:
        limits = limits_of(source, settings, declared, is_detail=is_detail)
        # A limit by address is the node's own, since each node has its own address.
        spends = [(self._own if limit.scope == "address" else self._rates, limit.wanted) for limit in limits]
        dearer = [(spend, limit.units - 1) for spend, limit in zip(spends, limits, strict=True) if limit.units > 1]
        if len(self._limits) >= MOST_KNOWN:
            self._limits.clear()
        known = self._limits[source, is_detail] = _KnownLimits(settings, declared, spends, dearer)
        return known

    def part_of(self, source: SourceKey, *, is_shared: bool) -> float:
        """Return this node's part of the requests to a source, or to its platform (`is_shared`), as they are dealt."""
        return self._rates.part(f"{PLATFORM}{source.platform}" if is_shared else f"{SOURCE}{source}")

    def orders(self, source: SourceKey, settings: FetchSettings, count: int) -> Spending:
        """Return orders that are about to enter, so that they do not overload the back end (FETCH-04)."""
        if settings.inflow <= 0:
            return Spending(RateRequest([]), lambda: 0.0)
        return Spending(RateRequest([(self._rates, inflow_of(source, settings).wanted)], count), lambda: 0.0)

    def hold(self, source: SourceKey, wait_ms: int) -> None:
        """Send nothing more to the source for `wait_ms`: it has just throttled us."""
        self._held.put(source, self._now_ms(), wait_ms)
        self._rates.hold(f"{SOURCE}{source}", wait_ms)

    def rest(self, source: SourceKey) -> None:
        """A window of the source was read."""
        for kind in (SOURCE, INFLOW):
            self._rates.rest(f"{kind}{source}")

    def _held_ms(self, source: SourceKey) -> float:
        return self._held.left(source, self._now_ms())

    async def free_place(self, platform: str, most: int) -> None:
        """Wait until one of the platform's places for concurrent requests of this node is free."""
        while self._under_way.get(platform, 0) >= self._window(platform, most).limit:
            if self._freed is None:
                self._freed = anyio.Event()
            await self._freed.wait()

    def enter(self, platform: str) -> None:
        """Take a place that is free. Give it back by `leave`."""
        self._under_way[platform] = self._under_way.get(platform, 0) + 1

    def leave(self, platform: str) -> None:
        """Give a place back."""
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
