"""Ready jobs of which the server may have made a second copy: held back until it is known which one stands (ADR 14).

A timer's copy that the server stored after the schedule's own time may be followed by the server's firing, which takes
its place on the job's subject. So such a copy waits until the server must have done that. It is run if it is still the
job's last message then, and dropped if not: the other copy is delivered by itself.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

import anyio

from actors.job_stream import NEAR_MS
from actors.logs import fields
from streams.delivery import Delivery
from streams.errors import StreamError

log = logging.getLogger(__name__)

__all__ = ["Doubts"]


class Doubts:
    """One topic's. `stands(delivery)`: whether it is still the job's last message; `clear()` is called when some are
    back in their queues."""

    def __init__(self, stands: Callable[[Delivery], Awaitable[bool]], clear: Callable[[], None]) -> None:
        self._stands = stands
        self._clear = clear
        self._waiting: deque[tuple[deque[Delivery], Delivery]] = deque()
        self._has_some = anyio.Event()

    def add(self, queue: deque[Delivery], delivery: Delivery) -> None:
        """Hold back a delivery that belongs into a queue."""
        self._waiting.append((queue, delivery))
        self._has_some.set()

    def remove_all(self) -> Iterable[Delivery]:
        """Return what is held back, and hold it no more."""
        found = [delivery for _, delivery in self._waiting]
        self._waiting.clear()
        return found

    async def run(self) -> None:
        """Clear up until cancelled."""
        while True:
            await self._has_some.wait()
            self._has_some = anyio.Event()
            await anyio.sleep(NEAR_MS / 1000)
            for _ in range(len(self._waiting)):
                if self._waiting:
                    await self._clear_up(*self._waiting[0])

    async def _clear_up(self, queue: deque[Delivery], delivery: Delivery) -> None:
        try:
            stands = await self._stands(delivery)
            if not self._waiting or self._waiting[0][1] is not delivery:
                return  # let go of meanwhile
            self._waiting.popleft()
            if stands:
                queue.append(delivery)
                self._clear()
            else:
                log.info("job_worker.second_copy", extra=fields(subject=delivery.subject, seq=delivery.seq))
                await delivery.ack()
        except StreamError:
            delivery.forget()  # it comes again
