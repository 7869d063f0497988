"""Errors inside the answers of GraphQL servers, which come under HTTP 200.

An error says where: `path` leads from `data` to the field that could not be resolved. Without `data` the request itself
was refused (GraphQL, October 2021, 7.1). If every error leads into an order of the list, all other orders are whole."""

from __future__ import annotations

from typing import Any

import msgspec

from platforms.adapter import Bug, Later, Login, Outcome, Park, Response, SlowDown
from platforms.fields import Steps, value_at
from platforms.outcomes import platform_text, printable_line

PASSING = frozenset({"INTERNAL_SERVER_ERROR", "TIMEOUT", "SERVICE_UNAVAILABLE"})
LOGIN = frozenset({"UNAUTHENTICATED"})
FORBIDDEN = frozenset({"ACCESS_DENIED", "FORBIDDEN"})
_LONGEST_TEXT = 300


class _Answer(msgspec.Struct):
    errors: Any = None
    data: Any = msgspec.UNSET


def graphql_outcome(response: Response, rows: Steps) -> Outcome | None:
    """Return what an answer with `errors` means, None without. `rows`: the path of the list of orders."""
    answer = _read(response.body)
    if answer is None or not answer.errors:
        return None
    if not isinstance(answer.errors, list):
        text = answer.errors if isinstance(answer.errors, str) else platform_text(response.body)
        return Later(None, printable_line(text)[:_LONGEST_TEXT])
    said = platform_text(response.body, ("errors", 0, "message"))
    codes = [value_at(each, ("extensions", "code")) for each in answer.errors]
    if "THROTTLED" in codes:
        return SlowDown(None, said)
    if any(code in LOGIN for code in codes if isinstance(code, str)):
        return Login(said)
    if _broken(answer, rows):
        return Later(None, said, is_partial=True)
    code = codes[0] if isinstance(codes[0], str) else ""
    if code in FORBIDDEN:
        return Park(f"the platform forbids this account the query: {said or code}")
    if code in PASSING or (not code and answer.data is not msgspec.UNSET):
        return Later(None, said)
    return Bug(f"the platform refuses the query: {said or code}")


def broken_rows(body: bytes, rows: Steps) -> dict[int, str]:
    """Return the orders that the answer's errors concern, by their place in the list, with the platform's words. Empty:
    there are no errors, or not all of them concern orders."""
    answer = _read(body)
    return {} if answer is None or not isinstance(answer.errors, list) else _broken(answer, rows)


def _broken(answer: _Answer, rows: Steps) -> dict[int, str]:
    listed = value_at({"data": answer.data}, rows) if rows else None
    found: dict[int, str] = {}
    for each in answer.errors:
        path, above = value_at(each, ("path",)), len(rows) - 1
        is_below = isinstance(path, list) and isinstance(listed, list) and rows[1:] == tuple(path[:above])
        place = path[above] if is_below and len(path) > above else None
        if not isinstance(place, int) or not 0 <= place < len(listed or ()):
            return {}
        found.setdefault(place, printable_line(str(value_at(each, ("message",))))[:_LONGEST_TEXT])
    return found


def _read(body: bytes) -> _Answer | None:
    if b'"errors"' not in body:  # most answers are fine: no need to decode them twice
        return None
    try:
        return msgspec.json.decode(body, type=_Answer)
    except (msgspec.DecodeError, RecursionError):
        return None
