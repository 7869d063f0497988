"""What part of a cluster's rate this node has, and how it spends it: evenly, and in no second above it.

A rate is the cluster's. Each node that takes part has a share, and spends it on its own. Where the shares come from is
a function that is given to `Shares`: today the live nodes share alike (ADR 10). Nothing is stored. What begins again
begins slowly, without a burst, and a pause gives none either. Being late is made up for, up to a quarter of a second's
worth. Nothing is spent while nobody hears of this node: by then the others have its share (ADR 24).
"""

from collections.abc import Callable, Sequence

from actors.runtime.membership import Members, NodeRecord
from actors.runtime.rules.pacing import Pace, Rate, acquire, conforming, stop_until
from actors.runtime.rules.second_cap import SecondCap
from streams.clock import monotonic_s

LATE_S = 0.25
"""What may be made up for after being late: a call that takes so long keeps the next one from its turn."""
GATHER_S = 0.05
"""Where several may begin at once, so much of a second's worth is waited for: a list of two costs as much as one of
twenty."""
FIRST_MS = 1000
"""With a share that is new the first one begins after an interval, and after so long at the most."""
LOOK_MS = 250
"""How soon whoever waits for a turn sees that the share has grown, or that the turn is not needed any more."""
FEW = 256


class Shares:
    """Grants turns, key by key. One object for all of this node that spend the same rates. `share(key)`: this node's
    part of the rate, a second; 0: no limit. `is_heard()`: whether the share is still this node's."""

    def __init__(
        self,
        share: Callable[[str], float],
        *,
        is_heard: Callable[[], bool] = lambda: True,
        now_ms: Callable[[], float] = lambda: monotonic_s() * 1000,
    ) -> None:
        self._share = share
        self._is_heard = is_heard
        self._now_ms = now_ms
        self._spent: dict[str, tuple[Rate, Pace, SecondCap, float]] = {}

    def take(self, key: str, most: int) -> tuple[int, int]:
        """Return how many of `most` may begin now, and if none, for how many milliseconds to wait at least."""
        per_s = self._share(key)
        if per_s <= 0:
            self._spent.pop(key, None)
            return most, 0
        if not self._is_heard():
            return 0, LOOK_MS
        now_ms, rate = self._now_ms(), Rate(per_s, max(2, int(per_s * LATE_S)))
        pace, cap = self._current(key, rate, now_ms)
        least, ready = min(most, max(1, int(per_s * GATHER_S))), conforming(pace, rate, now_ms)
        granted = min(most, ready, cap.room(per_s, now_ms)) if ready >= least else 0
        if granted:
            pace = acquire(pace, rate, now_ms, granted)[0]
            cap.add(granted, now_ms)
        self._spent[key] = rate, pace, cap, now_ms
        if granted:
            return granted, 0
        wait_ms = max(acquire(pace, rate, now_ms, least)[1], cap.wait_ms(per_s, now_ms))
        return 0, max(1, min(LOOK_MS, round(wait_ms)))

    def give_back(self, key: str, count: int) -> None:
        """Take back what was granted last and not used."""
        if key in self._spent and count > 0:
            rate, pace, cap, asked_ms = self._spent[key]
            cap.take_back(count)
            self._spent[key] = rate, Pace(pace.spent_ms - count * rate.interval_ms), cap, asked_ms

    def _current(self, key: str, rate: Rate, now_ms: float) -> tuple[Pace, SecondCap]:
        """Return how far the rate is spent. After a time without questions, and when the share is another, it begins
        anew, without a burst: those whose share this was have spent it in the second before."""
        if key not in self._spent:
            self._forget(now_ms)
            return stop_until(Pace(), rate, now_ms + min(FIRST_MS, rate.interval_ms)), SecondCap()
        before, pace, cap, asked_ms = self._spent[key]
        if before != rate:
            pace = stop_until(pace, rate, now_ms + min(FIRST_MS, rate.interval_ms))
        elif now_ms - asked_ms > 2 * LOOK_MS:
            pace = stop_until(pace, rate, now_ms)
        return pace, cap

    def _forget(self, now_ms: float) -> None:
        """Forget the keys that have not been asked for since long before their next turn."""
        if len(self._spent) >= FEW:
            self._spent = {
                key: spent for key, spent in self._spent.items() if max(spent[1].spent_ms, spent[3] + FIRST_MS) > now_ms
            }


def shared_rates(
    members: Members, per_s: Callable[[str], float], takes_part: Callable[[NodeRecord, str], bool]
) -> Shares:
    """Return this node's shares of the cluster's rates. `per_s(key)`: the rate; 0: no limit. `takes_part(node, key)`:
    whether a node spends of it."""
    names = sharers(members, takes_part)
    return Shares(lambda key: share_of(per_s(key), names(key), members.name), is_heard=members.is_heard)


def sharers(members: Members, takes_part: Callable[[NodeRecord, str], bool]) -> Callable[[str], Sequence[str]]:
    """Return the nodes that share a key's rate, by name, as a function of the key: the live ones that take part, and
    this one, of which that may not be known yet."""
    found: dict[str, Sequence[str]] = {}

    def names(key: str) -> Sequence[str]:
        if key not in found:
            found[key] = sorted({members.name, *(n for n, node in members.live().items() if takes_part(node, key))})
        return found[key]

    members.on_change(found.clear)
    return names


def share_of(per_s: float, nodes: Sequence[str], own: str) -> float:
    """Return the part of a rate that one of the nodes has. A whole number is dealt out whole, one more to the first
    nodes by name, so that together they come to the rate in every second."""
    count = max(1, len(nodes))
    if per_s != int(per_s) or per_s < count:
        return per_s / count
    return part_of(int(per_s), nodes, own)


def part_of(most: int, nodes: Sequence[str], own: str) -> int:
    """Return how many of so many one of the nodes has: all have as many, and the first ones by name one more."""
    whole, more = divmod(most, max(1, len(nodes)))
    return whole + (own in sorted(nodes)[:more])
