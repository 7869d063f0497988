"""A topic's delivered jobs that wait for a place, lane by lane, and the places that wait for a job.

One place is woken at a time, and wakes the next one when it leaves something. If handlers do not wait for anything, one
place does all the work, and no others are woken for nothing.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from actors.jobs.rules.job_rules import lane_order
from actors.runtime.rates.keyed import KeyedCalls
from streams.messages.jobs import Priority
from streams.pull.delivery import Delivery


class ReadyJobs:
    """Used from one loop. `may_start(most)` returns how many may start now. Its owner calls `wake` when more may.
    `unused(count)`: so many do not start after all."""

    def __init__(self, may_start: Callable[[int], int], unused: Callable[[int], None] = lambda _count: None) -> None:
        self._may_start = may_start
        self._unused = unused
        self._lanes: dict[Priority, deque[Delivery]] = {}
        self._only: deque[Delivery] | None = None
        self._idle: deque[asyncio.Future[None]] = deque()
        self._woken = 0
        self._picks = 0
        self.is_limited = False
        """Whether `may_start` must be called."""
        self.keyed: KeyedCalls[Delivery] | None = None
        """Set if the calls need slots. Then `is_limited` is set too."""

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def lane(self, priority: Priority) -> deque[Delivery]:
        """Return the lane's queue. After adding to it, call `wake`."""
        queue = self._lanes.setdefault(priority, deque())
        self._only = queue if len(self._lanes) == 1 else None
        return queue

    @property
    def lanes(self) -> Iterable[deque[Delivery]]:
        """The queues of all lanes."""
        return self._lanes.values()

    def waiting(self) -> Iterator[Delivery]:
        """Return the waiting deliveries, lane by lane."""
        for queue in self._lanes.values():
            yield from queue
        if self.keyed is not None:
            yield from self.keyed.waiting()

    # ---- for the places

    def take(self, most: int) -> list[Delivery]:
        """Return the next jobs that may begin, of one lane and at most `most`. Empty if there is none now."""
        queue = self._only if self._only is not None else self._next_lane()
        count = min(most, len(queue))
        if self.is_limited and count:
            if self.keyed is not None:
                return self._take_keyed(self.keyed, queue, most)
            count = self._may_start(count)
        return [queue.popleft() for _ in range(count)]

    def _take_keyed(self, keyed: KeyedCalls[Delivery], queue: deque[Delivery], most: int) -> list[Delivery]:
        """Return the next jobs that have slots. Those before them are parked."""
        while queue:
            granted = self._may_start(min(most, len(queue)))
            if not granted:
                break
            found = keyed.take(queue, granted)
            if len(found) < granted:
                self._unused(granted - len(found))
            if found:
                return found
            queue = self._next_lane()
        return []

    async def turn(self) -> None:
        """Wait until it is worthwhile to look again."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._woken -= 1
                self.wake()  # this wake goes to the next place
            raise
        self._woken -= 1

    def wake(self) -> None:
        """Wake one idle place, unless one is already woken."""
        if not self._woken:
            self._wake_one()

    def wake_next(self) -> None:
        """Wake the next idle place if this one leaves something."""
        if self._idle and not self._woken and (self._only if self._only is not None else len(self)):
            self._wake_one()

    def wake_all(self) -> None:
        """Wake every idle place: the topic ends."""
        while self._idle:
            self._wake_one()

    # ---- for the topic

    def remove_all(self) -> list[Delivery]:
        """Empty every lane."""
        found = list(self.waiting())
        for queue in self._lanes.values():
            queue.clear()
        if self.keyed is not None:
            self.keyed.clear()
        return found

    def remove_last(self, count: int) -> list[Delivery]:
        """Remove and return the jobs whose turn would come last."""
        found: list[Delivery] = []
        for priority in reversed(lane_order(0)):
            queue = self._lanes.get(priority, ())
            found += [queue.pop() for _ in range(min(count - len(found), len(queue)))] if queue else []
        if self.keyed is not None:
            self.keyed.remove(found)
        return found

    def remove(self, is_meant: Callable[[Delivery], bool]) -> list[Delivery]:
        """Remove and return the deliveries that match."""
        found = [delivery for delivery in self.waiting() if is_meant(delivery)]
        for queue in self._lanes.values():
            for delivery in found:
                if delivery in queue:
                    queue.remove(delivery)
        if self.keyed is not None:
            self.keyed.remove(found)
        return found

    def _wake_one(self) -> None:
        while self._idle:
            turn = self._idle.popleft()
            if not turn.done():
                self._woken += 1
                turn.set_result(None)
                return

    def _next_lane(self) -> deque[Delivery]:
        self._picks += 1
        return next((queue for priority in lane_order(self._picks) if (queue := self._lanes.get(priority))), deque())
