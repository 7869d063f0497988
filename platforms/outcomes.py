"""The meaning of an HTTP answer without its body: the rules that hold for most platforms."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from math import ceil
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from platforms.adapter import Bug, Empty, Later, Login, Outcome, Park, Response, SlowDown, Split
from platforms.fields import Steps, value_at
from platforms.mending import BYTE_ORDER_MARK

_MONTHS = {name: n for n, name in enumerate("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), start=1)}  # noqa: SIM905
_SECONDS = re.compile(r"\d+(\.\d+)?", re.ASCII)
_PASSING = frozenset({304, 408, 425})  # not modified (only a cache says so), request timeout, too early
_FOR_NOW = frozenset({302, 303, 307})
"""Redirects that do not say where the platform is from now on, as to a page about maintenance (RFC 9110, 15.4)."""
_BY_FIREWALL = "something before the platform, such as a firewall, refuses the request (403)"
"""It answers with a page for people, or names a wait. An API says in its own words what an account may not do."""
_LONGEST_TEXT = 300
_BEGINNING = 80
_MOST_READ = 1 << 16  # bytes: an error is short
_ERRORS = ("error_response", "error", "errors", "error_description", "fault", "detail", "details")
_WORDS = (
    *("sub_msg", "message", "msg", "error_msg", "error_message", "error_description", "longMessage", "detail"),
    *("description", "text", "zh_desc", "en_desc", "title", "sub_code", "error", "code"),
)
"""Names of the platforms' words for an error, the most useful ones first."""
_FAULTS = ("error", "errors", "error_response", "fault")
_VERDICTS = ("success", "ok", "succeeded")
_FAULT_SIGNS = tuple(f'"{name}"'.encode() for name in (*_FAULTS, *_VERDICTS))
_CODES = ("code", "status", "error_code", "errcode")
_NO_FAULT = frozenset({"", "0", "200", "ok", "none", "null", "false", "success", "no error"})
_CODE_NAME = re.compile(r"(err(or)?|sub|ret(urn)?|result|status)?_?code|err_?no|ret|status", re.IGNORECASE)
_SIGN = re.compile(rb'"(?:errors?|error_response|fault|success|ok|succeeded|ret|status)"|code"|err_?no"', re.IGNORECASE)
_FINE_CODES = frozenset({0, 1, 10_000, 20_000, *range(200, 300)})
_FINE_WORDS = ("", "ok", "none", "null", "true", "false", "done", "normal", "no error")
_BAD_WORDS = re.compile(r"error|fail|exception|busy|time_?out|denied|invalid|unavailable", re.IGNORECASE)
_TOO_MUCH = frozenset({413, 414})  # body or URL too long: a smaller window makes both shorter


def usual_outcome(response: Response, *, longest_wait_ms: int) -> Outcome | None:
    """Return the outcome of the status alone, None for any 2xx. Waits are clamped to `longest_wait_ms`."""
    status = response.status
    if 200 <= status < 300:
        return None
    if status == 429:
        return SlowDown(retry_after_ms(response.headers, longest_wait_ms))
    if status >= 500 or status in _PASSING:
        return Later(retry_after_ms(response.headers, longest_wait_ms))
    if status == 401:
        return Login()
    if is_by_firewall(response):
        return Later(retry_after_ms(response.headers, longest_wait_ms), reason=_BY_FIREWALL)
    if status == 403:
        return Park("the platform forbids this account the request (403): look at its permissions")
    if status in _TOO_MUCH:
        return Split()
    if 300 <= status < 400:
        elsewhere = f"the platform sends us elsewhere ({status}, {_host(response)})"
        if status in _FOR_NOW:
            return Later(retry_after_ms(response.headers, longest_wait_ms), reason=elsewhere)
        return Park(f"{elsewhere}: set the account's base_url to it")
    return Bug(f"the platform refuses the request as it stands ({status})")


def is_by_firewall(response: Response) -> bool:
    """Return whether something before the platform refuses the request, for now. No login helps against that."""
    return response.status == 403 and (response.body.lstrip()[:1] == b"<" or "retry-after" in response.headers)


def json_outcome(response: Response) -> Outcome | None:
    """Return `Later` for a 2xx body that is no JSON by its first and last character, such as a maintenance page.

    Half an answer that happens to end in a brace fails when it is read (`Garbled`). A full check here would cost every
    page."""
    body = response.body.strip().removeprefix(BYTE_ORDER_MARK).lstrip()
    if body[:1] in (b"{", b"[") and body[-1:] in (b"}", b"]"):
        return None
    if not body:
        return Later(reason="the answer is empty")
    begin = printable_line(body[:_BEGINNING].decode(errors="replace"))
    return Later(reason=f"the answer is no JSON, it begins with {begin!r}")


def platform_text(body: bytes, path: Steps = ()) -> str:
    """Return the platform's own words for an error: the text at `path`, or under a name that platforms often use.
    Empty: there are none. It is printable, on one line, and at most 300 characters long."""
    if len(body) > _MOST_READ:
        return ""
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    found = value_at(answer, path) if path else _usual_words(answer)
    return printable_line(str(found) if isinstance(found, str | int | float) else "")[:_LONGEST_TEXT]


