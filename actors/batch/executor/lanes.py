"""How fast the items of a task begin in this process: evenly, at its share of the task's rate, within any second.

A share is this process's part of the rate, in items a second; who deals the shares out is none of our business. They
are dealt anew whenever workers come and go. Nothing is stored: what begins again begins slowly, without a burst, and a
pause gives none either. Being late is made up for, up to a quarter of a second's worth.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import anyio

from actors.runtime.rules.pacing import Pace, Rate, acquire, conforming, stop_until
from actors.runtime.rules.second_cap import SecondCap
from streams.clock import monotonic_s

__all__ = ["Gate", "ItemRates", "OpenGate", "TaskGate", "chunk_size", "part_of", "share_of"]

CHUNK_S = 0.2
FEWEST_S = 1.0
FEWEST = 10
LATE_S = 0.25
"""What may be made up for after being late: a list of items that takes so long keeps the next one from its turn."""
GATHER_S = 0.05
"""Where several may begin at once, so much of a second's worth is waited for: a list of two items costs as much as one
of twenty."""
FIRST_MS = 1000
"""With a share that is new the first item begins after an interval, and after so long at the most."""
LOOK_MS = 250
"""How soon an item that waits for its turn sees that its instance was cancelled, or that the share has grown."""


class ItemRates:
    """Lets items begin. One object a process. `share(task)`: this process's part of the rate; 0: there is no limit.
    `is_heard()`: whether the share is still ours, or others have it because nobody hears of us."""

    def __init__(
        self,
        share: Callable[[str], float],
        *,
        now_ms: Callable[[], float] = lambda: monotonic_s() * 1000,
        is_heard: Callable[[], bool] = lambda: True,
    ) -> None:
        self._share = share
        self._is_heard = is_heard
        self._now_ms = now_ms
        self._paces: dict[str, tuple[Rate, Pace, SecondCap, float]] = {}

    def take(self, task: str, most: int) -> tuple[int, int]:
        """Return how many of `most` items may begin now, and if none, for how many milliseconds to wait at least."""
        per_s = self._share(task)
        if per_s <= 0:
            self._paces.pop(task, None)
            return most, 0
        if not self._is_heard():
            return 0, LOOK_MS
        now_ms, rate = self._now_ms(), Rate(per_s, max(2, int(per_s * LATE_S)))
        pace, cap = self._current(task, rate, now_ms)
        least, ready = min(most, max(1, int(per_s * GATHER_S))), conforming(pace, rate, now_ms)
        granted = min(most, ready, cap.room(per_s, now_ms)) if ready >= least else 0
        if granted:
            pace = acquire(pace, rate, now_ms, granted)[0]
            cap.add(granted, now_ms)
        self._paces[task] = rate, pace, cap, now_ms
        if granted:
            return granted, 0
        wait_ms = max(acquire(pace, rate, now_ms, least)[1], cap.wait_ms(per_s, now_ms))
        return 0, max(1, min(LOOK_MS, round(wait_ms)))

    def _current(self, task: str, rate: Rate, now_ms: float) -> tuple[Pace, SecondCap]:
        """Return how far the rate is spent. After a time without questions, and when the share is another, it begins
        anew, without a burst: those whose share this was have spent it in the second before."""
        if task not in self._paces:
            return stop_until(Pace(), rate, now_ms + min(FIRST_MS, rate.interval_ms)), SecondCap()
        before, pace, cap, asked_ms = self._paces[task]
        if before != rate:
            pace = stop_until(pace, rate, now_ms + min(FIRST_MS, rate.interval_ms))
        elif now_ms - asked_ms > 2 * LOOK_MS:
            pace = stop_until(pace, rate, now_ms)
        return pace, cap


class Gate(Protocol):
    """Where the items of one chunk begin, in their turn."""

    def is_shut(self) -> bool:
        """Whether nothing may begin any more. May be asked from a thread."""

    async def enter(self, most: int) -> int:
        """Wait until some of `most` items may begin; return how many. None may any more: 0."""


class OpenGate:
    """A gate that lets in whatever comes."""

    def is_shut(self) -> bool:
        return False

    async def enter(self, most: int) -> int:
        return most


class TaskGate:
    """A gate that lets items in at their task's rate, until the node is told to stop or the instance is cancelled."""

    def __init__(self, rates: ItemRates, task: str, is_over: Callable[[], bool], stop: anyio.Event) -> None:
        self._rates = rates
        self._task = task
        self._is_over = is_over
        self._stop = stop

    def is_shut(self) -> bool:
        return self._stop.is_set() or self._is_over()

    async def enter(self, most: int) -> int:
        while not self.is_shut():
            granted, wait_ms = self._rates.take(self._task, most)
            if granted:
                return granted
            with anyio.move_on_after(wait_ms / 1000):
                await self._stop.wait()
        return 0


def chunk_size(most: int, per_s: float) -> int:
    """Return how many items a chunk shall have: at a rate no more than a fifth of a second's worth, so that each worker
    has some, and people see every second how far it is; at a low one up to ten, but no more than run in a second."""
    fewest = min(FEWEST, max(1, int(per_s * FEWEST_S)))
    return min(most, max(fewest, int(per_s * CHUNK_S))) if per_s > 0 else most


def share_of(per_s: float, workers: Sequence[str], own: str) -> float:
    """Return the part of a rate that one of the workers has. Whole items are dealt out whole, to the first ones by name
    one more, so that together they come to the rate in every second."""
    count = max(1, len(workers))
    if per_s != int(per_s) or per_s < count:
        return per_s / count
    return part_of(int(per_s), workers, own)


def part_of(most: int, workers: Sequence[str], own: str) -> int:
    """Return how many of so many one of the workers has: all have as many, and the first ones by name one more."""
    whole, more = divmod(most, max(1, len(workers)))
    return whole + (own in sorted(workers)[:more])
