"""What users of the command line and the client may catch, and the exit code of each."""

__all__ = [
    "Interrupted",
    "NotAccepted",
    "NotSet",
    "PenstockError",
    "Stale",
    "StartFailed",
    "Timeout",
    "Unavailable",
    "UsageError",
]


class PenstockError(Exception):
    """What Penstock itself raises. The message is one line for a person: what was tried, and what to do."""

    exit_code = 1


class UsageError(PenstockError):
    """An argument, a configuration or a setting is wrong; nothing was done."""

    exit_code = 2


class StartFailed(PenstockError):
    """The node could not start."""


class Interrupted(PenstockError):
    """The node was ended before its work in hand was finished."""


class NotSet(PenstockError):
    """Settings were changed by somebody else at the same time, again and again; nothing was changed by us."""


class NotAccepted(PenstockError):
    """The other side said no, and nothing was done. `code`: `bad`, `exists`, `quota`, `not_found`, …; `field`: which of
    the values is wrong, where one is."""

    def __init__(self, reason: str, *, code: str, field: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.field = field
        self.is_repeated = False
        """Whether an earlier try had no answer: then no more is known than that the last one did nothing."""
        if code == "bad":
            self.exit_code = UsageError.exit_code


class Stale(NotAccepted):
    """The reservation is over: its TTR ran out, it was settled, or the job deleted. Somebody else may hold the job."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, code="stale")


class Unavailable(PenstockError):
    """Nobody takes it just now, and nothing was done: no connection, no node with the desk's role, or all are busy."""


class Timeout(PenstockError):
    """No answer came in time. It may have been done, or may still be: repeating it under the same id is harmless."""
