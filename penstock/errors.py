"""What users of the command line and the client may catch, and the exit code of each."""

__all__ = ["Interrupted", "NotSet", "PenstockError", "StartFailed", "UsageError"]


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
