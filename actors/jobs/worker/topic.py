"""One topic that the node handles: its lanes, its places, and what they hold.

One puller a lane brings jobs into `ready`, and places take them from there. Ten times a second the topic decides anew
how much it holds (actors/jobs/rules/job_handling.py). `ends.py` settles a job after its call.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial

import anyio
from anyio.abc import TaskStatus

from actors.jobs.deliveries import Whose
from actors.jobs.rules.job_handling import (
    Suspicion,
    ahead_of,
    capacity_of,
    excess_of,
    lane_capacities,
    places_of,
    suspicion_of,
    unfit,
)
from actors.jobs.rules.topic_settings import LANES, TopicSettings
from actors.jobs.stream import NEAR_MS, is_doubtful, used_up
from actors.jobs.worker.doubts import Doubts
from actors.jobs.worker.ends import Ends, facts_of
from actors.jobs.worker.handler import Handler
from actors.jobs.worker.job import Call, Job
from actors.jobs.worker.leaving import Leaving
from actors.jobs.worker.place import Cut, Place
from actors.jobs.worker.ready import ReadyJobs
from actors.jobs.worker.settling import Unfit
from actors.jobs.worker.shared import Shared
from actors.runtime.keyed import MOST_PARKED, KeyedCalls
from actors.runtime.logs import fields
from actors.runtime.rules.slot_keys import Slots, key_reader
from streams.clock import monotonic_s
from streams.delivery import Delivery
from streams.errors import MalformedMessage
from streams.job_messages import JobRecord, Priority, decode_job
from streams.puller import Puller
from streams.specs import ConsumerSpec, job_consumer

log = logging.getLogger(__name__)

STUCK_S = 5.0
"""How long after its cancellation a call may clean up before it counts as stuck."""
SUSPECT_S = 10.0
"""How long after the last job of a vanished holder the others are handled with care."""
ALONE_S = 1.0
"""How long nothing is begun beside a job that may be its holders' death: most that kill do so at once."""
CLEAN_UP_S = 1.0
PATIENCE_S = 1.0
"""How long more may wait here than will soon be run, before it is given back."""
MISSING_S = 2.0
"""How often a consumer that does not answer is looked after: somebody may have deleted it."""
SMOOTH = 0.3
"""Weight of the last tenth of a second in the pace that a topic is taken to have."""
QUIET_PER_S = 0.01
"""Ends of jobs a second that are taken for none."""
GONE_S, MOST_GONE = 120.0, 10_000
"""How long, and of how many jobs, a delivery may still be on its way after the job was deleted."""
_WORSE: tuple[Suspicion, ...] = ("none", "some", "grave")


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
        self._pullers: dict[Priority, Puller] = {}
        self._ends = Ends(handler, shared, self._pullers.values())
        self._leaving = Leaving(self._ends, shared)
        self._changed = anyio.Event()
        self._ended_per_s = 0.0
        self._least_ahead = 0
        self._tended_s = monotonic_s()
        self._excess_since_s = 0.0
        self._is_missing = False
        self._looked_s = 0.0
        self._suspicion: Suspicion = "none"
        self._suspect_until_s = 0.0
        self._alone: Delivery | None = None
        self._alone_until_s = 0.0
        self._waker: asyncio.TimerHandle | None = None
        self._restarts = shared.restarts
        self._doubts = Doubts(self._whose, self.ready.wake)
        self._gone: dict[str, float] = {}

    # ---- its life

    async def serve(self, stop: anyio.Event, *, task_status: TaskStatus[None]) -> None:
        """Run the topic's jobs until `stop` is set and the running ones have ended. Jobs that did not begin are given
        back. If the drain deadline cancels this, all jobs are given back. Raises FATAL errors."""
        async with anyio.create_task_group() as lanes:
            await lanes.start(self._keep_lanes)
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
        for puller in self._pullers.values():
            puller.set_capacity(0)
        unstarted = [*self.ready.remove_all(), *self._doubts.remove_all()]
        self.ready.wake_all()
        await self._leaving.give_back(unstarted)

    async def _keep_lanes(self, *, task_status: TaskStatus[None]) -> None:
        """Pull from the lanes that there are, until cancelled."""
        for priority in self._shared.topics.current(self.topic).lanes:
            await self._shared.topics.enlist(self.topic, priority)
        async with AsyncExitStack() as stack:
            while True:
                wanted = [each for each in LANES if each in self._settings.lanes and each in self.handler.lanes]
                are_open = all([await self._open_lane(priority, stack) for priority in wanted])
                self._tune()
                task_status.started()
                task_status = anyio.TASK_STATUS_IGNORED
                with anyio.move_on_after(math.inf if are_open else MISSING_S):
                    await self._changed.wait()
                self._changed = anyio.Event()
                if self._is_missing:
                    self._is_missing = False
                    await self._remake_consumers()

    async def _remake_consumers(self) -> None:
        self._shared.topics.forget_consumer(self.topic)
        for priority in self._pullers:
            await self._make(job_consumer(self._shared.connection.namespace, self.topic, priority), priority)

    async def _make(self, spec: ConsumerSpec, priority: Priority) -> bool:
        return await self._shared.unmade.make(spec.name, self._shared.topics.use(self.topic, priority))

    async def _open_lane(self, priority: Priority, stack: AsyncExitStack) -> bool:
        """Pull from a lane, if its consumer can be made. Return whether it is so."""
        if priority in self._pullers:
            return True
        connection = self._shared.connection
        spec = job_consumer(connection.namespace, self.topic, priority)
        if not await self._make(spec, priority):
            return False
        deliver = partial(self._deliver, self.ready.lane(priority))
        puller = Puller(connection, spec.stream, spec.name, capacity=0, deliver=deliver, on_trouble=self._stir)
        self._pullers[priority] = await stack.enter_async_context(puller)
        return True

    def fetch_ahead(self, least: int) -> None:
        """Hold so many jobs beyond the places, however slow the handler is."""
        self._least_ahead = least
        self._stir()
        self._tune()

    # ---- what the node tells it

    @property
    def pullers(self) -> Iterable[Puller]:
        return self._pullers.values()

    @property
    def held(self) -> int:
        """Jobs that are this node's at present."""
        return sum(puller.held for puller in self._pullers.values())

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
        self._changed.set()
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
            self._restarts.lost(job.delivery for job in place.jobs)
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
            for delivery in waiting.remove(lambda delivery: _key_of(delivery) == key):
                delivery.forget()
        self._gone.pop(key, None)
        self._gone[key] = now_s = monotonic_s()
        while len(self._gone) > MOST_GONE or now_s - self._gone[next(iter(self._gone))] > GONE_S:
            del self._gone[next(iter(self._gone))]

    def tend(self) -> None:
        """Look after running and held jobs, several times a second."""
        now_s = monotonic_s()
        span_s, self._tended_s = now_s - self._tended_s, now_s
        self._ended_per_s += SMOOTH * (self._measured() / max(span_s, 0.001) - self._ended_per_s)
        for place in self._places:
            if place.call is not None:
                self._tend_place(place, now_s)
        if self._suspicion != "none" and now_s > self._suspect_until_s:
            self._suspicion = "none"
            self._limit()
        if not self.is_ending:
            if self.ready.keyed is not None:
                self.ready.keyed.tend()
            capacity = self._tune()
            is_elsewhere = self._is_elsewhere()
            excess = excess_of(len(self.ready), self.held, capacity, self._ended_per_s, self._suspicion)
            excess = len(self.ready) if is_elsewhere else excess
            self._excess_since_s = (self._excess_since_s or now_s) if excess else 0.0
            if excess and (self._suspicion != "none" or is_elsewhere or now_s - self._excess_since_s > PATIENCE_S):
                self._leaving.excess(self.ready.remove_last(excess))
            if self.is_troubled and now_s - self._looked_s > MISSING_S:
                self._looked_s, self._is_missing = now_s, True
                self._changed.set()
        if self._is_quiet():
            self._shared.stirred.discard(self.topic)

    @property
    def is_troubled(self) -> bool:
        """Whether a lane's consumer may be missing."""
        return any(puller.is_troubled for puller in self._pullers.values())

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
            and self._suspicion == "none"
            and not self.is_troubled
            and not self._looked_s > monotonic_s() - 2 * MISSING_S
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
        capacity = capacity_of(places, running, ahead, self._suspicion)
        if self.ready.keyed is not None:
            capacity += min(MOST_PARKED, len(self.ready.keyed) + sum(1 for _ in self._leaving))
        if self._settings.is_paused or self.is_ending or self._is_elsewhere():
            capacity = 0
        pullers = list(self._pullers.values())
        for puller, own in zip(
            pullers, lane_capacities(capacity, tuple(puller.held for puller in pullers)), strict=True
        ):
            if puller.capacity != own:
                puller.set_capacity(own)
        return capacity

    def _limit(self) -> None:
        settings = self._settings
        self.ready.is_limited = (
            settings.is_paused
            or bool(settings.zone)
            or settings.rate > 0
            or self._suspicion == "grave"
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
        if self._suspicion == "grave":
            if self._alone is not None and now_s < self._alone_until_s:
                self._wake_in(self._alone_until_s - now_s)
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

    def _deliver(self, queue: deque[Delivery], delivery: Delivery) -> None:
        if not self.is_stirred:
            self._stir()
        if delivery.delivered > 1:
            self._suspect(delivery)
        wait_s = self._restarts.wait_s(delivery) if self._restarts.is_lately else 0.0
        if wait_s or (self._restarts.is_lately and self._restarts.is_held(delivery)):
            self._doubts.add(queue, delivery, wait_s)
        elif self._may_come_twice(delivery):
            self._doubts.add(queue, delivery, NEAR_MS / 1000)
        elif again_s := self._hold.until_acknowledged_s():
            self._doubts.add(queue, delivery, again_s)
        elif delivery.delivered > 1 or self._hold.is_in_doubt or self._may_be_over(delivery):
            self._doubts.add(queue, delivery, 0.0)
        else:
            queue.append(delivery)
            self.ready.wake()

    def _may_come_twice(self, delivery: Delivery) -> bool:
        return is_doubtful(delivery, self._shared.connection, self._shared.clock)

    def _may_be_over(self, delivery: Delivery) -> bool:
        is_gone = bool(self._gone) and _key_of(delivery) in self._gone
        return is_gone or self._shared.settling.may_be_over(delivery)

    async def _whose(self, deliveries: Sequence[Delivery]) -> dict[Delivery, Whose]:
        """Return whose deliveries are that were held back. What was read while the node may have missed something (see
        hold.py) is left out: it is looked at again."""
        doubts = self._hold.doubts
        found: dict[Delivery, Whose] = {}
        for delivery in deliveries:
            if self._restarts.is_over(delivery):
                found[delivery] = "nobody's"
            elif self._restarts.is_held(delivery):
                found[delivery] = "another's"
        left = [delivery for delivery in deliveries if delivery not in found]
        found |= await self._shared.settling.whose(left)
        return found if self._hold.may_begin(monotonic_s()) and self._hold.doubts == doubts else {}

    def _suspect(self, delivery: Delivery) -> None:
        """Handle jobs with care for a while: the holder of this one vanished, perhaps because of it."""
        try:
            record = decode_job(delivery.payload)
        except MalformedMessage:
            return
        found = self._suspicion_of(delivery, record)
        self._suspect_until_s = monotonic_s() + SUSPECT_S
        if _WORSE.index(found) > _WORSE.index(self._suspicion):
            self._suspicion = found
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
        if self._suspicion == "grave" and self._suspicion_of(delivery, record) == "grave":
            self._alone, self._alone_until_s = delivery, monotonic_s() + ALONE_S
        return True

    # ---- from call to end

    async def settle(self, jobs: list[Job], result: object, error: BaseException | None, cut: Cut | None) -> None:
        """Take the end of a call. Raises FATAL errors."""
        if self._alone is not None and any(job.delivery is self._alone for job in jobs):
            self._alone = None
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


def _key_of(delivery: Delivery) -> str:
    return delivery.subject[delivery.subject.rindex(".") + 1 :]
