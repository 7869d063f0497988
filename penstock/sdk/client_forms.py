"""How the client encodes requests and decodes replies. Pure."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from math import isfinite
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from actors.jobs.rules.job_answers import NotAdded
from actors.runtime.rules.setting_values import BadSetting, Duration, shown, span_ms
from penstock.errors import PenstockError, UsageError
from streams.messages.jobs import LARGEST_BODY, NewJob

__all__ = [
    "dealt",
    "decode",
    "encode",
    "finite",
    "millis",
    "moment_ms",
    "too_large",
]

_T = TypeVar("_T")


def finite(values: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values. Raises UsageError for a number that JSON does not have: it would say null, which resets."""
    for name, value in values.items():
        if isinstance(value, float) and not isfinite(value):
            raise UsageError(f"{name}: {value} is no number to set; use a finite one")
    return values


def decode(payload: bytes | Raw, form: type[_T]) -> _T:
    try:
        return msgspec.json.decode(payload, type=form)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PenstockError(f"the service's answer cannot be read ({error}); is it of another version?") from error


def encode(value: object) -> bytes:
    """Return JSON. Raises UsageError if the value has none."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, UnicodeEncodeError) as error:
        raise UsageError(f"what is asked cannot be written as JSON: {error}") from error


def too_large(job: NewJob) -> NotAdded | None:
    size = len(bytes(job.body))
    if size <= LARGEST_BODY:
        return None
    reason = f"body: {size} bytes, at most {LARGEST_BODY}; store it elsewhere, and put a reference into the job"
    return NotAdded(code="bad", reason=reason, topic=job.topic, id=job.id, field="body")


def dealt(jobs: Sequence[_T], wanted: Sequence[int]) -> list[list[_T]]:
    """Deal jobs to callers, of whom each wants so many, in the order of the callers."""
    left = iter(jobs)
    return [list(islice(left, most)) for most in wanted]


def millis(name: str, value: Duration) -> int:
    """Return whole milliseconds. Raises UsageError if the value is no length of time. The desk checks its range."""
    try:
        return span_ms(name, value)
    except BadSetting as error:
        raise UsageError(f"{name}: {shown(value)} {error.why}; {error.do}") from error


def moment_ms(name: str, value: datetime) -> int:
    if value.tzinfo is None:
        raise UsageError(f"{name}: {value} has no zone; give one, as in datetime.now(UTC)")
    return round(value.timestamp() * 1000)


MILLISECONDS: dict[str, Callable[[str, Any], int]] = {
    "delay": millis,
    "due": moment_ms,
    "ttr": millis,
    "expires_in": millis,
}
"""How to convert the options whose fields end with `_ms`."""
