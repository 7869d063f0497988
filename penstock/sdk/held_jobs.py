"""A job that this program holds, and the block that touches, finishes and releases it."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from types import TracebackType
from typing import Any, Protocol, TypeVar

import anyio
import msgspec

from actors.jobs.rules.job_answers import Reserved
from actors.runtime.rules.setting_values import Duration
from actors.runtime.tracing import traces
from penstock.errors import PenstockError, Stale
from streams.clock import monotonic_s
from streams.messages.jobs import LONGEST_REASON

__all__ = ["HeldJob", "ReservationContext"]

_T = TypeVar("_T")
TOUCHES = 3
"""Touches within one TTR. Two of them may be lost."""
SHORTEST_TRY_S = 0.1
GIVE_BACK_S = 2.0


class Settles(Protocol):
    """The methods of the client that a held job calls. See `Jobs`."""

    async def finish(self, job: "HeldJob") -> None: ...
    async def touch(self, job: "HeldJob", ttr: Duration | None = None, *, timeout_s: float | None = None) -> None: ...
    async def release(
        self, job: "HeldJob", *, delay: Duration | None = None, reason: str = "", counts: bool = True
    ) -> None: ...
    async def bury(self, job: "HeldJob", reason: str = "") -> None: ...


class HeldJob:
    """A job that this program holds until its TTR runs out. Settle it once: finish, release or bury."""

    def __init__(self, jobs: Settles, reserved: Reserved, ttr_ms: int | None) -> None:
        """`ttr_ms` replaces the job's own TTR."""
        self._jobs = jobs
        self._reserved = reserved
        self.topic = reserved.topic
        self.id = reserved.id
        self.receipt = reserved.receipt
        self.attempt = reserved.attempt
        """The number of the attempt, from 1."""
        self.most_attempts = reserved.most_attempts
        self.history = reserved.history
        self.priority = reserved.priority
        self.ttr_s = (reserved.ttr_ms if ttr_ms is None else ttr_ms) / 1000
        self.held_until_s = monotonic_s() + self.ttr_s
        """By this process's monotonic clock. A touch moves it."""
        self.is_settled = False

    @property
    def raw(self) -> bytes:
        """The body's JSON."""
        return bytes(self._reserved.body)

    @property
    def body(self) -> Any:
        """The body, decoded."""
        return msgspec.json.decode(self._reserved.body)

    def body_as(self, type_: type[_T]) -> _T:
        """Return the body as a value of this type. Raises msgspec.ValidationError."""
        return msgspec.json.decode(self._reserved.body, type=type_)

    async def finish(self) -> None:
        """Finish the job. Raises Stale if this program no longer holds it."""
        await self._jobs.finish(self)

    async def touch(self, ttr: Duration | None = None) -> None:
        """Hold the job for its TTR from now on, or for `ttr`. Raises Stale."""
        await self._jobs.touch(self, ttr)

    async def release(self, *, delay: Duration | None = None, reason: str = "", counts: bool = True) -> None:
        """Give the job back. See `Jobs.release`. Raises Stale."""
        await self._jobs.release(self, delay=delay, reason=reason, counts=counts)

    async def bury(self, reason: str = "") -> None:
        """Make the job a dead letter. Raises Stale."""
        await self._jobs.bury(self, reason)

    def _span(self) -> AbstractContextManager[object]:
        """Return a span of work on the job, in the trace of whoever added it. It is nothing in a program that does not
        trace."""
        parent, facts = self._reserved.traceparent or "", {"topic": self.topic, "job": self.id, "attempt": self.attempt}
        return traces.span(f"run {self.topic}", "consumer", facts, parent=parent)

    def __repr__(self) -> str:
        return f"<job {self.topic}/{self.id}, attempt {self.attempt} of {self.most_attempts}>"


class ReservationContext:
    """One job, held for the length of a block. See `Jobs.reserve`."""

    def __init__(self, jobs: Settles, reserve: Callable[[], Awaitable[Sequence[HeldJob]]]) -> None:
        self._jobs = jobs
        self._reserve = reserve
        self._job: HeldJob | None = None
        self._span = ExitStack()
        self._is_lost = False

    async def __aenter__(self) -> HeldJob | None:
        found = await self._reserve()
        if found:
            self._job = found[0]
            self._keeping = anyio.create_task_group()
            await self._keeping.__aenter__()
            self._keeping.start_soon(self._keep, self._job)
            self._span.enter_context(self._job._span())
        return self._job

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        job = self._job
        if job is None:
            return False
        self._span.__exit__(kind, error, trace)
        await self._stop_keeping(job, kind, error, trace)
        if self._is_lost:
            raise Stale(f"{job}: it is not ours any more; the block was ended") from error
        if job.is_settled:
            return False
        if error is None:
            await job.finish()
        elif isinstance(error, Exception):
            with suppress(PenstockError):  # then its TTR gives it back, and the outcome of the block counts
                await job.release(reason=f"{type(error).__name__}: {error}"[:LONGEST_REASON])
        else:
            await self._give_back(job)
        return False

    async def _stop_keeping(
        self,
        job: HeldJob,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop touching the job. Our own cancellation (the job was lost) ends here. Any other is raised again."""
        self._keeping.cancel_scope.cancel()
        is_cancellation = isinstance(error, anyio.get_cancelled_exc_class())
        try:
            await self._keeping.__aexit__(*((kind, error, trace) if is_cancellation else (None, None, None)))
        except anyio.get_cancelled_exc_class():
            await self._give_back(job)
            raise

    async def _give_back(self, job: HeldJob) -> None:
        """Release the job at once, without using up the attempt."""
        if not job.is_settled:
            with anyio.move_on_after(GIVE_BACK_S, shield=True), suppress(PenstockError):  # then its TTR does
                await job.release(delay=0, counts=False)

    async def _keep(self, job: HeldJob) -> None:
        """Touch the job several times within its TTR, until it is settled or lost."""
        while not self._is_lost:
            await anyio.sleep(job.ttr_s / TOUCHES)
            if job.is_settled:
                return
            left_s = job.held_until_s - monotonic_s()
            try:
                await self._jobs.touch(job, job.ttr_s, timeout_s=max(SHORTEST_TRY_S, left_s))
            except Stale:
                self._lose()
            except PenstockError:
                if monotonic_s() >= job.held_until_s:
                    self._lose()

    def _lose(self) -> None:
        self._is_lost = True
        self._keeping.cancel_scope.cancel()
