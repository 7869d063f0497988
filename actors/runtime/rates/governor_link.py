"""When a node asks the governor next, and whether one replies."""

import logging
import math
from collections.abc import Callable

import anyio

from actors.runtime.logs import fields
from streams.clock import monotonic_s
from streams.errors import StreamError

log = logging.getLogger(__name__)

GAP_S = 0.01
"""Between two requests, at least. Keys that begin in the same moment travel in one."""
RETRY_S = 0.05
"""How soon a request without a reply is followed by the next one."""
SILENT_S = 5.0
"""How long no governor may reply before the log says so."""
LEAVE_S = 0.5


class GovernorLink:
    """The requests of one sender. `silent` and `back`: the names of its events in the log."""

    def __init__(self, *, silent: str, back: str) -> None:
        self._silent, self._back = silent, back
        self.due_s = math.inf
        self.asked_s = -math.inf
        self.heard_s = -math.inf
        self.is_silent = False
        self.on_silence: Callable[[], None] = lambda: None
        """Called after each request that no governor answers."""
        self._wake = anyio.Event()

    @property
    def next_s(self) -> float:
        """When the next request may be sent."""
        return max(self.due_s, self.asked_s + GAP_S)

    def ask_at(self, at_s: float) -> None:
        """Have a request sent at this moment, if none is due before."""
        if at_s < self.due_s:
            self.due_s = at_s
            self._wake.set()

    async def until_due(self) -> None:
        while (wait_s := self.next_s - monotonic_s()) > 0:
            with anyio.move_on_after(wait_s):
                await self._wake.wait()
            self._wake = anyio.Event()

    def begin(self, now_s: float) -> None:
        """Note that a request is sent."""
        self.asked_s, self.due_s = now_s, math.inf

    def hear(self) -> None:
        """Note that a governor replied."""
        self.heard_s = monotonic_s()
        if self.is_silent:
            self.is_silent = False
            log.info(self._back)

    def miss(self, error: StreamError) -> None:
        """Note that none replied."""
        self.on_silence()
        now_s = monotonic_s()
        if self.heard_s == -math.inf:
            self.heard_s = now_s
        if not self.is_silent and now_s - self.heard_s > SILENT_S:
            self.is_silent = True
            log.warning(self._silent, extra=fields(error=str(error)))
