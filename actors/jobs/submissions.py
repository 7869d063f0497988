"""Submissions: jobs from plain publishes, checked and added.

In: JSON of a NewJob on `submit.job.<topic>`, from any client that may publish there. Out: jobs. A refused message
becomes a dead letter `dead.submit.<topic>.<sequence>` with its unchanged payload and the reason. State: none. The topic
in the subject counts, and one in the payload must be the same. Delays count from the moment at which the server stored
the message, so they do not grow while no node runs. Under redelivery: the add is known by its message, unless its
publisher gave it a nonce, so a repeat adds nothing. When it cannot go on: while the broker takes nothing, messages stay
where they are and come again.
"""

from collections.abc import Sequence
from functools import partial

import anyio
import msgspec
from msgspec.structs import replace

from actors.jobs.desk import JobDesk
from actors.jobs.rules.job_answers import NotAdded
from actors.runtime.failpoints import reach
from actors.runtime.rules.setting_values import BadSetting
from actors.runtime.rules.spellings import decode_spelled, told
from actors.runtime.rules.traceparents import traceparent_of
from actors.runtime.submissions import Refusal, Submission, Submissions
from actors.runtime.tracing import traces
from streams.link.connection import Connection
from streams.messages.jobs import LONGEST_DELAY_MS, NewJob
from streams.publish.publisher import Publisher
from streams.topology.specs import submit_consumer

ENGINE = "submit"
CAPACITY = 2_000
AT_ONCE = 500
TRACE_S = 600
"""Seconds for which a desk that adds a job again knows its end. A live desk does so within seconds."""
PASSING = ("unavailable", "unknown")


class BadSubmission(Exception):
    """The message holds no job. The text is the reason."""


class _Submission(NewJob, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A NewJob whose topic may stand in the subject alone."""

    topic: str = ""


_decode = msgspec.json.Decoder(_Submission).decode


def read_submission(topic: str, payload: bytes, *, seq: int, stored_ms: int) -> NewJob:
    """Return the job of a message. `topic` is the subject's, empty if it names none. The job's times are absolute, so
    that a repeat gives the same job. Raises BadSubmission."""
    new = _decoded(payload)
    topic = topic or new.topic
    if not topic:
        raise BadSubmission("no topic: publish to submit.job.<topic>, of A-Z a-z 0-9 _ -")
    if new.topic not in ("", topic):
        raise BadSubmission(f"topic {new.topic!a}: the subject says {topic!a}; leave one of them out")
    due_ms, expires_ms = new.due_ms, new.expires_ms
    is_delay = due_ms is None and 0 <= new.delay_ms <= LONGEST_DELAY_MS  # the desk refuses other values
    is_span = expires_ms is None and new.expires_in_ms is not None and 0 < new.expires_in_ms <= LONGEST_DELAY_MS
    return replace(
        new,
        topic=topic,
        id=new.id or ("" if new.nonce else f"submit-{stored_ms}-{seq}"),  # a nonce names the job as at each other door
        nonce=new.nonce or f"submit-{stored_ms}-{seq}",
        due_ms=stored_ms + new.delay_ms if is_delay else due_ms,
        delay_ms=0 if is_delay else new.delay_ms,
        expires_ms=stored_ms + (new.expires_in_ms or 0) if is_span else expires_ms,
        expires_in_ms=None if is_span else new.expires_in_ms,
    )


def job_submissions(desk: JobDesk, connection: Connection, publisher: Publisher, stop: anyio.Event) -> Submissions:
    """Return the actor."""
    return Submissions(
        ENGINE,
        submit_consumer(connection.namespace),
        partial(_add, desk),
        connection,
        publisher,
        stop,
        capacity=CAPACITY,
        at_once=AT_ONCE,
    )


async def _add(desk: JobDesk, page: Sequence[Submission]) -> list[Refusal]:
    """Add the jobs and ack those that were added. Return those that were refused."""
    read: list[tuple[Submission, NewJob]] = []
    refused: list[Refusal] = []
    for one in page:
        delivery = one.delivery
        try:
            job = read_submission(one.name, delivery.payload, seq=delivery.seq, stored_ms=delivery.stored_ms)
            if traces.is_on and not job.traceparent:
                job = replace(job, traceparent=traceparent_of(delivery.headers))
            read.append((one, job))
        except BadSubmission as error:
            refused.append((one, str(error)))
    answers = await desk.add([job for _, job in read], trace_s=TRACE_S)
    reach("job.submit")
    for (one, job), answer in zip(read, answers, strict=True):
        if isinstance(answer, NotAdded):
            if answer.code not in PASSING:
                refused.append((one, answer.reason))
        elif answer.is_new or answer.is_same_body:
            await one.delivery.ack()
        else:  # its publisher gets no reply, so the message must not vanish
            there = f"topic {job.topic} has another job of this id, {answer.state}"
            refused.append((one, f"{there}; use another id, or on_same=replace"))
    return refused


def _decoded(payload: bytes) -> _Submission:
    try:
        payload.decode()  # the decoder checks the encoding only of what it reads, not of bodies
        return decode_spelled(_decode, payload)
    except BadSetting as error:
        raise BadSubmission(f"no job: {told(error)}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadSubmission(f"no job: {error}") from error
