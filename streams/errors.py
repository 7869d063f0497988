"""The broker's failures, in our terms. Each kind answers one question: what does the caller do next?

Disconnected        nothing was sent: wait for the reconnect, then do it again.
OutcomeUnknown      stored or not, nobody knows: send the same message id again, or read back.
Refused             the server refused for good. Its kinds say why.
  RevisionConflict    another client wrote first (or our own earlier try did): read, decide again.
  NoStream            no stream takes this subject, or the server has no JetStream (yet).
  TooLarge, StoreFull send less, or make room.
  StoreFailed         the server has to be started again.
ConnectionLost, PermissionDenied    the process has to end: the link does not come back by itself.
Malformed…          the message is wrong, now and for ever: set it aside.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

_ACTUAL = re.compile(r"wrong last sequence: (\d+)")


class StreamError(Exception):
    """The base of all errors that the broker layer raises."""


class Disconnected(StreamError):
    """No connection within the deadline. Nothing was sent."""


class ConnectionLost(StreamError):
    """The client closed the connection for good and does not reconnect: the process must end."""


class PermissionDenied(StreamError):
    """The server does not allow this user to publish or subscribe here, or to log in. Fatal: a setting is wrong."""

    def is_about(self, subject: str) -> bool:
        """Return whether the server named this subject. The client lowers the server's text."""
        return f'"{subject.lower()}"' in str(self)


class ServerNotStarted(StreamError):
    """The embedded server could not be started. The message says why and what to do."""


class LeaseLost(StreamError):
    """Another node may hold the lease by now: stop the work that it protects."""


class MalformedMessage(StreamError):
    """A stored message that cannot be decoded: bury it."""


class Unwritable(StreamError, ValueError):
    """A message that its readers could not decode. It is not written."""


class MalformedSubject(StreamError, ValueError):
    """A subject, token or key outside the grammar. Refused before it is sent, because some of them close the link."""


class MalformedHeader(StreamError, ValueError):
    """A header that the client or the server would change, drop or refuse."""


class OutcomeUnknown(StreamError):
    """Neither stored nor refused in time: it may have happened, or may still happen."""

    def __init__(self, reason: str, *, subject: str, message_id: str | None = None) -> None:
        named = f", message id {message_id!r}" if message_id else ""
        super().__init__(f"{subject}{named}: outcome unknown: {reason}")
        self.subject = subject
        self.message_id = message_id


class Refused(StreamError):
    """The server refused. `code`: the HTTP-like class. `err_code`: the exact reason. Both are 0 if this process
    refused."""

    def __init__(self, description: str, *, subject: str, code: int = 0, err_code: int = 0) -> None:
        super().__init__(f"{subject}: {description}" + (f" (error {err_code})" if err_code else ""))
        self.description = description
        self.subject = subject
        self.code = code
        self.err_code = err_code


class RevisionConflict(Refused):
    """The subject is not at the expected sequence. `actual`: where it is (0: nothing there), if the server says so.

    `is_after_retry`: an earlier try of the same publish had an unknown outcome, so the conflict may be with our own
    message. Read back before deciding.
    """

    is_after_retry: bool = False

    @property
    def actual(self) -> int | None:
        found = _ACTUAL.search(self.description)
        return int(found[1]) if found else None


class Repeated(RevisionConflict):
    """The server knows the message id: the message was stored before, at `seq`, and may be gone by now."""

    seq: int = 0


class NoStream(Refused):
    """No stream takes this subject, the stream does not exist, or JetStream does not answer."""


class TooLarge(Refused):
    """Larger than the server or the stream takes, headers included."""


class StoreFull(Refused):
    """The stream or the disk is full."""


class StoreFailed(Refused):
    """The server's store has failed and takes nothing until the server is started again. Nothing was sent."""


class TopologyMismatch(StreamError):
    """The server's streams and buckets are not what this version needs. `differences` has one line each."""

    def __init__(self, differences: Sequence[str]) -> None:
        super().__init__("\n".join(["the server's streams and buckets differ from what is needed:", *differences]))
        self.differences = tuple(differences)


NO_LEADER = 10008
"""Error: the stream, or all of JetStream, has no leader just now."""
# From the server's own list (nats-server server/errors.json, 2.15.1).
_KINDS: dict[int, type[Refused]] = {
    10071: RevisionConflict,  # wrong last sequence: N
    10164: RevisionConflict,  # wrong last sequence, while another write to the subject is in flight
    10039: NoStream,  # JetStream not enabled for account
    10059: NoStream,  # stream not found
    10076: NoStream,  # JetStream not enabled
    10054: TooLarge,  # message size exceeds maximum allowed
    10097: TooLarge,  # header size exceeds maximum allowed of 64k
    10002: StoreFull,  # resource limits exceeded for account
    10023: StoreFull,  # insufficient resources
    10028: StoreFull,  # JetStream memory resource limits exceeded
    10047: StoreFull,  # insufficient storage resources available
    10077: StoreFull,  # maximum messages, bytes, or messages per subject exceeded (write failed)
}


def refusal(error: Mapping[str, object], *, subject: str) -> Refused:
    """Return the exception for the `error` object of a JetStream answer: `{code, err_code, description}`."""
    err_code, code = _number(error.get("err_code")), _number(error.get("code"))
    kind = _KINDS.get(err_code, Refused)
    return kind(str(error.get("description", "refused")), subject=subject, code=code, err_code=err_code)


@contextmanager
def unknown_once(is_begun: Callable[[], bool], subject: str, what: str = "partly done") -> Iterator[None]:
    """Raise a StreamError of the block as OutcomeUnknown if something was done by then: it must not say that nothing
    was."""
    try:
        yield
    except StreamError as error:
        if not is_begun():
            raise
        raise OutcomeUnknown(f"{what}: {error}", subject=subject) from error


def no_responders(subject: str) -> NoStream:
    """Return the exception for a request that no client listens to: it certainly did not happen."""
    return NoStream(
        "nobody answers on this subject: no stream takes it, or it has no leader", subject=subject, code=503
    )


def unreachable(domain: str, nobody: NoStream) -> StreamError:
    """Return what it means that no client listens to a request to a domain: it cannot be reached, so the request was
    not sent. `domain` empty: the server's own, which has no such stream."""
    if not domain or nobody.code != 503:
        return nobody
    return Disconnected(f"domain {domain}: cannot be reached from this server, or has no such bucket")


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
