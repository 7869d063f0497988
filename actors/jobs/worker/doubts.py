"""Ready jobs that are held back until it is known whether they may be run.

Of three kinds. Of some the server may have made a second copy (ADR 14): a timer's copy that the server stored after the
schedule's own time may be followed by the server's firing, which takes its place on the job's subject. So such a copy
waits until the server must have done that. It is run if it is still the job's last message then, and dropped if not:
the other copy is delivered by itself. Others the server may have handed out before it was killed (restarts.py). And
what comes again may be over: its end was written down, and not acknowledged any more.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

import anyio

from actors.runtime.logs import fields
from streams.clock import monotonic_s
from streams.delivery import Delivery
from streams.errors import ConnectionLost, Disconnected, StreamError

log = logging.getLogger(__name__)

Whose = Literal["ours", "another's", "nobody's"]
"""To be run here; begun by somebody before; over, or told once more by another message."""


LOOKS = 64
"""So many at a time."""


class _Doubt(NamedTuple):
    queue: deque[Delivery]
    look_s: float


class Doubts:
    """One topic's. `whose(delivery)` is asked when its time has come; `clear()` is called when one is in its queue."""

    def __init__(self, whose: Callable[[Delivery], Awaitable[Whose]], clear: Callable[[], None]) -> None:
        self._whose = whose
        self._clear = clear
        self._waiting: dict[Delivery, _Doubt] = {}
        self._few = anyio.CapacityLimiter(LOOKS)
        self._has_some = anyio.Event()

    def add(self, queue: deque[Delivery], delivery: Delivery, wait_s: float) -> None:
        """Hold back a delivery that belongs into a queue, for so long."""
        self._waiting[delivery] = _Doubt(queue, monotonic_s() + wait_s)
        self._has_some.set()

    def remove_all(self) -> Sequence[Delivery]:
        """Return what is held back, and hold it no more."""
        return self.remove(lambda _delivery: True)

    def remove(self, is_meant: Callable[[Delivery], bool]) -> Sequence[Delivery]:
        """Return what is meant of it, and hold that no more."""
        found = [delivery for delivery in self._waiting if is_meant(delivery)]
        for delivery in found:
            del self._waiting[delivery]
        return found

    async def run(self) -> None:
        """Clear up until cancelled."""
        while True:
            next_s = min((doubt.look_s for doubt in self._waiting.values()), default=math.inf)
            with anyio.move_on_after(max(0.0, next_s - monotonic_s())):
                await self._has_some.wait()  # what comes may be due before all that waits
            self._has_some = anyio.Event()
            now_s = monotonic_s()
            due = [delivery for delivery, doubt in self._waiting.items() if doubt.look_s <= now_s]
            async with anyio.create_task_group() as looks:
                for delivery in due:
                    looks.start_soon(self._clear_up, delivery)

    async def _clear_up(self, delivery: Delivery) -> None:
        async with self._few:
            try:
                whose = await self._whose(delivery)
            except StreamError:
                whose = "another's"  # it comes again
        doubt = self._waiting.pop(delivery, None)
        if doubt is None:
            return  # let go of meanwhile
        if whose == "ours":
            doubt.queue.append(delivery)
            self._clear()
            return
        log.info("job_worker.not_run", extra=fields(subject=delivery.subject, seq=delivery.seq, whose=whose))
        if whose == "nobody's":
            with suppress(Disconnected, ConnectionLost):
                await delivery.ack()
        delivery.forget()
