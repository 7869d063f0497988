"""Points between two steps at which a test can kill the process: the crash that matters is the one in between.

`PENSTOCK_CRASH_AT=fetch.publish` kills the process the first time that it reaches that point,
`PENSTOCK_CRASH_AT=fetch.publish:3` the third time. The signal is SIGKILL, so nothing is cleaned up, as in a power cut
of the process. Without the variable a point costs one call of an empty function.

A slice passes, in this order: `cut` (it is in the ledger), `offer` (it is in the queue), `take` (the ledger names its
holder), `fetch` (a page was read), `publish` (its orders are stored), `tell` (the event that it was read is stored
too), `complete` (the ledger has closed it), `ack` (the message was acknowledged). Orders then pass `sink.commit` and
`sink.ack`, or `sink.bury`.

A job passes `job.add` (stored, the client has no answer) or `job.replace` (stored, what it replaces is still there),
`job.fire` and `job.fired` (before and after a timer makes it ready). At a desk it passes `job.pull` (pulled),
`job.reserve` (reserved, not acknowledged), `job.hold` (acknowledged, the holder does not know), and then `job.finish`,
or for any other end `job.settle` (settled, the holder does not know). In a handler's node it passes `job.run` (before
the handler), `job.end` (after it, nothing is published yet), and, where more than an ack is to be published, `job.move`
(published, not acknowledged). Before a dead letter's job ends it passes `job.letter`. A schedule passes
`job.claim` (claimed, not added) and `job.recur` (added, not recorded).
"""

import os
import signal
from collections.abc import Callable

VARIABLE = "PENSTOCK_CRASH_AT"


def crash_at(wanted: str, crash: Callable[[], None]) -> Callable[[str], None]:
    """Return the function that a point calls with its name. It calls `crash` at the wanted passing.
    Raises ValueError for a count that is no whole number from 1."""
    name, _, count = wanted.partition(":")
    if count and (not count.isdecimal() or int(count) < 1):
        raise ValueError(f"{VARIABLE}={wanted!r}: say NAME, or NAME:N with N from 1")
    left = int(count or 1)

    def pass_by(point: str) -> None:
        nonlocal left
        if point == name:
            left -= 1
            if left == 0:
                crash()

    return pass_by


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _pass_by(_point: str) -> None:
    """Do nothing: no point is armed."""


reach: Callable[[str], None] = crash_at(os.environ[VARIABLE], _kill) if os.environ.get(VARIABLE) else _pass_by
"""Report that the process has reached this point."""
