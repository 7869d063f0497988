"""The stored forms of jobs, and the requests for them: JSON.

A job is one message of JOBS at a time. Its payload is a `JobRecord` while it is delayed, ready or reserved, and a
`JobDone` from its end until it is forgotten. Its subject names the state. An add is known by its nonce, whoever repeats
it (ADR 29). `NewJob` is a caller's request, at every interface and in a plain publish to `submit.job`. Two copies with
the same topic and id are one job.

Times are whole milliseconds UTC by the server's clock. `body` is any JSON, carried as it came and never decoded.

None of them can be part of a cycle, so Python's collector need not look at them (`gc=False`): there are many.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec
from msgspec import Raw, Struct

from streams.errors import MalformedMessage

Priority = Literal["high", "normal", "low"]
State = Literal["delayed", "ready", "reserved", "done"]
Outcome = Literal["finished", "buried", "expired", "deleted", "dropped", "cancelled"]
"""How a job ended. `dropped`: it was not run, because its key had no free slot. `cancelled`: its call was, for a newer
one of its key."""
Past = tuple[str, int]
"""The nonce of an add whose job is over, or the mark of a delete, a finish or a kick, and until when it must be known
(milliseconds of the server's clock)."""
NO_MARK: Past = ("", 0)
OnSame = Literal["keep", "replace", "error"]

LONGEST_ID = 255
"""Characters of a job's id."""
LARGEST_BODY = 256 * 1024
"""Bytes. Far below the server's largest message, with room for what stands beside the body, and for base64 of it."""
LONGEST_DELAY_MS = 10 * 366 * 86_400_000
SHORTEST_TTR_MS, LONGEST_TTR_MS = 1_000, 7 * 86_400_000
MOST_JOBS = 1_000
"""Jobs in one call."""
MOST_HISTORY = 10
"""Lines kept of what befell a job before."""
LONGEST_REASON = 200
LONGEST_NONCE = 255
"""Characters of a nonce as a caller gives it."""
MACHINE_MADE = "~"
"""The prefix of a nonce that a program made for one add. Nobody repeats that add after the call."""
AGE_HEADER, MEMORY_HEADER = "Penstock-Age", "Penstock-Memory"
"""Of a request that is asked again: how many milliseconds ago it was asked first, and of which server's memory of
message ids its asker knew then (`Connection.memory`)."""

READY_TOKENS: dict[Priority, str] = {"high": "ready-high", "normal": "ready", "low": "ready-low"}
"""The state's token in the subject of a ready job, by its priority."""
FREE_TOKEN = "gone"
"""The state's token of a job that is over and whose id is free. Its message is there for repeats alone."""
DELAYED_TOKENS, RESERVED_TOKENS = ("delayed", "delayed-2"), ("reserved", "reserved-2")
"""Tokens of waiting and of held jobs. A job that stays in its state moves from one to the other, since a message must
not take the place of an earlier one (ADR 20). Timers know `delayed` alone. A job is on the other only for a moment."""


class JobRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A job that is not over.

    `attempts`: those used up, with the present one while it is reserved. `most_attempts`: after so many it is buried.
    `first_ms`: when it was first handed out, 0 if never. `history`: past events, oldest first. `holder`, `until_ms` and
    `receipt` (the mark in the holder's receipt) describe the reservation. They stay when the job comes back because its
    TTR ran out.

    `nonce`: the add that made it. `past`: the adds of earlier jobs of this id that may still be repeated. `trace_s`:
    seconds after the end for which the add is still known. 0: for as long as ordinary repeats take. `latest_ms`: when
    the latest schedule fires that the job was and left early. 0: none. `late_s`: an end that comes later than so many
    seconds after the add leaves a trace. 0: however late it comes, it leaves none for that. `put_off`: how
    often it was put off since its last attempt, as its key had no free slot. `traceparent`: the span that added it.
    Empty: nobody traced it. `spread_ms`: by how much later than usual the server itself fires the job's schedule, as
    many are due at once.
    """

    topic: str
    id: str
    due_ms: int
    body: Raw = Raw(b"null")
    added_ms: int
    ttr_ms: int
    attempts: int = 0
    most_attempts: int
    priority: Priority = "normal"
    expires_ms: int = 0
    first_ms: int = 0
    history: tuple[str, ...] = ()
    holder: str = ""
    until_ms: int = 0
    receipt: str = ""
    nonce: str = ""
    past: tuple[Past, ...] = ()
    trace_s: int = 0
    latest_ms: int = 0
    late_s: int = 0
    put_off: int = 0
    traceparent: str = ""
    spread_ms: int = 0


class FirstTry(NamedTuple):
    """When an add was tried first, and which server's memory of message ids its caller knew of then."""

    age_s: float = 0.0
    memory: str = ""


class JobDone(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A job that is over, known until the server forgets it. `id`: its key where only that was known. `receipt`: the
    mark of the receipt by which it ended, so that the same holder hears the same answer again. `past`: the adds that
    are over, the job's own among them. `free_ms`: when its id is free, if the record is kept for longer. 0: when the
    server forgets it. `first_ms`: when the job was first handed out. 0: never, or that is not known. `added_ms`: of the
    job, 0: not known."""

    topic: str
    id: str
    finished_ms: int
    outcome: Outcome = "finished"
    receipt: str = ""
    past: tuple[Past, ...] = ()
    free_ms: int = 0
    first_ms: int = 0
    added_ms: int = 0


class NewJob(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A request for a job. None stands for the topic's setting. An empty `id` gets a fresh one.

    Due in `delay_ms`, or at `due_ms`. Given up if it was not started within `expires_in_ms`, or by `expires_ms`.
    `on_same`: what to do if there is a job of this id. `nonce`: the same in each repeat of this add, and in no other
    add of this id. Without one, each call is an add of its own. `traceparent`: the span that adds it.
    `actors/jobs/rules/job_rules.py` checks it.
    """

    topic: str
    id: str = ""
    body: Raw = Raw(b"null")
    delay_ms: int = 0
    due_ms: int | None = None
    ttr_ms: int | None = None
    priority: Priority = "normal"
    attempts: int | None = None
    expires_ms: int | None = None
    expires_in_ms: int | None = None
    on_same: OnSame = "keep"
    nonce: str = ""
    traceparent: str = ""


_encoder = msgspec.json.Encoder()
encode_job: Callable[[JobRecord | JobDone], bytes] = _encoder.encode
"""Return the JSON. The body is copied, not walked."""
encode_new_job: Callable[[NewJob], bytes] = _encoder.encode

_jobs = msgspec.json.Decoder(JobRecord)
_done = msgspec.json.Decoder(JobDone)
_any_json = msgspec.json.Decoder(Raw)


def decode_job(payload: bytes) -> JobRecord:
    """Return the job, or raise MalformedMessage. `body` is a view: it keeps `payload` alive."""
    try:
        return _jobs.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"no job: {error}") from error


def decode_done(payload: bytes) -> JobDone:
    """Return how a job ended, or raise MalformedMessage."""
    try:
        return _done.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"no end of a job: {error}") from error


def is_json(body: bytes) -> bool:
    """Return whether `body` is one JSON value in UTF-8, and may travel in a job."""
    try:
        body.decode()
        _any_json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def body_of(value: object) -> Raw:
    """Return a Python value as a body. Raises TypeError for what JSON cannot hold."""
    return Raw(_encoder.encode(value))
