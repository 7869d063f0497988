"""What is asked of the job service, and how it answers: JSON, strict, the same at every node.

Where an endpoint takes several at once, one alone may be given instead: `add` takes a job or a list of jobs, the
endpoints that take `receipts` also take one `receipt`. One alone is answered by its own answer, or by an error; several
are answered one by one in `answers`, in the order in which they were asked, so that one bad one spoils no other.

Unknown fields are errors: a misspelt `delay_ms` must not make a job due at once. Of a field given twice the last one
counts.
"""

from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from actors.jobs.rules.job_answers import NotAdded
from streams.job_messages import MOST_JOBS, NewJob, State

__all__ = [
    "BuryAsk",
    "CountAsk",
    "DeleteAsk",
    "FinishAsk",
    "KickAsk",
    "Kicked",
    "ListAsk",
    "Malformed",
    "PeekAsk",
    "ReleaseAsk",
    "ReserveAsk",
    "TopicAsk",
    "TouchAsk",
    "read_ask",
    "read_jobs",
]

_BLANKS = b" \t\r\n"
_A = TypeVar("_A", bound=Struct)
_I = TypeVar("_I")
_job = msgspec.json.Decoder(NewJob)
_jobs = msgspec.json.Decoder(list[NewJob])
_items = msgspec.json.Decoder(list[Raw])


class Malformed(Exception):
    """A request that says nothing we understand. The text says what is wrong, and where."""


class ReserveAsk(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hand out up to `most` ready jobs; if there is none, wait `wait_ms` for one. `ttr_ms`: if told, for each
    of them."""

    topic: str
    most: int = 1
    wait_ms: int = 0
    ttr_ms: int | None = None
    holder: str = ""


class FinishAsk(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Done. By receipt; or by `id` alone, for those who kept no receipt."""

    receipt: str = ""
    receipts: tuple[str, ...] = ()
    id: str = ""


class TouchAsk(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Still at it: held for `ttr_ms` more from now, if not told for as long as at first."""

    receipt: str = ""
    receipts: tuple[str, ...] = ()
    ttr_ms: int | None = None


class ReleaseAsk(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Take it back: ready again in `delay_ms`, if that is not told after the topic's backoff. `counts`: the attempt is
    used up."""

    receipt: str = ""
    receipts: tuple[str, ...] = ()
    delay_ms: int | None = None
    reason: str = ""
    counts: bool = True


class BuryAsk(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set it aside among the dead letters."""

    receipt: str = ""
    receipts: tuple[str, ...] = ()
    reason: str = ""


class DeleteAsk(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Remove the job of this id, in whatever state; without `topic` in all topics. `nonce`: the same in each repeat of
    this request."""

    id: str
    topic: str | None = None
    nonce: str = ""


class PeekAsk(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Show the job of this id."""

    topic: str
    id: str


class KickAsk(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Make a delayed job due now: the one of `id`, or up to `most`, those due first."""

    topic: str
    id: str | None = None
    most: int = 1


class ListAsk(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Show a topic's jobs of a state, from `after` on, a cursor that an earlier page gave."""

    topic: str
    state: State = "delayed"
    after: str = ""
    limit: int = 100
    due_after_ms: int | None = None
    due_before_ms: int | None = None


class CountAsk(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Count a topic's jobs by state."""

    topic: str


class TopicAsk(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Show a topic's settings, after changing those of `set` (null takes one back to the default)."""

    topic: str
    set: dict[str, object] = {}


class Kicked(Struct, frozen=True):
    """How many jobs were made due."""

    kicked: int


def read_ask(payload: bytes, form: type[_A]) -> _A:
    """Return the request, or raise Malformed. Nothing at all stands for a request without fields."""
    check_text(payload)
    try:
        return msgspec.json.decode(payload or b"{}", type=form)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Malformed(explained(error)) from error


def read_jobs(payload: bytes) -> tuple[list[NewJob | NotAdded], bool]:
    """Return the jobs to add, with an answer in the place of each that is malformed, and whether it was one alone.
    Raises Malformed if it is neither a job nor a list, or a list of more than 1,000."""
    check_text(payload)
    if payload.lstrip(_BLANKS)[:1] != b"[":
        return [read_ask(payload, NewJob)], True
    try:
        return list(_checked(_jobs.decode(payload))), False
    except (msgspec.MsgspecError, RecursionError):
        pass  # which of them, is told one by one
    try:
        items = _checked(_items.decode(payload))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Malformed(explained(error)) from error
    return [_job_or_answer(at, item) for at, item in enumerate(items)], False


def check_text(payload: bytes) -> None:
    """Raise Malformed for what is no text: the decoder looks at the encoding of what it reads only, not of bodies."""
    if payload.startswith(b"\xef\xbb\xbf"):
        raise Malformed("it starts with a byte order mark; send plain UTF-8")
    try:
        payload.decode()
    except UnicodeDecodeError as error:
        raise Malformed(f"byte {error.start} is no UTF-8") from error


def explained(error: Exception) -> str:
    """Return what the decoder says, for whoever sent it."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error)[:300]


def _job_or_answer(at: int, item: Raw) -> NewJob | NotAdded:
    try:
        return _job.decode(item)
    except (msgspec.MsgspecError, RecursionError) as error:
        return NotAdded(code="bad", reason=f"job {at} of the list: {explained(error)}")


def _checked(items: Sequence[_I]) -> Sequence[_I]:
    if len(items) > MOST_JOBS:
        raise Malformed(f"{len(items)} jobs in one call; at most {MOST_JOBS}")
    return items
