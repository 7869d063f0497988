"""Single values as people write them: durations with units, moments with zones, numbers in a range.

Every reader takes any value that a JSON document can hold. It returns a value or raises `BadSetting`, which names the
setting, the value, the reason, and what to do. Readers guess nothing: a bare number is not a duration ("no unit"), a
moment without an offset is not a moment, `true` is not 1.
"""

import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from difflib import get_close_matches
from itertools import islice
from urllib.parse import urlsplit

UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
DURATION = re.compile(r"(?:[0-9]{1,15}(?:\.[0-9]{1,6})?(?:ms|[smhdw]))+", re.ASCII)
DURATION_PART = re.compile(r"([0-9.]+)(ms|[smhdw])", re.ASCII)
MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:Z|[+-][0-9]{2}:[0-9]{2})?", re.ASCII)
LABEL = re.compile(r"[A-Za-z0-9_-]{1,32}", re.ASCII)
Duration = str | float | timedelta
"""A length of time in a program: a text with its unit (`90s`, `5m`), or a number of seconds, or a timedelta."""
MOST_NAMED = 40
"""Known words that one message lists."""
MOST_COMPARED = 2_000
"""Known words with which a misspelt one is compared: more would hold the node up."""
REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]{0,127}|file:/[^\x00-\x1f]{1,1000}", re.ASCII)


class BadSetting(ValueError):
    """A setting that is refused. `name` is empty if the whole document is refused. `do` says what to write instead."""

    def __init__(self, name: str, value: object, why: str, do: str) -> None:
        self.name, self.value, self.why, self.do = name, value, why, do
        subject = f"setting {name}: {shown(value)}" if name else "settings"
        super().__init__(f"{subject} {why}; {do}")


def shown(value: object) -> str:
    """Return `value` for an error message: on one line, and short whatever it is."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    try:
        text = repr(value)
    except RecursionError:
        text = "a deeply nested value"
    return text if len(text) <= 80 else f"{text[:77]}..."


def near(word: str, known: Iterable[str]) -> str:
    """Return the known word that is most like `word`. Empty: none is like it."""
    return next(iter(get_close_matches(word[:64], list(islice(known, MOST_COMPARED)), n=1)), "")


def near_or(word: str, known: Iterable[str], otherwise: str) -> str:
    """Return `did you mean …?`, or `otherwise` if no known word is like it."""
    close = near(word, known)
    return f"did you mean {close}?" if close else otherwise


def nearest(word: str, known: Sequence[str]) -> str:
    """Return `did you mean …?`, or the known words, the first few if they are many."""
    if close := near_or(word, known, ""):
        return close
    others = f" and {len(known) - MOST_NAMED} others" if len(known) > MOST_NAMED else ""
    return f"there are {', '.join(sorted(known)[:MOST_NAMED])}{others}"


def read_duration(name: str, value: object) -> int:
    """Return the milliseconds of a text such as `250ms`, `60s`, `1h30m` or `1.5d`. Whole, never negative."""
    do = "write a number with its unit, as 250ms, 60s, 5m, 2h or 1d"
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise BadSetting(name, value, "has no unit", do)
    if not isinstance(value, str):
        raise BadSetting(name, value, "is not a duration", do)
    if re.fullmatch(r"[0-9.]+", value, re.ASCII):
        raise BadSetting(name, value, "has no unit", do)
    if value.startswith("-"):
        raise BadSetting(name, value, "is negative", do)
    if not DURATION.fullmatch(value):
        raise BadSetting(name, value, "is not a duration", do)
    total = sum(Decimal(number) * UNITS_MS[unit] for number, unit in DURATION_PART.findall(value))
    if total != int(total):
        raise BadSetting(name, value, "is not a whole number of milliseconds", do)
    return int(total)


def span_ms(name: str, value: object) -> int:
    """Return a `Duration` in whole milliseconds. A number or timedelta may be negative: the caller checks the range."""
    if isinstance(value, timedelta):
        return round(value.total_seconds() * 1000)
    do = "write a text with its unit (90s, 5m), a number of seconds, or a timedelta"
    if isinstance(value, str):
        try:
            return read_duration(name, value)
        except BadSetting as error:
            raise BadSetting(name, value, error.why, do) from None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadSetting(name, value, "is not a duration", do)
    return round(value * 1000)


def duration_text(duration_ms: int) -> str:
    """Return the shortest text that `read_duration` reads as `duration_ms`, with one unit: 90 s is `90s`."""
    for unit in ("d", "h", "m", "s"):
        if duration_ms and duration_ms % UNITS_MS[unit] == 0:
            return f"{duration_ms // UNITS_MS[unit]}{unit}"
    return f"{duration_ms}ms" if duration_ms else "0s"


def read_whole(name: str, value: object) -> int:
    """Return a whole number. A number with a fraction, a text and `true` are refused."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadSetting(name, value, "is not a whole number", "write digits without quotes, as 4")
    return value


