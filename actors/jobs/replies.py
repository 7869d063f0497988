"""The job desk's replies for the results of the store. Pure."""

from collections.abc import Sequence

from msgspec import UNSET

from actors.jobs.adds import Clash, Stored
from actors.jobs.reads import Found
from actors.jobs.reservations import JobSettled, JobStale
from actors.jobs.reserves import JobReservation
from actors.jobs.rules.job_answers import Added, Code, JobReply, Listed, NotAdded, Reserved
from actors.jobs.rules.job_receipt import JobReceipt
from streams.errors import OutcomeUnknown, StreamError
from streams.messages.jobs import LONGEST_ID, JobRecord

Outcome = JobSettled | JobStale | StreamError
NO_SUCH_JOB = "no such job"
OVER = "it is over already"
FINISHED_BEFORE = "it was finished before"
ADVICE = "; use another id, or on_same=replace"


def added_of(job: JobRecord, outcome: Stored | Clash | StreamError) -> Added | NotAdded:
    match outcome:
        case Stored(is_new=True, is_same=False):
            reason = (
                "an earlier add with this nonce had another body; this one was not added; give each add its own nonce"
            )
            return NotAdded(code="bad", reason=reason, topic=job.topic, id=job.id, field="nonce")
        case Stored():
            return Added(
                topic=job.topic,
                id=job.id,
                state=outcome.state,
                due_ms=outcome.due_ms,
                is_new=outcome.is_new,
                is_same_body=outcome.is_same is not False,
            )
        case Clash():
            is_over = outcome.state == "done"
            has = (
                "remembers that the job of this id is over, and nothing was added"
                if is_over
                else "has a job of this id"
            )
            there = f"topic {job.topic} {has}{'' if is_over else f', {outcome.state}'}"
            return NotAdded(
                code="over" if is_over else "exists",
                reason=there + ADVICE,
                topic=job.topic,
                id=job.id,
                state=outcome.state,
                due_ms=outcome.due_ms,
                is_same_body=outcome.is_same is True,
            )
        case _:
            return not_added(job, outcome)


def not_added(job: JobRecord, error: StreamError) -> NotAdded:
    return NotAdded(code=code_of(error), reason=str(error), topic=job.topic, id=job.id)


def reserved_of(reservation: JobReservation) -> Reserved:
    job = reservation.job
    return Reserved(
        topic=job.topic,
        id=job.id,
        receipt=reservation.text,
        body=job.body,
        attempt=job.attempts,
        most_attempts=job.most_attempts,
        ttr_ms=job.ttr_ms,
        until_ms=job.until_ms,
        added_ms=job.added_ms,
        due_ms=job.due_ms,
        priority=job.priority,
        history=job.history,
        traceparent=job.traceparent or UNSET,
    )


def answer_of(receipt: JobReceipt, outcome: Outcome) -> JobReply:
    match outcome:
        case JobSettled():
            return JobReply(code="ok", topic=receipt.topic, until_ms=outcome.until_ms)
        case JobStale():
            return JobReply(code="stale", reason=outcome.reason, topic=receipt.topic)
        case _:
            return JobReply(code=code_of(outcome), reason=str(outcome), topic=receipt.topic)


def not_reserved(found: Sequence[Found], job_id: str) -> JobReply:
    """Return the reply for an id without a reservation. A repeat of a finish gets the same reply as the first."""
    if any(each.done is not None and each.done.outcome == "finished" for each in found):
        lapsed = [each.state for each in found if each.job is not None and each.job.first_ms]
        if lapsed:  # the caller may have held this one, and come too late
            reason = f"nobody holds a job of this id: one was finished, and one that was handed out is {lapsed[0]}"
            return JobReply(code="unknown", reason=reason, id=job_id)
        return JobReply(code="ok", reason=FINISHED_BEFORE, id=job_id)
    if any(each.done is not None and not each.is_free for each in found):
        return JobReply(code="not_found", reason=OVER, id=job_id)
    left = [each.state for each in found if each.job is not None]
    reason = f"it is {left[0]}, nobody holds it" if left else NO_SUCH_JOB
    return JobReply(code="not_found", reason=reason, id=job_id)


def listed_of(found: Found) -> Listed:
    job, done = found.job, found.done
    if job is None:
        return Listed(
            topic=found.topic,
            id=done.id if done else found.key,
            state=found.state,
            finished_ms=done.finished_ms if done else 0,
            outcome=done.outcome if done else "",
        )
    return Listed(
        topic=job.topic,
        id=job.id,
        state=found.state,
        due_ms=job.due_ms,
        added_ms=job.added_ms,
        ttr_ms=job.ttr_ms,
        attempts=job.attempts,
        most_attempts=job.most_attempts,
        priority=job.priority,
        expires_ms=job.expires_ms,
        holder=job.holder,
        until_ms=job.until_ms,
        history=job.history,
        body=job.body,
    )


def code_of(error: StreamError) -> Code:
    return "unknown" if isinstance(error, OutcomeUnknown) else "unavailable"


def shown_of(value: object) -> str:
    return value[:LONGEST_ID] if isinstance(value, str) else ""
