"""The exceptions that users of the command line and the client may catch, and the exit code of each."""

from typing import Any

__all__ = [
    "Interrupted",
    "NotAccepted",
    "PenstockError",
    "Stale",
    "StartFailed",
    "Timeout",
    "Unavailable",
    "UsageError",
]


class PenstockError(Exception):
    """An error of Penstock. The message is one line for a person: what was tried, and what to do."""

    exit_code = 1


class UsageError(PenstockError):
    """An argument, a configuration or a setting is wrong. Nothing was done."""

    exit_code = 2


class StartFailed(PenstockError):
    """The node could not start."""


class Interrupted(PenstockError):
    """The node ended before its work in hand was finished."""


class NotAccepted(PenstockError):
    """The other side refused the call, and nothing was done. `code`: `bad`, `exists`, `quota`, `not_found`, …. `field`:
    the name of the wrong value, if one is wrong."""

    def __init__(self, reason: str, *, code: str, field: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.field = field
        self.is_repeated = False
        """True if an earlier try had no reply. Then only the last try certainly did nothing."""
        if code == "bad":
            self.exit_code = UsageError.exit_code


class Stale(NotAccepted):
    """The reservation is over: its TTR ran out, it was settled, or the job was deleted. Another client may hold the
    job."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, code="stale")


class Unavailable(PenstockError):
    """No node takes the call now, and nothing was done: there is no connection, no node has the role `desk`, or all are
    busy."""


class Timeout(PenstockError):
    """No reply came in time. The call may have been done, or may still be. It is harmless to repeat it under the same
    id. `job`: of an add, the job with its id and nonce. `add_many([error.job])` repeats that very add."""

    job: Any = None
