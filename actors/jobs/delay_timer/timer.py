"""Delay timer: makes each delayed job ready at its due time, by the server's clock, with one conditional publish.

In: notices `due.<partition>` of jobs that were delayed. When the node gains partitions, what another timer knows, or
the stored jobs, in one sweep over JOBS. After a reconnect those from shortly before the break. Out: the job on its
ready subject, its schedule removed in the same step. State: none of its own. Due times and names are in memory
(actors/jobs/rules/due_times.py), bounded.

It sleeps until the next due time, and an earlier job wakes it. It reads a job `LEAD_MS` before it is due, with those
that are due soon after it, and prepares the publishes then, so that at the due time it writes one frame. The number of
jobs read ahead is bounded. The rest is left to the server.

Under redelivery: each publish has the job's own sequence as its condition, so of all who fire, cancel or replace it
only one does. A publish is sent only if the server will process it before its own firing, and is never repeated: see
`may_fire` and ADR 14. When it cannot go on, the server fires everything by itself, within 300 ms.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Collection
from contextlib import suppress
from typing import Protocol

import anyio
from anyio.abc import TaskStatus

from actors.jobs.delay_timer.alarm import Alarm
from actors.jobs.delay_timer.partitions import Partitions
from actors.jobs.delay_timer.shared_times import SharedTimes
from actors.jobs.rules.due_times import Due, DueTimes, RoundTrips, may_fire, partition_of
from actors.jobs.rules.job_rules import BACKSTOP_MS
from actors.runtime.actor import FATAL
from actors.runtime.failpoints import reach
from actors.runtime.logs import fields
from actors.runtime.membership import Members
from streams.buckets.bucket import Bucket
from streams.clock import monotonic_s
from streams.errors import Disconnected, StreamError, TooLarge
from streams.jobs.delayed import DelayedJobs, WaitingJob
from streams.jobs.firing import End, Firing, Shot
from streams.link.connection import Connection, Subscription
from streams.link.server_clock import ServerClock
from streams.subjects import Namespace

log = logging.getLogger(__name__)

LEAD_MS = 1_500
"""How long before its time a job is read: a busy server replies in well under a second."""
TOGETHER_MS = 200
"""What is due so soon after a job is read with it. Each read wakes the server and this process once, however many jobs
it has: at 330 jobs a second one by one that was a seventh of what a timer, and a tenth of what the server, needed."""
MOST_LOADED = 4_096
MOST_LOADED_BYTES = 16 * 1024 * 1024
MOST_AT_ONCE = 64
READ_S = 0.010
"""How long reading some jobs may take, since firing waits behind it. A job in a part of the stream that the server does
not have in memory takes it 7 ms, another 0.05 ms. So the timer adapts how many it reads at once."""
MOST_GIVEN, MOST_LEFT, MOST_PASSED = 10_000, 10_000, 1_000
"""How many jobs are dropped at once that another timer was given, that are left to the server, and that others fire.
The last is done twice for each partition in a turn of the loop. What is left is dropped at the next turn, or a shot
finds that it was fired. With 2,000, 1,000 and 100 jobs were 115 ms late at p99 while nodes were killed, not 33."""
SHOTS = 16
"""How many jobs are fired between two looks at the clock."""
HELD_UP_S = 0.1
AWAKE_S, AWAKE_EVERY_S = 0.0012, 0.025
"""Together at most a twentieth of a core."""
LOOK_S = 0.0003
TRY_EVERY_S = 0.05
"""How often the timer measures a round trip while the last ones were too long for firing."""
REST = 1.0
"""So many times as long as reading a page takes, a sweep rests after it while others fire. Each page keeps the server
from what they send."""
OVERLAP = 10_000
"""After a reconnect the timer reads what was stored meanwhile, and so many before it: notices overtake one another."""
REST_S = 1.0
HORIZON_S = 30.0
"""The pause between sweeps for lack of memory. With so many jobs due at once the server fires most of them anyway."""
LONGEST_S = 60.0
"""The longest wait for a due time without a look at the clock: the server's clock may be set."""


