"""Reserved jobs, settled by receipt.

A reservation is the job's message on `jobs.reserved…`, which the server puts back to ready some time after the TTR's
end. Its sequence is the fence: a touch, a release, a finish names it, and of two that meet one is refused. A receipt
counts until shortly after the TTR's end, even when the server has not looked yet (`STALE_AFTER_MS`): what is settled
later could meet the putting back.

A repeat of a finish by the same receipt answers as the first did, as long as the end is known.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import anyio
from msgspec.structs import replace

from actors.jobs.dead_letters import Burial, write_dead_letters
from actors.jobs.deliveries import JobDeliveries
from actors.jobs.reads import Found, JobReads
from actors.jobs.reserves import JobReservation, ack_moved
from actors.jobs.rules.job_receipt import JobReceipt, hold_of
from actors.jobs.rules.job_rules import (
    FORGOTTEN_MS,
    RESERVED_SLACK_MS,
    STALE_AFTER_MS,
    TRACE_MS,
    fires_of,
    freed_ms,
    given_back,
    kept_s,
    left_early,
    marked,
    noted,
    past_of,
)
from actors.jobs.stream import PAUSES_S, JobStream
from actors.runtime.failpoints import reach
from streams.errors import OutcomeUnknown, RevisionConflict, StreamError
from streams.jobs.moves import Move
from streams.messages.jobs import (
    FREE_TOKEN,
    RESERVED_TOKENS,
    JobDone,
    JobRecord,
    Outcome,
    Past,
    encode_job,
)
from streams.pull.delivery import Delivery
from streams.subjects import is_hashed

log = logging.getLogger(__name__)

BURIED_S = 3_600
"""How long the id of a buried or expired job stays known."""


class JobSettled(NamedTuple):
    """A reservation was settled, or held on to until `until_ms`."""

    topic: str
    key: str
    until_ms: int = 0


class JobStale(NamedTuple):
    """The receipt holds nothing any more, and why."""

    topic: str
    key: str
    reason: str


_Answer = JobSettled | JobStale | StreamError
_Decide = Callable[[Found, JobRecord, JobReceipt, int], Move]


class JobReservations:
    """Settles reservations by their receipts."""

    def __init__(self, jobs: JobStream, reads: JobReads, deliveries: JobDeliveries) -> None:
        self._jobs = jobs
        self._reads = reads
        self._deliveries = deliveries

    async def finish_delivered(
        self, held: Sequence[tuple[Delivery, JobReservation, JobRecord]], *, remember_s: int
    ) -> list[_Answer]:
        """Do as `finish_many` with reservations that are not written down. The job is as it was delivered."""
        now_ms = self._jobs.clock.now_ms()
        moves: list[Move] = []
        for _, (receipt, begun, _), job in held:
            past = past_of(job, now_ms=now_ms, remember_s=remember_s)
            found = Found("ready", receipt.topic, receipt.key, receipt.seq, 0, "", begun)
            moves.append(self._end(receipt, found, now_ms, "finished", past, remember_s=remember_s, job_id=job.id))
        outcomes = await self._jobs.move_many(moves)
        reach("job.finish")
        ack_moved([delivery for delivery, _, _ in held], outcomes)
        answers: list[_Answer] = []
        for (_, (receipt, _, _), _), outcome in zip(held, outcomes, strict=True):
            if isinstance(outcome, int):
                answers.append(JobSettled(receipt.topic, receipt.key))
            elif isinstance(outcome, RevisionConflict):  # deleted or replaced, or it met its own first try
                is_doubtful = outcome.is_after_retry
                finish = self._finish_by(remember_s)
                answers.append(await self._settle_one(receipt, finish, end="finished", is_doubtful=is_doubtful))
            else:
                answers.append(outcome)
        return answers

    async def finish_many(self, receipts: Sequence[JobReceipt], *, remember_s: int) -> list[_Answer]:
        """End jobs. With `remember_s` their ids stay taken for so many seconds. None: they are free at once."""
        now_ms = self._jobs.clock.now_ms()
        answers: list[_Answer | None] = [None] * len(receipts)
        fresh = [
            at
            for at, receipt in enumerate(receipts)
            if receipt.nonce
            and now_ms <= receipt.until_ms + STALE_AFTER_MS
            and not (remember_s and is_hashed(receipt.key))  # then the job is read, for its id is shown
        ]
        moves = [self._finish_untouched(receipts[at], now_ms, remember_s) for at in fresh]
        outcomes = await self._jobs.move_many(moves)
        reach("job.finish")
        doubtful: set[int] = set()
        for at, outcome in zip(fresh, outcomes, strict=True):
            if isinstance(outcome, int):
                answers[at] = JobSettled(receipts[at].topic, receipts[at].key)
            elif not isinstance(outcome, RevisionConflict):
                answers[at] = outcome
            elif outcome.is_after_retry:
                doubtful.add(at)

        finish = self._finish_by(remember_s)
        left = [at for at, answer in enumerate(answers) if answer is None]  # touched meanwhile, repeated, or stale
        for at in left:
            answers[at] = await self._settle_one(receipts[at], finish, end="finished", is_doubtful=at in doubtful)
        return [answer for answer in answers if answer is not None]

    async def finish_named(self, receipt: JobReceipt, *, remember_s: int, nonce: str, trace_ms: int) -> _Answer:
        """Do as `finish_many` with the receipt of a finish by the id, which is known under `nonce` for `trace_ms`."""
        return await self._settle_one(receipt, self._finish_by(remember_s, nonce, trace_ms), end="finished")

    def _finish_by(self, remember_s: int, nonce: str = "", trace_ms: int = 0) -> _Decide:
        def finish(found: Found, job: JobRecord, receipt: JobReceipt, at_ms: int) -> Move:
            past = marked(past_of(job, now_ms=at_ms, remember_s=remember_s), (nonce, at_ms + trace_ms))
            return self._end(receipt, found, at_ms, "finished", past, remember_s=remember_s, job_id=job.id)

        return finish

    async def touch_many(self, receipts: Sequence[JobReceipt], *, ttr_ms: int | None = None) -> list[_Answer]:
        """Begin the TTR anew, the job's own unless told otherwise. The receipts stay what they are."""

        def renew(found: Found, job: JobRecord, receipt: JobReceipt, at_ms: int) -> Move:
            held = replace(job, until_ms=at_ms + (job.ttr_ms if ttr_ms is None else ttr_ms))
            held = left_early(held, fires_ms=found.fires_ms, now_ms=at_ms)
            thing, ready = self._jobs.subject("*", job.topic, found.key), self._jobs.ready(job, found.key)
            subject = self._jobs.other(found.subject)
            return Move(
                subject,
                encode_job(held),
                thing,
                found.seq,
                found.subject,
                fires_of(held),
                ready,
                fires_ms=found.fires_ms,
            )

        return await self._settle_many(receipts, renew)

    async def release_many(
        self,
        receipts: Sequence[JobReceipt],
        *,
        delay_ms: int | Callable[[JobRecord], int] = 0,
        counts: bool = False,
        reason: str = "",
    ) -> list[_Answer]:
        """Give jobs back, to be handed out again after `delay_ms`, which may be a function of the job. `counts`: an
        attempt was used up. After the last one the job is buried."""

        def give_back(found: Found, job: JobRecord, receipt: JobReceipt, at_ms: int) -> Move:
            wait_ms = delay_ms if isinstance(delay_ms, int) else delay_ms(job)
            free = replace(given_back(job, counts=counts, at_ms=at_ms, reason=reason), due_ms=at_ms + wait_ms)
            return self._jobs.placed(
                free, expected=found.seq, now_ms=at_ms, leaves=found.subject, fires_ms=found.fires_ms
            )

        is_last = (lambda job: job.attempts >= job.most_attempts) if counts else None
        end: Outcome | None = "buried" if counts else None
        return await self._settle_many(receipts, give_back, end=end, bury_if=is_last, reason=reason or "given back")

    async def bury_many(self, receipts: Sequence[JobReceipt], *, reason: str) -> list[_Answer]:
        """Make jobs dead letters, with their history."""
        return await self._settle_many(
            receipts, self._end_buried, end="buried", bury_if=lambda job: True, reason=reason
        )

    async def _settle_many(
        self,
        receipts: Sequence[JobReceipt],
        decide: _Decide,
        *,
        end: Outcome | None = None,
        bury_if: Callable[[JobRecord], bool] | None = None,
        reason: str = "",
    ) -> list[_Answer]:
        """Read all jobs at once and move them. Jobs that have moved on meanwhile are read one by one."""
        try:
            found = await self._reads.find_many([(receipt.topic, receipt.key) for receipt in receipts])
        except StreamError as error:
            return [error for _ in receipts]
        now_ms = self._jobs.clock.now_ms()
        easy: list[tuple[int, Move]] = []
        for at, receipt in enumerate(receipts):
            one = found.get((receipt.topic, receipt.key))
            job = _held_by(one, receipt, now_ms)
            if one is not None and job is not None and not (bury_if and bury_if(job)):
                easy.append((at, decide(one, job, receipt, now_ms)))
        answers: dict[int, _Answer] = {}
        outcomes = await self._jobs.move_many([move for _, move in easy])
        reach("job.settle")
        doubtful: set[int] = set()
        for (at, move), outcome in zip(easy, outcomes, strict=True):
            if not isinstance(outcome, RevisionConflict):
                answers[at] = outcome if isinstance(outcome, StreamError) else _settled(receipts[at], move)
            elif outcome.is_after_retry:
                doubtful.add(at)
        for at, receipt in enumerate(receipts):
            if at not in answers:
                answers[at] = await self._settle_one(
                    receipt, decide, end=end, bury_if=bury_if, reason=reason, is_doubtful=at in doubtful
                )
        return [answers[at] for at in range(len(receipts))]

    async def _settle_one(
        self,
        receipt: JobReceipt,
        decide: _Decide,
        *,
        end: Outcome | None,
        bury_if: Callable[[JobRecord], bool] | None = None,
        reason: str = "",
        is_doubtful: bool = False,
    ) -> _Answer:
        """Look the reservation up as it is and make the move, again if it moves on (a touch) in between.
        `is_doubtful`: a try before this may have been made, and the job have moved on from there."""
        outcome: int | StreamError = RevisionConflict("held no more", subject=receipt.key)
        told: tuple[JobRecord, int] | None = None  # the dead letter that an earlier turn has written
        for pause_s in PAUSES_S:
            await anyio.sleep(pause_s)
            try:
                found = await self._reads.find_key(receipt.topic, receipt.key)
            except StreamError as error:
                return OutcomeUnknown(str(error), subject=receipt.key) if is_doubtful else error
            now_ms = self._jobs.clock.now_ms()
            job = _held_by(found, receipt, now_ms)
            if found is None or job is None:
                answer = _answer_without_hold(found, receipt, end)
                if isinstance(answer, JobSettled) and found is not None and found.done is not None:
                    thing = self._jobs.subject("*", receipt.topic, receipt.key)
                    fires_ms = receipt.until_ms + RESERVED_SLACK_MS
                    ended = Move(found.subject, encode_job(found.done), thing, receipt.seq, fires_ms=fires_ms)
                    stayed = await self._jobs.has_stayed(ended, found.seq, found.stored_ms)
                    if isinstance(stayed, RevisionConflict):
                        return JobStale(receipt.topic, receipt.key, f"its TTR ran out at {receipt.until_ms}")
                    return stayed if isinstance(stayed, StreamError) else answer
                if told is not None:
                    await self._deliveries.take_back(*told)
                if is_doubtful and isinstance(answer, JobStale):
                    return OutcomeUnknown(f"perhaps done, and gone on since: {answer.reason}", subject=receipt.key)
                return answer
            if bury_if is not None and bury_if(job):
                move = self._end_buried(found, job, receipt, now_ms)
                outcome = await self._letter(found, job, reason, now_ms)
                told = (job, outcome) if isinstance(outcome, int) else None
            else:
                move, outcome = decide(found, job, receipt, now_ms), 0
            if isinstance(outcome, int):
                outcome = await self._jobs.move(move)
            if isinstance(outcome, int):
                return _settled(receipt, move)
            if not isinstance(outcome, RevisionConflict):
                return OutcomeUnknown(str(outcome), subject=receipt.key) if is_doubtful else outcome
            is_doubtful = is_doubtful or outcome.is_after_retry
        assert isinstance(outcome, StreamError)
        return OutcomeUnknown(str(outcome), subject=receipt.key) if is_doubtful else outcome

    async def _letter(self, found: Found, job: JobRecord, reason: str, now_ms: int) -> int | StreamError:
        """Write the letter of a job that is ended then: the other way round a crash in between would lose it. Return
        its sequence."""
        told = noted(job, at_ms=now_ms, node=job.holder, reason=reason or "buried")
        jobs = self._jobs
        try:
            (letter,) = await write_dead_letters(
                jobs.connection, jobs.publisher, jobs.namespace, [Burial(told, found.seq, reason)]
            )
        except StreamError as error:
            return error
        reach("job.letter")
        return letter

    def _end_buried(self, found: Found, job: JobRecord, receipt: JobReceipt, at_ms: int) -> Move:
        past = past_of(job, now_ms=at_ms, remember_s=BURIED_S)
        return self._end(receipt, found, at_ms, "buried", past, remember_s=BURIED_S, job_id=job.id)

    def _finish_untouched(self, receipt: JobReceipt, at_ms: int, remember_s: int) -> Move:
        """Return the move of a job that stands where it was reserved. The server refuses it for another job."""
        reserved = self._jobs.subject("reserved", receipt.topic, receipt.key)
        found = Found("reserved", receipt.topic, receipt.key, receipt.seq, 0, reserved)
        fires_ms = receipt.until_ms + RESERVED_SLACK_MS
        known_ms = at_ms + TRACE_MS if remember_s else max(at_ms + TRACE_MS, fires_ms + FORGOTTEN_MS)
        past = ((receipt.nonce, known_ms),)
        return replace(self._end(receipt, found, at_ms, "finished", past, remember_s=remember_s), fires_ms=fires_ms)

    def _end(
        self,
        receipt: JobReceipt,
        found: Found,
        at_ms: int,
        outcome: Outcome,
        past: tuple[Past, ...],
        *,
        remember_s: int,
        job_id: str = "",
    ) -> Move:
        topic, key = receipt.topic, receipt.key
        ttl_s = kept_s(past, now_ms=at_ms, remember_s=remember_s)
        done = JobDone(
            topic=topic,
            id=job_id or key,
            finished_ms=at_ms,
            outcome=outcome,
            receipt=receipt.mark,
            past=past,
            free_ms=freed_ms(now_ms=at_ms, remember_s=remember_s, ttl_s=ttl_s),
            first_ms=found.job.first_ms if found.job else 0,
            added_ms=found.job.added_ms if found.job else 0,
        )
        subject = self._jobs.subject("done" if remember_s else FREE_TOKEN, topic, key)
        thing = self._jobs.subject("*", topic, key)
        return Move(
            subject, encode_job(done), thing, found.seq, leaves=found.subject, ttl_s=ttl_s, fires_ms=found.fires_ms
        )


