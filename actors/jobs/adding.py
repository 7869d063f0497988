"""Adding jobs by the rules of their topics: settings, checks, quotas, and the answers. A desk adds with it for its
callers, and a client that stores jobs by itself (`penstock.connect(…, direct=True)`) for its own program.

Under repeats: an id is added once. The stored job, or what is left of it, knows the add by its nonce (ADR 29).
"""

import builtins
from collections.abc import Callable, Sequence
from contextlib import suppress

import anyio
from msgspec.structs import replace

from actors.jobs.adds import FIRST, Stored
from actors.jobs.copies import Copies
from actors.jobs.quota import Quota
from actors.jobs.replies import added_of, not_added, shown_of
from actors.jobs.rules.job_answers import Added, Code, NotAdded
from actors.jobs.rules.job_checks import check_depth
from actors.jobs.rules.job_rules import KEPT_MS, BadJob, ExpiredJob, is_same_add, make_job, named_nonce
from actors.jobs.rules.topic_settings import TopicSettings
from actors.jobs.store import JobStore
from actors.jobs.topics import MOST_IN_ALL, Topics
from actors.runtime.bounds import WorkBounds
from actors.runtime.rules.slot_keys import key_reader
from actors.runtime.tracing import traces
from actors.runtime.turns import Carriers, Turns
from streams.clock import Clock, monotonic_s
from streams.errors import Disconnected, OutcomeUnknown, StreamError
from streams.messages.jobs import MOST_JOBS, FirstTry, JobRecord, NewJob, Priority
from streams.messages.nonces import fresh_hex, fresh_nonce
from streams.publish.outcomes import Receipt
from streams.subjects import token_of

ADD_S = 20.0
"""How long it is tried to add. With a caller's wait at a desk this is less than the server remembers message ids."""
MOST_IN_TURN = 128
"""Jobs of one turn that are added by one step. The next ones are made while these are on their way."""
STILL_S = 10.0
"""A process that stood still for longer may hold adds that their callers have made elsewhere since."""


