"""What a node says to the store of the jobs that it holds by a delivery.

Every move is conditional on the message that was delivered: a job that was deleted, or that somebody else has moved on
since, stays as it is. What cannot be said now (no link, a full disk) stays unsaid: the ack wait gives the job to
somebody.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence
from typing import Literal, NamedTuple

from msgspec.structs import replace

from actors.jobs.deliveries import FailedAttempt, PutOff
from actors.jobs.store import JobStore
from actors.runtime.actor import FATAL
from actors.runtime.logs import fields
from streams.errors import MalformedMessage, StreamError
from streams.messages.jobs import JobRecord
from streams.pull.delivery import Delivery

log = logging.getLogger(__name__)

_OUTCOMES: tuple[Literal["buried", "expired"], ...] = ("buried", "expired")


class Tried(NamedTuple):
    """A job whose attempt has failed. `attempt`: its number, used up now."""

    delivery: Delivery
    record: JobRecord
    attempt: int
    reason: str

    @property
    def used_up(self) -> JobRecord:
        return replace(self.record, attempts=self.attempt)


class Unfit(NamedTuple):
    """A delivery that must not run. `record` is None if it is no job."""

    delivery: Delivery
    record: JobRecord | None
    used_up: int
    reason: str
    is_expired: bool = False

    @property
    def spent(self) -> JobRecord:
        """The job, with what is used up. Not for what is none."""
        assert self.record is not None
        return replace(self.record, attempts=self.used_up)


class Settling:
    """Shared by the topics of a node. Raises FATAL errors. Other errors are logged, and the jobs are let go."""

    def __init__(self, store: JobStore, *, node: str) -> None:
        self._store = store
        self.whose = store.whose
        self.may_be_over = store.may_be_over
        self._node = node

    async def is_there(self, delivery: Delivery) -> bool:
        """Return whether the delivered message is still the job's last one. False if that cannot be known."""
        try:
            return (await self.whose([delivery]))[delivery] == "ours"
        except FATAL:
            raise
        except StreamError:
            return False

    async def finish(
        self, ended: Sequence[tuple[Delivery, JobRecord]], remember_s: int, *, is_needed: bool = True
    ) -> None:
        """Leave a record of the end, then acknowledge. `remember_s`: how long the ids stay taken.
        If not `is_needed`, what cannot be written down is acknowledged all the same."""
        await self._say(
            [one for one, _ in ended], self._store.finish_deliveries(ended, remember_s=remember_s, is_needed=is_needed)
        )

    async def again(self, tried: Sequence[tuple[Tried, int]]) -> None:
        """Have each come again after its delay in milliseconds."""
        moves = [FailedAttempt(one.delivery, one.used_up, delay_ms, one.reason) for one, delay_ms in tried]
        await self._say([one.delivery for one, _ in tried], self._store.retry_deliveries(moves, node=self._node))

    async def bury(self, tried: Sequence[Tried]) -> None:
        """Make each a dead letter."""
        moves = [(one.delivery, one.used_up, one.reason) for one in tried]
        buried = self._store.bury_deliveries(moves, node=self._node, until_known=True)
        await self._say([one.delivery for one in tried], buried)

    async def set_aside(self, unfit: Sequence[Unfit]) -> None:
        """End what must not be run."""
        for one in unfit:
            log.error("job.set_aside", extra=fields(subject=one.delivery.subject, reason=one.reason))
            if one.record is None:
                await self._store.bury_malformed(one.delivery, MalformedMessage(one.reason))
        for outcome in _OUTCOMES:
            some = [one for one in unfit if one.record is not None and one.is_expired == (outcome == "expired")]
            moves = [(one.delivery, one.spent, one.reason) for one in some]
            if moves:
                ended = self._store.bury_deliveries(moves, outcome=outcome, until_known=True)
                await self._say([one.delivery for one in some], ended)

    async def give_back(self, unstarted: Sequence[tuple[Delivery, JobRecord]]) -> None:
        """Have each ready again for anybody, as if it had not been handed out."""
        await self._say([delivery for delivery, _ in unstarted], self._store.give_back(unstarted))

    async def put_off(self, unstarted: Sequence[PutOff]) -> None:
        """Have each ready again for anybody after its delay, as if it had not been handed out."""
        await self._say([one.delivery for one in unstarted], self._store.put_off(unstarted))

    async def end(self, ended: Sequence[tuple[Delivery, JobRecord]], outcome: Literal["dropped", "cancelled"]) -> None:
        """End what has no free slot, or had to give its slot up."""
        await self._say([delivery for delivery, _ in ended], self._store.end_deliveries(ended, outcome))

    async def _say(self, deliveries: Sequence[Delivery], move: Awaitable[Sequence[bool | StreamError]]) -> None:
        try:
            answers = await move
        except FATAL:
            raise
        except StreamError as error:
            answers = [error] * len(deliveries)
        for delivery, answer in zip(deliveries, answers, strict=True):
            if isinstance(answer, StreamError):
                log.warning("job.not_settled", extra=fields(subject=delivery.subject, error=str(answer)))
            delivery.forget()  # unless it is settled
