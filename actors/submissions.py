"""Submissions: jobs that were handed in by a plain publish, checked and added.

In: JSON of a NewJob on `submit.job.<topic>`, from whoever may publish there, in any language. Out: jobs; what is
refused becomes a dead letter `dead.submit.<topic>.<sequence>` with the payload as it came and the reason.
State: none. The topic in the subject counts; one in the payload must be the same. Delays count from the moment at which
the server stored the message, so they do not grow while no node runs.
Under redelivery: a job without an id is named after its message, so adding it again adds nothing; and what an earlier
delivery may have added under its own id counts as added, not as a job of that id that was there before.
When it cannot go on: while the broker takes nothing, messages stay where they are and come again.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress

import anyio
import msgspec
from anyio.abc import TaskStatus
from msgspec.structs import replace

from actors.actor import FATAL
from actors.failpoints import reach
from actors.handed_in import bury, pages
from actors.job_desk import JobDesk
from actors.logs import fields
from actors.model.job_answers import Added, NotAdded
from streams.connection import Connection
from streams.delivery import Delivery
from streams.errors import StreamError
from streams.job_messages import LONGEST_DELAY_MS, NewJob
from streams.publisher import Publisher
from streams.puller import Puller
from streams.subjects import TOKEN, Namespace
from streams.topology import ensure_consumer, submit_consumer

log = logging.getLogger(__name__)

__all__ = ["ENGINE", "Submissions", "read_submission"]

ENGINE = "submit"
CAPACITY = 2_000
AT_ONCE = 500
WAIT_S = 0.005
"""How long the first of a page waits for more: a page costs little more than one."""
KEEP_ALIVE_S = 3.0
AGAIN_S = 1.0
PASSING = ("unavailable", "unknown")


class Refused(Exception):
    """A submission that is none, and why."""


class _Submission(NewJob, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A NewJob whose topic may stand in the subject alone."""

    topic: str = ""


_decode = msgspec.json.Decoder(_Submission).decode


def read_submission(topic: str, payload: bytes, *, seq: int, stored_ms: int) -> NewJob:
    """Return the job that a message asks for; raise Refused. `topic`: of the subject, empty if it names none. The job's
    moments are absolute, so that a repeat says the same."""
    asked = _decoded(payload)
    topic = topic or asked.topic
    if not topic:
        raise Refused("no topic: publish to submit.job.<topic>, of A-Z a-z 0-9 _ -")
    if asked.topic not in ("", topic):
        raise Refused(f"topic {asked.topic!a}: the subject says {topic!a}; leave one of them out")
    due_ms, expires_ms = asked.due_ms, asked.expires_ms
    is_delay = due_ms is None and 0 <= asked.delay_ms <= LONGEST_DELAY_MS  # what is out of range is refused by the desk
    is_span = expires_ms is None and asked.expires_in_ms is not None and 0 < asked.expires_in_ms <= LONGEST_DELAY_MS
    return replace(
        asked,
        topic=topic,
        id=asked.id or f"submit-{stored_ms}-{seq}",
        due_ms=stored_ms + asked.delay_ms if is_delay else due_ms,
        delay_ms=0 if is_delay else asked.delay_ms,
        expires_ms=stored_ms + (asked.expires_in_ms or 0) if is_span else expires_ms,
        expires_in_ms=None if is_span else asked.expires_in_ms,
    )


class Submissions:
    """Takes submissions in pages. They are settled once the jobs are stored."""

    def __init__(self, desk: JobDesk, connection: Connection, publisher: Publisher, stop: anyio.Event) -> None:
        self._desk = desk
        self._connection = connection
        self._publisher = publisher
        self._stop = stop

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Add what is handed in until the node's stop is set. Raises FATAL errors."""
        spec = submit_consumer(self._connection.namespace)
        await ensure_consumer(self._connection, spec)
        puller = Puller(self._connection, spec.stream, spec.name, capacity=CAPACITY, keep_alive_s=KEEP_ALIVE_S)
        async with puller:
            task_status.started()
            async for page in pages(puller, self._stop, most=AT_ONCE, wait_s=WAIT_S):
                await self._take(page)

    async def _take(self, page: Sequence[Delivery]) -> None:
        """Take one page to its end: each is acked, a dead letter, or given back."""
        try:
            namespace = self._connection.namespace
            refused = await self._add(page)
            await bury(self._publisher, namespace, ENGINE, refused, lambda each: topic_of(namespace, each.subject))
        except FATAL:
            raise
        except StreamError as error:
            log.warning("submissions.not_taken", extra=fields(count=len(page), error=str(error)))
        finally:
            with suppress(StreamError):
                for delivery in page:
                    await delivery.nak(AGAIN_S)  # does nothing to those that are settled

    async def _add(self, page: Sequence[Delivery]) -> list[tuple[Delivery, str]]:
        """Add the jobs and ack what was added; return what is refused, with the reason."""
        read, refused = self._read(page)
        answers = await self._desk.add([_asked_first(delivery, job) for delivery, job in read])
        reach("job.submit")
        again: list[tuple[Delivery, NewJob]] = []
        for (delivery, job), answer in zip(read, answers, strict=True):
            if isinstance(answer, Added) or _is_ours(delivery, job, answer):
                await delivery.ack()
            elif answer.code == "exists" and job.on_same == "replace":
                again.append((delivery, job))
            elif answer.code not in PASSING:
                refused.append((delivery, answer.reason))
        for (delivery, _), answer in zip(again, await self._desk.add([job for _, job in again]), strict=True):
            if isinstance(answer, Added):
                await delivery.ack()
            elif answer.code not in PASSING:
                refused.append((delivery, answer.reason))
        return refused

    def _read(self, page: Sequence[Delivery]) -> tuple[list[tuple[Delivery, NewJob]], list[tuple[Delivery, str]]]:
        read: list[tuple[Delivery, NewJob]] = []
        refused: list[tuple[Delivery, str]] = []
        for delivery in page:
            topic = topic_of(self._connection.namespace, delivery.subject)
            try:
                seq, stored_ms = delivery.seq, delivery.stored_ms
                read.append((delivery, read_submission(topic, delivery.payload, seq=seq, stored_ms=stored_ms)))
            except Refused as error:
                refused.append((delivery, str(error)))
        return read, refused


def topic_of(namespace: Namespace, subject: str) -> str:
    """Return the topic that a subject names, empty for none; what the server stored may hold any signs."""
    topic = subject.removeprefix(f"{namespace.name}.submit.job.")
    return topic if TOKEN.fullmatch(topic) else ""


def _asked_first(delivery: Delivery, job: NewJob) -> NewJob:
    """Return how a job is asked for: what comes again must not replace what it may have added itself."""
    return replace(job, on_same="error") if delivery.delivered > 1 and job.on_same == "replace" else job


def _is_ours(delivery: Delivery, job: NewJob, answer: NotAdded) -> bool:
    """Whether the job that is there is the one that an earlier delivery of this message added."""
    is_that = answer.code == "exists" and answer.is_same_body and answer.due_ms == job.due_ms
    return is_that and delivery.delivered > 1


def _decoded(payload: bytes) -> _Submission:
    try:
        payload.decode()  # the decoder looks at the encoding of what it reads only, not of bodies
        return _decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"no job: {error}") from error
