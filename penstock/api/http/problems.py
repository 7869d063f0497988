"""Errors as clients see them: RFC 9457 problem JSON with a code for programs, and a text for people."""

from http import HTTPStatus
from typing import Literal

import msgspec
from msgspec import Struct

from penstock.api.http.replies import Reply, is_queue, words
from streams.errors import Disconnected, NoStream, OutcomeUnknown, StoreFailed, StoreFull, StreamError, TooLarge
from streams.link.store_health import RESTART

__all__ = ["Code", "Problem", "RefusedRequest", "refused", "shown", "trouble_of", "written"]

Code = Literal[
    "bad",  # a value is wrong: `what` names it
    "malformed",  # not HTTP or not JSON as it should be
    "unauthorized",
    "forbidden",
    "not_found",
    "method",
    "exists",  # a job of this id, with another body
    "stale",
    "state",  # the present state does not allow it
    "paused",
    "too_large",
    "media_type",
    "too_slow",
    "too_many",  # more than this token or address may request now
    "quota",
    "busy",  # the gateway sheds load
    "unavailable",  # certainly not done
    "unknown",  # perhaps done
    "internal",
]

LONGEST_SHOWN = 80
PROBLEM_TYPE = b"application/problem+json"
JSON_TYPE = b"application/json"
_TITLES = {413: "Content Too Large", 414: "URI Too Long", 416: "Range Not Satisfiable", 422: "Unprocessable Content"}


class Problem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a request, or one item of it, was refused. `what`: the wrong field or part. `value`: its value, shortened.
    `hint`: what to do. `retry_after_s`: when to come again."""

    status: int
    title: str
    code: Code
    detail: str = ""
    what: str = ""
    value: str = ""
    hint: str = ""
    retry_after_s: int = 0
    type: str = "about:blank"


class RefusedRequest(Exception):
    """Ends a request with its problem. `closes`: the connection closes too, since the rest of it must not be read."""

    def __init__(self, problem: Problem, *, closes: bool) -> None:
        super().__init__(f"{problem.status} {problem.code}: {problem.detail}")
        self.problem = problem
        self.closes = closes


_encode = msgspec.json.Encoder().encode


def title_of(status: int) -> str:
    """Return the name of a status by RFC 9110. Python has some of them from 3.13 on only."""
    return _TITLES.get(status) or HTTPStatus(status).phrase


def refused(
    status: int,
    code: Code,
    detail: str = "",
    *,
    what: str = "",
    value: object = "",
    hint: str = "",
    retry_after_s: int = 0,
    closes: bool = False,
) -> RefusedRequest:
    """Return the exception to raise. `value` is shortened, and its control characters are escaped."""
    problem = Problem(
        status=status,
        title=title_of(status),
        code=code,
        detail=detail,
        what=what,
        value=shown(value),
        hint=hint,
        retry_after_s=retry_after_s,
    )
    return RefusedRequest(problem, closes=closes)


def written(problem: Problem, path: str) -> tuple[bytes, bytes]:
    """Return a problem's body and its content type, in the shape that the path's clients read."""
    if not is_queue(path):
        return _encode(problem), PROBLEM_TYPE
    told = words(problem.what or problem.code, problem.detail)
    return _encode(Reply(success=False, error=f"{told}; {problem.hint}" if problem.hint else told)), JSON_TYPE


def trouble_of(error: StreamError, *, is_read: bool = False) -> RefusedRequest:
    """Return a broker error as a client sees it: whether the call took effect, and whether to repeat it. `is_read`:
    the call changes nothing."""
    match error:
        case StoreFull():
            return refused(
                507,
                "unavailable",
                "the store is full; nothing was stored",
                hint="finish or delete jobs, drop dead letters, or have the operator give the server more room",
                retry_after_s=30,
            )
        case StoreFailed():
            hint = f"have the operator {RESTART}"
            return refused(503, "unavailable", f"{error.description}; nothing was done", hint=hint, retry_after_s=10)
        case TooLarge():
            return refused(413, "too_large", "larger than the server takes; nothing was stored")
        case Disconnected() | NoStream():
            return refused(503, "unavailable", "the server cannot be reached; nothing was done", retry_after_s=1)
        case OutcomeUnknown() if is_read:
            return refused(504, "unknown", "the server did not answer", hint="ask again", retry_after_s=1)
        case OutcomeUnknown():
            return refused(
                504,
                "unknown",
                "the server did not answer: it may have been done, or not",
                hint="repeat it with the same ids, which is harmless",
                retry_after_s=1,
            )
        case _:
            return refused(503, "unavailable", "the server refused it", retry_after_s=5)


def shown(value: object) -> str:
    """Return a value for a message: printable ASCII, and short."""
    text = value if isinstance(value, str) else str(value)
    plain = text[: LONGEST_SHOWN + 1].encode("ascii", "backslashreplace").decode()
    plain = "".join(sign if sign.isprintable() else f"\\x{ord(sign):02x}" for sign in plain)
    return plain if len(plain) <= LONGEST_SHOWN else f"{plain[:LONGEST_SHOWN]}..."
