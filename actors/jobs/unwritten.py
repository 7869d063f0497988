"""Jobs that this process has handed out to itself by their deliveries alone, as handlers hold theirs.

Nothing is written when such a job is handed out. If it is finished within a second, its end is one move, on the
condition that the ready message is still the job, and an ack. What is held for longer is written down as an ordinary
reservation, under the mark of its receipt, and is one from then on: its TTR is the server's, and any desk settles it by
the receipt that its holder has. So is what is touched, released or buried. A process that dies before that gives its
jobs back with the consumer's ack wait, and that attempt counts.

What may need the fence of a written reservation is handed out by one from the beginning: on three servers, where a
server's word may come late, what was delivered or held before, was a schedule, or may not run twice, and for a while
after a restart of the server, which may then deliver what it has forgotten to be over (ADR 32, 35). So is what comes
after this process stood still: somebody may have deleted it while it lay in the socket.

The holder relies on the ack wait only for `SURE_S`. What could not be written down by then may be somebody else's.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Sequence

import anyio

from actors.jobs.replies import answer_of
from actors.jobs.reserves import JobReservation
from actors.jobs.rules.job_answers import JobReply
from actors.jobs.rules.job_receipt import JobReceipt, read_receipt
from actors.jobs.rules.job_rules import STALE_AFTER_MS
from actors.jobs.store import JobStore
from actors.jobs.topics import Topics
from actors.runtime.logs import fields
from streams.clock import Clock, monotonic_s
from streams.errors import MalformedMessage, StreamError
from streams.jobs.firing import SCHEDULER, SHOT
from streams.link.connection import Connection
from streams.messages.jobs import JobRecord, decode_job
from streams.pull.delivery import Delivery
from streams.subjects import is_hashed

log = logging.getLogger(__name__)

WRITE_S = 0.7
"""Seconds after which a held job is written down."""
LOOK_S = 0.25
SURE_S = 2.0
"""Seconds for which a delivery is certainly ours. The ack wait is three, and a standstill below one is not noticed."""
LASTS_S = 60.0
"""How long after a restart the server may deliver what it has forgotten (actors/jobs/worker/restarts.py)."""
MOST_LOST = 10_000
"""Receipts that are known as lost, the latest ones."""
CLOCK_MS = 1_000
"""By how much the server's clock may be known wrongly just after a connect."""


class _Held:
    """One job. `job`: as it was delivered. `written`: set while it is written down, then its receipt, or the error."""

    __slots__ = ("delivery", "job", "reservation", "since_s", "written")

    def __init__(self, delivery: Delivery, job: JobRecord, reservation: JobReservation, since_s: float) -> None:
        self.delivery = delivery
        self.job = job
        self.reservation = reservation
        self.since_s = since_s
        self.written: asyncio.Future[JobReceipt | StreamError] | None = None


