"""Ready jobs, reserved: handed out for at most their TTR (reservations.py has them settled).

What is used up or expired is not handed out: it becomes a dead letter, and is told beside the reservations. What is
no job at all becomes a dead letter too.

A process that holds jobs for itself may hand one out by its delivery alone, and write the reservation down later
(actors/jobs/unwritten.py). Then the sequence of the ready message is the fence until that.
"""

import logging
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

import anyio
from msgspec.structs import replace

from actors.jobs.deliveries import JobDeliveries
from actors.jobs.rules.job_receipt import JobReceipt
from actors.jobs.rules.job_rules import RESERVED_SLACK_MS, came_back
from actors.jobs.stream import NEAR_MS, JobStream, is_doubtful, key_of, used_up
from actors.runtime.failpoints import reach
from actors.runtime.logs import fields
from streams.errors import MalformedMessage, RevisionConflict, StreamError
from streams.jobs.moves import Move
from streams.messages.jobs import JobRecord, Outcome, decode_job, encode_job
from streams.pull.delivery import Delivery, ack_all

log = logging.getLogger(__name__)


class JobReservation(NamedTuple):
    """A job handed out. `job`: as it is stored, with this attempt counted. `text`: the receipt's."""

    receipt: JobReceipt
    job: JobRecord
    text: str


class Handed(NamedTuple):
    """Outcomes of deliveries: handed out, or set aside. All are settled. Settlements that the broker did not take
    come again after the ack wait."""

    reservations: list[JobReservation]
    buried: list[JobRecord]
    expired: list[JobRecord]
    failures: list[StreamError]


