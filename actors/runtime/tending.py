"""Keys that are looked at when they are due, each by the node that tends it.

Rendezvous hashing over the live nodes of a role decides which node tends a key (`tended_by`). While nodes come and go,
two may both believe that they do. Compare-and-set decides between them. `Tending` calls the looks. A key that fails is
looked at again later, alone, and its failure is logged once (`Failures`).
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable
from typing import Generic, TypeVar

import anyio

from actors.runtime.actor import FATAL
from actors.runtime.logs import fields
from actors.runtime.membership import Members, NodeRecord
from actors.runtime.rules.placement import Owners
from streams.clock import Clock

AGAIN_MS = 1_000
"""How long after a failed look the next one follows."""
SPARE = 64
LONGEST_WAIT_MS = 5_000
"""A limit for waits. Without it, a wall clock that was set back and then right again would let us oversleep."""

K = TypeVar("K", bound=Hashable)


def nodes_of(nodes: Iterable[NodeRecord], role: str) -> list[str]:
    """Return the names of the nodes of a role."""
    return [node.node for node in nodes if node.has_role(role)]


def tended_by(
    members: Members, role: str, *, among: Callable[[Collection[NodeRecord], str], Iterable[str]] = nodes_of
) -> Callable[[str], bool]:
    """Return a function that says whether this node tends a key, among the live nodes of the role, or those of them
    that `among` returns. A listener of the members that uses this function must be added after it."""

    owners = Owners()

    def follow() -> None:
        owners.become(among(members.live().values(), role))

    def is_ours(key: str) -> bool:
        return owners.owner(key) == members.name

    follow()
    members.on_change(follow)
    return is_ours


class Failures(Generic[K]):
    """Logs why a key failed, once for each reason and not at every look. It logs the event `event` with the key under
    the name `named`, and with a trace if the error is none of those `foreseen`."""

    def __init__(self, log: logging.Logger, event: str, named: str, foreseen: tuple[type[Exception], ...]) -> None:
        self._log = log
        self._event = event
        self._named = named
        self._foreseen = foreseen
        self._reasons: dict[K, str] = {}

    def tell(self, key: K, error: Exception) -> None:
        """Log the failure, unless it is the same as the key's last one."""
        if self._reasons.get(key) != str(error):
            self._reasons[key] = str(error)
            trace = None if isinstance(error, self._foreseen) else error
            facts = fields(**{self._named: str(key), "error": str(error)})
            self._log.warning(self._event, exc_info=trace, extra=facts)

    def over(self, key: K) -> None:
        """Forget the key's failure."""
        self._reasons.pop(key, None)

    def keep_only(self, keys: Collection[K]) -> None:
        """Forget the failures of all other keys."""
        self._reasons = {key: self._reasons[key] for key in self._reasons.keys() & keys}


class Agenda(Generic[K]):
    """Keys by the moment (ms of the clock) at which each is due. The earliest moment of a key counts. A key that is put
    during its own look waits until that look is over, so a look that hangs delays only itself. Memory only, for one
    task that calls `next`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, K]] = []
        self._due: dict[K, tuple[int, int]] = {}
        self._busy: set[K] = set()
        self._after: dict[K, int] = {}
        self._number = 0
        self._wake = anyio.Event()

    def __len__(self) -> int:
        """Return how many keys are due now or later, without those under way."""
        return len(self._due)

    def clear(self) -> None:
        """Forget all keys, also those under way: the task that worked on them is gone."""
        self._heap.clear()
        self._due.clear()
        self._busy.clear()
        self._after.clear()

    def put(self, key: K, due_ms: int) -> None:
        """Schedule a look at the key for `due_ms`, or keep an earlier moment."""
        if key in self._busy:
            self._after[key] = min(due_ms, self._after.get(key, due_ms))
            return
        known = self._due.get(key)
        if known is None or due_ms < known[0]:
            self._number += 1
            self._due[key] = (due_ms, self._number)
            heapq.heappush(self._heap, (due_ms, self._number, key))
            self._wake.set()

    def take_due(self) -> list[K]:
        """Return the keys that are due, and forget them. None of them is under way."""
        taken: list[K] = []
        while (wait_ms := self._drop_void()) is not None and wait_ms <= 0:
            _, _, key = heapq.heappop(self._heap)
            del self._due[key]
            taken.append(key)
        return taken

    async def next(self) -> K:
        """Wait for the next key that is due, and return it. It is under way until `done`."""
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
        """The look at the key is over. Look again at `due_ms`, or at the moment that was put meanwhile."""
        self._busy.discard(key)
        after_ms = self._after.pop(key, None)
        moments = [moment for moment in (due_ms, after_ms) if moment is not None]
        if moments:
            self.put(key, min(moments))

    def _drop_void(self) -> int | None:
        """Drop entries that an earlier one has replaced. Return how many ms to wait for the first. `None`: none."""
        if len(self._heap) > SPARE + 2 * len(self._due):
            self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[:2]]
            heapq.heapify(self._heap)
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][:2]:
            heapq.heappop(self._heap)
        return self._heap[0][0] - self._clock.now_ms() if self._heap else None


class Tending(Generic[K]):
    """Looks at keys when they are due: never twice at once at one key, and at most at `at_once` keys together. The
    errors `final` end the looks at a key until it is put again."""

    def __init__(
        self, clock: Clock, failures: Failures[K], *, at_once: int, final: tuple[type[Exception], ...] = ()
    ) -> None:
        self.failures = failures
        self._clock = clock
        self._at_once = at_once
        self._final = final
        self._agenda: Agenda[K] = Agenda(clock)

    def clear(self) -> None:
        """Forget all that is due, and all failures. Call it before each run but the first."""
        self._agenda.clear()
        self.failures.keep_only(())

    def put(self, key: K, due_ms: int = 0) -> None:
        """Look at the key at `due_ms`, or as soon as the look under way is over."""
        self._agenda.put(key, due_ms)

    async def run(self, look: Callable[[K], Awaitable[int | None]]) -> None:
        """Look at keys until cancelled. `look` returns when to look again (ms of the clock). `None`: not before the key
        is put. Raises FATAL errors."""
        limiter = anyio.CapacityLimiter(self._at_once)
        async with anyio.create_task_group() as looks:
            while True:
                key = await self._agenda.next()
                await limiter.acquire_on_behalf_of(key)
                looks.start_soon(self._look, look, key, limiter)

    async def _look(self, look: Callable[[K], Awaitable[int | None]], key: K, limiter: anyio.CapacityLimiter) -> None:
        due_ms: int | None = None
        try:
            due_ms = await look(key)
            self.failures.over(key)
        except FATAL:
            raise
        except Exception as error:  # the trouble of one key, foreseen or not, must not stop the others
            due_ms = None if isinstance(error, self._final) else self._clock.now_ms() + AGAIN_MS
            self.failures.tell(key, error)
        finally:
            limiter.release_on_behalf_of(key)
            self._agenda.done(key, due_ms)
