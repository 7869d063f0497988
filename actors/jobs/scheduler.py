"""Schedules: the one node that holds the lease adds the next occurrence of each as an ordinary job.

In: the records of RECURRING, as people change them, the time, and the ends of the jobs. Out: jobs, added by the desk
under the id `<name>.<due>`. State: the record says what was claimed, what was added, and how the latest runs ended. The
memory holds a copy.

Under repeats: the claim is stored by revision first, then the job is added, then the record says so. A crash in between
leaves the claim. The next leader adds the job again. By its claim that is the same add, and makes no second job. A
leader that lost its lease in the middle stores nothing.

The delay timer makes it exact: most occurrences wait as delayed jobs before they are due
(actors/jobs/rules/schedule_steps.py). When it cannot go on: a record that cannot be followed is logged and left alone.
If the desk refuses, the node tries again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

import anyio
import msgspec
from anyio.abc import TaskStatus
from msgspec.structs import replace

from actors.jobs.rules.cron import BadRecurrence
from actors.jobs.rules.job_answers import Added, NotAdded
from actors.jobs.rules.schedule_changes import is_over, known_until_ms
from actors.jobs.rules.schedule_checks import check_schedule
from actors.jobs.rules.schedule_record import Schedule, asked_of, decode_schedule, due_of, names_of, open_runs
from actors.jobs.rules.schedule_runs import end_look_ms, ended, with_ends, with_runs
from actors.jobs.rules.schedule_steps import Step, added, cancelled, decide, first_look_ms, rests_until_ms, taken_back
from actors.jobs.rules.schedule_times import job_of, occurrence
from actors.runtime.actor import until_stopped
from actors.runtime.failpoints import reach
from actors.runtime.live import Live
from actors.runtime.logs import fields
from actors.runtime.rules.texts import time_text
from actors.runtime.tending import AGAIN_MS, Failures, Tending
from actors.runtime.tracing import traces
from streams.buckets.bucket import Bucket
from streams.buckets.entries import Entry
from streams.buckets.lease import Lease, lead
from streams.clock import Clock
from streams.errors import RevisionConflict, StreamError
from streams.link.connection import Connection
from streams.messages.jobs import JobDone, JobRecord, NewJob
from streams.reads.log import delete_entry
from streams.subjects import token_of

log = logging.getLogger(__name__)

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
    @property
    def done(self) -> JobDone | None: ...


class JobFinder(Protocol):
    """The part of the job store that is needed here."""

    async def find_many(
        self, keys: Sequence[tuple[str, str]], *, is_sure: bool
    ) -> Mapping[tuple[str, str], KnownJob]: ...


class JobDoor(Protocol):
    """The part of the job desk that is needed here."""

    async def add(self, jobs: Sequence[NewJob], *, trace_s: int) -> Sequence[Added | NotAdded]: ...
    async def delete(self, topic: str, job_id: str) -> object: ...


class OccurrenceRefused(StreamError):
    """The desk did not add an occurrence. The text is its reason."""


@dataclass(frozen=True, slots=True)
class _Held:
    revision: int
    record: Schedule


def _read(entry: Entry[bytes]) -> _Held:
    names_of(entry.key)
    return _Held(entry.revision, with_runs(check_schedule(decode_schedule(entry.raw))))


class Scheduler:
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
        self._records = records
        self._leases = leases
        self._desk = desk
        self._store = store
        self._clock = clock
        self._stop = stop
        self._live = Live(records, _read, unreadable="schedule.failed")
        self._live.on_change(self._look_soon)
        failures: Failures[str] = Failures(log, "schedule.failed", "key", FORESEEN)
        self._tending = Tending(clock, failures, at_once=AT_ONCE)
        self._ends_ms: dict[str, int] = {}
        self._untold: dict[str, Step] = {}
        self._storing = ""
        self.elected = anyio.Event()
        """Set while this node leads and knows all records."""

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Stand for election until the node stops."""
        await until_stopped(self._stop, self._campaign, task_status=task_status)

    async def _campaign(self) -> NoReturn:
        await lead(self._leases, LEASE, self._node, ttl_s=LEASE_TTL_S, body=self._lead)

    async def _lead(self, lease: Lease) -> None:
        log.info("schedule.leads", extra=fields(node=self._node))
        self._tending.clear()
        self._ends_ms.clear()
        self._untold.clear()
        try:
            async with anyio.create_task_group() as tasks:
                await tasks.start(self._live.run)
                self._tending.clear()
                now_ms, count = self._clock.now_ms(), len(self._live)
                for number, (key, held) in enumerate(self._live.items()):
                    self._tending.put(key, first_look_ms(held.record, now_ms, part=number / count))
                self.elected.set()
                await self._tending.run(lambda key: self._look(lease, key))
        finally:
            self.elected = anyio.Event()

    def _look_soon(self, key: str) -> None:
        held = self._live.get(key)
        if held is None:
            self._tending.failures.over(key)
            self._ends_ms.pop(key, None)
            self._untold.pop(key, None)
        elif key != self._storing:  # the look that stored it goes on
            self._tending.put(key, rests_until_ms(held.record))

    # ---- one record

    async def _look(self, lease: Lease, key: str) -> int | None:
        try:
            return await self._attend(lease, key)
        except RevisionConflict:
            log.debug("schedule.changed", extra=fields(key=key))  # the watch brings the change
            return self._clock.now_ms() + AGAIN_MS

    async def _attend(self, lease: Lease, key: str) -> int | None:
        """Bring a record up to the present moment. Return when to look again."""
        topic, name = names_of(key)
        is_noted = False
        while lease.is_held() and (held := self._live.get(key)) is not None:
            record = held.record
            self._tell(key, record)
            if record.stale:
                gone = await self._take_back(topic, name, record)
                await self._set(key, held, taken_back(record, record.stale, gone))
            elif is_over(record):
                if (until_ms := known_until_ms(record)) > self._clock.now_ms():
                    return until_ms
                # Its marker stays: once a marker expires, a server that is killed may find the schedule again (ADR 35).
                await self._records.delete(key, revision=held.revision)
                self._live.drop(key)
            elif record.cancelling:
                for due_ms in record.cancelling:
                    await self._desk.delete(*job_of(topic, name, record, due_ms))
                await self._set(key, held, cancelled(record))
            elif record.adding:
                reach("job.claim")
                expired = await self._add(topic, name, held)
                reach("job.recur")
                await self._set(key, held, added(record, record.adding, expired))
            else:
                now_ms = self._clock.now_ms()
                noted, is_noted = record if is_noted else await self._noted(key, record, now_ms), True
                step = decide(noted, now_ms, is_open=bool(open_runs(noted)))
                if step.record is record:
                    return self._next_look_ms(key, step, now_ms)
                self._untold[key] = step
                await self._set(key, held, step.record)
                self._tell(key, step.record)
        return None

    def _tell(self, key: str, stored: Schedule) -> None:
        """Name the occurrences that the last step does not run, once it is known to be stored: else another leader may
        run them."""
        step = self._untold.pop(key, None)
        if step is None or step.record != stored:
            return
        if step.missed is not None:
            log.warning("schedule.missed", extra=fields(key=key, first_ms=step.missed[0], to_ms=step.missed[1]))
        if step.left_out_ms is not None:
            log.info("schedule.left_out", extra=fields(key=key, due_ms=step.left_out_ms, overlap=stored.overlap))

    def _next_look_ms(self, key: str, step: Step, now_ms: int) -> int | None:
        """Return when to look again: at the schedule, or at the ends of runs, as planned before or sooner."""
        planned_ms, ends_ms = self._ends_ms.pop(key, 0), end_look_ms(step.record, now_ms, claim_ms=step.look_ms)
        if ends_ms is not None:
            self._ends_ms[key] = ends_ms = min(ends_ms, planned_ms) if planned_ms > now_ms else ends_ms
        return min((at_ms for at_ms in (step.look_ms, ends_ms) if at_ms is not None), default=None)

    async def _noted(self, key: str, record: Schedule, now_ms: int) -> Schedule:
        """Return the record with the ends of those runs that are over by now. If they may overlap, nothing waits for
        their ends, and the jobs are read only now and then."""
        planned_ms = self._ends_ms.get(key)
        if record.overlap == "allow" and now_ms < (rests_until_ms(record) if planned_ms is None else planned_ms):
            return record
        due = [run for run in open_runs(record) if run.due_ms <= now_ms]
        jobs = await self._find(*names_of(key), record, map(due_of, due))
        ends = [
            ended(run, found.done if found else None, now_ms=now_ms)
            for run, found in zip(due, jobs, strict=True)
            if found is None or found.state not in OPEN_STATES
        ]
        return with_ends(record, ends)

    async def _set(self, key: str, held: _Held, record: Schedule) -> None:
        """Store the record at the revision that it had. Raises RevisionConflict if a person changed it first."""
        revision = await self._records.compare_and_set(key, msgspec.json.encode(record), held.revision)
        self._storing = key
        self._live.learn(key, _Held(revision, record), revision)
        self._storing = ""

    async def _add(self, topic: str, name: str, held: _Held) -> set[int]:
        """Add the claimed occurrences. Leave out those that have expired by now, as if they had been added in time, and
        return these. What people asked for and is not over is left as it is."""
        now_ms, record = self._clock.now_ms(), held.record
        asked = sorted(asked_of(record))
        found = zip(asked, await self._find(topic, name, record, asked), strict=True)
        left = {due_ms for due_ms, job in found if job is not None and job.state in OPEN_STATES}
        claim = record.claim_ms or held.revision  # records of earlier versions have no time of their claim
        claimed = {due_ms: occurrence(topic, name, record, due_ms, claim=claim) for due_ms in record.adding}
        expired = {due for due, job in claimed.items() if job.expires_ms is not None and job.expires_ms <= now_ms}
        jobs = [_fired(topic, name, due_ms, job) for due_ms, job in claimed.items() if due_ms not in expired | left]
        for job, answer in zip(jobs, await self._desk.add(jobs, trace_s=TRACE_S), strict=True):
            if isinstance(answer, NotAdded) and not _is_there(answer):
                raise OccurrenceRefused(f"{job.id} of {job.topic}: {answer.code}: {answer.reason}")
            log.debug("schedule.added", extra=fields(topic=topic, id=job.id, code=answer.code))
        return expired

    async def _find(self, topic: str, name: str, record: Schedule, dues: Iterable[int]) -> list[KnownJob | None]:
        """Return the jobs of these occurrences."""
        jobs = (job_of(topic, name, record, due_ms) for due_ms in dues)
        keys = [(job_topic, token_of(job_id)) for job_topic, job_id in jobs]
        found = await self._store.find_many(keys, is_sure=True) if keys else {}
        return [found.get(each) for each in keys]

    async def _take_back(self, topic: str, name: str, record: Schedule) -> set[int]:
        """Remove occurrences that had no holder yet and are not due. Delete by sequence, so that none that has just
        become due is taken from its worker. One that is due and waits to be fired stays. On several servers one that is
        fired in that moment is there all the same (ADR 30). Return those that have no job now."""
        gone, taken, now_ms = set[int](), list[int](), self._clock.now_ms()
        for due_ms, found in zip(record.stale, await self._find(topic, name, record, record.stale), strict=True):
            is_gone = found is None
            job = found.job if found is not None and found.state == "delayed" else None
            if found is not None and job is not None and not job.attempts and job.due_ms > now_ms:
                stream = self._connection.namespace.jobs_stream(job.topic)
                is_gone = await delete_entry(self._connection, stream, found.seq, erase=True)
                taken.append(due_ms)
                log.info("schedule.taken_back", extra=fields(topic=topic, name=name, due_ms=due_ms, is_gone=is_gone))
            if is_gone:
                gone.add(due_ms)
        left = zip(taken, await self._find(topic, name, record, taken), strict=True)
        return gone.difference(due_ms for due_ms, found in left if found is not None)


def _is_there(answer: NotAdded) -> bool:
    """Return whether the claim has added its job before, and that one is over, or has the body of a definition that was
    replaced meanwhile."""
    return answer.code == "over" or answer.field == "nonce"


def _fired(topic: str, name: str, due_ms: int, job: NewJob) -> NewJob:
    """Begin the trace of an occurrence. Its job carries on with it."""
    if not traces.is_on:
        return job
    facts = {"topic": topic, "schedule": name, "due": time_text(due_ms), "job": job.id}
    with traces.span(f"fire {topic}", "producer", facts, parent=""):
        return replace(job, traceparent=traces.current())
