"""How the client encodes requests and decodes replies. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from actors.jobs.rules.job_answers import Added, Code, NotAdded
from actors.runtime.rules.setting_values import BadSetting, Duration, shown, span_ms
from penstock.errors import PenstockError, UsageError
from streams.job_messages import LARGEST_BODY, NewJob

__all__ = [
    "AddAnswers",
    "add_answer",
    "decode",
    "encode",
    "millis",
    "moment_ms",
    "parts_of",
    "too_large",
]

MOST_IN_PART = 500
_T = TypeVar("_T")


class AddAnswers(Struct):
    answers: list[Raw]


class _Outcome(Struct):
    code: Code


def add_answer(payload: Raw) -> Added | NotAdded:
    """Return the reply to an add, of either kind."""
    return decode(payload, Added) if decode(payload, _Outcome).code == "ok" else decode(payload, NotAdded)


def decode(payload: bytes | Raw, form: type[_T]) -> _T:
    try:
        return msgspec.json.decode(payload, type=form)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PenstockError(f"the service's answer cannot be read ({error}); is it of another version?") from error


def encode(ask: Mapping[str, object]) -> bytes:
    try:
        return msgspec.json.encode(ask)
    except (TypeError, ValueError, UnicodeEncodeError) as error:
        raise UsageError(f"what is asked cannot be written as JSON: {error}") from error


def too_large(job: NewJob) -> NotAdded | None:
    size = len(bytes(job.body))
    if size <= LARGEST_BODY:
        return None
    reason = f"body: {size} bytes, at most {LARGEST_BODY}; store it elsewhere, and put a reference into the job"
    return NotAdded(code="bad", reason=reason, topic=job.topic, id=job.id, field="body")


def parts_of(jobs: Sequence[tuple[int, bytes]], most_bytes: int) -> Iterator[Sequence[tuple[int, bytes]]]:
    """Cut a list into parts that fit into one message each."""
    start, size = 0, 0
    for at, (_, job) in enumerate(jobs):
        if at > start and (size + len(job) > most_bytes or at - start == MOST_IN_PART):
            yield jobs[start:at]
            start, size = at, 0
        size += len(job) + 1
    if start < len(jobs):
        yield jobs[start:]


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
