"""When the items of a task may begin in this process: what a gate admits, and how large chunks are."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import anyio
from msgspec import Raw

from actors.runtime.rules.slots_held import SlotCall, SlotCut
from streams.messages.batch import Outcome

CHUNK_S = 0.2
FEWEST_S = 1.0
FEWEST = 10

Item = tuple[int, Raw]
"""An item's index, and the item."""


class Admitted:
    """Items that may begin now, and the slots of their keys. False: none may any more. Run them `within` it, and in
    `scope`.

    If a slot is lost or goes to a newcomer, `scope` is cancelled, except for code in threads (`is_thread`), which
    cannot be cancelled. The slots are free when the block has ended, and each thread that was left behind."""

    def __init__(
        self,
        items: list[Item],
        keys: Sequence[str] = (),
        calls: Sequence[SlotCall] = (),
        leave: Callable[[Sequence[SlotCall]], None] = lambda _calls: None,
    ) -> None:
        self.items = items
        self.scope = anyio.CancelScope()
        self.is_thread = False
        self._keys = dict(zip((index for index, _ in items), keys, strict=False))
        self._cuts: dict[str, SlotCut] = {}
        self._calls = calls
        self._leave = leave
        self._users = 0
        for call in calls:
            call.on_cut = self._cutter(call.key.partition(":")[2])

    def __bool__(self) -> bool:
        return bool(self.items)

    @contextmanager
    def within(self, *, is_thread: bool) -> Iterator[None]:
        """Run the items' code in this block."""
        self.is_thread = is_thread
        token = _admitted.set(self)
        try:
            with self.freed():
                yield
        finally:
            _admitted.reset(token)

    @contextmanager
    def freed(self) -> Iterator[None]:
        """Free the slots at the end of this block."""
        self.use()
        try:
            yield
        finally:
            self.free()

    def use(self) -> None:
        """Keep the slots until one more `free`."""
        self._users += 1

    def free(self) -> None:
        """Free the slots, if nothing else uses them."""
        self._users -= 1
        if not self._users:
            self._leave(self._calls)

    def replaced(self, index: int) -> str | None:
        """Return the key of an item if its slot went to a newcomer."""
        key = self._keys.get(index)
        return key if key is not None and self._cuts.get(key) == "replaced" else None

    def _cutter(self, key: str) -> Callable[[SlotCut], None]:
        def cut(why: SlotCut) -> None:
            self._cuts.setdefault(key, why)
            if not self.is_thread:
                self.scope.cancel()

        return cut


_admitted: ContextVar[Admitted | None] = ContextVar("admitted", default=None)


def running_in() -> Admitted | None:
    """Return what the current call of the user's code runs in."""
    return _admitted.get()


class Gate(Protocol):
    """The items of one chunk pass it before they begin, in their turn."""

    def is_shut(self) -> bool:
        """Return whether nothing may begin any more. A thread may call it."""

    async def admit(self, waiting: deque[Item], most: int) -> Admitted:
        """Wait until some of the waiting items may begin, and return them, at most `most`."""

    def ended(self, outcomes: Sequence[Outcome]) -> None:
        """Hear how items ended."""


def first(waiting: deque[Item], most: int) -> list[Item]:
    """Take the first items, at most `most`."""
    return [waiting.popleft() for _ in range(min(most, len(waiting)))]


def chunk_size(most: int, per_s: float) -> int:
    """Return how many items a chunk should have. With a rate it is at most a fifth of a second's worth, so that each
    worker has some, and people see progress every second. With a low rate it is up to ten, within a second's worth."""
    fewest = min(FEWEST, max(1, int(per_s * FEWEST_S)))
    return min(most, max(fewest, int(per_s * CHUNK_S))) if per_s > 0 else most