class FiringMeasures(Protocol):
    """Gets the results of firing. `actors/runtime/measures.py` has one for Prometheus."""

    def job_fired(self, topic: str, late_s: float) -> None: ...

    def jobs_left(self, count: int) -> None: ...


class DelayTimer:
    """This node's timer."""

    def __init__(
        self,
        *,
        connection: Connection,
        namespace: Namespace,
        leases: Bucket[bytes],
        members: Members,
        clock: ServerClock,
        measures: FiringMeasures,
    ) -> None:
        self._connection = connection
        self._namespace = namespace
        self._clock = clock
        self._measures = measures
        self._jobs = DelayedJobs(connection, namespace)
        self._firing = Firing(connection, namespace, self._shot_ended, self._took)
        self._partitions = Partitions(
            connection,
            namespace,
            leases,
            members,
            self._partitions_changed,
            is_ready=lambda n: n in self._swept,
            is_due=self._is_due_soon,
            pass_over=lambda n, until_ms: self._times.pass_over(until_ms - 1, (n,), MOST_GIVEN),
            now_ms=clock.now_ms,
        )
        self._shared = SharedTimes(connection, namespace, self._known_after, self._newest)
        self._forget()

    def _forget(self) -> None:
        """Forget everything: before the first run, and after a failure before the next."""
        self._times = DueTimes()
        self._swept: frozenset[int] = frozenset()
        self._fired: frozenset[int] = frozenset()
        self._subscriptions: dict[int, Subscription] = {}
        self._newest_seqs = dict.fromkeys(self._namespace.jobs_streams(), 0)
        self._was_cut_off = False
        self._has_horizon = False
        self._awaited_ms = math.inf
        self._at_once = 1.0
        self._reading: list[Due] = []
        self._loaded: list[Shot] = []
        self._loaded_bytes = 0
        self._trips = RoundTrips()
        self._waits_for_answers = False
        self._fired_s = 0.0
        self._tried_s = 0.0
        self._troubles: set[str] = set()
        self._sweep_alarm, self._load_alarm, self._fire_alarm = Alarm(), Alarm(), Alarm()

    @property
    def known(self) -> int:
        """How many jobs' due times are known."""
        return len(self._times) + len(self._loaded)

    @property
    def held(self) -> frozenset[int]:
        """The partitions whose jobs this node fires."""
        return self._partitions.held

    @property
    def is_complete(self) -> bool:
        """Whether all jobs that are stored in the held partitions are known."""
        return self._partitions.held <= self._swept

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Fire for ever. Started once this node campaigns for its partitions."""
        self._forget()
        remove = self._connection.on_reconnect(self._reconnected)
        try:
            async with self._firing, anyio.create_task_group() as tasks:
                tasks.start_soon(self._keep_knowing)
                await tasks.start(self._partitions.run)
                tasks.start_soon(self._keep_loading)
                tasks.start_soon(self._keep_firing)
                task_status.started()
        finally:
            remove()
            self._shared.share(())
            self._jobs.close()
            with anyio.CancelScope(shield=True):
                for subscription in self._subscriptions.values():
                    await subscription.unsubscribe()

    # ---- due times

    def _partitions_changed(self) -> None:
        self._fired = self._partitions.fired
        self._sweep_alarm.ring()
        self._load_alarm.ring()

    def _is_due_soon(self, n: int, within_s: float) -> bool:
        """Return whether a job of a partition that others fire is due within some seconds."""
        if not self._times.has_any(n):
            return False
        now_ms = self._clock.now_ms()
        self._times.pass_over(now_ms - BACKSTOP_MS, (n,), MOST_PASSED)
        next_ms = self._times.next_ms((n,))
        return next_ms is not None and next_ms <= now_ms + within_s * 1000

    def _reconnected(self) -> None:
        self._was_cut_off = True
        self._sweep_alarm.ring()

    async def _keep_knowing(self) -> None:
        """Keep the due times of the wanted partitions, and of no others."""
        while True:
            await self._follow_wanted()
            if self._was_cut_off:
                self._was_cut_off = False
                if self._swept:
                    self._was_cut_off = not await self._sweep(self._swept, is_again=True)
            elif fresh := self._times.kept - self._swept:
                fresh = await self._without_shared(fresh)
                if fresh and await self._sweep(fresh):
                    self._known(fresh)
            else:
                await self._sweep_alarm.wait(self._horizon_wait_s())
                self._start_over_before_horizon()

    def _known(self, partitions: frozenset[int]) -> None:
        self._swept |= partitions
        self._shared.share(self._swept)
        self._partitions.wake()

    async def _without_shared(self, fresh: frozenset[int]) -> frozenset[int]:
        """Learn what other timers know of partitions. Return those that none of them has passed on."""
        began_s, known_before, left = monotonic_s(), len(self._times), set(fresh)
        try:
            for n in sorted(fresh):
                if not await self._shared.get(n, self._on_notices):
                    break
                left.discard(n)
                self._known(frozenset({n}))
        except FATAL:
            raise
        except StreamError as error:
            self._log_trouble("timer.not_shared", error)
        took_s, learned = round(monotonic_s() - began_s, 2), len(self._times) - known_before
        log.info("timer.shared", extra=fields(partitions=len(fresh) - len(left), learned=learned, took_s=took_s))
        return frozenset(left)

    def _known_after(self, n: int, last: Due | None, most: int) -> list[Due] | None:
        """Return the jobs of a partition after one, for another timer, with those that were read ahead or are being
        read."""
        if self._was_cut_off or (known := self._times.after(n, last, most)) is None:
            return None
        ahead = [*self._reading, *(Due(shot.due_ms, shot.name) for shot in self._loaded)]
        known += [due for due in ahead if (last is None or due > last) and partition_of(due.name) == n]
        return sorted(known)[:most]

    async def _follow_wanted(self) -> None:
        """Listen first, so that notices report what is stored during the sweep."""
        wanted = self._partitions.wanted
        self._swept &= wanted
        self._shared.share(self._swept)
        for n in self._times.kept - wanted:
            self._times.drop(n)
            await self._subscriptions.pop(n).unsubscribe()
        for n in wanted - self._times.kept:
            self._times.keep(n)
            self._subscriptions[n] = await self._jobs.listen(n, self._on_notices)

    async def _sweep(self, partitions: Collection[int], *, is_again: bool = False) -> bool:
        """Read the stored jobs, and `is_again` only the newest. Return whether that succeeded. The server fires overdue
        jobs, or has fired them."""
        overdue_ms = self._clock.now_ms() - BACKSTOP_MS
        began_s, known_before = monotonic_s(), len(self._times)

        def take(jobs: list[tuple[int, bytes]]) -> None:
            self._learn([job for job in jobs if job[0] > overdue_ms], partitions)

        try:
            rest = 0.0 if self._partitions.is_alone else REST
            for stream, newest_seq in self._newest_seqs.items():
                after_seq = max(0, newest_seq - OVERLAP) if is_again else 0
                last_seq = await self._jobs.sweep(stream, take, after_seq=after_seq, rest=rest)
                self._newest_seqs[stream] = max(self._newest_seqs[stream], last_seq)
        except FATAL:
            raise
        except StreamError as error:
            self._log_trouble("timer.sweep_failed", error)
            await anyio.sleep(REST_S)
            return False
        self._troubles.clear()
        took_s, learned = round(monotonic_s() - began_s, 2), len(self._times) - known_before
        log.info("timer.swept", extra=fields(partitions=len(partitions), learned=learned, took_s=took_s))
        return True

    def _on_notices(self, jobs: list[tuple[int, int, bytes]]) -> None:
        for _, seq, name in jobs:
            stream = self._stream_of(name)
            self._newest_seqs[stream] = max(self._newest_seqs[stream], seq)
        self._learn([(due_ms, name) for due_ms, _, name in jobs])

    def _newest(self, name: bytes) -> int:
        """Return up to where this timer knows the stream of a job."""
        return self._newest_seqs[self._stream_of(name)]

    def _stream_of(self, name: bytes) -> str:
        return self._namespace.jobs_stream(name.partition(b".")[0].decode())

    def _learn(self, jobs: list[tuple[int, bytes]], only: Collection[int] | None = None) -> None:
        self._times.add(jobs, only)
        next_ms = self._times.next_ms(self._fired)
        if next_ms is not None and next_ms < self._awaited_ms:
            self._awaited_ms = next_ms
            self._load_alarm.ring()
        if self._times.horizon_ms is not None and not self._has_horizon:
            self._has_horizon = True
            self._sweep_alarm.ring()

    def _horizon_wait_s(self) -> float | None:
        """Return in how many seconds to read again what was dropped for lack of memory. `None`: nothing was dropped."""
        if self._times.horizon_ms is None:
            return None
        return max(HORIZON_S, self._clock.seconds_until(self._times.horizon_ms) - HORIZON_S)

    def _start_over_before_horizon(self) -> None:
        horizon_ms = self._times.horizon_ms
        if horizon_ms is not None and self._clock.seconds_until(horizon_ms) <= HORIZON_S:
            for n in self._times.kept:
                self._times.drop(n)
                self._times.keep(n)
            self._times.horizon_ms, self._has_horizon = None, False
            self._swept = frozenset()
            self._shared.share(())

    # ---- reading ahead

    async def _keep_loading(self) -> None:
        while True:
            next_ms, room = self._times.next_ms(self._fired), self._room()
            if next_ms is None or not room:
                self._awaited_ms = math.inf if next_ms is None else -math.inf
                await self._load_alarm.wait(None)
            elif (wait_s := self._clock.seconds_until(next_ms - LEAD_MS)) > 0:
                self._awaited_ms = next_ms
                await self._load_alarm.wait(min(wait_s, LONGEST_S))
            else:
                await self._load(min(room, int(self._at_once)))

    def _room(self) -> int:
        return MOST_LOADED - len(self._loaded) if self._loaded_bytes < MOST_LOADED_BYTES else 0

    async def _load(self, most: int) -> None:
        """Read the next jobs and prepare them to be fired."""
        now_ms = self._clock.now_ms()
        until_ms = now_ms + LEAD_MS + TOGETHER_MS
        self._leave(self._times.pass_over(now_ms - BACKSTOP_MS, self._fired, MOST_LEFT))
        dues = self._times.take(until_ms, most, self._fired)
        self._reading = [due for due in dues if self._is_in_time(due)]
        in_time = [due.name for due in self._reading]
        self._leave(len(dues) - len(in_time))
        began_s = monotonic_s()
        try:
            jobs, unanswered = await self._jobs.read(in_time) if in_time else ([], set())
        except FATAL:
            raise
        except StreamError as error:
            self._log_trouble("timer.not_read", error)
            self._leave(len(in_time))
            self._reading = []
            await anyio.sleep(REST_S)
            return
        self._times.add(due for due in self._reading if due.name in unanswered)  # read again, if that is in time
        self._reading = []
        self._times.add((job.due_ms, job.name) for job in jobs if job.due_ms > until_ms)  # a later job has replaced it
        for job in jobs:
            if job.due_ms <= until_ms:
                self._make_ready(job)
        self._adapt(monotonic_s() - began_s if in_time else 0.0)
        await anyio.lowlevel.checkpoint()

    def _is_in_time(self, due: Due) -> bool:
        now_ms = self._clock.now_ms()
        return may_fire(
            max(now_ms, due.due_ms), due.due_ms + BACKSTOP_MS, self._trip_ms() if due.due_ms < now_ms else 0
        )

    def _adapt(self, took_s: float) -> None:
        """Read more jobs at once next time, or fewer, so that it takes `READ_S`."""
        self._at_once = min(max(1.0, self._at_once * min(2.0, READ_S / max(took_s, 0.001))), float(MOST_AT_ONCE))

    def _make_ready(self, job: WaitingJob) -> None:
        try:
            shot = self._firing.load(job)
        except TooLarge as error:
            self._log_trouble("timer.not_loaded", error)
            self._leave(1)
            return
        is_first = not self._loaded or shot.due_ms < self._loaded[0].due_ms
        heapq.heappush(self._loaded, shot)
        self._loaded_bytes += len(shot.payload)
        if is_first:
            self._fire_alarm.ring()

    # ---- firing

    async def _keep_firing(self) -> None:
        while True:
            if not self._loaded:
                await self._fire_alarm.wait(None)
            elif (wait_s := self._clock.seconds_until(self._loaded[0].due_ms)) > 0:
                await self._fire_alarm.wait(self._nap_s(wait_s))
            elif self._is_held_up():
                self._waits_for_answers = True
                await self._fire_alarm.wait(HELD_UP_S)
                self._waits_for_answers = False
                self._firing.lose_silent()
            else:
                self._fire_due()
                await anyio.lowlevel.checkpoint()

    def _nap_s(self, wait_s: float) -> float:
        """Return how many seconds to sleep before the next look at the clock. The loop wakes us to the millisecond
        only, so the last one is spent awake, unless we have just fired."""
        if monotonic_s() - self._fired_s < AWAKE_EVERY_S:
            return wait_s
        return min(wait_s - AWAKE_S, LONGEST_S) if wait_s > AWAKE_S else LOOK_S

    def _is_held_up(self) -> bool:
        """Return whether there are replies to wait for. While the link is down there are none: due jobs are left to the
        server."""
        if not self._connection.is_connected:
            return False
        if self._firing.oldest_s * 1000 > self._trips.patience_ms(monotonic_s() * 1000):
            self._firing.slow_down()
        return self._firing.room <= 0

    def _fire_due(self) -> None:
        """Fire the next few due jobs, or leave them to the server."""
        now_ms, trip_ms, was_full = self._clock.now_ms(), self._trip_ms(), not self._room()
        self._fired_s = monotonic_s()
        for _ in range(SHOTS):
            is_full = self._firing.room <= 0 and self._connection.is_connected
            if is_full or not self._loaded or self._loaded[0].due_ms > now_ms:
                break
            shot = heapq.heappop(self._loaded)
            self._loaded_bytes -= len(shot.payload)
            if not self._try_to_fire(shot, now_ms, trip_ms):
                self._leave(1)
        if was_full:
            self._load_alarm.ring()

    def _try_to_fire(self, shot: Shot, now_ms: int, trip_ms: float) -> bool:
        if not self._partitions.fires(partition_of(shot.name), shot.due_ms) or self._firing.room <= 0:
            return False
        if not may_fire(now_ms, shot.server_ms, trip_ms):
            self._try_trip(shot)
            return False
        reach("job.fire")
        try:
            self._firing.fire(shot)
        except Disconnected:
            return False
        return True

    def _try_trip(self, shot: Shot) -> None:
        """Find out whether the server has become faster again. A real shot could come too late, and make the job ready
        twice."""
        if monotonic_s() - self._tried_s >= TRY_EVERY_S:
            self._tried_s = monotonic_s()
            with suppress(Disconnected):
                self._firing.try_trip(shot)

    def _took(self, trip_s: float) -> None:
        self._trips.took(trip_s * 1000, monotonic_s() * 1000)

    def _trip_ms(self) -> float:
        return self._trips.expected_ms(monotonic_s() * 1000, self._firing.in_flight)

    def _shot_ended(self, shot: Shot, how: End, trip_s: float, error: StreamError | None) -> None:
        if how != "lost":
            self._took(trip_s)
        if how == "fired":
            reach("job.fired")
            late_s = max(0.0, -self._clock.seconds_until(shot.due_ms))
            self._measures.job_fired(shot.name.partition(b".")[0].decode(), late_s)
        elif how == "refused" and error is not None:
            self._log_trouble("timer.refused", error)
        if self._waits_for_answers:
            self._fire_alarm.ring()

    def _leave(self, count: int) -> None:
        if count:
            self._measures.jobs_left(count)

    def _log_trouble(self, event: str, error: StreamError) -> None:
        """Log each kind of trouble once, until a sweep succeeds."""
        if event not in self._troubles:
            self._troubles.add(event)
            log.warning(event, extra=fields(error=str(error)))