def told_error(body: bytes, rows: Steps) -> str:
    """Return what an answer without orders says of an error, "" if nothing. It is looked for under the names that
    platforms often use, in the objects on the way to the `rows`."""
    if not _SIGN.search(body):  # most have none of them, and it costs less than to decode
        return ""
    objects = _levels(body, rows)
    if any(_has_failed(level) for level in objects):
        return "tells of an error"
    codes = (told for level in objects for name, value in level.items() if (told := _error_code(name, value)))
    found = next(codes, "")
    return found and f"has the {found}: if that is no error, a rule with the outcome fine says so"


def tells_of_error(body: bytes, rows: Steps) -> bool:
    """Return whether an answer with orders tells of an error in the same places. Codes say less, beside orders."""
    return any(sign in body for sign in _FAULT_SIGNS) and any(_has_failed(level) for level in _levels(body, rows))


def _levels(body: bytes, rows: Steps) -> list[dict[str, Any]]:
    """Return the objects of an answer on the way to the `rows`."""
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    levels = [value_at(answer, rows[:depth]) for depth in range(max(1, len(rows)))]
    return [level for level in levels if isinstance(level, dict)]


def _has_failed(level: dict[str, Any]) -> bool:
    has_failed = any(str(level[name]).lower() in ("false", "0") for name in _VERDICTS if name in level)
    return has_failed or any(_is_fault(level.get(name)) for name in _FAULTS)


def _error_code(name: str, value: Any) -> str:
    """Return a code and its name if it means that something failed. A number that is no usual one for success does, and
    a status does if it has a word for that."""
    if not _CODE_NAME.fullmatch(name) or isinstance(value, list):
        return ""
    if isinstance(value, dict):
        return next((told for inner, below in value.items() if (told := _error_code(inner, below))), "")
    text = "" if value is None else str(value).strip()
    digits = re.sub(r"^[A-Za-z](?=\d)|\.0$", "", text)
    is_status = name.lower() == "status"
    if re.fullmatch(r"-?\d{1,18}", digits):
        is_usual = int(digits) in _FINE_CODES and not (int(digits) == 1 and name.lower().startswith("err"))
        is_fine = is_usual or (is_status and 0 <= int(digits) < 400)  # the one of the orders that were asked for
    elif is_status:
        is_fine = value is not False and not _BAD_WORDS.search(text)
    else:
        is_fine = text.lower() in _FINE_WORDS or "succe" in text.lower()
    return "" if is_fine else f"{name} {printable_line(text)[:40]}"


def _is_fault(value: Any) -> bool:
    if isinstance(value, dict):
        code = next((value[name] for name in _CODES if name in value), True)
        return any(value.values()) and _is_fault(code)
    if isinstance(value, list):
        return bool(value)
    return value is not None and str(value).strip().lower() not in _NO_FAULT


def printable_line(text: str) -> str:
    """Return the text on one line, without signs that cannot be printed."""
    return "".join(sign if sign.isprintable() else "?" for sign in " ".join(text.split()))


def with_text(outcome: Outcome, response: Response) -> Outcome:
    """Return the outcome with the platform's own words in its reason."""
    if isinstance(outcome, Split | Empty):
        return outcome
    said = platform_text(response.body)
    if not said:
        return outcome
    return replace(outcome, reason=f"{outcome.reason}: {said}" if outcome.reason else said)


def _usual_words(answer: Any, depth: int = 0) -> Any:
    """Look in the errors first, then beside them."""
    if isinstance(answer, list):
        answer = answer[0] if answer else None
    if isinstance(answer, str):
        return answer
    if not isinstance(answer, dict) or depth > 3:
        return None
    for name in _ERRORS:
        if isinstance(answer.get(name), dict | list) and (found := _usual_words(answer[name], depth + 1)):
            return found
    return next((answer[name] for name in _WORDS if isinstance(answer.get(name), str) and answer[name]), None)


def retry_after_ms(headers: Mapping[str, str], longest_ms: int) -> int | None:
    """Return the `Retry-After` as a wait, between 0 and `longest_ms`, None without a readable one. Shopify's seconds
    have a fraction. A date counts from the answer's own `Date`, since the platform's clock is not ours (RFC 9110,
    10.2.3)."""
    text = headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(text):
        return ceil(min(float(text) * 1000, longest_ms))
    until, now = http_date_ms(text), http_date_ms(headers.get("date", ""))
    if until is None or now is None:
        return None
    return max(0, min(until - now, longest_ms))


def http_date_ms(text: str) -> int | None:
    """Return an HTTP date (`Sun, 06 Nov 1994 08:49:37 GMT`) in milliseconds, None for anything else.
    By hand, because `strptime` follows the machine's language and this runs for every answer."""
    parts = text.split()
    if len(parts) != 6 or parts[5] != "GMT" or parts[2] not in _MONTHS:
        return None
    try:
        hour, minute, second = map(int, parts[4].split(":"))
        at = datetime(int(parts[3]), _MONTHS[parts[2]], int(parts[1]), hour, minute, min(second, 59), tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
    return int(at.timestamp()) * 1000


def _host(response: Response) -> str:
    try:
        return urlsplit(response.headers.get("location", "")).hostname or "to a path of its own"
    except ValueError:
        return "to an address that cannot be read"
