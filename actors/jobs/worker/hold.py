"""Whether this node still holds the jobs that were delivered to it, by its own monotonic clock.

An ack wait after the server last heard from us, it gives a delivery to another holder. So the node extends all its
deliveries, requests a reply from the server on the same link (from the leaders, on three servers), and counts on them
for one ack wait from the moment when it began. Past that the jobs are lost: the node settles them no more, and informs
and cancels their handlers. That also happens after a partition, and after a process was stopped or its event loop was
blocked: then its first turn comes too late, before any handler goes on.

On three servers the ack wait is longer, for the time without a leader. But a desk that deletes a job waits only
`copies.LONGEST_S` for our reply, and asks no node whose record is over. Past that we may have missed it, and what is
not begun is in doubt: it is begun only once it is read that it is still there.

A node that is cut off learns it late, and what it begins until then runs a second time elsewhere. So what begins under
a limit (`may_begin`), as the rows of a flow with a rate, waits if the server was not heard for `STALE_S`. Then the node
asks it for a sign of life first. Whoever gets work all the time hears it all the time, so that is a ping now and then.

After such a stop the socket may still hold deliveries from before it, which other nodes have by now. They precede the
server's next reply, or the link's end. Everything that came before that is lost too, except what a link brought that is
younger than a turn. A link may also fall silent before the server's first reply on it.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Iterable

import anyio
from anyio.abc import TaskStatus

from actors.jobs.copies import LONGEST_S
from actors.runtime.logs import fields
from streams.clock import monotonic_s, until_turn_s
from streams.errors import StreamError
from streams.link.connection import Connection
from streams.pull.puller import Puller

log = logging.getLogger(__name__)

EVERY_S = 1.0
"""Two turns may be lost within an ack wait of three seconds."""
AGAIN_S = 0.2
"""After a turn that was not confirmed."""
ANSWER_S = 1.0
SAID_AGAIN_S = 2.5
"""After a turn that was not confirmed: two turns more, for others who hear the leaders later than we do."""
STALE_S = 0.25
SPARE = 0.1
"""Share of the ack wait that is not counted on, so that cancelled handlers end before another holder begins, though the
servers' clocks differ a little."""


class Hold:
    """Extends deliveries. It calls `doubt` when those that are not begun may have been deleted, `lose` when other
    holders may have them, `resume` when new ones are ours, `confirm` to have the leaders reply, `confirmed` when the
    servers have replied to everything sent, and `reconnected` on each new link, after `lose`. `is_heard()`: whether the
    other nodes take this one for live."""

    def __init__(
        self,
        connection: Connection,
        *,
        ack_wait_s: float,
        pullers: Callable[[], Iterable[Puller]],
        doubt: Callable[[], None],
        lose: Callable[[], int],
        resume: Callable[[], None],
        confirm: Callable[[float], Awaitable[None]],
        is_heard: Callable[[], bool],
        confirmed: Callable[[], None],
        reconnected: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._sure_s = ack_wait_s * (1 - SPARE)
        self._begin_s = min(self._sure_s, LONGEST_S * (1 - SPARE))
        self._pullers = pullers
        self._doubt = doubt
        self._lose = lose
        self._resume = resume
        self._confirm = confirm
        self._is_heard = is_heard
        self._confirmed = confirmed
        self._has_reconnected = reconnected
        self._linked_s = -math.inf
        self._soon = anyio.Event()
        self.confirmed_s = -math.inf
        """Everything that was sent before then has been confirmed (monotonic seconds)."""
        self.is_cut = True
        """Whether no held delivery can be relied on."""
        self.is_in_doubt = True
        """Whether what is not begun may have been deleted."""
        self.doubts = 0
        """How often it came to that."""
        self._failed_s = -math.inf
        self._is_stale = False
        """Something was not begun, since the server was not heard lately."""
        self._is_relinked = False

    def is_sure(self, now_s: float) -> bool:
        """Return whether the held deliveries are ours. If not, the first caller has them lost."""
        if now_s - self.confirmed_s >= self._begin_s:
            self.look(now_s)
        return not self.is_cut

    def may_begin(self, now_s: float) -> bool:
        """Return whether what is held and not begun is certainly still there. If not, the first caller has it looked
        at. Nor may anything begin unless the server was heard just now. `resume` is called when it is."""
        self.look(now_s)
        return not self.is_in_doubt and self._is_fresh(now_s)

    def until_acknowledged_s(self) -> float:
        """Return for how long what comes now waits on three servers: since the leaders were silent lately, another node
        may have it, too, or may have ended it. The new leader does not know what the last one did in its last moment.
        Whoever holds it runs it, or acknowledges it again, once the leaders reply."""
        if not self._connection.is_clustered:
            return 0.0
        return max(0.0, self._failed_s + SAID_AGAIN_S - monotonic_s())

    def _is_fresh(self, now_s: float) -> bool:
        if now_s - self._connection.client.heard_s < STALE_S:
            return True
        if not self._is_stale:
            self._is_stale = True
            self._soon.set()
        return False

    async def keep(self, *, task_status: TaskStatus[None]) -> None:
        """Extend the held deliveries until cancelled. Started with the server's first reply."""
        remove = self._connection.on_reconnect(self._reconnected)
        try:
            while True:
                is_confirmed = await self._turn()
                if not self.is_cut:
                    task_status.started()
                    task_status = anyio.TASK_STATUS_IGNORED
                await self._rest(until_turn_s(EVERY_S) if is_confirmed else AGAIN_S)
        finally:
            remove()

    async def _rest(self, seconds: float) -> None:
        """Wait until the next turn. Meanwhile ask the server for signs of life, if something waits for one."""
        with anyio.move_on_after(seconds):
            while True:
                await self._soon.wait()
                self._soon = anyio.Event()
                if self._is_relinked:
                    self._is_relinked = False
                    return
                try:
                    await self._connection.flush(ANSWER_S)
                except StreamError:
                    return
                self._freshen()

    def _freshen(self) -> None:
        if self._is_stale:
            self._is_stale = False
            if not self.is_in_doubt:
                self._resume()

    async def _turn(self) -> bool:
        """Extend the deliveries. Return whether the servers have confirmed that."""
        began_s = monotonic_s()
        is_late = not self.is_sure(began_s)
        for puller in self._pullers():
            puller.extend_all()
        try:
            await self._connection.flush(ANSWER_S)
            await self._confirm(ANSWER_S)
        except StreamError:
            self._failed_s = monotonic_s()
            return False
        if monotonic_s() - began_s >= self._begin_s:
            return False  # the process was stopped meanwhile: only the next turn tells what holds
        if is_late and monotonic_s() > self._linked_s + ANSWER_S:
            self._lose()
        self.confirmed_s = began_s
        self._confirmed()
        if self.is_in_doubt and self._is_heard():
            self.is_cut = self.is_in_doubt = self._is_stale = False
            self._resume()
        self._freshen()
        return True

    def look(self, now_s: float) -> None:
        """Take note of what does not hold any more."""
        silent_s = now_s - self.confirmed_s
        if not self.is_in_doubt and (silent_s >= self._begin_s or not self._is_heard()):
            self.is_in_doubt = True
            self.doubts += 1
            self._doubt()
        if silent_s >= self._sure_s and not self.is_cut:
            self.is_cut = True
            if lost := self._lose():
                log.error("job_worker.lost_hold", extra=fields(jobs=lost, silent_s=round(silent_s, 1)))

    def _reconnected(self) -> None:
        self._linked_s = now_s = monotonic_s()
        self._is_relinked = True
        if not self.is_sure(now_s):
            self._lose()
        self._has_reconnected()
        self._soon.set()
