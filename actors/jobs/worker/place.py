"""One of a handler's places: a task that runs one call after the other, and has the result of each settled.

A place starts with its topic and lives as long. No job starts a task of its own. A call that overruns its time, or
whose jobs are lost, is cancelled from outside (`cancel`), and the place goes on. A function in a thread cannot be
cancelled: its place stays taken until it returns, and its result does not count then.

Any exception of a handler is a failed attempt. That includes SystemExit, GeneratorExit and a CancelledError of its own.
Only a cancellation by the node ends the place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal, Protocol

from actors.jobs.worker.handler import Handler
from actors.jobs.worker.job import Call, Job
from actors.jobs.worker.ready import ReadyJobs
from actors.jobs.worker.slices import Slices
from actors.jobs.worker.threads import WorkThread
from actors.runtime.closing import is_run_by
from actors.runtime.failpoints import reach
from actors.runtime.rates.keyed import KeyedCalls
from actors.runtime.rules.slots_held import SlotCut
from actors.runtime.tracing import fail, traces
from streams.clock import monotonic_s
from streams.pull.delivery import Delivery

Cut = Literal["overran", "lost", "slot_lost", "replaced"]
"""Why a call must end. `slot_lost`: the slot of its key was not renewed. `replaced`: a newcomer takes that slot."""


class Hall(Protocol):
    """The parts of its topic that a place needs."""

    @property
    def handler(self) -> Handler: ...
    @property
    def ready(self) -> ReadyJobs: ...
    @property
    def slices(self) -> Slices: ...
    @property
    def is_ending(self) -> bool: ...

    async def breathe(self) -> None:
        """Let the loop turn, and check whether the process was stopped."""

    def open(self, deliveries: Sequence[Delivery], now_s: float) -> list[Job]:
        """Return the jobs for a call of the handler."""

    def came_loose(self, place: Place) -> None:
        """A stuck call has ended."""

    async def settle(self, jobs: list[Job], result: object, error: BaseException | None, cut: Cut | None) -> None:
        """Settle the jobs of a call. Raises FATAL errors."""


class Place:
    """One place. Call `serve` once."""

    def __init__(self, topic: Hall, number: int) -> None:
        self._topic = topic
        handler = topic.handler
        self._take = handler.take
        self._most = handler.most
        self._thread = None if handler.is_async else WorkThread(f"job-{handler.topic}-{number}")
        self._task: asyncio.Task[object] | None = None
        self.call: Call | None = None
        """The running call."""
        self.jobs: list[Job] = []
        """The jobs of the running call, until they are settled."""
        self.cut: Cut | None = None
        """Why the running call must end."""
        self.cut_s = 0.0
        self.is_stuck = False
        """The call was cancelled long ago, and still runs."""

    async def serve(self) -> None:
        """Run calls until the topic ends. Raises FATAL errors."""
        topic, ready, most = self._topic, self._topic.ready, self._most
        self._task = asyncio.current_task()
        try:
            now_s = monotonic_s()
            while True:
                if now_s > topic.slices.until_s:
                    await topic.breathe()
                if topic.is_ending:  # nothing is awaited from here to `turn`, so no wake is missed
                    return
                deliveries = ready.take(most)
                if not deliveries:
                    await ready.turn()
                    now_s = monotonic_s()
                    continue
                ready.wake_next()
                if ready.keyed is not None:
                    await self._run_in_slots(ready.keyed, deliveries, now_s)
                elif jobs := topic.open(deliveries, now_s):
                    await self._run(jobs)
                now_s = monotonic_s()
        finally:
            if self._thread is not None:
                self._thread.close()

    def cancel(self, why: Cut, now_s: float) -> None:
        """Cancel the running call."""
        call = self.call
        if call is None:
            return
        call.is_lost = True
        if self.cut is None:
            self.cut_s = now_s
            if self._thread is None and self._task is not None:
                self._task.cancel()
        if self.cut != "lost":
            self.cut = why

    async def _run_in_slots(self, keyed: KeyedCalls[Delivery], deliveries: Sequence[Delivery], now_s: float) -> None:
        calls = keyed.claim(self._cut_slot)
        try:
            jobs = self._topic.open(deliveries, now_s)
            if jobs:
                await self._run(jobs)
        finally:
            keyed.leave(calls)

    def _cut_slot(self, why: SlotCut) -> None:
        if self.cut is None:
            self.cancel("slot_lost" if why == "lost" else "replaced", monotonic_s())

    async def _run(self, jobs: list[Job]) -> None:
        self.jobs = jobs
        self.call = call = jobs[0].call
        result: object = None
        error: BaseException | None = None
        argument = jobs if self._most > 1 else jobs[0]
        reach("job.run")
        try:
            if traces.is_on:
                result, error = await self._traced(argument)
            elif self._thread is None:
                result = await self._take(argument)
            else:
                result, error = await self._thread.run(self._take, argument)
        except BaseException as failed:  # the border to the user's code: its exception ends the attempt, not the place
            if isinstance(failed, GeneratorExit) and not is_run_by(self._task):
                raise
            error = failed
        if self._take_back_cancel() and isinstance(error, asyncio.CancelledError):
            raise error
        cut, self.cut, self.call, call.is_over = self.cut, None, None, True
        if self.is_stuck:  # its jobs were given up long ago
            cut = "lost"
            self._topic.came_loose(self)
        reach("job.end")
        await self._topic.settle(jobs, result, error, cut)
        self.jobs = []

    async def _traced(self, argument: Job | list[Job]) -> tuple[object, BaseException | None]:
        """Call the handler in a span of the trace of its first job. It is linked to the spans that added the others."""
        first, *others = (job.record for job in self.jobs)
        links = (record.traceparent for record in others)
        facts = {"topic": first.topic, "job": first.id, "attempt": self.jobs[0].attempt, "jobs": len(self.jobs)}
        name = f"run {first.topic}"
        with traces.span(name, "consumer", facts, parent=first.traceparent, links=links) as span:
            if self._thread is None:
                return await self._take(argument), None
            result, error = await self._thread.run(self._take, argument)
            if error is not None:
                fail(span, error)
            return result, error

    def _take_back_cancel(self) -> bool:
        """Take back the cancellation that ended the call, if there was one. Return whether the node's own remains."""
        task = self._task
        assert task is not None
        if self.cut is not None and self._thread is None:
            task.uncancel()
        return task.cancelling() > 0
