"""Whether this node still holds the jobs that were delivered to it, by its own monotonic clock.

An ack wait after the server last heard from us, it gives a delivery to another holder. So the node extends all its
deliveries, requests a reply from the server on the same link, and counts on them for one ack wait from the moment when
it began. Past that the jobs are lost: the node settles them no more, and informs and cancels their handlers. That also
happens after a partition, and after a process was stopped or its event loop was blocked: then its first turn comes too
late, before any handler goes on.

After such a stop the socket may still hold deliveries from before it, which other nodes have by now. They precede the
server's next reply, or the link's end. Everything that came before that is lost too, except what a link brought that is
younger than a turn. A link may also fall silent before the server's first reply on it.
"""

import logging
import math
from collections.abc import Callable, Iterable

import anyio
from anyio.abc import TaskStatus

from actors.runtime.logs import fields
from streams.clock import monotonic_s
from streams.connection import Connection
from streams.errors import Disconnected
from streams.puller import Puller

log = logging.getLogger(__name__)

EVERY_S = 1.0
"""Two turns may be lost within an ack wait of three seconds."""
ANSWER_S = 1.0
SPARE_S = 0.3
"""Subtracted from the ack wait, so that cancelled handlers end before another holder begins."""


class Hold:
    """Extends deliveries. It calls `lose` when other holders may have them, `resume` when new ones are ours,
    `confirmed` when the server has replied to everything sent, and `reconnected` on each new link, after `lose`."""

    def __init__(
        self,
        connection: Connection,
        *,
        ack_wait_s: float,
        pullers: Callable[[], Iterable[Puller]],
        lose: Callable[[], int],
        resume: Callable[[], None],
        confirmed: Callable[[], None],
        reconnected: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._sure_s = ack_wait_s - SPARE_S
        self._pullers = pullers
        self._lose = lose
        self._resume = resume
        self._confirmed = confirmed
        self._has_reconnected = reconnected
        self._linked_s = -math.inf
        self._soon = anyio.Event()
        self.until_s = 0.0
        """The held deliveries are ours until then (monotonic seconds)."""
        self.is_cut = True
        """Whether no held delivery can be relied on."""

    def is_sure(self, now_s: float) -> bool:
        """Return whether the held deliveries are ours. If not, the first caller has them lost."""
        if now_s < self.until_s:
            return True
        self._cut()
        return False

    async def keep(self, *, task_status: TaskStatus[None]) -> None:
        """Extend the held deliveries until cancelled. Started with the server's first reply."""
        remove = self._connection.on_reconnect(self._reconnected)
        try:
            while True:
                await self._turn()
                if not self.is_cut:
                    task_status.started()
                    task_status = anyio.TASK_STATUS_IGNORED
                with anyio.move_on_after(EVERY_S):
                    await self._soon.wait()
                self._soon = anyio.Event()
        finally:
            remove()

    async def _turn(self) -> None:
        began_s = monotonic_s()
        is_late = not self.is_sure(began_s)
        for puller in self._pullers():
            puller.extend_all()
        try:
            await self._connection.flush(ANSWER_S)
        except Disconnected:
            return
        if is_late and monotonic_s() > self._linked_s + ANSWER_S:
            self._lose()
        self.until_s = began_s + self._sure_s
        self._confirmed()
        if self.is_cut:
            self.is_cut = False
            self._resume()

    def _cut(self) -> None:
        if self.is_cut:
            return
        self.is_cut = True
        late_s = monotonic_s() - self.until_s
        lost = self._lose()
        if lost:
            log.error("job_worker.lost_hold", extra=fields(jobs=lost, silent_s=round(late_s + self._sure_s, 1)))

    def _reconnected(self) -> None:
        self._linked_s = monotonic_s()
        if not self.is_sure(monotonic_s()):
            self._lose()
        self._has_reconnected()
        self._soon.set()
