"""What the client makes of replies to requests about jobs. Pure.

Where an earlier try had no reply, the reply to the last one says nothing of it."""

from typing import TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from actors.jobs.rules.job_answers import Added, Code, JobReply, NotAdded
from penstock.errors import NotAccepted, PenstockError, Timeout, Unavailable
from penstock.sdk.client_forms import decode

_T = TypeVar("_T")
_EARLIER = "an earlier try may have been done; the last was told"


class _AllAdded(Struct):
    answers: list[Added]


class _AddAnswers(Struct):
    answers: list[Raw]


class _Outcome(Struct):
    code: Code


_all_added = msgspec.json.Decoder(_AllAdded)


def add_answers(payload: bytes) -> list[Added | NotAdded]:
    """Return the replies to adds, of either kind."""
    try:
        return list(_all_added.decode(payload).answers)  # the usual case, in one go
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return [_add_answer(answer) for answer in decode(payload, _AddAnswers).answers]


def _add_answer(payload: Raw) -> Added | NotAdded:
    return decode(payload, Added) if decode(payload, _Outcome).code == "ok" else decode(payload, NotAdded)


def added_of(answer: Added | NotAdded) -> Added:
    """Return the job. Raises the reason why it was not added."""
    if isinstance(answer, Added):
        return answer
    if answer.code == "unknown":
        raise Timeout(answer.reason)
    if answer.code == "unavailable":
        raise Unavailable(answer.reason)
    raise NotAccepted(answer.reason, code=answer.code, field=answer.field)


def one_each(answers: list[_T], calls: int) -> list[_T]:
    if len(answers) != calls:
        raise PenstockError(f"{calls} calls have {len(answers)} answers; is the service of another version?")
    return answers


def repeated_add(answer: Added | NotAdded) -> Added | NotAdded:
    """Return the reply to an add that was repeated. It is `unknown` if the last try did nothing and an earlier one may
    have added the job."""
    if answer.code == "bad" or (isinstance(answer, Added) and answer.is_new):
        return answer
    told = f"there is one of this id, {answer.state}" if isinstance(answer, Added) else answer.reason
    return NotAdded(code="unknown", reason=f"{_EARLIER}: {told}", topic=answer.topic, id=answer.id)


def in_doubt(answer: JobReply) -> JobReply:
    return replace(answer, code="unknown", reason=f"{_EARLIER}: {answer.reason}")


def unless_repeated(refused: NotAccepted) -> NotAccepted | Timeout:
    return Timeout(f"{_EARLIER}: {refused}") if refused.is_repeated and refused.code != "bad" else refused