class Unwritten:
    """The jobs of one process. `stood_still_s()`: how long it stood still just now."""

    def __init__(
        self,
        connection: Connection,
        *,
        store: JobStore,
        topics: Topics,
        clock: Clock,
        stood_still_s: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._store = store
        self._topics = topics
        self._clock = clock
        self._stood_still_s = stood_still_s
        self._held: dict[str, _Held] = {}
        self._not_ours: dict[str, None] = {}
        """Receipts of what could not be written down. The ready message may be in the next holder's hands."""
        self._has_some = anyio.Event()
        self._known, self._known_since_s = "", 0.0

    # ---- what its callers use

    def knows(self, memory: str, age_s: float) -> None:
        """Take from a node for how long it has known the server's memory (`Connection.memory_age_s`)."""
        self._known, self._known_since_s = memory, monotonic_s() - age_s

    def hand_out(
        self, deliveries: Sequence[Delivery], *, ttr_ms: int | None, holder: str
    ) -> tuple[list[JobReservation], list[Delivery]]:
        """Hand jobs out by their deliveries. Return their reservations, and the deliveries for which this must not be
        done."""
        reservations: list[JobReservation] = []
        left: list[Delivery] = []
        now_s, now_ms = monotonic_s(), self._clock.now_ms()
        if self._connection.is_clustered or self._stood_still_s():
            return reservations, list(deliveries)
        known_ms = self._known_ms(now_s, now_ms)
        marks = secrets.token_hex(6 * len(deliveries))
        for at, delivery in enumerate(deliveries):
            job = self._clean(delivery, known_ms, now_ms)
            if job is None:
                left.append(delivery)
                continue
            mark = marks[12 * at : 12 * at + 12]
            reservation = self._store.by_delivery(delivery, job, ttr_ms=ttr_ms, holder=holder, mark=mark, now_ms=now_ms)
            reservations.append(reservation)
            self._held[reservation.text] = _Held(delivery, job, reservation, now_s)
        if reservations:
            self._has_some.set()
        return reservations, left

    def holds(self, receipt: str) -> bool:
        """Return whether the reservation of this receipt is not written down."""
        return receipt in self._held or receipt in self._not_ours

    async def finish(self, receipts: Sequence[str]) -> list[JobReply]:
        """Finish jobs. Return the answer to each. What is written down meanwhile is finished as that."""
        answers: dict[str, JobReply] = {}
        ended: dict[int, list[_Held]] = {}
        written: dict[int, list[str]] = {}
        now_s, now_ms = monotonic_s(), self._clock.now_ms()
        for receipt in dict.fromkeys(receipts):
            remember_s = self._topics.current(receipt.partition(".")[0]).remember_s
            held = self._held.get(receipt)
            if held is None or held.written is not None or (remember_s and is_hashed(held.reservation.receipt.key)):
                written.setdefault(remember_s, []).append(receipt)
                continue
            del self._held[receipt]
            if now_s - held.since_s > SURE_S or now_ms > held.reservation.receipt.until_ms + STALE_AFTER_MS:
                answers[receipt] = self._lost(held)
            else:
                ended.setdefault(remember_s, []).append(held)
        for remember_s, some in ended.items():
            each = [(held.delivery, held.reservation, held.job) for held in some]
            done = await self._store.finish_delivered(each, remember_s=remember_s)
            for (_, reservation, _), outcome in zip(each, done, strict=True):
                answers[reservation.text] = answer_of(reservation.receipt, outcome)
        for remember_s, texts in written.items():
            await self.write_down(texts)
            read = [read_receipt(text)._replace(nonce="") for text in texts]  # their fences are not the reservations'
            outcomes = await self._store.finish_many(read, remember_s=remember_s)
            answers |= zip(texts, map(answer_of, read, outcomes), strict=True)
        return [answers[receipt] for receipt in receipts]

    async def write_down(self, receipts: Iterable[str]) -> None:
        """Write down the reservations that are not. What could not be written is not held any more."""
        await self._write([held for receipt in receipts if (held := self._held.get(receipt)) is not None])

    async def give_back(self, receipts: Iterable[str]) -> set[str]:
        """Give back what nobody has got, and return which. No attempt is counted. What is written down is left."""
        some = [held for receipt in receipts if (held := self._held.get(receipt)) is not None]
        await self._write([held for held in some if held.written is not None])
        some = [held for held in some if held.written is None and self._held.pop(held.reservation.text, None) is held]
        await self._store.give_back([(held.delivery, held.job) for held in some])
        for held in some:
            held.delivery.forget()
        return {held.reservation.text for held in some}

    async def run(self) -> None:
        """Write down what is held for long, until cancelled. Then write down all."""
        try:
            while True:
                await self._has_some.wait()
                self._has_some = anyio.Event()
                while self._held:
                    await anyio.sleep(LOOK_S)
                    now_s = monotonic_s()
                    await self._write([held for held in self._held.values() if now_s - held.since_s > WRITE_S])
        finally:
            with anyio.move_on_after(SURE_S, shield=True):
                await self._write(list(self._held.values()))

    # ---- writing down

    async def _write(self, some: Sequence[_Held]) -> None:
        waiting = [held.written for held in some if held.written is not None]
        fresh = [held for held in some if held.written is None]
        now_s = monotonic_s()
        for held in fresh:
            held.written = asyncio.get_running_loop().create_future()
            if now_s - held.since_s > SURE_S:
                self._became(held, StreamError("its hold was lost"))
        fresh = [held for held in fresh if held.written is not None and not held.written.done()]
        try:
            if fresh:
                receipts = await self._store.write_down([(held.delivery, held.reservation) for held in fresh])
                for held, receipt in zip(fresh, receipts, strict=True):
                    self._became(held, receipt)
        finally:
            for held in fresh:
                if held.written is not None and not held.written.done():
                    self._became(held, StreamError("it was not written down"))
        for other in waiting:
            await asyncio.wait([other])

    def _became(self, held: _Held, outcome: JobReceipt | StreamError) -> None:
        self._held.pop(held.reservation.text, None)
        assert held.written is not None
        held.written.set_result(outcome)
        if isinstance(outcome, StreamError):
            self._let_go(held)
            log.warning(
                "jobs.not_written_down", extra=fields(topic=held.job.topic, job=held.job.id, error=str(outcome))
            )

    def _let_go(self, held: _Held) -> None:
        held.delivery.forget()
        self._not_ours[held.reservation.text] = None
        if len(self._not_ours) > MOST_LOST:
            del self._not_ours[next(iter(self._not_ours))]

    def _lost(self, held: _Held) -> JobReply:
        self._let_go(held)
        reason = "its TTR ran out, or this program lost its hold: it stood still, or the link was down"
        return JobReply(code="stale", reason=reason, topic=held.job.topic)

    # ---- what may be handed out so

    def _clean(self, delivery: Delivery, known_ms: int, now_ms: int) -> JobRecord | None:
        """Return the job, if it may be handed out by its delivery."""
        if delivery.delivered > 1 or delivery.has_header(SCHEDULER) or delivery.has_header(SHOT):
            return None
        if known_ms and delivery.stored_ms <= known_ms:
            return None
        try:
            job = decode_job(delivery.payload)
        except MalformedMessage:
            return None
        is_plain = job.nonce != "" and not (job.receipt or job.past or job.trace_s)
        may_run_again = job.attempts + 1 < job.most_attempts
        return job if is_plain and may_run_again and not 0 < job.expires_ms <= now_ms else None

    def _known_ms(self, now_s: float, now_ms: int) -> int:
        """Return since when the server was certainly not started anew, by its own clock. 0: for long enough."""
        connection = self._connection
        told_s = now_s - self._known_since_s if self._known == connection.memory else 0.0
        age_s = max(connection.memory_age_s, told_s)
        return 0 if age_s > LASTS_S else now_ms - round(1000 * age_s) + CLOCK_MS
