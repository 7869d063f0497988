"""How the items of a task begin in this process: in their turn, at its share of the task's rate."""

from collections.abc import Callable
from typing import Protocol

import anyio

from actors.runtime.shares import Shares

CHUNK_S = 0.2
FEWEST_S = 1.0
FEWEST = 10


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

    def __init__(self, rates: Shares, task: str, is_over: Callable[[], bool], stop: anyio.Event) -> None:
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
