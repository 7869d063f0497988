"""One topic that the node handles: its lanes, its places, and what they hold.

The lanes (lanes.py) bring jobs into `ready`, and places take them from there. Ten times a second the topic decides anew
how much it holds (actors/jobs/rules/job_handling.py). `ends.py` settles a job after its call.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import anyio
from anyio.abc import TaskStatus

from actors.jobs.rules.job_handling import (
    Suspicion,
    ahead_of,
    capacity_of,
    excess_of,
    places_of,
    suspicion_of,
    unfit,
)
from actors.jobs.rules.topic_settings import TopicSettings
from actors.jobs.stream import key_of, used_up
from actors.jobs.worker.care import Care
from actors.jobs.worker.doubts import Doubts
from actors.jobs.worker.ends import Ends, facts_of
from actors.jobs.worker.handler import Handler
from actors.jobs.worker.job import Call, Job
from actors.jobs.worker.lanes import Lanes
from actors.jobs.worker.leaving import Leaving
from actors.jobs.worker.ownership import Ownership
from actors.jobs.worker.place import Cut, Place
from actors.jobs.worker.ready import ReadyJobs
from actors.jobs.worker.settling import Unfit
from actors.jobs.worker.shared import Shared
from actors.runtime.logs import fields
from actors.runtime.rates.keyed import MOST_PARKED, KeyedCalls
from actors.runtime.rules.slot_keys import Slots, key_reader
from streams.clock import monotonic_s
from streams.errors import MalformedMessage
from streams.messages.jobs import JobRecord, Priority, decode_job
from streams.pull.delivery import Delivery
from streams.pull.puller import Puller

log = logging.getLogger(__name__)

STUCK_S = 5.0
"""How long after its cancellation a call may clean up before it counts as stuck."""
CLEAN_UP_S = 1.0
PATIENCE_S = 1.0
"""How long more may wait here than will soon be run, before it is given back."""
SMOOTH = 0.3
"""Weight of the last tenth of a second in the pace that a topic is taken to have."""
QUIET_PER_S = 0.01
"""Ends of jobs a second that are taken for none."""


class TopicWorker:
    """Call `serve` once, and `tend` every so often."""

    def __init__(self, handler: Handler, shared: Shared) -> None:
        self.handler = handler
        self.topic = handler.topic
        self.slices = shared.slices
        self.ready = ReadyJobs(self._may_start, self._unused)
        self.is_ending = False
        self._shared = shared
        shared.stirred.add(handler.topic)
        self._hold = shared.hold
        self._places = [Place(self, number) for number in range(handler.concurrency)]
        self._settings = TopicSettings()
        self._lanes = Lanes(handler, shared, deliver_to=self._deliver_to, stir=self._stir, tune=self._tune)
        self._ends = Ends(handler, shared, self._lanes.pullers)
        self._leaving = Leaving(self._ends, shared)
        self._ended_per_s = 0.0
        self._least_ahead = 0
        self._tended_s = monotonic_s()
        self._excess_since_s = 0.0
        self._care = Care()
        self._ownership = Ownership(shared)
        self._waker: asyncio.TimerHandle | None = None
        self._doubts = Doubts(self._ownership.whose, self.ready.wake)

    # ---- its life

    async def serve(self, stop: anyio.Event, *, task_status: TaskStatus[None]) -> None:
        """Run the topic's jobs until `stop` is set and the running ones have ended. Jobs that did not begin are given
        back. If the drain deadline cancels this, all jobs are given back. Raises FATAL errors."""
        async with anyio.create_task_group() as lanes:
            await lanes.start(self._lanes.keep)
            lanes.start_soon(self._leaving.run)
            lanes.start_soon(self._doubts.run)
            lanes.start_soon(self._ends.keep_writing)
            try:
                async with anyio.create_task_group() as places:
                    for place in self._places:
                        places.start_soon(place.serve)
                    places.start_soon(self._end_on_stop, stop)
                    task_status.started()
            finally:
                with anyio.move_on_after(CLEAN_UP_S, shield=True):
                    await self._ends.write_all()
                    await self._give_back_all()
            lanes.cancel_scope.cancel()

    async def _end_on_stop(self, stop: anyio.Event) -> None:
        await stop.wait()
        self.is_ending = True
        self._lanes.limit(0)
        unstarted = [*self.ready.remove_all(), *self._doubts.remove_all()]
        self.ready.wake_all()
        await self._leaving.give_back(unstarted)

    def fetch_ahead(self, least: int) -> None:
        """Hold so many jobs beyond the places, however slow the handler is."""
        self._least_ahead = least
        self._stir()
        self._tune()

    # ---- what the node tells it

    @property
    def pullers(self) -> Iterable[Puller]:
        return self._lanes.pullers

    @property
    def held(self) -> int:
        """Jobs that are this node's at present."""
        return self._lanes.held

    @property
    def bound(self) -> str:
        """Where the topic's jobs may run."""
        return self._settings.zone

    @property
    def is_running(self) -> bool:
        """Whether a call of the handler is under way."""
        return any(place.call is not None for place in self._places)

    def take_settings(self, settings: TopicSettings) -> None:
        """Follow the topic's settings: pause, rate, lanes, zone."""
        self._settings = self._ends.settings = settings
        self._stir()
        self._lanes.follow(settings.lanes)
        self._follow_slots()
        self._limit()
        self.ready.wake()

    def lose(self) -> int:
        """All that is held may be somebody else's: drop it, and have the running calls end. Return how much it was."""
        now_s, unstarted = monotonic_s(), [*self.ready.remove_all(), *self._doubts.remove_all()]
        for delivery in (*unstarted, *self._leaving):
            delivery.forget()
        self._leaving.forget()
        running = [place for place in self._places if place.call is not None and place.cut != "lost"]
        for place in running:
            place.cancel("lost", now_s)
            self._shared.restarts.lost(job.delivery for job in place.jobs)
            for job in place.jobs:
                job.delivery.forget()
        self._limit()
        return len(unstarted) + sum(len(place.jobs) for place in running)

    def doubt(self) -> None:
        """What waits may have been deleted: have it looked at before it is begun."""
        if self.ready.keyed is not None:
            self.ready.keyed.return_all()
        for queue in self.ready.lanes:
            while queue:
                self._doubts.add(queue, queue.popleft(), 0.0)
        self._limit()

    def resume(self) -> None:
        """What comes from now on is ours again."""
        self._limit()
        self.ready.wake()

    def drop(self, key: str) -> None:
        """Drop the waiting jobs of this key: they were deleted. A delivery that is still on its way from another server
        is looked at before it is begun."""
        for waiting in (self.ready, self._doubts):
            for delivery in waiting.remove(lambda delivery: key_of(delivery) == key):
                delivery.forget()
        self._ownership.deleted(key)

    def tend(self) -> None:
        """Look after running and held jobs, several times a second."""
        now_s = monotonic_s()
        span_s, self._tended_s = now_s - self._tended_s, now_s
        self._ended_per_s += SMOOTH * (self._measured() / max(span_s, 0.001) - self._ended_per_s)
        for place in self._places:
            if place.call is not None:
                self._tend_place(place, now_s)
        if self._care.is_over(now_s):
            self._limit()
        if not self.is_ending:
            if self.ready.keyed is not None:
                self.ready.keyed.tend()
            capacity = self._tune()
            is_elsewhere = self._is_elsewhere()
            excess = excess_of(len(self.ready), self.held, capacity, self._ended_per_s, self._care.suspicion)
            excess = len(self.ready) if is_elsewhere else excess
            self._excess_since_s = (self._excess_since_s or now_s) if excess else 0.0
            if excess and (self._care.suspicion != "none" or is_elsewhere or now_s - self._excess_since_s > PATIENCE_S):
                self._leaving.excess(self.ready.remove_last(excess))
            self._lanes.look_after(now_s)
        if self._is_quiet():
            self._shared.stirred.discard(self.topic)

    @property
    def is_stirred(self) -> bool:
        """Whether it must be tended."""
        return self.topic in self._shared.stirred

    def _stir(self) -> None:
        if not self.is_stirred:
            self._shared.stir(self.topic)
            self._tended_s = monotonic_s()

    def _is_quiet(self) -> bool:
        """Return whether nothing changes until a job comes. Forget the pace then."""
        is_quiet = (
            self._ended_per_s < QUIET_PER_S
            and not self.held
            and self._care.suspicion == "none"
            and not self._lanes.are_watched(monotonic_s())
            and all(place.call is None for place in self._places)
        )
        if is_quiet:
            self._ended_per_s = 0.0
        return is_quiet

    def _measured(self) -> int:
        """Report the ends of jobs since the last look. Return how many ended."""
        ended, measures = self._ends.take_counts(), self._shared.measures
        for outcome, count in ended.items():
            measures.jobs_handled(self.topic, outcome, count)
        measures.jobs_held(self.topic, self.held)
        return ended.total()

    def _tend_place(self, place: Place, now_s: float) -> None:
        call = place.call
        assert call is not None
        has_lost_slot = place.cut in ("slot_lost", "replaced") and not self.handler.is_async
        if (place.cut is None or has_lost_slot) and now_s > call.deadline_s:
            self._overran(place, call, now_s)
        elif place.cut is not None and not has_lost_slot and not place.is_stuck and now_s - place.cut_s > STUCK_S:
            place.is_stuck = True
            for job in place.jobs:
                job.delivery.forget()
            log.error(
                "job.handler_stuck", extra=fields(**facts_of(self.handler, place.jobs), after_s=STUCK_S, why=place.cut)
            )

    def _overran(self, place: Place, call: Call, now_s: float) -> None:
        place.cancel("overran", now_s)
        if self.handler.is_async:
            return
        place.is_stuck = True
        for job in place.jobs:
            job.delivery.forget()
        do = "it runs in a thread, which cannot be stopped; give its waits a limit, or have it look at job.is_lost"
        log.error("job.thread_overran", extra=fields(**facts_of(self.handler, place.jobs), ttr_s=call.ttr_s, do=do))

    def came_loose(self, place: Place) -> None:
        """A call that was stuck has ended after all."""
        place.is_stuck = False
        log.warning("job.handler_came_back", extra=fields(**facts_of(self.handler, place.jobs)))

    # ---- how much is held, and begun

    def _tune(self) -> int:
        """Set how many jobs each lane may hold. Return the sum."""
        busy = [place for place in self._places if place.call is not None]
        stuck = sum(place.is_stuck for place in busy)
        running = sum(len(place.jobs) for place in busy if not place.is_stuck)
        share = self._shared.rates.share(self.topic) if self._settings.rate > 0 else math.inf
        free = len(self._places) - len(busy)
        places = places_of(len(self._places) - stuck, self.handler.most, running, free, share)
        ahead = max(self._least_ahead, ahead_of(self._ended_per_s))
        capacity = capacity_of(places, running, ahead, self._care.suspicion)
        if self.ready.keyed is not None:
            capacity += min(MOST_PARKED, len(self.ready.keyed) + sum(1 for _ in self._leaving))
        if self._settings.is_paused or self.is_ending or self._is_elsewhere():
            capacity = 0
        self._lanes.limit(capacity)
        return capacity

    def _limit(self) -> None:
        settings = self._settings
        self.ready.is_limited = (
            settings.is_paused
            or bool(settings.zone)
            or settings.rate > 0
            or self._care.suspicion == "grave"
            or self._hold.is_in_doubt
            or self.ready.keyed is not None
        )

    def _follow_slots(self) -> None:
        """Have the calls need slots, or not, by the topic's settings."""
        settings, keyed = self._settings, self.ready.keyed
        if keyed is not None:
            keyed.return_all()
        if not settings.slots:
            self.ready.keyed = None
            return
        if keyed is None:
            keyed = self.ready.keyed = KeyedCalls(
                self._shared.slots,
                f"jobs.{self.topic}",
                body=_body_of,
                wake=self.ready.wake,
                put_off=self._leaving.put_off,
                drop=self._leaving.drop,
                chance=self._shared.chance,
            )
        keyed.limit(Slots(settings.slots, settings.slot_key, settings.when_full))

    def _may_start(self, most: int) -> int:
        """Return how many jobs may be begun now. If none, `ready` is woken when some may."""
        now_s = monotonic_s()
        if self._settings.is_paused or self._is_elsewhere() or not self._hold.may_begin(now_s):
            return 0
        if self._care.suspicion == "grave":
            if wait_s := self._care.alone_for_s(now_s):
                self._wake_in(wait_s)
                return 0
            most = 1
        if self._settings.rate > 0:
            most, wait_ms = self._shared.rates.take(self.topic, most)
            if not most:
                self._wake_in(wait_ms / 1000)
        return most

    def _is_elsewhere(self) -> bool:
        return not self._shared.bounds.may_run(self._settings.zone, "topics", self.topic)

    def _unused(self, count: int) -> None:
        """Take back what `_may_start` granted."""
        if self._settings.rate > 0:
            self._shared.rates.give_back(self.topic, count)

    def _wake_in(self, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        if self._waker is None or self._waker.when() > loop.time() + wait_s:
            if self._waker is not None:
                self._waker.cancel()
            self._waker = loop.call_later(wait_s, self._woken)

    def _woken(self) -> None:
        self._waker = None
        self.ready.wake()

    # ---- from delivery to call

    def _deliver_to(self, priority: Priority) -> Callable[[Delivery], None]:
        return partial(self._deliver, self.ready.lane(priority))

    def _deliver(self, queue: deque[Delivery], delivery: Delivery) -> None:
        if not self.is_stirred:
            self._stir()
        if delivery.delivered > 1:
            self._suspect(delivery)
        look_in_s = self._ownership.look_in_s(delivery)
        if look_in_s is not None:
            self._doubts.add(queue, delivery, look_in_s)
        else:
            queue.append(delivery)
            self.ready.wake()

    def _suspect(self, delivery: Delivery) -> None:
        """Handle jobs with care for a while: the holder of this one vanished, perhaps because of it."""
        try:
            record = decode_job(delivery.payload)
        except MalformedMessage:
            return
        if self._care.grows(self._suspicion_of(delivery, record), monotonic_s()):
            self._limit()
            self._tune()

    def _suspicion_of(self, delivery: Delivery, record: JobRecord) -> Suspicion:
        used = self._used_up(record, delivery)
        return suspicion_of(used - record.attempts, used, self.handler.attempts or record.most_attempts)

    def _used_up(self, record: JobRecord, delivery: Delivery) -> int:
        shared = self._shared
        return used_up(record, delivery, shared.connection, shared.clock, most=self.handler.attempts or 0)

    async def breathe(self) -> None:
        """Let the loop turn, and find out whether the process had stopped before a job begins."""
        await self.slices.breathe()
        self._hold.is_sure(monotonic_s())  # last: nothing is awaited from here to the call

    def open(self, deliveries: Sequence[Delivery], now_s: float) -> list[Job]:
        """Return the jobs to call the handler with, and set aside those that must not run."""
        handler, jobs = self.handler, []
        call = Call()
        ttr_ms = handler.ttr_ms
        for delivery in deliveries:
            try:
                record = decode_job(delivery.payload)
            except MalformedMessage as error:
                self._leaving.set_aside(Unfit(delivery, None, 0, str(error)))
                continue
            most_attempts = handler.attempts or record.most_attempts
            attempt = self._used_up(record, delivery) + 1
            if (attempt > 1 or record.expires_ms) and not self._is_fit(delivery, record, attempt, most_attempts):
                continue
            if self._settings.region_key and self._is_stray(delivery, record, attempt):
                continue
            if handler.ttr_ms is None and (ttr_ms is None or record.ttr_ms < ttr_ms):
                ttr_ms = record.ttr_ms
            jobs.append(Job(record, delivery, attempt, most_attempts, call))
        if ttr_ms is not None:
            call.begin(ttr_ms / 1000, now_s)
        return jobs

    def _is_stray(self, delivery: Delivery, record: JobRecord, attempt: int) -> bool:
        """Set aside a job whose region has left the zone since it was added."""
        region = key_reader(self._settings.region_key)(bytes(record.body))
        why = self._shared.bounds.stray(f"topic {self.topic}", region, self._settings.zone)
        if why:
            self._leaving.set_aside(Unfit(delivery, record, attempt - 1, f"it may not be here: {why}"))
        return bool(why)

    def _is_fit(self, delivery: Delivery, record: JobRecord, attempt: int, most_attempts: int) -> bool:
        why = unfit(attempt, most_attempts, record.expires_ms, self._shared.clock.now_ms())
        if why is not None:
            self._leaving.set_aside(Unfit(delivery, record, attempt - 1, why.reason, why.outcome == "expired"))
            return False
        if self._care.suspicion == "grave" and self._suspicion_of(delivery, record) == "grave":
            self._care.run_alone(delivery, monotonic_s())
        return True

    # ---- from call to end

    async def settle(self, jobs: list[Job], result: object, error: BaseException | None, cut: Cut | None) -> None:
        """Take the end of a call. Raises FATAL errors."""
        if self._care.has_ended(job.delivery for job in jobs):
            self.ready.wake()
        await self._ends.settle(jobs, result, error, cut)

    async def _give_back_all(self) -> None:
        running = [job.delivery for place in self._places for job in place.jobs]
        waiting = [
            *self.ready.remove_all(),
            *self._doubts.remove_all(),
            *self._leaving,
            *running,
        ]
        await self._leaving.give_back(delivery for delivery in waiting if not delivery.is_settled)


def _body_of(delivery: Delivery) -> bytes:
    return bytes(decode_job(delivery.payload).body)
