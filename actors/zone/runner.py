"""Runs one job in this node's zone, over the shards that the zone owns.

In: the shard map, ticks of the job's schedule. Out: runs of the job's code, and `is_free` in the offsets of shards that
the zone gave up. State: the run under way, in memory.

One run of a job in a zone at a time: the node that holds the lease `zone.<zone>.<job>` has it. A job without a schedule
is a loop: the holder keeps the lease, and begins a new run whenever the shards of the zone change. A job with a
schedule takes the lease for each tick. A tick that finds it taken is left out.

A new shard whose former owner is still at work is waited for, and meanwhile the run over the other shards goes on. When
it comes, that run ends after its batch, and the next one claims all shards. When shards go, the run ends after its
batch, and marks them free. Code that does not return within `drain_ms` of the map is cancelled.

Under redelivery: a tick that comes twice runs a second batch, from the offset that the first one saved. When it cannot
go on: code that fails is logged and called again after a growing wait. A lost lease ends the run.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import anyio
from anyio.abc import TaskStatus
from msgspec import Struct

from actors.runtime.actor import FATAL
from actors.runtime.failpoints import reach
from actors.runtime.logs import fields
from actors.zone.offsets import Offsets, Stored, records_of
from actors.zone.overdue import Overdue
from actors.zone.routing import Routing
from actors.zone.rules.offsets import runnable, start_of, to_free
from actors.zone.rules.routing import ShardMap
from actors.zone.run import RunEnded, ShardRun, claim
from streams.backoff import Backoff, next_delay_ms
from streams.buckets.bucket import Bucket
from streams.buckets.lease import Lease, acquire, hold
from streams.chance import chance
from streams.clock import Clock
from streams.errors import Disconnected, MalformedMessage, OutcomeUnknown, Refused

log = logging.getLogger(__name__)

LEASE_TTL_S = 3
"""A killed run is followed within four seconds. No zone is taken for dead before its last lease is over, since that
takes longer (`TTL_S` of actors/runtime/membership.py)."""
POLL_S = 0.1
"""How often the records of shards are read that a former owner still has."""
LOOK_S = 0.5
"""How often it is looked whether the node may still run."""
AGAIN = Backoff(growth="exponential", base_ms=500, cap_ms=30_000, spread=0.5)
PASSING = (Disconnected, OutcomeUnknown, Refused, MalformedMessage)


class ZoneHandler(Struct, frozen=True, kw_only=True):
    """A job's code. `call(run, pause_s)` runs it once, over the run's shards. `is_loop`: it is called again and again,
    with `pause_ms` between. Otherwise a tick calls it once. `every_ms`, `cron`, `tz`: of its ticks."""

    job: str
    name: str
    call: Callable[[ShardRun, float], Awaitable[None]]
    is_loop: bool
    pause_ms: int = 1_000
    every_ms: int = 0
    cron: str = ""
    tz: str = "UTC"


class ZoneLife(Protocol):
    """Who lives, by this node's own clock."""

    def may_run(self) -> bool:
        """Return whether this node may act for its zone now."""
        ...

    @property
    def lapses(self) -> int:
        """How often it might not, and may again."""
        ...

    def dead(self) -> frozenset[str]:
        """Return the zones whose time is over."""
        ...


