"""Recurring jobs: the one node that holds the lease adds the next occurrence of each as an ordinary job.

In: the records of RECURRING, as people change them, and the time. Out: jobs, added by the desk under the id
`<name>.<due>`. State: the record says what was claimed and what was added. The memory holds a copy.

Under repeats: the claim is stored by revision first, then the job is added, then the record says so. A crash in between
leaves the claim. The next leader adds the job again. By its claim that is the same add, and makes no second job. A
leader that lost its lease in the middle stores nothing.

The delay timer makes it exact: most occurrences wait as delayed jobs before they are due
(actors/jobs/rules/recurrence.py). When it cannot go on: a record that cannot be followed is logged and left alone. If
the desk refuses, the node tries again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

import anyio
import msgspec
from anyio.abc import TaskStatus

from actors.jobs.rules.cron import BadRecurrence
from actors.jobs.rules.job_answers import Added, NotAdded
from actors.jobs.rules.recurrence import (
    Recurring,
    Step,
    added,
    check_recurring,
    decide,
    occurrence,
    occurrence_id,
    taken_back,
)
from actors.runtime.failpoints import reach
from actors.runtime.live import Live
from actors.runtime.logs import fields
from actors.runtime.tending import AGAIN_MS, Failures, Tending
from streams.bucket import Bucket
from streams.clock import Clock
from streams.connection import Connection
from streams.entries import Entry
from streams.errors import MalformedMessage, RevisionConflict, StreamError
from streams.job_messages import JobRecord, NewJob
from streams.lease import Lease, lead
from streams.log import delete_entry
from streams.subjects import TOKEN

log = logging.getLogger(__name__)

BUCKET = "RECURRING"
LEASE = "jobs.recurring"
LEASE_TTL_S = 3
"""Another node follows a killed leader within five seconds. Occurrences added ahead do not wait for that."""
AT_ONCE = 128
"""Records that are looked at at a time. Thousands may be due in the same second."""
TRACE_S = 600
"""Seconds for which a leader that adds an occurrence again knows its end. The next leader is there within seconds."""
OPEN_STATES = ("delayed", "ready", "reserved")
FORESEEN = (StreamError, BadRecurrence)


class KnownJob(Protocol):
    """A job as the store finds it."""

    @property
    def state(self) -> str: ...
    @property
    def seq(self) -> int: ...
    @property
    def job(self) -> JobRecord | None: ...


class JobFinder(Protocol):
    """The part of the job store that is needed here."""

    async def find(self, topic: str, job_id: str) -> KnownJob | None: ...


class JobDoor(Protocol):
    """The part of the job desk that is needed here."""

    async def add(self, jobs: Sequence[NewJob], *, trace_s: int) -> Sequence[Added | NotAdded]: ...


class OccurrenceRefused(StreamError):
    """The desk did not add an occurrence. The text is its reason."""


@dataclass(frozen=True, slots=True)
class _Held:
    revision: int
    record: Recurring


def decode_recurring(raw: bytes) -> Recurring:
    """Return the record, or raise MalformedMessage."""
    try:
        return msgspec.json.decode(raw, type=Recurring)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"no recurring job: {error}") from error


def _read(entry: Entry[bytes]) -> _Held:
    names_of(entry.key)
    return _Held(entry.revision, check_recurring(decode_recurring(entry.raw)))


def names_of(key: str) -> tuple[str, str]:
    """Return topic and name of a key. Raises MalformedMessage."""
    tokens = key.split(".")
    if len(tokens) != 2 or not all(TOKEN.fullmatch(token) for token in tokens):
        raise MalformedMessage(f"key {key}: is not TOPIC.NAME")
    return tokens[0], tokens[1]


class RecurringJobs:
    """A node's part of this. It adds only while it leads. `clock` is the server's."""

    def __init__(
        self,
        *,
        node: str,
        connection: Connection,
        records: Bucket[bytes],
        leases: Bucket[bytes],
        desk: JobDoor,
        store: JobFinder,
        clock: Clock,
        stop: anyio.Event,
    ) -> None:
        self._node = node
        self._connection = connection
        self._jobs = connection.namespace.stream("JOBS")
        self._records = records
        self._leases = leases
        self._desk = desk
        self._store = store
        self._clock = clock
        self._stop = stop
        self._live = Live(records, _read, unreadable="recurring.failed")
        self._live.on_change(self._look_soon)
        failures: Failures[str] = Failures(log, "recurring.failed", "key", FORESEEN)
        self._tending = Tending(clock, failures, at_once=AT_ONCE)
        self.elected = anyio.Event()
        """Set while this node leads and knows all records."""

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Stand for election until the node stops."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._campaign)
            task_status.started()
            await self._stop.wait()
            tasks.cancel_scope.cancel()

    async def _campaign(self) -> NoReturn:
        await lead(self._leases, LEASE, self._node, ttl_s=LEASE_TTL_S, body=self._lead)

    async def _lead(self, lease: Lease) -> None:
        log.info("recurring.leads", extra=fields(node=self._node))
        self._tending.clear()
        try:
            async with anyio.create_task_group() as tasks:
                await tasks.start(self._live.run)
                for key, _ in self._live.items():
                    self._tending.put(key)
                self.elected.set()
                await self._tending.run(lambda key: self._look(lease, key))
        finally:
            self.elected = anyio.Event()

    def _look_soon(self, key: str) -> None:
        if self._live.get(key) is None:
            self._tending.failures.over(key)
        else:
            self._tending.put(key)

    # ---- one record

    async def _look(self, lease: Lease, key: str) -> int | None:
        try:
            return await self._attend(lease, key)
        except RevisionConflict:
            log.debug("recurring.changed", extra=fields(key=key))  # the watch brings the change
            return self._clock.now_ms() + AGAIN_MS

    async def _attend(self, lease: Lease, key: str) -> int | None:
        """Bring a record up to the present moment. Return when to look again."""
        topic, name = names_of(key)
        while lease.is_held() and (held := self._live.get(key)) is not None:
            record = held.record
            if record.stale:
                await self._take_back(topic, name, record.stale)
                await self._set(key, held, taken_back(record, record.stale))
            elif record.is_removed:
                await self._records.delete(key, revision=held.revision)
                self._live.drop(key)
            elif record.adding:
                await self._add(topic, name, held)
                reach("job.recur")
                await self._set(key, held, added(record, record.adding))
            else:
                step = await self._decided(topic, name, record)
                if step.missed is not None:
                    log.warning(
                        "recurring.missed", extra=fields(key=key, first_ms=step.missed[0], to_ms=step.missed[1])
                    )
                if step.record is record:
                    return step.look_ms
                await self._set(key, held, step.record)
        return None

    async def _decided(self, topic: str, name: str, record: Recurring) -> Step:
        """Decide what follows. The state of the occurrence before is read only when one is to be added."""
        now_ms = self._clock.now_ms()
        step = decide(record, now_ms, is_open=False)
        if step.record.adding and record.overlap == "skip" and await self._is_open(topic, name, record.added_ms):
            return decide(record, now_ms, is_open=True)
        return step

    async def _set(self, key: str, held: _Held, record: Recurring) -> None:
        """Store the record at the revision that it had. Raises RevisionConflict if a person changed it first."""
        revision = await self._records.compare_and_set(key, msgspec.json.encode(record), held.revision)
        self._live.learn(key, _Held(revision, record), revision)

    async def _add(self, topic: str, name: str, held: _Held) -> None:
        """Add the claimed occurrences. Leave out those that have expired by now, as if they had been added in time."""
        now_ms, record = self._clock.now_ms(), held.record
        claimed = [occurrence(topic, name, record, due_ms, claim=held.revision) for due_ms in record.adding]
        jobs = [job for job in claimed if job.expires_ms is None or job.expires_ms > now_ms]
        for job, answer in zip(jobs, await self._desk.add(jobs, trace_s=TRACE_S), strict=True):
            if isinstance(answer, NotAdded) and answer.code != "over":
                raise OccurrenceRefused(f"{job.id} of {topic}: {answer.code}: {answer.reason}")
            log.debug("recurring.added", extra=fields(topic=topic, id=job.id, code=answer.code))

    async def _is_open(self, topic: str, name: str, due_ms: int) -> bool:
        """Return whether the occurrence is not finished: it waits, also for its retry, or a holder works on it."""
        if not due_ms:
            return False
        found = await self._store.find(topic, occurrence_id(name, due_ms))
        return found is not None and found.state in OPEN_STATES

    async def _take_back(self, topic: str, name: str, dues: Sequence[int]) -> None:
        """Remove occurrences that had no holder yet and are not due. Delete by sequence, so that none that has just
        become due is taken from its worker."""
        for due_ms in dues:
            found = await self._store.find(topic, occurrence_id(name, due_ms))
            is_waiting = found is not None and found.state == "delayed" and found.job and not found.job.attempts
            if found is not None and is_waiting:
                is_gone = await delete_entry(self._connection, self._jobs, found.seq, erase=True)
                log.info("recurring.taken_back", extra=fields(topic=topic, name=name, due_ms=due_ms, is_gone=is_gone))
