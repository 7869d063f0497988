"""This node's part of a cluster's rate, and how the node spends it: evenly, and in no second above it.

A rate is the cluster's. Each node that takes part has a share, and spends it on its own. `Shares` gets a function that
returns the share: the governor deals all of them (ADR 39, 49). Nothing is stored. A key that begins again begins
slowly, without a burst, and a pause of two seconds earns no burst either. A late caller may catch up on at most a
quarter of a second's worth, also if it is late each time, and if its share changes meanwhile (ADR 86). A time without a
share is not made up for.

No second has more than `most`. If that is all of the pace, a second that was uneven makes the next one uneven in the
same way: where little began, there is little room a second later, and what was held back there begins with the rest. So
part of what the most holds back is given up (`HELD_PART`), for as long as it held back, however often callers look
meanwhile. That costs some rows once, and each tenth of a second gets its part again.
"""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from actors.runtime.membership import Members, NodeRecord
from actors.runtime.rules.leased import DEMAND_S, GATHER_S
from actors.runtime.rules.pacing import Pace, Rate, acquire, changed, conforming, forgive, stop_until
from actors.runtime.rules.second_cap import MARGIN, SecondCap
from actors.runtime.rules.sweeps import Sweeps
from streams.clock import monotonic_s

LATE_S = 0.25
"""How much a late caller may catch up on: a call that takes this long keeps the next one from its turn."""
PAUSE_MS = DEMAND_S * 1000
"""A caller that comes later than this had nothing to do. One that comes sooner may have been late each time, because
its calls take as long, or the machine has no free core."""
HELD_PART = 0.1
"""The part of the time, for which the most of a second held rows back, that is not made up for. A larger part costs
more of a second, a smaller one leaves the tenths uneven for longer (ADR 79)."""
KEEP_MS, KEPT = 15, 2
"""What is always made up for, the longer of so many milliseconds and intervals: timers fire late."""
SECOND = 1.0
"""Between an item's permission and its start lie milliseconds. A longer second would make up for them, but the rate
would be lower by as much in every second."""
TICK_S = 0.02
"""How much earlier an item under a rate with a burst may begin: timers fire late, and the pace would never make up for
it."""
FIRST_MS = 1000
"""A key that begins has its first item after one interval, but after this long at the most."""
LOOK_MS = 250
"""How soon a caller that waits for a turn sees that the share has grown, or that it does not need the turn any more."""
FEW = 256


class SharedRates(Protocol):
    """Where the parts of a node learn how many may begin now."""

    def take(self, key: str, most: int) -> tuple[int, int]:
        """Return how many of `most` may begin now. If none may, return also how many milliseconds to wait at least."""

    def give_back(self, key: str, count: int) -> None:
        """Take back what was granted last and not used."""

    def share(self, key: str) -> float:
        """Return what the node may begin a second now. Infinite: no limit."""