class ZoneRunner:
    """One node's part of one job."""

    def __init__(
        self,
        handler: ZoneHandler,
        *,
        zone: str,
        node: str,
        routing: Routing,
        offsets: Offsets,
        leases: Bucket[bytes],
        life: ZoneLife,
        clock: Clock,
        stop: anyio.Event,
    ) -> None:
        self.handler = handler
        self.zone = zone
        self.run_now: ShardRun | None = None
        """The run under way on this node."""
        self._node = node
        self._routing = routing
        self._offsets = offsets
        self._leases = leases
        self._life = life
        self._clock = clock
        self._stop = stop
        self._changed = anyio.Event()
        self._failures = 0
        self._overdue = Overdue(zone)

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Serve the job until the node stops, and the run under way has ended."""
        forget = self._routing.on_change(self._hear)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._stop_with_node)
                task_status.started()
                await (self._lead_for_ever() if self.handler.is_loop else self._give_up_for_ever())
                tasks.cancel_scope.cancel()
        finally:
            forget()

    async def tick(self) -> None:
        """Run one batch, if no other run of the job is under way in the zone."""
        if self._routing.current() is None or self._stop.is_set():
            return
        lease = await self._try_to_acquire()
        if lease is None:
            log.info("zone.tick_left_out", extra=fields(job=self.handler.job, zone=self.zone))
            return
        await hold(lease, self._one_batch)

    # ---- leading

    async def _lead_for_ever(self) -> None:
        while not self._stop.is_set():
            lease = await self._try_to_acquire() if self._has_work() else None
            if lease is not None:
                await hold(lease, self._loop)
            await self._wait(LEASE_TTL_S / 3 * (0.5 + chance()))

    def _has_work(self) -> bool:
        shards = self._routing.current()
        return shards is not None and self._life.may_run()

    async def _try_to_acquire(self) -> Lease | None:
        key = f"zone.{self.zone}.{self.handler.job}"
        try:
            return await acquire(self._leases, key, self._node, ttl_s=LEASE_TTL_S)
        except (Disconnected, OutcomeUnknown, Refused) as error:
            log.debug("zone.no_campaign", extra=fields(job=self.handler.job, error=str(error)))
            return None

    async def _loop(self, lease: Lease) -> None:
        """Begin run after run, while the lease is held."""
        while not self._stop.is_set():
            try:
                await self._free_lost()
                if not self._owns_some():
                    await self._wait_for_change(None)
                    continue
                run = await self._begin(lease)
                if run is None:
                    await self._wait_for_change(POLL_S)
                else:
                    await self._serve(run, lease)
            except FATAL:
                raise
            except PASSING as error:
                log.warning("zone.waits", extra=fields(job=self.handler.job, zone=self.zone, error=str(error)))
                await self._wait(LOOK_S)

    def _owns_some(self) -> bool:
        shards = self._routing.current()
        return shards is not None and bool(shards.shards_of(self.zone))

    async def _one_batch(self, lease: Lease) -> None:
        try:
            await self._free_lost()
            run = await self._begin(lease)
            if run is not None:
                await self._serve(run, lease)
        except FATAL:
            raise
        except PASSING as error:
            log.warning("zone.tick_failed", extra=fields(job=self.handler.job, zone=self.zone, error=str(error)))

    async def _give_up_for_ever(self) -> None:
        """Free what the zone has lost, also between two ticks."""
        done: ShardMap | None = None
        while not self._stop.is_set():
            shards = self._routing.current()
            if shards is None or shards is done:
                await self._wait_for_change(None)
            elif await self._give_up():
                done = shards
            else:
                await self._wait(LOOK_S)

    async def _give_up(self) -> bool:
        """Free what the zone has lost. Return whether nothing is left to free."""
        lost = await self._lost()
        if not lost:
            return lost is not None
        lease = await self._try_to_acquire()
        if lease is None:
            return False
        await hold(lease, self._free_for_lease)
        return False

    async def _lost(self) -> list[str] | None:
        shards = self._routing.current()
        try:
            stored = await self._offsets.of_job(self.handler.job)
        except PASSING:
            return None
        return to_free(shards, self.zone, records_of(stored)) if shards is not None else []

    async def _free_for_lease(self, _lease: Lease) -> None:
        with suppress(*PASSING):
            await self._free_lost()

    async def _free_lost(self) -> None:
        shards = self._routing.current()
        if shards is not None:
            reach("zone.free")
            await self._offsets.free_lost(self.handler.job, self.zone, shards)

    # ---- one run

    async def _begin(self, lease: Lease) -> ShardRun | None:
        """Claim what the zone may have now. `None`: nothing, or another run was faster."""
        shards = self._routing.current()
        if shards is None or not self._life.may_run():
            return None
        stored = await self._offsets.of_job(self.handler.job)
        names = self._runnable(shards, stored)
        if not names or not lease.is_held():
            return None
        run = await claim(
            self._offsets,
            job=self.handler.job,
            zone=self.zone,
            number=lease.token,
            shards=shards,
            names=sorted(names),
            stored=stored,
            start=start_of(records_of(stored), names),
            now_ms=self._clock.now_ms(),
            may_run=lambda: lease.is_held() and self._life.may_run(),
        )
        if run is None:
            return None
        newest = await self._routing.fresh()  # a map that this node has not heard of may be in force
        return run if newest is not None and run.names <= newest.shards_of(self.zone) else None

    def _runnable(self, shards: ShardMap, stored: Stored) -> frozenset[str]:
        overdue = self._overdue.of(shards)
        return runnable(shards, self.zone, records_of(stored), dead=self._life.dead(), overdue=overdue)

    async def _serve(self, run: ShardRun, lease: Lease) -> None:
        """Call the code until the run is to end. Then free what the zone has lost."""
        self.run_now = run
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch, run, lease, tasks.cancel_scope)
                await self._call_until_stopped(run)
                tasks.cancel_scope.cancel()
        finally:
            self.run_now = None
        await self._free_lost()

    async def _call_until_stopped(self, run: ShardRun) -> None:
        while True:
            try:
                await self.handler.call(run, self.handler.pause_ms / 1000)
                self._failures = 0
            except RunEnded as error:
                log.debug("zone.run_ended", extra=fields(job=run.job, zone=run.zone, why=str(error)))
            except FATAL:
                raise
            except Exception as error:  # the user's code may raise anything, and is called again
                self._failures += 1
                wait_ms = next_delay_ms(self._failures + 1, AGAIN, chance=chance())
                told = fields(job=run.job, zone=run.zone, again_ms=wait_ms, error=f"{type(error).__name__}: {error}")
                log.warning("zone.failed", exc_info=error, extra=told)
                with anyio.move_on_after(wait_ms / 1000):
                    await run.stopped.wait()
            if not self.handler.is_loop or run.is_stopped():
                return
            with anyio.move_on_after(self.handler.pause_ms / 1000):
                await run.stopped.wait()
            if run.is_stopped():
                return

    async def _watch(self, run: ShardRun, lease: Lease, scope: anyio.CancelScope) -> None:
        """Stop the run when its zone gets other shards, or may not run any more. Cancel code that does not return."""
        while not run.is_stopped():
            why = await self._why_to_stop(run)
            if why:
                run.stop(why)
        run.stop("the node or its zone may not run any more" if lease.is_held() else "the lease is over")
        await anyio.sleep(run.shards.drain_ms / 1000)
        told = fields(job=run.job, zone=run.zone, do="look at is_stopped() after each batch, and return")
        log.warning("zone.run_cut", extra=told)
        scope.cancel()

    async def _why_to_stop(self, run: ShardRun) -> str:
        """Look at the map, and wait until there may be news. Return why the run is to stop, if it is."""
        shards = self._routing.current()
        if shards is None:
            return "there is no shard map"
        owned = shards.shards_of(self.zone)
        if not run.names <= owned:
            return f"shards have left the zone in epoch {shards.epoch}"
        wait_s = LOOK_S
        if run.names != owned:
            with suppress(*PASSING):  # the next look asks again
                if self._runnable(shards, await self._offsets.of_job(self.handler.job)) != run.names:
                    return f"shards have come to the zone in epoch {shards.epoch}"
            wait_s = POLL_S
        if shards is self._routing.current():
            await self._wait_for_change(wait_s)
        return ""

    # ---- waiting

    def _hear(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _wait_for_change(self, within_s: float | None) -> None:
        """Wait until the map has changed, or the node stops, or for so long."""
        changed = self._changed
        with anyio.move_on_after(within_s):
            await changed.wait()

    async def _wait(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._stop.wait()

    async def _stop_with_node(self) -> None:
        await self._stop.wait()
        if self.run_now is not None:
            self.run_now.stop("the node stops")
        self._hear()
