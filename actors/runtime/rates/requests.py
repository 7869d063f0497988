"""One request under several rates at a time: it spends all of them, or none, and says how long to wait meanwhile.

Requests that wait for the same rate form a line (actors/runtime/rules/waiting_line.py). Its members have parts by their
weights. Nothing here sleeps. State: memory only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, Self

import anyio

from actors.runtime.rates.shares import LOOK_MS, Shares
from actors.runtime.rules.pacing import Rate
from actors.runtime.rules.waiting_line import LinePlace, WaitingLine
from streams.clock import monotonic_s

BEHIND_MS = 20
"""How soon a request looks again if others are served before it, and nobody knows when."""
TOLD_MS = 50
"""How soon a request looks again that waits for the governor's reply, if it hears of none."""


class WantedRate(NamedTuple):
    """A rate of the cluster that a request spends. `member`: whose request it is, if several share the rate by their
    weights. Otherwise the first to come is served first."""

    key: str
    rate: Rate
    member: str = ""
    weight: float = 1.0


class WantedRates(Protocol):
    """Where requests find how many may begin now. `lines`: those that wait, by key."""

    lines: dict[str, WaitingLine]

    def want(self, wanted: WantedRate) -> None:
        """Have the rate in demand."""

    def part_of(self, wanted: WantedRate) -> float:
        """Return the part of the member's weight that counts on this node: it may have work on others, too."""

    def part(self, key: str) -> float:
        """Return the part of the rate that this node may begin now. 1: all of it, or nobody knows."""

    def take(self, key: str, most: int) -> tuple[int, int]:
        """Return how many of `most` may begin now. If none may, return also how many milliseconds to wait at least."""

    def has_share(self, key: str) -> bool:
        """Return whether the node has a share of the rate now, and so knows when the next one may begin."""

    async def told(self, key: str, wait_s: float) -> None:
        """Wait until a reply gives the node something to begin under the key, for `wait_s` at most."""

    def give_back(self, key: str, count: int) -> None:
        """Take back what was granted last and not used."""

    def expected_ms(self, key: str, count: int) -> float | None:
        """Return how long it takes until so many have begun, as things are. `None`: nobody knows, because no governor
        replies."""

    def hold(self, key: str, wait_ms: float) -> None:
        """Begin nothing for so long, and go on without a burst."""

    def put_off(self, key: str, wait_ms: float) -> None:
        """Note that something which waited for the key comes again later."""

    def rest(self, key: str) -> None:
        """Note that the work under the key is over for now."""


