"""What becomes of the jobs of a call: finished, tried again, buried, or let go of because they are somebody else's.

A finished job is acknowledged, and that is not waited for: should it get lost with the link it is said once more on the
next one, and should it get lost with the process the job runs again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress

import anyio
from msgspec.structs import replace

from actors.jobs.deliveries import PutOff
from actors.jobs.rules.job_handling import GiveUp, RetryAfter, after_failure
from actors.jobs.rules.job_rules import leaves_trace, was_schedule
from actors.jobs.rules.topic_settings import TopicSettings
from actors.jobs.worker.handler import Handler
from actors.jobs.worker.job import Bury, Job, Retry
from actors.jobs.worker.place import Cut
from actors.jobs.worker.settling import Tried
from actors.jobs.worker.shared import Shared
from actors.runtime.logs import fields
from streams.clock import monotonic_s
from streams.errors import ConnectionLost, Disconnected, MalformedMessage
from streams.messages.jobs import JobRecord, decode_job
from streams.pull.delivery import Delivery
from streams.pull.puller import Puller

log = logging.getLogger(__name__)

MOST_NAMED = 10
"""Jobs that a log line names."""
MOST_REASON = 1_000
AT_ONCE = 512
"""Ends that are written without waiting for one another."""


class Ends:
    """Settles the calls of one topic's handler, by its `settings`."""

    def __init__(self, handler: Handler, shared: Shared, pullers: Collection[Puller]) -> None:
        self.settings = TopicSettings()
        self._handler = handler
        self._connection = shared.connection
        self._clock = shared.clock
        self._hold = shared.hold
        self._restarts = shared.restarts
        self._settling = shared.settling
        self._chance = shared.chance
        self._pullers = pullers
        self._counts: Counter[str] = Counter()
        self._has_told_result = False
        self._fired: list[tuple[Delivery, JobRecord]] = []
        self._has_fired = anyio.Event()
        self._writing = anyio.Lock()

    def count(self, outcome: str, jobs: int) -> None:
        self._counts[outcome] += jobs

    def take_counts(self) -> Counter[str]:
        """Return how many jobs ended since the last time, by outcome."""
        counts, self._counts = self._counts, Counter()
        return counts

    async def settle(self, jobs: list[Job], result: object, error: BaseException | None, cut: Cut | None) -> None:
        """Take the end of a call: finish its jobs, have them tried again, or bury them. Raises FATAL errors."""
        if result is not None and not self._has_told_result:
            self._tell_result(result)
        if cut is not None and cut in ("slot_lost", "replaced") and self._hold.is_sure(monotonic_s()):
            await self._end_cut(jobs, is_lost=cut == "slot_lost")
        elif not self._hold.is_sure(monotonic_s()) or cut == "lost" or (cut is not None and not self._handler.is_async):
            self.count("lost", len(jobs))
            for job in jobs:
                job.delivery.forget()  # they are, or may be, somebody else's
        elif error is None and cut is None and not any(job.answer for job in jobs):
            await self._finish(jobs)
        else:
            await self._settle_each(jobs, error, cut)

    async def _end_cut(self, jobs: Sequence[Job], *, is_lost: bool) -> None:
        """Take the end of a call that lost its slot: its jobs run again, and no attempt is counted. Or of one whose
        slot went to a newer call: its jobs are over."""
        facts = fields(**facts_of(self._handler, jobs), count=len(jobs))
        ended = [(job.delivery, job.record) for job in jobs]
        if is_lost:
            log.warning("job.slot_lost", extra=facts)
            self.count("slot_lost", len(jobs))
            await self._settling.give_back(ended)
        else:
            log.warning("job.cancelled", extra=facts)
            self.count("cancelled", len(jobs))
            await self._settling.end([(job.delivery, self._begun(job)) for job in jobs], "cancelled")

    async def put_off(self, waiting: Sequence[tuple[Delivery, float]]) -> None:
        """Put off jobs without a slot, for so many seconds."""
        now_s = monotonic_s()
        off = [
            PutOff(delivery, replace(record, put_off=record.put_off + 1), round(1000 * delay_s))
            for delivery, delay_s in waiting
            if (record := self._sure_record(delivery, now_s)) is not None
        ]
        if off:
            self.count("put_off", len(off))
            await self._settling.put_off(off)

    async def drop(self, deliveries: Sequence[Delivery]) -> None:
        """End jobs that have no slot: they are dropped."""
        now_s = monotonic_s()
        ended = [(one, record) for one in deliveries if (record := self._sure_record(one, now_s)) is not None]
        if ended:
            ids = [record.id for _, record in ended[:MOST_NAMED]]
            log.warning("job.dropped", extra=fields(topic=self._handler.topic, jobs=ids, count=len(ended)))
            self.count("dropped", len(ended))
            await self._settling.end(ended, "dropped")

    def _sure_record(self, delivery: Delivery, now_s: float) -> JobRecord | None:
        """Return the job. `None`: it may be another node's by now, or is no job, and is left alone."""
        if not delivery.is_settled and self._hold.is_sure(now_s):
            with suppress(MalformedMessage):
                return decode_job(delivery.payload)
        delivery.forget()
        return None

    async def _finish(self, jobs: Sequence[Job]) -> None:
        self.count("finished", len(jobs))
        is_remembered = self.settings.remember_ms is not None
        now_ms = self._clock.now_ms()
        noted = [job for job in jobs if is_remembered or leaves_trace(job.record, now_ms=now_ms)]
        if noted:
            ended = [(job.delivery, self._begun(job)) for job in noted]
            await self._settling.finish(ended, self.settings.remember_s)
            if len(noted) == len(jobs):
                return
        deliveries = [job.delivery for job in jobs if not job.delivery.is_settled]
        self._restarts.finished(deliveries)
        if self._restarts.is_lately:
            deliveries = await self._standing(deliveries)
        if not self._connection.is_clustered:
            records = {job.delivery: job.record for job in jobs if was_schedule(job.record)}
            if records:
                self._fired += [(one, records[one]) for one in deliveries if one in records]
                self._has_fired.set()
                deliveries = [one for one in deliveries if one not in records]
        try:
            if len(deliveries) == 1:
                await deliveries[0].ack()
            else:
                for puller in self._pullers:
                    puller.ack_all(deliveries)
        except (Disconnected, ConnectionLost):
            for delivery in deliveries:
                delivery.forget()  # it is said on the next link

    async def keep_writing(self) -> None:
        """Write down the ends of jobs whose schedule a single server may fire again (ADR 35), many at a time, until
        cancelled. No handler waits for it."""
        while True:
            await self._has_fired.wait()
            self._has_fired = anyio.Event()
            await self.write_all()

    async def write_all(self) -> None:
        """Write what is left, and acknowledge it."""
        async with self._writing:
            while self._fired:
                some, self._fired = self._fired[:AT_ONCE], self._fired[AT_ONCE:]
                if self._hold.is_sure(monotonic_s()):
                    await self._settling.finish(some, 0, is_needed=False)
                for delivery, _ in some:
                    delivery.forget()

    async def _standing(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Let go of what was delivered before the server was started anew and is not there as it was."""
        standing = []
        for delivery in deliveries:
            if self._restarts.is_from_before(delivery) and not await self._settling.is_there(delivery):
                delivery.forget()
            else:
                standing.append(delivery)
        return standing

    async def _settle_each(self, jobs: list[Job], error: BaseException | None, cut: Cut | None) -> None:
        if cut == "overran":
            error = TimeoutError(f"it overran its {jobs[0].call.ttr_s:g} s to run")
        finished, again, buried = [], [], []
        told: dict[tuple[int, bool], list[Job]] = {}  # a list that fails as one is told as one
        for job in jobs:
            answer = job.answer or error
            if answer is None:
                finished.append(job)
                continue
            tried = Tried(job.delivery, self._begun(job), job.attempt, reason_of(answer))
            step = self._step_after(job, answer, tried.reason)
            told.setdefault((id(answer), isinstance(step, GiveUp)), []).append(job)
            if isinstance(step, GiveUp):
                buried.append(tried._replace(reason=step.reason))
            else:
                again.append((tried, step.delay_ms))
        for (_, is_buried), some in told.items():
            self._tell_failure(some, some[0].answer or error, is_buried=is_buried)
        if finished:
            await self._finish(finished)
        if again:
            self.count("failed", len(again))
            await self._settling.again(again)
        if buried:
            self.count("buried", len(buried))
            await self._settling.bury(buried)

    def _begun(self, job: Job) -> JobRecord:
        """Return the job with the time at which it was first handed out."""
        if job.record.first_ms:
            return job.record
        ran_ms = int(1000 * (monotonic_s() - job.call.began_s))
        return replace(job.record, first_ms=self._clock.now_ms() - ran_ms)

    def _step_after(self, job: Job, answer: BaseException, reason: str) -> RetryAfter | GiveUp:
        if isinstance(answer, Bury):
            return GiveUp(reason)
        delay_ms = answer.delay_ms if isinstance(answer, Retry) else None
        chance = self._chance()
        return after_failure(
            job.attempt, job.most_attempts, self.settings.backoff, reason, delay_ms=delay_ms, chance=chance
        )

    def _tell_failure(self, jobs: Sequence[Job], answer: BaseException | None, *, is_buried: bool) -> None:
        assert answer is not None
        trace = None if isinstance(answer, Retry | Bury) else answer
        facts = fields(
            **facts_of(self._handler, jobs), count=len(jobs), attempt=jobs[0].attempt, reason=reason_of(answer)
        )
        if is_buried:
            log.error("job.buried", exc_info=trace, extra=facts)
        else:
            log.warning("job.failed", exc_info=trace, extra=facts)

    def _tell_result(self, result: object) -> None:
        self._has_told_result = True
        do = "what a handler returns is not kept; to fail an attempt, raise"
        log.warning(
            "job.result_ignored", extra=fields(**facts_of(self._handler, []), type=type(result).__name__, do=do)
        )


def facts_of(handler: Handler, jobs: Sequence[Job]) -> dict[str, object]:
    """Return whom a log line is about."""
    return {"topic": handler.topic, "handler": handler.name, "jobs": [job.id for job in jobs[:MOST_NAMED]]}


def reason_of(error: BaseException) -> str:
    """Return what is written down of a failure: somebody else's error may be anything, even one that has no text."""
    try:
        text = str(error)
    except BaseException as broken:  # the border to the user's code
        text = f"(its text cannot be had: {type(broken).__name__})"
    if isinstance(error, Retry | Bury):
        plain = text
    else:
        plain = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return "".join(sign if sign.isprintable() else " " for sign in plain[:MOST_REASON])
