"""Hands out ready jobs: waits for them, lane by lane, at the topic's rate, and not while the topic is paused.

A waiting client has a pull request at the server, so it gets a job as soon as one is ready, and nothing is prefetched.
A wait ends early when the topic's settings change (a pause, another lane, the topic's first job) and goes on under the
new ones. When the node stops it ends with nothing.

Priorities are lanes with a consumer each. High comes before normal before low, but each eighth turn begins at the
lowest (job_rules.lane_order). A client waits at every lane at once. If two lanes bring a job in the same moment, the
surplus is given back.

The order is **pull, reserve, ack** (reserves.py). After a crash following the pull, the job comes back with the ack
wait. After a crash following the reserve, it comes back with the TTR.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import anyio
import anyio.lowlevel

from actors.jobs.reserves import Handed, JobReservation
from actors.jobs.returns import GIVE_BACK_S, Returns
from actors.jobs.rules.job_rules import lane_order
from actors.jobs.store import JobStore
from actors.jobs.topics import Topics
from actors.jobs.unwritten import Unwritten
from actors.runtime.failpoints import reach
from actors.runtime.logs import fields
from actors.runtime.rates.shares import SharedRates
from actors.runtime.supervisor import one_error
from streams.clock import monotonic_s
from streams.errors import NoStream, OutcomeUnknown, StreamError
from streams.messages.jobs import Priority
from streams.pull.delivery import Delivery
from streams.pull.once import PullOnce
from streams.subjects import Namespace
from streams.topology.specs import job_consumer

log = logging.getLogger(__name__)

RESERVE_S = 10.0
"""How long the step from pulled to reserved may take when its caller has gone."""
LONGEST_HOLD_S = 1.0
"""How long a job is held for the topic's rate. If the wait is longer, the job is given back to the queue. Well below
the ack wait."""


class Handout:
    """Hands out the jobs of all topics. Many callers may use it at once. `unwritten`: of a process that takes jobs for
    itself."""

    def __init__(
        self,
        *,
        store: JobStore,
        topics: Topics,
        pulls: PullOnce,
        rates: SharedRates,
        namespace: Namespace,
        returns: Returns,
        unwritten: Unwritten | None = None,
    ) -> None:
        self._store = store
        self._topics = topics
        self._pulls = pulls
        self._rates = rates
        self._namespace = namespace
        self._returns = returns
        self._unwritten = unwritten
        self._waits: dict[str, set[anyio.CancelScope]] = {}
        self._turns: dict[str, int] = {}
        self._is_ending = False
        topics.on_change(self._look_again)

    async def take(
        self, topic: str, *, most: int, wait_s: float, ttr_ms: int | None, holder: str, most_bytes: int
    ) -> list[JobReservation]:
        """Return up to `most` jobs, at least one if one becomes ready within `wait_s`. May be cancelled: jobs reserved
        in that moment are given back."""
        until_s = monotonic_s() + (0 if self._is_ending else wait_s)
        while True:
            deliveries = await self._ready(_Wish(topic, most, most_bytes, until_s))
            if not deliveries:
                return []
            reservations = await self._reserve(deliveries, ttr_ms, holder)
            if reservations:
                return reservations

    def end_waits(self) -> None:
        """End every wait, and allow none from now on: the node stops."""
        self._is_ending = True
        for topic in tuple(self._waits):
            self._look_again(topic)

    @property
    def waiting(self) -> int:
        """How many callers wait for a job now."""
        return sum(map(len, self._waits.values()))

    # ---- waiting

    async def _ready(self, wish: "_Wish") -> list[Delivery]:
        """Return ready jobs, pulled and not yet reserved. Empty when the time is up."""
        has_looked = False
        while not has_looked or (wish.left_s > 0 and not self._is_ending):
            has_looked = True
            with self._heeding_changes(wish.topic):
                deliveries = await self._look(wish)
                if deliveries:
                    return deliveries
        return []

    async def _look(self, wish: "_Wish") -> list[Delivery]:
        """Look once under the present settings, and wait. The caller looks again when they change."""
        settings = self._topics.current(wish.topic)
        if settings.is_paused or settings.slots or wish.topic not in self._topics:
            await anyio.sleep(wish.left_s)
            return []
        self._turns[wish.topic] = turn = self._turns.get(wish.topic, -1) + 1
        lanes = lane_order(turn, settings.lanes)
        await self._topics.use(wish.topic, *lanes)  # its settings may have been made before its first job
        if not settings.rate:
            return await self._pull(wish, lanes, wish.most, wish.left_s)
        return await self._look_at_a_rate(wish, lanes)

    async def _look_at_a_rate(self, wish: "_Wish", lanes: Sequence[Priority]) -> list[Delivery]:
        granted, rest_ms = self._rates.take(wish.topic, wish.most)
        if not granted:
            await anyio.sleep(min(wish.left_s, rest_ms / 1000))
            return []
        deliveries = await self._pull(wish, lanes, granted, 0)
        self._rates.give_back(wish.topic, granted - len(deliveries))
        if deliveries or wish.left_s <= 0:
            return deliveries
        return await self._paid(wish, await self._pull(wish, lanes, 1, wish.left_s))

    async def _paid(self, wish: "_Wish", deliveries: list[Delivery]) -> list[Delivery]:
        """Return the jobs that came while we waited, once the rate allows it. They have used none of it yet."""
        if not deliveries:
            return []
        try:
            while True:
                granted, rest_ms = self._rates.take(wish.topic, 1)
                if granted:
                    return deliveries
                if rest_ms / 1000 > min(LONGEST_HOLD_S, wish.left_s):
                    self._returns.give_back(deliveries, math.ceil(rest_ms))
                    return []
                await anyio.sleep(rest_ms / 1000)
        except BaseException:
            self._returns.give_back(deliveries)
            raise

    @contextmanager
    def _heeding_changes(self, topic: str) -> Iterator[None]:
        """End the block when the topic's settings change. A caller with jobs in hand returns them first."""
        waits = self._waits.setdefault(topic, set())
        with anyio.CancelScope() as scope:
            waits.add(scope)
            try:
                yield
            finally:
                waits.discard(scope)
                if not waits:
                    self._waits.pop(topic, None)

    def _look_again(self, topic: str) -> None:
        for scope in tuple(self._waits.get(topic, ())):
            scope.cancel()

    # ---- pulling

    async def _pull(self, wish: "_Wish", lanes: Sequence[Priority], most: int, wait_s: float) -> list[Delivery]:
        wait_s = max(wait_s, self._pulls.lag_s)
        if len(lanes) == 1:
            return await self._pull_lane(wish.topic, lanes[0], most, wait_s, wish.most_bytes)
        found: list[Delivery] = []
        try:
            for lane in lanes:
                left_bytes = wish.most_bytes - sum(len(delivery.payload) for delivery in found)
                if len(found) < most and left_bytes >= wish.most_bytes // len(lanes):
                    found += await self._pull_lane(wish.topic, lane, most - len(found), 0, left_bytes)
        except BaseException:
            self._returns.give_back(found)
            raise
        return found if found or wait_s <= 0 else await self._wait_at_all(wish, lanes, wait_s)

    async def _wait_at_all(self, wish: "_Wish", lanes: Sequence[Priority], wait_s: float) -> list[Delivery]:
        """Wait for the first job of any lane. Jobs that other lanes bring in the same moment are given back."""
        brought: dict[Priority, list[Delivery]] = {}

        async def wait(lane: Priority) -> None:
            deliveries = await self._pull_lane(wish.topic, lane, 1, wait_s, wish.most_bytes)
            if deliveries:
                brought[lane] = deliveries
                tasks.cancel_scope.cancel()

        try:
            with one_error():
                async with anyio.create_task_group() as tasks:
                    for lane in lanes:
                        tasks.start_soon(wait, lane)
        except BaseException:
            self._returns.give_back([delivery for deliveries in brought.values() for delivery in deliveries])
            raise
        found = [delivery for lane in lanes for delivery in brought.get(lane, ())]
        self._returns.give_back(found[1:])
        return found[:1]

    async def _pull_lane(self, topic: str, lane: Priority, most: int, wait_s: float, most_bytes: int) -> list[Delivery]:
        spec = job_consumer(self._namespace, topic, lane)
        try:
            return await self._pulls.pull(spec.stream, spec.name, most=most, wait_s=wait_s, most_bytes=most_bytes)
        except NoStream:
            self._topics.forget_consumer(topic)  # it was deleted
            await self._topics.use(topic, lane)
            return await self._pulls.pull(spec.stream, spec.name, most=most, wait_s=wait_s, most_bytes=most_bytes)

    # ---- reserving

    async def _reserve(self, deliveries: list[Delivery], ttr_ms: int | None, holder: str) -> list[JobReservation]:
        """Turn deliveries into reservations. A cancellation does not interrupt this: some would have no holder."""
        reach("job.pull")
        if self._unwritten is None:
            return await self._reserve_written(deliveries, ttr_ms, holder)
        by_delivery, left = self._unwritten.hand_out(deliveries, ttr_ms=ttr_ms, holder=holder)
        if not left:
            return by_delivery
        try:
            return [*by_delivery, *await self._reserve_written(left, ttr_ms, holder)]
        except BaseException:
            with anyio.move_on_after(GIVE_BACK_S, shield=True), suppress(StreamError):
                await self._unwritten.give_back(reservation.text for reservation in by_delivery)
            raise

    async def _reserve_written(
        self, deliveries: Sequence[Delivery], ttr_ms: int | None, holder: str
    ) -> list[JobReservation]:
        counts = self._unwritten is not None
        handed = Handed([], [], [], [])
        is_over = False

        async def reserve() -> None:
            nonlocal handed, is_over
            with anyio.move_on_after(RESERVE_S, shield=True):
                handed = await self._store.reserve_many(
                    deliveries, ttr_ms=ttr_ms, holder=holder, counts_deliveries=counts
                )
                is_over = True

        try:
            if counts:  # asyncio's own cancellation, as a program uses it, does not heed a shield, but a group waits
                with one_error():
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(reserve)
            else:
                await reserve()
            if not is_over:
                raise OutcomeUnknown(f"no answer within {RESERVE_S:g} s", subject=deliveries[0].subject)
            for error in handed.failures:
                log.warning("jobs.not_reserved", extra=fields(error=str(error)))
            if handed.failures and not handed.reservations:
                raise handed.failures[0]  # an empty answer would mean that nothing is ready
            await anyio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            if handed.reservations:
                with anyio.move_on_after(GIVE_BACK_S, shield=True), suppress(StreamError):
                    await self._store.release_many([reservation.receipt for reservation in handed.reservations])
            raise
        return handed.reservations


class _Wish(NamedTuple):
    """One caller's request. `until_s`: of the monotonic clock."""

    topic: str
    most: int
    most_bytes: int
    until_s: float

    @property
    def left_s(self) -> float:
        return max(0.0, self.until_s - monotonic_s())