class RateRequest:
    """A request that waits, from `with` on. It spends `count` of each rate, as they come. Under several rates use a
    count of 1."""

    def __init__(self, spends: Sequence[tuple[WantedRates, WantedRate]], count: int = 1) -> None:
        self._spends = spends
        self._left = count
        self._places: list[LinePlace] = []
        self._untold: tuple[WantedRates, str] | None = None
        """The rate that is in the way, if the request waits for the node's share of it."""

    def __enter__(self) -> Self:
        for rates, wanted in self._spends:
            rates.want(wanted)
            line = rates.lines.setdefault(wanted.key, WaitingLine())
            self._places.append(line.enter(wanted.member, wanted.weight * rates.part_of(wanted)))
        return self

    def __exit__(self, *_: object) -> None:
        for (rates, wanted), place in zip(self._spends, self._places, strict=True):
            line = rates.lines[wanted.key]
            line.leave(place, is_served=not self._left)
            if not line:
                del rates.lines[wanted.key]

    def take(self) -> float:
        """Spend the rates, as far as possible. Return how many milliseconds to wait (`wait`) before the next call. 0:
        all is spent, so go on."""
        self._untold = None
        for rates, wanted in self._spends:
            rates.want(wanted)
        while self._left:
            least = self._left
            for at, (rates, wanted) in enumerate(self._spends):
                granted, wait_ms = self._take_of(rates, wanted, self._places[at], least)
                if not granted:
                    self._give_back(at, least)
                    self._wait_at(at)
                    if rates.has_share(wanted.key):
                        return wait_ms
                    self._untold = rates, wanted.key
                    return max(wait_ms, TOLD_MS)
                least = min(least, granted)
            self._left -= least
        return 0

    async def wait(self, wait_ms: float) -> None:
        """Wait for as long as `take` said, or until the share that is in the way has come."""
        if self._untold is None:
            await anyio.sleep(wait_ms / 1000)
        else:
            rates, key = self._untold
            await rates.told(key, wait_ms / 1000)

    def expected_ms(self) -> float | None:
        """Return how long it takes, as things are. `None`: nobody knows, because no governor replies."""
        waits = self._waits()
        return None if None in waits else max((wait_ms for wait_ms in waits if wait_ms is not None), default=0.0)

    def put_off(self) -> None:
        """Note under the rate that is in the way that the request comes again later."""
        for (rates, wanted), wait_ms in zip(self._spends, waits := self._waits(), strict=True):
            if wait_ms and wait_ms == max(each or 0.0 for each in waits):
                rates.put_off(wanted.key, wait_ms)

    def _waits(self) -> list[float | None]:
        """Return how long it takes under each rate."""
        return [
            rates.expected_ms(wanted.key, rates.lines[wanted.key].ahead(place) + self._left)
            for (rates, wanted), place in zip(self._spends, self._places, strict=True)
        ]

    def _take_of(self, rates: WantedRates, wanted: WantedRate, place: LinePlace, most: int) -> tuple[int, float]:
        """Take as many, if there is room for those that are to be served before as well."""
        ahead = rates.lines[wanted.key].ahead(place)
        granted, wait_ms = rates.take(wanted.key, ahead + most)
        rates.give_back(wanted.key, min(granted, ahead))
        if granted > ahead or not ahead:
            return granted - ahead, wait_ms
        return 0, min(LOOK_MS, rates.expected_ms(wanted.key, ahead + 1) or BEHIND_MS)

    def _give_back(self, upto: int, count: int) -> None:
        for rates, wanted in self._spends[:upto]:
            rates.give_back(wanted.key, count)

    def _wait_at(self, at: int) -> None:
        """Keep nobody waiting but for the rate that is in the way."""
        for each, place in enumerate(self._places):
            place.is_blocked = each != at


class OwnRates:
    """Rates that this process spends alone: of its own address, or while no node lives."""

    def __init__(self, now_ms: Callable[[], float] = lambda: monotonic_s() * 1000) -> None:
        self.lines: dict[str, WaitingLine] = {}
        self._rates: dict[str, Rate] = {}
        self._shares = Shares(
            lambda key: self._rates[key].per_s,
            most=lambda key: max(self._rates[key].per_s, self._rates[key].burst),
            burst=lambda key: self._rates[key].burst,
            now_ms=now_ms,
        )
        self.take = self._shares.take
        self.give_back = self._shares.give_back
        self.hold = self._shares.hold
        self.expected_ms = self._shares.expected_ms

    def put_off(self, _key: str, _wait_ms: float) -> None:
        """Nobody asks this process what waits."""

    def rest(self, _key: str) -> None:
        """Nobody else has the rate."""

    def has_share(self, _key: str) -> bool:
        """Return whether this process has a share of the rate: all of it."""
        return True

    async def told(self, _key: str, wait_s: float) -> None:
        """Wait. Nobody tells this process anything."""
        await anyio.sleep(wait_s)

    def want(self, wanted: WantedRate) -> None:
        """Have the rate in demand."""
        self._rates[wanted.key] = wanted.rate

    def part(self, _key: str) -> float:
        """Return the part of the rate that this process may begin now: all of it."""
        return 1.0

    def part_of(self, _wanted: WantedRate) -> float:
        """Return the part of the member's weight that counts here: all of it."""
        return 1.0
