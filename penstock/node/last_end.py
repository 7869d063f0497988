"""Ends the process where the node's own end does not come: a handler's thread runs on, or code swallows cancellation or
blocks the event loop.

It works without the loop, in a daemon thread. It writes the reason to the log, if the log can still be written. Then
the process ends at once, with code 1. Unfinished work comes again elsewhere.
"""

import logging
import os
import sys
import threading
import time
import traceback

from actors.runtime.logs import fields

log = logging.getLogger(__name__)

__all__ = ["LAST_S", "end_within", "keep_for"]

LAST_S = 10.0
"""Beyond the drain deadline, and after a second signal: for clean-ups, an embedded server's too."""
TELL_S = 2.0
EXIT_CODE = 1
DEEPEST = 6
_OURS = ("last-end", "job-watchdog")


_kept_until_s = 0.0


def end_within(wait_s: float, why: str, *, can_wait: bool = False) -> None:
    """Make sure that the process ends within `wait_s`. Of several calls the first to run out counts. `can_wait`: it may
    be later by `keep_for`."""
    threading.Thread(target=_end, args=(wait_s, why, can_wait), name="last-end", daemon=True).start()


def keep_for(wait_s: float) -> None:
    """Let the process go on for `wait_s` from now: its embedded server writes its store."""
    global _kept_until_s  # there is one process
    _kept_until_s = time.monotonic() + wait_s


def _end(wait_s: float, why: str, can_wait: bool) -> None:
    time.sleep(wait_s)
    while can_wait and (left_s := _kept_until_s - time.monotonic()) > 0:
        time.sleep(left_s)
    report = threading.Thread(target=_tell, args=(wait_s, why), name="last-end", daemon=True)
    report.start()
    report.join(TELL_S)  # a full pipe, or a lock that is never released, must not keep us
    os._exit(EXIT_CODE)


def _tell(wait_s: float, why: str) -> None:
    log.error("node.ended_hard", extra=fields(after_s=wait_s, why=why, threads=_places(), exit_code=EXIT_CODE))
    for handler in logging.getLogger().handlers:
        handler.flush()
    sys.stdout.flush()


def _places() -> dict[str, list[str]]:
    """Return where each thread stands, the innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate() if not thread.name.startswith(_OURS)}
    return {
        names[number]: [
            f"{each.filename}:{each.lineno} {each.name}" for each in traceback.extract_stack(frame)[-DEEPEST:]
        ]
        for number, frame in sys._current_frames().items()
        if number in names
    }