def _held_by(found: Found | None, receipt: JobReceipt, now_ms: int) -> JobRecord | None:
    """Return the job if it is reserved under this receipt, and its TTR has not passed."""
    job = found.job if found is not None and found.state == "reserved" else None
    if job is None or job.receipt != hold_of(receipt) or now_ms > job.until_ms + STALE_AFTER_MS:
        return None
    return job


def _answer_without_hold(found: Found | None, receipt: JobReceipt, end: Outcome | None) -> _Answer:
    """Return what to tell whose receipt holds nothing. `end`: how the job ends by what was asked, if by that it may:
    then the repeat of an end is answered as the end was."""
    if found is None:
        return JobStale(receipt.topic, receipt.key, "there is no such job any more")
    if found.done is not None:
        if found.done.receipt == receipt.mark and found.done.outcome == end:
            return JobSettled(receipt.topic, receipt.key)
        return JobStale(receipt.topic, receipt.key, "the job is over")
    if found.job is not None and found.job.receipt == hold_of(receipt):
        return JobStale(receipt.topic, receipt.key, f"its TTR ran out at {found.job.until_ms}")
    return JobStale(receipt.topic, receipt.key, f"the job has moved on: it is {found.state}")


def _settled(receipt: JobReceipt, move: Move) -> JobSettled:
    is_held = move.subject.split(".")[2] in RESERVED_TOKENS
    return JobSettled(receipt.topic, receipt.key, move.due_ms - RESERVED_SLACK_MS if is_held else 0)
