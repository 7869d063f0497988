"""Deals the shards of dead zones to the others, if the map allows it (`takeover_ms`).

In: who lives. Out: a next map. State: since when each zone is dead, in memory of the one node that holds the lease
`zone.takeover`. A new holder counts anew. The map is changed by compare-and-set, so a change by a person in the
meantime is looked at again. A zone that comes back stays drained until a person restores it.

When it cannot go on (no other zone takes shards, or the store takes nothing) it tries again at each look. It says why
when that begins or changes, and when it ends.
"""

from __future__ import annotations

import logging

import anyio
from anyio.abc import TaskStatus

from actors.runtime.logs import fields
from actors.zone.routing import Routing, change_map
from actors.zone.rules.routing import BadMap, ShardMap, drained, next_map
from actors.zone.runner import ZoneLife
from streams.buckets.bucket import Bucket
from streams.buckets.lease import Lease, lead
from streams.clock import Clock, monotonic_s
from streams.errors import MalformedMessage, StreamError

log = logging.getLogger(__name__)

LEASE = "zone.takeover"
LEASE_TTL_S = 2
LOOK_S = 0.2


class Takeover:
    """A node's part of this. `bucket`: where the map is changed. `step`: between the epochs of two maps."""

    def __init__(
        self,
        *,
        node: str,
        routing: Routing,
        bucket: Bucket[bytes],
        leases: Bucket[bytes],
        life: ZoneLife,
        clock: Clock,
        step: int = 1,
    ) -> None:
        self._node = node
        self._routing = routing
        self._bucket = bucket
        self._leases = leases
        self._life = life
        self._clock = clock
        self._step = step
        self._failed: dict[str, str] = {}
        """Why a zone is not taken over, as last logged."""

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Watch the zones whenever elected, until cancelled."""
        task_status.started()
        while True:
            await self._until_allowed()
            await lead(self._leases, LEASE, self._node, ttl_s=LEASE_TTL_S, body=self._watch)

    async def _until_allowed(self) -> None:
        """Wait for a map that allows takeovers: without one no node campaigns."""
        changed = anyio.Event()
        forget = self._routing.on_change(lambda: changed.set())
        try:
            while not self._is_allowed():
                await changed.wait()
                changed = anyio.Event()
        finally:
            forget()

    def _is_allowed(self) -> bool:
        shards = self._routing.current()
        return shards is not None and shards.takeover_ms is not None

    async def _watch(self, lease: Lease) -> None:
        since_s: dict[str, float] = {}
        while True:
            shards = self._routing.current()
            dead = self._life.dead() if shards is not None and shards.takeover_ms is not None else frozenset()
            since_s = {zone: since_s.get(zone, monotonic_s()) for zone in dead}
            if shards is not None and shards.takeover_ms is not None:
                for zone, dead_s in since_s.items():
                    is_due = monotonic_s() - dead_s >= shards.takeover_ms / 1000
                    if is_due and shards.shards_of(zone) and lease.is_held():
                        await self._take(zone, dead)
            for zone in [zone for zone in self._failed if shards is None or zone not in dead]:
                del self._failed[zone]
                log.info("zone.lives_again", extra=fields(zone=zone))
            await anyio.sleep(LOOK_S)

    async def _take(self, zone: str, dead: frozenset[str]) -> None:
        def change(shards: ShardMap | None) -> ShardMap:
            if shards is None or not shards.shards_of(zone):
                raise BadMap(f"zone {zone}: has no shards any more")
            after = drained(shards, zone, without=dead)
            why, above = f"zone {zone} is dead", shards.epoch + self._step - 1
            return next_map(shards, after, at_ms=self._clock.now_ms(), by="takeover", why=why, above=above)

        try:
            after = await change_map(self._bucket, change)
        except (BadMap, StreamError, MalformedMessage) as error:
            if self._failed.get(zone) != str(error):
                self._failed[zone] = str(error)
                log.warning("zone.not_taken_over", extra=fields(zone=zone, error=str(error)))
        else:
            self._failed.pop(zone, None)
            log.warning("zone.taken_over", extra=fields(zone=zone, epoch=after.epoch))
