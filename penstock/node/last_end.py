"""Ends the process where the node's own end does not come: a handler's thread runs on, or code swallows cancellation or
blocks the event loop. Or the command is over, and a thread that the application started runs on.

It works without the loop, in a daemon thread. It writes the reason to the log, if the log can still be written. Then
the process ends at once, with code 1, or with the code of the command that is over, the higher one. Unfinished work
comes again elsewhere.
"""

import logging
import os
import sys
import threading
import time
import traceback

from actors.runtime.logs import fields
from penstock.node.logs import set_up_logs

log = logging.getLogger(__name__)

__all__ = ["LAST_S", "end_despite_threads", "end_within", "keep_for"]

LAST_S = 10.0
"""Beyond the drain deadline, and after a second signal: for clean-ups, an embedded server's too."""
TELL_S = 2.0
EXIT_CODE = 1
DEEPEST = 6
_OURS = ("last-end", "job-watchdog")


_kept_until_s = 0.0
_exit_code = 0
_ends = threading.Lock()
"""Whoever ends the process takes it for good."""


def end_within(wait_s: float, why: str, *, can_wait: bool = False, exit_code: int = EXIT_CODE) -> None:
    """Make sure that the process ends within `wait_s`. Of several calls the first to run out counts, with the highest
    code of all. `can_wait`: it may be later by `keep_for`."""
    global _exit_code  # there is one process
    _exit_code = max(_exit_code, exit_code)
    is_due = threading.Event()  # both threads start here: Python 3.12 starts none once the interpreter ends
    report = threading.Thread(target=_tell, args=(is_due, wait_s, why), name="last-end", daemon=True)
    report.start()
    threading.Thread(target=_end, args=(wait_s, is_due, report, can_wait), name="last-end", daemon=True).start()


def end_despite_threads(exit_code: int) -> None:
    """Make sure that a process whose command is over ends with `exit_code` within LAST_S. Python itself waits for each
    thread that is no daemon, for ever if the thread does not end."""
    left = [each.name for each in threading.enumerate() if not (each.daemon or each is threading.main_thread())]
    if left:
        if not logging.getLogger().handlers:  # the application failed before the node had a log
            set_up_logs()
        why = f"threads of the application do not end: {', '.join(left)}; start them with daemon=True"
        end_within(LAST_S, why, exit_code=exit_code)


def keep_for(wait_s: float) -> None:
    """Let the process go on for `wait_s` from now: its embedded server writes its store."""
    global _kept_until_s
    _kept_until_s = time.monotonic() + wait_s


def _end(wait_s: float, is_due: threading.Event, report: threading.Thread, can_wait: bool) -> None:
    time.sleep(wait_s)
    while can_wait and (left_s := _kept_until_s - time.monotonic()) > 0:
        time.sleep(left_s)
    _ends.acquire()
    is_due.set()
    report.join(TELL_S)  # a full pipe, or a lock that is never released, must not keep us
    os._exit(_exit_code)


def _tell(is_due: threading.Event, wait_s: float, why: str) -> None:
    is_due.wait()
    log.error("node.ended_hard", extra=fields(after_s=wait_s, why=why, threads=_places(), exit_code=_exit_code))
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
