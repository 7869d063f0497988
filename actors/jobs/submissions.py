"""Submissions: jobs that were handed in by a plain publish, checked and added.

In: JSON of a NewJob on `submit.job.<topic>`, from whoever may publish there, in any language. Out: jobs; what is
refused becomes a dead letter `dead.submit.<topic>.<sequence>` with the payload as it came and the reason.
State: none. The topic in the subject counts; one in the payload must be the same. Delays count from the moment at which
the server stored the message, so they do not grow while no node runs.
Under redelivery: the add is known by its message, unless its publisher gave it a nonce, so adding it again adds
nothing. When it cannot go on: while the broker takes nothing, messages stay where they are and come again.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress

import anyio
import msgspec
from anyio.abc import TaskStatus
from msgspec.structs import replace

from actors.jobs.desk import JobDesk
from actors.jobs.rules.job_answers import NotAdded
from actors.runtime.actor import FATAL
from actors.runtime.failpoints import reach
from actors.runtime.handed_in import bury, pages
from actors.runtime.logs import fields
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
TRACE_S = 600
"""How long the end of a job is known to a desk that adds it again: while any desk lives, that is within seconds."""
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
        nonce=asked.nonce or f"submit-{stored_ms}-{seq}",
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
        answers = await self._desk.add([job for _, job in read], trace_s=TRACE_S)
        reach("job.submit")
        for (delivery, job), answer in zip(read, answers, strict=True):
            if isinstance(answer, NotAdded):
                if answer.code not in PASSING:
                    refused.append((delivery, answer.reason))
            elif answer.is_new or answer.is_same_body:
                await delivery.ack()
            else:  # its publisher hears no answer, so it must not vanish
                there = f"topic {job.topic} has another job of this id, {answer.state}"
                refused.append((delivery, f"{there}; use another id, or on_same=replace"))
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


def _decoded(payload: bytes) -> _Submission:
    try:
        payload.decode()  # the decoder looks at the encoding of what it reads only, not of bodies
        return _decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"no job: {error}") from error
