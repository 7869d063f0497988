"""A topic's jobs that were delivered and wait for a place, lane by lane, and the places that wait for a job.

One place is woken at a time, and wakes the next one when it leaves something: where handlers do not wait for anything,
one place does all the work, and no others are woken for nothing.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from actors.jobs.rules.job_rules import lane_order
from streams.delivery import Delivery
from streams.job_messages import Priority


class ReadyJobs:
    """Used from one loop. `may_start(most)` says how many may be started now, and wakes us itself once more may."""

    def __init__(self, may_start: Callable[[int], int]) -> None:
        self._may_start = may_start
        self._lanes: dict[Priority, deque[Delivery]] = {}
        self._only: deque[Delivery] | None = None
        self._idle: deque[asyncio.Future[None]] = deque()
        self._woken = 0
        self._picks = 0
        self.is_limited = False
        """Whether `may_start` has to be asked."""

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def lane(self, priority: Priority) -> deque[Delivery]:
        """Return the lane's queue; whoever puts something into it calls `wake`."""
        queue = self._lanes.setdefault(priority, deque())
        self._only = queue if len(self._lanes) == 1 else None
        return queue

    def waiting(self) -> Iterator[Delivery]:
        """Return what waits, lane by lane."""
        for queue in self._lanes.values():
            yield from queue

    # ---- for the places

    def take(self, most: int) -> list[Delivery]:
        """Return the next jobs that may be begun, of one lane and at most so many; none if there is none now."""
        queue = self._only if self._only is not None else self._next_lane()
        count = min(most, len(queue))
        if self.is_limited and count:
            count = self._may_start(count)
        return [queue.popleft() for _ in range(count)]

    async def turn(self) -> None:
        """Wait until it is worth while to look again."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._woken -= 1
                self.wake()  # what was meant for this place is the next one's
            raise
        self._woken -= 1

    def wake(self) -> None:
        """Have one idle place look, unless one is about to."""
        if not self._woken:
            self._wake_one()

    def wake_next(self) -> None:
        """Have the next idle place look if this one leaves something."""
        if self._idle and not self._woken and (self._only if self._only is not None else len(self)):
            self._wake_one()

    def wake_all(self) -> None:
        """Have every idle place look: the topic ends."""
        while self._idle:
            self._wake_one()

    # ---- for the topic

    def remove_all(self) -> list[Delivery]:
        """Empty every lane."""
        found = list(self.waiting())
        for queue in self._lanes.values():
            queue.clear()
        return found

    def remove_last(self, count: int) -> list[Delivery]:
        """Take out the jobs whose turn would come last."""
        found: list[Delivery] = []
        for priority in reversed(lane_order(0)):
            queue = self._lanes.get(priority, ())
            found += [queue.pop() for _ in range(min(count - len(found), len(queue)))] if queue else []
        return found

    def remove(self, is_meant: Callable[[Delivery], bool]) -> list[Delivery]:
        """Take out what is meant."""
        found = [delivery for delivery in self.waiting() if is_meant(delivery)]
        for queue in self._lanes.values():
            for delivery in found:
                if delivery in queue:
                    queue.remove(delivery)
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