def read_number(name: str, value: object) -> float:
    """Return a finite number."""
    do = "write a number without quotes, as 0.5"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadSetting(name, value, "is not a number", do)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise BadSetting(name, value, "is not a finite number", do)
    return number


def read_text(name: str, value: object) -> str:
    """Return a text that can be stored and logged as it is."""
    if not isinstance(value, str):
        raise BadSetting(name, value, "is not a text", "write it in quotes")
    if not value.isprintable() or not _is_encodable(value):
        raise BadSetting(name, value, "holds characters that cannot be printed", "leave them out")
    return value


def read_label(name: str, value: object) -> str:
    """Return a node's label, or the empty text."""
    text = read_text(name, value)
    if text and not LABEL.fullmatch(text):
        raise BadSetting(name, value, "is not a label", "use up to 32 of A-Z a-z 0-9 _ - or leave it empty")
    return text


def read_reference(name: str, value: object) -> str:
    """Return an address for notices: `env:NAME`, `file:/path`, a http(s) URL without user and password, or empty."""
    text = read_text(name, value)
    if not text or REFERENCE.fullmatch(text):
        return text
    do = "write env:NAME, file:/path, or a http(s) URL without user and password"
    try:
        parts = urlsplit(text)
        port_is_sound = parts.port is None or parts.port > 0
    except ValueError as error:
        raise BadSetting(name, text, "is not a URL", do) from error
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_sound:
        raise BadSetting(name, text, "is neither a reference nor a http(s) URL", do)
    if "@" in parts.netloc:
        raise BadSetting(name, f"{parts.scheme}://***@{parts.hostname}", "holds a user or a password", do)
    return text


def read_start(name: str, value: object) -> str:
    """Return where a source begins: `-90d` (counted back from its first use) or a moment with an offset."""
    text = read_text(name, value)
    if text.startswith("-"):
        if read_duration(name, text[1:]) > 100 * 365 * UNITS_MS["d"]:
            raise BadSetting(name, value, "is more than a hundred years ago", "write a later start")
    else:
        _moment_ms(name, text)
    return text


def start_ms_of(start: str, now_ms: int) -> int:
    """Return the moment that `start` means if it is first used at `now_ms`, down to the whole second.
    Raises BadSetting if it lies in the future, where there is nothing to fetch yet, or before 1970."""
    is_relative = start.startswith("-")
    moment_ms = now_ms - read_duration("start", start[1:]) if is_relative else _moment_ms("start", start)
    if moment_ms > now_ms:
        raise BadSetting("start", start, "lies in the future", "write a moment that has passed, or pause the source")
    if moment_ms < 0:
        raise BadSetting("start", start, "lies before 1970", "write a later start")
    return moment_ms - moment_ms % 1000


def _moment_ms(name: str, text: str) -> int:
    do = "write it as 2026-01-31T08:00:00+08:00, 2026-01-31T00:00:00Z, or -90d"
    if not MOMENT.fullmatch(text):
        raise BadSetting(name, text, "is not a moment to the second", do)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadSetting(name, text, "does not exist in the calendar", do) from error
    if moment.tzinfo is None:
        raise BadSetting(name, text, "has no zone", do)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
