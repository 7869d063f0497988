"""Error rules of an adapter file: the first whose conditions all hold says what an answer means."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import ceil
from typing import Any, Literal

import msgspec

from platforms.adapter import Bug, Empty, Later, Login, Outcome, Park, Response, SlowDown, Split
from platforms.declared_file import ErrorPart, Scalar, WaitPart
from platforms.errors import BadDeclaration
from platforms.fields import Field, Picker, Steps, steps_of
from platforms.mending import read_json
from platforms.outcomes import is_by_firewall, platform_text, retry_after_ms

Fine = Literal["fine"]
Condition = Callable[[Response], bool]
_NUMBER = re.compile(r"\d{1,12}(\.\d{1,12})?", re.ASCII)
_ABSENT = (None, False, "", 0)


class Rules:
    """Compiled rules. `judge` gives an outcome, 'fine' where a rule lets the body be read, None for no rule."""

    def __init__(self, parts: Sequence[ErrorPart], longest_wait_ms: int) -> None:
        self._rules = [(_conditions(f"errors[{n}]", part), part, _text_path(n, part)) for n, part in enumerate(parts)]
        self._longest_wait_ms = longest_wait_ms

    def judge(self, response: Response) -> Outcome | Fine | None:
        for conditions, part, path in self._rules:
            if all(holds(response) for holds in conditions):
                return self._outcome(part, path, response)
        return None

    def _outcome(self, part: ErrorPart, path: Steps, response: Response) -> Outcome | Fine:
        asked_ms = _named_wait_ms(part.wait, response, self._longest_wait_ms)
        if asked_ms is None:
            asked_ms = retry_after_ms(response.headers, self._longest_wait_ms)
        after_ms = part.after if asked_ms is None else asked_ms
        said = platform_text(response.body, path)
        reason = part.reason or f"the platform's answer ({response.status}) meets the rule on {_subject(part)}"
        reason = f"{reason}: {said}" if said and (part.text or not part.reason) else reason
        made: dict[str, Callable[[], Outcome | Fine]] = {
            "later": lambda: Later(None if after_ms is None else int(after_ms), said),
            "throttled": lambda: SlowDown(None if after_ms is None else int(after_ms), said),
            "login": lambda: Login(said),
            "split": Split,
            "park": lambda: Park(reason),
            "bug": lambda: Bug(reason),
            "empty": Empty,
            "fine": lambda: "fine",
        }
        return made[part.outcome]()


def _conditions(where: str, part: ErrorPart) -> list[Condition]:
    _check_wait(where, part.wait)
    if part.header and part.body:
        raise BadDeclaration(where, "asks for a header and for the body; make two rules of it")
    found: list[Condition] = []
    if part.status is not None:
        found.append(_status(where, part.status))
    if part.header:
        name, is_wanted = part.header.lower(), _value(part)
        found.append(lambda response: is_wanted(response.headers.get(name)))
    if part.body:
        found.append(_body(where, part))
    if not found:
        raise BadDeclaration(where, "has no condition; give it a status, a header or a body")
    if part.outcome == "login" and not (part.header or part.body):
        found.append(lambda response: not is_by_firewall(response))
    if (part.equals is not None or part.contains) and not (part.header or part.body):
        raise BadDeclaration(where, "compares with nothing; name a header or a path in the body")
    return found


def _status(where: str, wanted: int | str | list[int | str]) -> Condition:
    allowed: set[int] = set()
    if wanted == []:
        raise BadDeclaration(f"{where}.status", "is empty, so the rule would never hold")
    for each in wanted if isinstance(wanted, list) else [wanted]:
        if isinstance(each, str) and len(each) == 3 and each[0] in "12345" and each[1:] == "xx":
            allowed.update(range(int(each[0]) * 100, int(each[0]) * 100 + 100))
        elif isinstance(each, int) and 100 <= each < 600:
            allowed.add(each)
        else:
            raise BadDeclaration(f"{where}.status", f"{each!r} is no status such as 429 or '5xx'")
    return lambda response: response.status in allowed


def _body(where: str, part: ErrorPart) -> Condition:
    picker = Picker("Error", {"value": Field(f"{where}.body", part.body, Any, is_optional=True)})
    get, is_wanted = picker.getters["value"], _value(part)
    last = b'"%b"' % _last_name(f"{where}.body", part.body).encode()

    def holds(response: Response) -> bool:
        if last not in response.body:  # most answers are fine: no need to decode them twice
            return False
        try:
            return is_wanted(get(read_json(picker.decode, response.body)))
        except (msgspec.DecodeError, RecursionError):
            return False

    return holds


def _last_name(where: str, path: str) -> str:
    """Return the last name on a path. A path begins with a name."""
    return next(step for step in reversed(steps_of(where, path)) if isinstance(step, str))


def _named_wait_ms(part: WaitPart | None, response: Response, longest_ms: int) -> int | None:
    """Return the wait that an answer names in its platform's own way, None if it names none."""
    if part is None:
        return None
    text = response.headers.get(part.header.lower(), "") if part.header else ""
    if part.body:
        text = platform_text(response.body, steps_of("wait.body", part.body))
    found = _NUMBER.search(text)
    number = float(found[0]) if found is not None else 0.0
    if not number:
        return None
    wait_ms = {"seconds": (number + 1) * 1000, "ms": number, "rate": 1000 / number}[part.is_]
    return ceil(min(wait_ms, longest_ms))


def _check_wait(where: str, part: WaitPart | None) -> None:
    if part is None:
        return
    if bool(part.header) == bool(part.body):
        raise BadDeclaration(f"{where}.wait", "needs a header or a path in the body, one of them")
    if part.body:
        steps_of(f"{where}.wait.body", part.body)


def _text_path(number: int, part: ErrorPart) -> Steps:
    return steps_of(f"errors[{number}].text", part.text) if part.text else ()


def _value(part: ErrorPart) -> Callable[[Any], bool]:
    if part.equals is not None:
        wanted = {_text(each) for each in (part.equals if isinstance(part.equals, list) else [part.equals])}
        return lambda value: isinstance(value, Scalar) and _text(value) in wanted
    if part.contains:
        return lambda value: isinstance(value, str) and part.contains in value
    return lambda value: value not in (*_ABSENT, [], {})


def _text(value: Scalar) -> str:
    """Compare 7 and "7" as equal: platforms send codes as either, and change their mind."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _subject(part: ErrorPart) -> str:
    return f"body {part.body}" if part.body else f"header {part.header}" if part.header else f"status {part.status}"
