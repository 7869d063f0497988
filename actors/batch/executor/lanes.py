"""When the items of a task may begin in this process: in their turn, at its share of the task's rate."""

from collections.abc import Callable
from typing import Protocol

import anyio

from actors.runtime.shares import SharedRates

CHUNK_S = 0.2
FEWEST_S = 1.0
FEWEST = 10


class Gate(Protocol):
    """The items of one chunk pass it before they begin, in their turn."""

    def is_shut(self) -> bool:
        """Return whether nothing may begin any more. A thread may call it."""

    async def enter(self, most: int) -> int:
        """Wait until some of `most` items may begin. Return how many. `0`: none may any more."""


class OpenGate:
    """A gate that admits every item at once."""

    def is_shut(self) -> bool:
        return False

    async def enter(self, most: int) -> int:
        return most


class TaskGate:
    """A gate that admits items at their task's rate, until the node stops or the instance is cancelled."""

    def __init__(self, rates: SharedRates, task: str, is_over: Callable[[], bool], stop: anyio.Event) -> None:
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
    """Return how many items a chunk should have. With a rate it is at most a fifth of a second's worth, so that each
    worker has some, and people see progress every second. With a low rate it is up to ten, within a second's worth."""
    fewest = min(FEWEST, max(1, int(per_s * FEWEST_S)))
    return min(most, max(fewest, int(per_s * CHUNK_S))) if per_s > 0 else most