class Shares:
    """Grants turns, key by key. All parts of this node that spend the same rates use one object. `share(key)`: this
    node's part of the rate, per second: its pace. `None`: no limit. `0`: nothing may begin now. `most(key)`: how many
    may begin in any one second, by default the share. `burst(key)`: how many may begin at once after a pause, for keys
    that allow it. `0`: the key allows none."""

    def __init__(
        self,
        share: Callable[[str], float | None],
        *,
        most: Callable[[str], float | None] | None = None,
        burst: Callable[[str], float] = lambda _key: 0.0,
        now_ms: Callable[[], float] = lambda: monotonic_s() * 1000,
    ) -> None:
        self._share = share
        self._most = share if most is None else most
        self._burst = burst
        self._now_ms = now_ms
        self._spent: dict[str, tuple[Rate, Pace, SecondCap, float]] = {}
        self._sweeps = Sweeps(FEW)

    def take(self, key: str, most: int) -> tuple[int, int]:
        """Return how many of `most` may begin now. If none may, return also how many milliseconds to wait at least."""
        per_s = self._share(key)
        if per_s is None:
            self._spent.pop(key, None)
            return most, 0
        limit = self._most(key) or 0.0
        if per_s <= 0 or limit <= 0:
            self.lapse(key)
            return 0, LOOK_MS
        now_ms, rate = self._now_ms(), self._rate(key, per_s)
        pace, cap, called_ms = self._current(key, rate, now_ms)
        if cap.holds and not self._burst(key):
            keep_ms = max(KEEP_MS, KEPT * rate.interval_ms)
            pace = forgive(pace, rate, now_ms, HELD_PART * (now_ms - called_ms), keep_ms=keep_ms)
        least, ready = min(most, max(1, int(per_s * GATHER_S))), min(most, conforming(pace, rate, now_ms))
        granted = min(ready, cap.room(limit, now_ms)) if ready >= least else 0
        if granted:
            pace = acquire(pace, rate, now_ms, granted)[0]
            cap.add(granted, now_ms)
        self._spent[key] = rate, pace, cap, now_ms
        is_whole = limit >= per_s  # else the node gives way, or another one does so for it
        if granted:
            cap.holds = is_whole and granted < ready
            return granted, 0
        pace_ms, cap_ms = acquire(pace, rate, now_ms, least)[1], cap.wait_ms(limit, now_ms)
        cap.holds = is_whole and cap_ms > pace_ms
        return 0, max(1, min(LOOK_MS, math.ceil(max(pace_ms, cap_ms))))

    def expected_ms(self, key: str, count: int) -> float:
        """Return how long it takes until so many have begun, as things are."""
        now_ms, per_s = self._now_ms(), self._share(key)
        if not per_s:
            return 0.0
        rate, pace, cap, _ = self._spent.get(key) or (self._rate(key, per_s), Pace(), SecondCap(), 0.0)
        return max(acquire(pace, rate, now_ms, count)[1], cap.wait_ms(self._most(key) or rate.per_s, now_ms))

    def hold(self, key: str, wait_ms: float) -> None:
        """Grant nothing for so long, and begin evenly then, without a burst."""
        if per_s := self._share(key):
            rate, until_ms = self._rate(key, per_s), self._now_ms() + wait_ms
            _, pace, cap, called_ms = self._spent.get(key) or (rate, Pace(), SecondCap(MARGIN), until_ms)
            self._spent[key] = rate, stop_until(pace, rate, until_ms), cap, called_ms

    def lapse(self, key: str) -> None:
        """Note that there is no share now. The time until there is one is not made up for."""
        if key in self._spent and not self._burst(key):
            rate, pace, cap, _ = self._spent[key]
            now_ms = self._now_ms()
            self._spent[key] = rate, stop_until(pace, rate, now_ms), cap, now_ms

    def give_back(self, key: str, count: int) -> None:
        """Take back what was granted last and not used."""
        if key in self._spent and count > 0:
            rate, pace, cap, called_ms = self._spent[key]
            cap.take_back(count)
            self._spent[key] = rate, Pace(pace.spent_ms - count * rate.interval_ms), cap, called_ms

    def share(self, key: str) -> float:
        """Return what the node may begin a second now. Infinite: no limit."""
        per_s = self._share(key)
        return math.inf if per_s is None else per_s

    def spent(self, key: str) -> int:
        """Return how many began in the last second. For shares of one a second or more."""
        return self._spent[key][2].spent(self._now_ms()) if key in self._spent else 0

    def _rate(self, key: str, per_s: float) -> Rate:
        burst = self._burst(key)
        return Rate(per_s, burst + per_s * TICK_S if burst else max(2, int(per_s * LATE_S)))

    def _current(self, key: str, rate: Rate, now_ms: float) -> tuple[Pace, SecondCap, float]:
        """Return how far the rate is spent, and since when it is so. After a pause it begins anew without a burst. When
        the share has changed, what was to be caught up on stays. A burst that the key allows is there from the
        beginning."""
        if key not in self._spent:
            self._forget(now_ms)
            if self._burst(key):
                return Pace(), SecondCap(MARGIN), now_ms
            return stop_until(Pace(), rate, now_ms + min(FIRST_MS, rate.interval_ms)), SecondCap(SECOND), now_ms
        before, pace, cap, called_ms = self._spent[key]
        if self._burst(key):
            owed = min(max(0.0, pace.spent_ms - now_ms) / before.interval_ms, rate.burst)
            return (pace if before == rate else Pace(now_ms + owed * rate.interval_ms)), cap, called_ms
        if now_ms - called_ms > PAUSE_MS:
            pace, called_ms = stop_until(pace, before, now_ms), now_ms
        if before != rate:
            cap.holds = False
            pace, called_ms = changed(pace, before, rate, now_ms, longest_ms=FIRST_MS), now_ms
        return pace, cap, called_ms

    def _forget(self, now_ms: float) -> None:
        """Forget the keys whose last call was long ago and whose next turn is past."""
        if self._sweeps.is_due(len(self._spent)):
            self._spent = {
                key: spent for key, spent in self._spent.items() if max(spent[1].spent_ms, spent[3] + FIRST_MS) > now_ms
            }
            self._sweeps.swept(len(self._spent))


def sharers(members: Members, takes_part: Callable[[NodeRecord, str], bool]) -> Callable[[str], Sequence[str]]:
    """Return a function from a key to the names of the nodes that share its rate: the live nodes that take part, and
    this one, which may not be listed yet."""
    found: dict[str, Sequence[str]] = {}

    def names(key: str) -> Sequence[str]:
        if key not in found:
            found[key] = sorted({members.name, *(n for n, node in members.live().items() if takes_part(node, key))})
        return found[key]

    members.on_change(found.clear)
    return names


def part_of(most: int, nodes: Sequence[str], own: str) -> int:
    """Return one node's part of `most`: all nodes have the same number, and the first ones by name one more."""
    whole, more = divmod(most, max(1, len(nodes)))
    return whole + (own in sorted(nodes)[:more])