class JobReserves:
    """Reserves deliveries of ready jobs."""

    def __init__(self, jobs: JobStream, deliveries: JobDeliveries) -> None:
        self._jobs = jobs
        self._deliveries = deliveries

    async def reserve_many(
        self,
        deliveries: Sequence[Delivery],
        *,
        ttr_ms: int | None = None,
        holder: str = "",
        counts_deliveries: bool = False,
    ) -> Handed:
        """Reserve the delivered jobs, each for its own TTR unless one is given. Settle every delivery.

        A job that was deleted, finished or reserved meanwhile is left out. `counts_deliveries`: each delivery before
        this one was an attempt, as where others hold jobs by their deliveries. The last attempt is nobody's so."""
        jobs = self._jobs
        # the server may replace it by a copy of its own, and refuses this then
        if any(is_doubtful(one, jobs.connection, jobs.clock) for one in deliveries):
            await anyio.sleep(NEAR_MS / 1000)
        deliveries = await self._without_over(deliveries)
        now_ms = self._jobs.clock.now_ms()
        handed = Handed([], [], [], [])
        fit: list[tuple[Delivery, JobRecord, Move]] = []
        unfit: list[tuple[Delivery, JobRecord, str, Outcome]] = []
        marks = secrets.token_hex(6 * len(deliveries))
        for at, delivery in enumerate(deliveries):
            try:
                job = came_back(decode_job(delivery.payload))
            except MalformedMessage as error:
                await self._deliveries.bury_malformed(delivery, error)
                continue
            if counts_deliveries and delivery.delivered > 1:
                most = max(job.attempts, job.most_attempts - 1)
                job = replace(job, attempts=min(most, used_up(job, delivery, jobs.connection, jobs.clock)))
            if job.expires_ms and now_ms >= job.expires_ms:
                unfit.append((delivery, job, "it was not started in time", "expired"))
            elif job.attempts >= job.most_attempts:
                unfit.append((delivery, job, f"{job.attempts} attempts are used up", "buried"))
            else:
                mark = marks[12 * at : 12 * at + 12]
                held = _held(job, now_ms, job.ttr_ms if ttr_ms is None else ttr_ms, holder, mark)
                fit.append((delivery, held, self._reservation(delivery, held)))
        await self._reserve(fit, handed)
        await self._set_aside(unfit, handed)
        return handed

    async def _without_over(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Acknowledge what a crashed server fired though it is over, and return the others. What cannot be looked up is
        handed out."""
        if not any(map(self._deliveries.may_be_over, deliveries)):
            return deliveries
        try:
            over = await self._deliveries.over_of(deliveries)
        except StreamError as error:
            log.warning("jobs.not_looked_up", extra=fields(jobs=len(deliveries), error=str(error)))
            return deliveries
        for delivery in over:
            await delivery.ack()
        return [delivery for delivery in deliveries if delivery not in over]

    def _reservation(self, delivery: Delivery, job: JobRecord) -> Move:
        ready = delivery.subject
        key = ready[ready.rindex(".") + 1 :]
        subject, thing = self._jobs.subject("reserved", job.topic, key), self._jobs.subject("*", job.topic, key)
        return Move(
            subject, encode_job(job), thing, delivery.seq, due_ms=job.until_ms + RESERVED_SLACK_MS, target=ready
        )

    async def _reserve(self, fit: list[tuple[Delivery, JobRecord, Move]], handed: Handed) -> None:
        outcomes = await self._jobs.move_many([move for _, _, move in fit])
        reach("job.reserve")
        refused = [fit[at][0] for at, outcome in enumerate(outcomes) if isinstance(outcome, RevisionConflict)]
        if refused:
            with suppress(StreamError):
                for delivery in await self._deliveries.covered_of(refused):
                    delivery.forget()
        now_ms = self._jobs.clock.now_ms()
        for (delivery, job, _), outcome in zip(fit, outcomes, strict=True):
            if isinstance(outcome, int):
                if now_ms < job.until_ms:  # else the answer took so long that it comes back
                    handed.reservations.append(_reservation_of(delivery, job, outcome))
            elif not isinstance(outcome, RevisionConflict):
                handed.failures.append(outcome)
        ack_moved([delivery for delivery, _, _ in fit], outcomes)
        reach("job.hold")

    async def _set_aside(self, unfit: list[tuple[Delivery, JobRecord, str, Outcome]], handed: Handed) -> None:
        ends: tuple[tuple[Literal["buried", "expired"], list[JobRecord]], ...]
        ends = (("buried", handed.buried), ("expired", handed.expired))
        for outcome, told in ends:
            these = [(delivery, job, reason) for delivery, job, reason, end in unfit if end == outcome]
            if these:
                answers = await self._deliveries.bury_deliveries(these, outcome=outcome)
                told += [job for (_, job, _), answer in zip(these, answers, strict=True) if answer is True]
                handed.failures.extend(answer for answer in answers if isinstance(answer, StreamError))

    def by_delivery(
        self, delivery: Delivery, job: JobRecord, *, ttr_ms: int | None, holder: str, mark: str, now_ms: int
    ) -> JobReservation:
        """Return the reservation of a delivered job that is not written down."""
        held = _held(job, now_ms, job.ttr_ms if ttr_ms is None else ttr_ms, holder, mark)
        return _reservation_of(delivery, held, delivery.seq)

    async def write_down(self, held: Sequence[tuple[Delivery, JobReservation]]) -> list[JobReceipt | StreamError]:
        """Write reservations down. Return for each the receipt with its new fence. Settles the deliveries, but for
        those whose outcome is not known."""
        moves = [self._reservation(delivery, reservation.job) for delivery, reservation in held]
        outcomes = await self._jobs.move_many(moves)
        reach("job.reserve")
        ack_moved([delivery for delivery, _ in held], outcomes)
        return [
            reservation.receipt._replace(seq=outcome) if isinstance(outcome, int) else outcome
            for (_, reservation), outcome in zip(held, outcomes, strict=True)
        ]


def _reservation_of(delivery: Delivery, job: JobRecord, seq: int) -> JobReservation:
    is_plain = not job.past and not job.trace_s
    receipt = JobReceipt(job.topic, key_of(delivery), seq, job.until_ms, job.receipt, job.nonce if is_plain else "")
    return JobReservation(receipt, job, str(receipt))


def ack_moved(deliveries: Sequence[Delivery], outcomes: Sequence[int | StreamError]) -> None:
    """Acknowledge what has moved. What may not have comes again."""
    with suppress(StreamError):  # what is not acked is delivered again, and refused then
        moved = zip(deliveries, outcomes, strict=True)
        ack_all([delivery for delivery, outcome in moved if isinstance(outcome, int | RevisionConflict)])
    for delivery in deliveries:
        delivery.forget()  # unless it is settled


def _held(job: JobRecord, now_ms: int, ttr_ms: int, holder: str, mark: str) -> JobRecord:
    """Return the job as it is handed out now."""
    return replace(
        job,
        attempts=job.attempts + 1,
        first_ms=job.first_ms or now_ms,
        holder=holder,
        until_ms=now_ms + ttr_ms,
        receipt=mark,
        spread_ms=0,
    )
