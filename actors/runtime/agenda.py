"""What is to be looked at when: the first due comes first, and nothing is looked at twice at once.

What is put while it is being looked at waits until that look is over; so a look that hangs holds up itself alone.
Memory only, for one task that asks for the `next`.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

import anyio

from streams.clock import Clock

__all__ = ["Agenda"]

K = TypeVar("K", bound=Hashable)
SPARE = 64
LONGEST_WAIT_MS = 5_000
"""A wall clock that was set back and then right again must not let us oversleep by more than this."""


class Agenda(Generic[K]):
    """Keys by the moment (ms of the clock) at which each is due; the earliest moment that was put counts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, K]] = []
        self._due: dict[K, tuple[int, int]] = {}
        self._busy: set[K] = set()
        self._after: dict[K, int] = {}
        self._number = 0
        self._wake = anyio.Event()

    def __len__(self) -> int:
        """How many keys are due now or later, those under way left out."""
        return len(self._due)

    def clear(self) -> None:
        """Forget all, also what was under way: whoever did it is gone."""
        self._heap.clear()
        self._due.clear()
        self._busy.clear()
        self._after.clear()

    def put(self, key: K, due_ms: int) -> None:
        """Have the key looked at when it is due, or sooner if it was to be looked at sooner already."""
        if key in self._busy:
            self._after[key] = min(due_ms, self._after.get(key, due_ms))
            return
        known = self._due.get(key)
        if known is None or due_ms < known[0]:
            self._number += 1
            self._due[key] = (due_ms, self._number)
            heapq.heappush(self._heap, (due_ms, self._number, key))
            self._wake.set()

    async def next(self) -> K:
        """Wait for the next key that is due, and return it; it is under way until `done`."""
        while True:
            wait_ms = self._drop_void()
            if wait_ms is not None and wait_ms <= 0:
                _, _, key = heapq.heappop(self._heap)
                del self._due[key]
                self._busy.add(key)
                return key
            with anyio.move_on_after(None if wait_ms is None else min(wait_ms, LONGEST_WAIT_MS) / 1000):
                await self._wake.wait()
            self._wake = anyio.Event()

    def done(self, key: K, due_ms: int | None = None) -> None:
        """The look at the key is over; look again at `due_ms`, or when it was put for meanwhile."""
        self._busy.discard(key)
        after_ms = self._after.pop(key, None)
        moments = [moment for moment in (due_ms, after_ms) if moment is not None]
        if moments:
            self.put(key, min(moments))

    def _drop_void(self) -> int | None:
        """Drop entries that an earlier one has replaced; return how long to wait for the first, None if there is
        none."""
        if len(self._heap) > SPARE + 2 * len(self._due):
            self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[:2]]
            heapq.heapify(self._heap)
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][:2]:
            heapq.heappop(self._heap)
        return self._heap[0][0] - self._clock.now_ms() if self._heap else None
