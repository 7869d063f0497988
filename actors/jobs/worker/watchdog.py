"""Reports where the event loop hangs, while it hangs: a handler that does not await blocks the whole node.

Only another thread can see it. If that thread was itself delayed, because the process was stopped, it reports nothing.
"""

import logging
import sys
import threading
import traceback
from types import TracebackType
from typing import Self

from actors.runtime.logs import fields
from streams.clock import monotonic_s

log = logging.getLogger(__name__)

LOOK_S, REST_S = 0.25, 0.5
"""The second: while there are no jobs. Then the loop beats as often."""
BLOCKED_S = 1.0
"""A third of the ack wait: nothing is lost yet."""
DEEPEST = 8
DO = "await, or make the handler a plain function, which runs in a thread; jobs held here may go to others"


class Watchdog:
    """A context manager around the loop's work. `beat` reports that the loop turns."""

    def __init__(self) -> None:
        self._beat_s = monotonic_s()
        self._loop_thread = threading.get_ident()
        self._stop = threading.Event()
        self._reported_s: float | None = None
        self._is_resting = False

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._watch, name="job-watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def beat(self, *, is_resting: bool) -> None:
        """Report that the loop turns, several times a second. `is_resting`: there are no jobs."""
        self._is_resting, self._beat_s = is_resting, monotonic_s()

    def _watch(self) -> None:
        looked_s = monotonic_s()
        while not self._stop.wait(wait_s := REST_S if self._is_resting else LOOK_S):
            last_s, looked_s = looked_s, monotonic_s()
            blocked_s = looked_s - self._beat_s
            least_s = BLOCKED_S + wait_s - LOOK_S  # what rests beats less often
            if looked_s - last_s < 2 * wait_s and blocked_s >= least_s and self._reported_s != self._beat_s:
                self._reported_s = self._beat_s
                self._report(blocked_s)

    def _report(self, blocked_s: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        at = [f"{each.filename}:{each.lineno} {each.name}" for each in traceback.extract_stack(frame)[-DEEPEST:]]
        log.error("job_worker.loop_blocked", extra=fields(blocked_s=round(blocked_s, 1), at=at, do=DO))