class Adding:
    """Adds jobs of all topics. Many callers may use it at once. `admit` raises the reason why nothing can be added."""

    def __init__(
        self,
        *,
        store: JobStore,
        topics: Topics,
        copies: Copies,
        clock: Clock,
        admit: Callable[[str], None],
        stood_still_s: Callable[[], float] = lambda: 0.0,
        bounds: WorkBounds,
    ) -> None:
        self._store = store
        self._topics = topics
        self._copies = copies
        self._clock = clock
        self._admit = admit
        self._stood_still_s = stood_still_s
        self._bounds = bounds
        self._quota = Quota(self.waiting)
        self._carriers = Carriers(Disconnected, lambda why: OutcomeUnknown(why, subject="jobs"))
        self._turns = Turns(self._carriers, self._add_turn, most_size=lambda: MOST_JOBS, most=MOST_IN_TURN)

    async def close(self) -> None:
        """End what is still being added."""
        await self._carriers.close()

    async def add_one(
        self, job: NewJob, *, first: FirstTry = FIRST, trace_s: int = KEPT_MS // 1000
    ) -> Added | NotAdded:
        """Do as `add`, together with others of the same turn of the loop. Each has its own answer."""
        if traces.is_on:
            [job] = _in_current_span([job])
        made = self._plain(job, trace_s) if first is FIRST else None
        until_s = monotonic_s() + ADD_S
        if made is None or (sent := self._store.start_add(made, until_s=until_s)) is None:
            return await self._turns.call(job, size=1, kind=(first, trace_s))
        move, answered = sent
        outcome = await answered
        if type(outcome) is Receipt and not outcome.is_duplicate:
            state = self._store.added(made, outcome)
            return Added(topic=made.topic, id=made.id, state=state, due_ms=made.due_ms)
        ended = await self._store.end_add(made, job.on_same, move, outcome, until_s=until_s)
        if isinstance(ended, Stored) and ended.has_replaced:
            await self._drop_replaced([(made.topic, ended.key)])
        return added_of(made, ended)

    def _plain(self, new: NewJob, trace_s: int) -> JobRecord | None:
        """Return a job that can be sent at once, as most can. None: `add` has to look at more, or says why not."""
        self._admit("jobs")
        if self._carriers.is_closed or self.standstill():
            return None
        try:
            job = self._make(new, self._clock.now_ms(), trace_s)
        except BadJob:
            return None
        is_known = self._topics.is_enlisted(job.topic, job.priority)
        return job if is_known and not self._topics.current(job.topic).most_waiting else None

    async def _add_turn(self, kind: tuple[FirstTry, int], jobs: Sequence[NewJob]) -> Sequence[Added | NotAdded]:
        first, trace_s = kind
        return await self.add(jobs, first=first, trace_s=trace_s)

    async def add(
        self, jobs: Sequence[NewJob], *, first: FirstTry = FIRST, trace_s: int = KEPT_MS // 1000
    ) -> builtins.list[Added | NotAdded]:
        """Add jobs. Return the result of each, in order. A refused job does not stop the others.

        They are stored by the time of the answer. A repeat is known by its nonce. A job without a nonce is an add of
        its own. `first`: when the caller first requested this. `trace_s`: how many seconds after the job's end an add
        with the caller's own nonce is still known. Raises BadJob for more than 1,000 of them.
        """
        if len(jobs) > MOST_JOBS:
            raise BadJob("jobs", len(jobs), "are too many for one call", f"send at most {MOST_JOBS}")
        self._admit("jobs")
        until_s = monotonic_s() + ADD_S
        if traces.is_on:
            jobs = _in_current_span(jobs)
        if still := self.standstill():
            return [_too_old(job, still) for job in jobs]
        now_ms = self._clock.now_ms()
        tried = [self._made(job, now_ms, trace_s) for job in jobs]
        made = await self._with_topics(
            [await self._expired(job, first) if isinstance(job, ExpiredJob) else job for job in tried]
        )
        answers = await self._within_quotas(jobs, made)
        todo: builtins.list[tuple[int, JobRecord]] = []
        for at, job in enumerate(made):
            if isinstance(job, JobRecord) and answers[at] is None:
                todo.append((at, job))
        adds = [(job, jobs[at].on_same) for at, job in todo]
        outcomes = await self._store.add_many(adds, until_s=until_s, first=first)
        replaced: builtins.list[tuple[str, str]] = []
        for (at, job), outcome in zip(todo, outcomes, strict=True):
            if isinstance(outcome, Stored) and outcome.has_replaced:
                replaced.append((job.topic, outcome.key))
            answers[at] = added_of(job, outcome)
        if replaced:
            await self._drop_replaced(replaced)
        return [answer for answer in answers if answer is not None]

    def standstill(self) -> str:
        """Return why adds that this process has read may be old: it stood still. Empty: it did not."""
        still_s = self._stood_still_s()
        return f"this process stood still for {still_s:.0f} s" if still_s > STILL_S else ""

    async def _with_topics(self, made: builtins.list[JobRecord | NotAdded]) -> builtins.list[JobRecord | NotAdded]:
        """Make sure that the topics of the jobs are known, and return the jobs. A topic that cannot be made refuses its
        own jobs. Raises its error if that is all of them."""
        lanes = dict.fromkeys((job.topic, job.priority) for job in made if isinstance(job, JobRecord))
        failures: dict[tuple[str, Priority], StreamError] = {}
        for lane in lanes:
            try:
                await self._topics.enlist(*lane)
            except StreamError as error:
                failures[lane] = error
        if not failures:
            return made
        if len(failures) == len(lanes):
            raise failures[next(iter(failures))]
        return [
            not_added(job, failures[lane])
            if isinstance(job, JobRecord) and (lane := (job.topic, job.priority)) in failures
            else job
            for job in made
        ]

    async def _drop_replaced(self, replaced: Sequence[tuple[str, str]]) -> None:
        async def drop(topic: str, key: str) -> None:
            with suppress(StreamError):  # the job is added, and the end of the old one is refused
                await self._copies.drop(topic, key)

        async with anyio.create_task_group() as drops:
            for one in replaced:
                drops.start_soon(drop, *one)

    def _made(self, new: NewJob, now_ms: int, trace_s: int) -> JobRecord | NotAdded | ExpiredJob:
        try:
            job = self._make(new, now_ms, trace_s)
        except ExpiredJob as error:
            return error
        except BadJob as error:
            return NotAdded(
                code="bad", reason=str(error), topic=shown_of(new.topic), id=shown_of(new.id), field=error.field
            )
        if not self._topics.has_room(job.topic):
            reason = (
                f"topic {job.topic} would be one too many: an installation has at most {MOST_IN_ALL:,}; use another"
            )
            return NotAdded(code="quota", reason=reason, topic=job.topic, id=job.id, field="topic")
        return job

    async def _expired(self, error: ExpiredJob, first: FirstTry) -> JobRecord | NotAdded:
        """Return the job if an earlier try of its add is known, else the answer."""
        job = error.job
        if await self._is_repeat(job):
            return job
        is_unknown = first.age_s > 0 and not job.trace_s  # a job that is over may have left no trace
        code: Code = "unknown" if is_unknown else "bad"
        why = "; an earlier try may have added it" if is_unknown else ""
        return NotAdded(code=code, reason=f"{error}{why}", topic=job.topic, id=job.id, field=error.field)

    def _make(self, new: NewJob, now_ms: int, trace_s: int) -> JobRecord:
        """Return the job. Raises BadJob, ExpiredJob."""
        settings = self._topics.current(str(new.topic))
        job_id = "" if new.id else named_nonce(str(new.topic), new.nonce) if new.nonce else fresh_hex()
        nonce = "" if new.nonce else fresh_nonce()
        job = make_job(new, settings, now_ms=now_ms, fresh_id=job_id, fresh_nonce=nonce, trace_s=trace_s)
        check_depth(job.body)
        self._check_region(job, settings)
        return job

    def _check_region(self, job: JobRecord, settings: TopicSettings) -> None:
        """Raise BadJob for a job whose region belongs to another zone than that of its topic."""
        if settings.region_key:
            region = key_reader(settings.region_key)(bytes(job.body))
            why = self._bounds.stray(f"topic {job.topic}", region, settings.zone)
            if why:
                raise BadJob("body", region, f"may not be here: {why}", "add it in its zone")

    async def _is_repeat(self, job: JobRecord) -> bool:
        """Return whether an earlier try of this add is known."""
        found = await self._store.find_key(job.topic, token_of(job.id))
        return found is not None and found.known is not None and is_same_add(job, found.known)

    async def _within_quotas(
        self, jobs: Sequence[NewJob], made: Sequence[JobRecord | NotAdded]
    ) -> builtins.list[Added | NotAdded | None]:
        """Return the answers to the jobs that are refused already, None for the others."""
        answers: builtins.list[Added | NotAdded | None] = [None if isinstance(job, JobRecord) else job for job in made]
        rooms: dict[str, int] = {}
        for at, job in enumerate(made):
            if not isinstance(job, JobRecord) or not (most := self._topics.current(job.topic).most_waiting):
                continue
            if job.topic not in rooms:
                rooms[job.topic] = await self._quota.room(job.topic, most)
            if rooms[job.topic] > 0:
                rooms[job.topic] -= 1
                self._quota.added(job.topic, 1)
            elif not await self._adds_none(jobs[at], job):
                reason = f"topic {job.topic} has {most} jobs waiting, as many as it may; add it later"
                answers[at] = NotAdded(code="quota", reason=reason, topic=job.topic, id=job.id)
        return answers

    async def adds_none(self, new: NewJob) -> bool:
        """Return whether an add of this job makes no job more: it is a repeat, it keeps the job that is there or takes
        its place, or it is bad."""
        made = self._made(new, self._clock.now_ms(), 0)
        if isinstance(made, ExpiredJob):
            made = await self._expired(made, FIRST)
        return isinstance(made, NotAdded) or await self._adds_none(new, made)

    async def _adds_none(self, new: NewJob, job: JobRecord) -> bool:
        found = await self._store.find_key(job.topic, token_of(job.id))
        if found is None or found.known is None:
            return False
        if new.on_same == "replace" and found.state in ("delayed", "ready"):
            return True
        return is_same_add(job, found.known) or (new.on_same == "keep" and found.job is not None)

    async def waiting(self, topic: str) -> int:
        """Return how many jobs of the topic are delayed or ready."""
        counts = await self._store.count(topic)
        return counts.delayed + counts.ready


def _in_current_span(jobs: Sequence[NewJob]) -> builtins.list[NewJob]:
    """Return the jobs as added by the current span, but for those that name one."""
    current = traces.current()
    return [job if job.traceparent or not current else replace(job, traceparent=current) for job in jobs]


def _too_old(job: NewJob, still: str) -> NotAdded:
    reason = f"{still}, and the job may have been added elsewhere since"
    return NotAdded(code="unknown", reason=reason, topic=shown_of(job.topic), id=shown_of(job.id))
