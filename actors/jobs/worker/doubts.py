"""Ready jobs that are held back until it is known whether they may be run.

There are three kinds. The server may have made a second copy of a job (ADR 14): if it stored a timer's copy after the
schedule's own time, its own firing may follow, and takes the place of that copy on the job's subject. So such a copy
waits until the server must have fired. It is run if it is still the job's last message then. If not it is dropped: the
other copy is delivered by itself. Second, the server may have handed out a job before it was killed (restarts.py).
Third, a redelivered job may be over: its end was stored, but not acknowledged any more.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import anyio

from actors.jobs.deliveries import Whose
from actors.runtime.logs import fields
from streams.clock import monotonic_s
from streams.errors import ConnectionLost, Disconnected, StreamError
from streams.pull.delivery import Delivery

log = logging.getLogger(__name__)

AGAIN_S = 1.0
AT_ONCE, LOOKS = 64, 4
"""How many are looked at with one call, and how many calls there are at a time."""


class _Doubt(NamedTuple):
    queue: deque[Delivery]
    look_s: float


class Doubts:
    """The doubts of one topic. It calls `whose(deliveries)` when their time has come, and `clear()` when one is in its
    queue."""

    def __init__(
        self, whose: Callable[[Sequence[Delivery]], Awaitable[dict[Delivery, Whose]]], clear: Callable[[], None]
    ) -> None:
        self._whose = whose
        self._clear = clear
        self._waiting: dict[Delivery, _Doubt] = {}
        self._few = anyio.CapacityLimiter(LOOKS)
        self._has_some = anyio.Event()

    def add(self, queue: deque[Delivery], delivery: Delivery, wait_s: float) -> None:
        """Hold back a delivery for `wait_s`. It belongs into `queue`."""
        self._waiting[delivery] = _Doubt(queue, monotonic_s() + wait_s)
        self._has_some.set()

    def remove_all(self) -> Sequence[Delivery]:
        """Remove and return everything that is held back."""
        return self.remove(lambda _delivery: True)

    def remove(self, is_meant: Callable[[Delivery], bool]) -> Sequence[Delivery]:
        """Remove and return the held deliveries that match."""
        found = [delivery for delivery in self._waiting if is_meant(delivery)]
        for delivery in found:
            del self._waiting[delivery]
        return found

    async def run(self) -> None:
        """Decide about held deliveries until cancelled."""
        while True:
            next_s = min((doubt.look_s for doubt in self._waiting.values()), default=math.inf)
            with anyio.move_on_after(max(0.0, next_s - monotonic_s())):
                await self._has_some.wait()  # a new one may be due before all that wait
            self._has_some = anyio.Event()
            now_s = monotonic_s()
            due = [delivery for delivery, doubt in self._waiting.items() if doubt.look_s <= now_s]
            async with anyio.create_task_group() as looks:
                for start in range(0, len(due), AT_ONCE):
                    looks.start_soon(self._look, due[start : start + AT_ONCE])

    async def _look(self, deliveries: Sequence[Delivery]) -> None:
        async with self._few:
            try:
                whose = await self._whose(deliveries)
            except StreamError:
                whose = {}
        for delivery in deliveries:
            await self._clear_up(delivery, whose.get(delivery, "unknown"))

    async def _clear_up(self, delivery: Delivery, whose: Whose) -> None:
        doubt = self._waiting.pop(delivery, None)
        if doubt is None:
            return  # removed meanwhile
        if whose == "ours":
            doubt.queue.append(delivery)
            self._clear()
            return
        if whose == "unknown":
            self._waiting[delivery] = doubt._replace(look_s=monotonic_s() + AGAIN_S)
            return
        log.info("job_worker.not_run", extra=fields(subject=delivery.subject, seq=delivery.seq, whose=whose))
        if whose == "nobody's":
            with suppress(Disconnected, ConnectionLost):  # then it is delivered again
                await delivery.ack()
        delivery.forget()
