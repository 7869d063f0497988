"""The zone keeper: takes the hub's map into its zone, and lets the other zones know of it (ADR 46).

In: the map (HUB_ROUTING), the zones (HUB_ZONES), the zone's offsets. Out: the zone's map, which its runners follow, the
zone's record at the hub, and copies of its offsets there (HUB_OFFSETS). State: none of its own. One node of a zone is
its keeper, by the lease `zone.keeper` in the zone.

A new map is taken in two steps (actors/zone/rules/hub.py). What is lost is stopped by the runners. When they have had
the time that the map gives them, the keeper frees it, and their saves are refused. What is gained begins when no other
zone holds it: then the keeper brings in what the former owners have saved, and writes the whole map.

A zone that is silent for longer than its lease is put out by any other zone's keeper. What follows from that is for
`actors/zone/takeover.py`.

Under redelivery: each write is a compare-and-set, and each step looks at what is stored. A step that was interrupted is
done again. When it cannot go on: without the hub it tries again, and the zone keeps the map that it has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeGuard

import anyio
import msgspec
from anyio.abc import TaskStatus

from actors.runtime.actor import until_stopped
from actors.runtime.logs import fields
from actors.zone.hub_life import HubLife, read_zone
from actors.zone.offset_copies import FAILURES, OffsetCopies
from actors.zone.offsets import Offsets, Stored, StoredOffset, decode_offset, records_of
from actors.zone.routing import MAP, Routing, decode_map
from actors.zone.rules.hub import (
    ZoneRecord,
    are_free,
    gains,
    given_up,
    imported,
    is_behind,
    is_met_first,
    joined,
    joining,
    latest,
    put_out,
    still_held,
    taken,
    without_gains,
)
from actors.zone.rules.offsets import OffsetRecord
from actors.zone.rules.routing import ShardMap
from streams.buckets.bucket import Bucket
from streams.buckets.entries import Entry
from streams.buckets.lease import Lease, lead
from streams.clock import monotonic_s

log = logging.getLogger(__name__)

LEASE = "zone.keeper"
LEASE_TTL_S = 2
STEP_S = 0.25
"""Between two looks, if nothing changes."""
MARGIN_S = 0.3
"""How much longer than its lease a zone is silent before it is put out."""


REMAKE = "see `penstock routing apply --from-zone`"


class HubWaits(Exception):
    """The zone may not come in yet. The text says why."""


class Buckets(msgspec.Struct, frozen=True, kw_only=True):
    """Those that a keeper uses: two at the hub, and two of its zone."""

    hub_zones: Bucket[bytes]
    hub_offsets: Bucket[bytes]
    routing: Bucket[bytes]
    offsets: Bucket[bytes]


class Keeper:
    """A node's part of this. `shards`: a view of the hub's map. `life`: who lives, and whether this node's zone may
    act. `lease_ms`: of the zone, from the next time that it joins. `has_taken(epoch)`: whether no node of the zone has
    work under way that is bound to a shard which the zone's map of this epoch took from it."""

    def __init__(
        self,
        *,
        node: str,
        shards: Routing,
        buckets: Buckets,
        leases: Bucket[bytes],
        life: HubLife,
        lease_ms: int,
        stop: anyio.Event,
        has_taken: Callable[[int], bool],
    ) -> None:
        self._has_taken = has_taken
        self.zone = life.zone
        self._node = node
        self._buckets = buckets
        self._leases = leases
        self._life = life
        self._lease_ms = lease_ms
        self._stop = stop
        self._map = shards
        self._offsets = Offsets(buckets.offsets)
        self._news = anyio.Event()
        self._heard: dict[str, tuple[int, float]] = {}
        self._first: tuple[int, float] = (0, 0.0)
        self._new_since_s: float | None = None
        self._reason = ""
        self._copies = OffsetCopies(self.zone, buckets.offsets, buckets.hub_offsets)
        self.elected = anyio.Event()
        """Set while this node is the keeper."""

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Stand for election until the node stops."""
        await until_stopped(self._stop, self._campaign, task_status=task_status)

    async def _campaign(self) -> None:
        await lead(self._leases, LEASE, self._node, ttl_s=LEASE_TTL_S, body=self._lead)

    async def _lead(self, _lease: Lease) -> None:
        log.info("zone.keeper_leads", extra=fields(zone=self.zone, node=self._node))
        self._heard.clear()
        self._new_since_s = None
        removers = [self._map.on_change(self.wake), self._life.on_change(self.wake)]
        self.elected.set()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._copies.run)
                while True:
                    self._news = anyio.Event()
                    await self._look()
                    with anyio.move_on_after(STEP_S):
                        await self._news.wait()
        finally:
            self.elected = anyio.Event()
            for remove in removers:
                remove()

    def wake(self) -> None:
        """Look again now."""
        self._news.set()

    async def _look(self) -> None:
        try:
            await self.step()
        except (*FAILURES, HubWaits) as error:
            if not isinstance(error, HubWaits):
                self._heard.clear()  # what is not heard from the hub is no silence of a zone
            if self._reason != str(error):
                self._reason = str(error)
                log.warning("zone.keeper_waits", extra=fields(zone=self.zone, error=str(error)))
        else:
            self._reason = ""

    # ---- one look

    async def step(self) -> None:
        """Do whatever can be done now. Raises the broker's errors, and MalformedMessage."""
        own = await self._own_record()
        await self._put_out_silent(own)
        shards, mine = self._map.current(), await self.own_map()
        if _is(own, "in") and is_behind(shards, mine):
            shards = await self._map.fresh()  # as in `_own_record`
        if not _is(own, "in") or is_behind(shards, mine):
            await self._join(own, mine)
            return
        if shards is None:
            return
        if mine is None or mine.epoch < shards.epoch or own.taken < shards.epoch or own.held:
            await self._take(shards, mine, own)

    async def _own_record(self) -> ZoneRecord | None:
        """Return the zone's record. The view of a keeper that begins may be empty."""
        known = self._life.zones.get(self.zone)
        if known is not None:
            return known
        entry = await self._buckets.hub_zones.get(self.zone)
        return None if entry is None else read_zone(entry)

    @property
    def is_linked(self) -> bool:
        """Whether the hub answered last time."""
        return self._life.is_linked

    async def own_map(self) -> ShardMap | None:
        """Return the zone's own map."""
        entry = await self._buckets.routing.get(MAP)
        return None if entry is None else decode_map(entry.raw)

    async def _join(self, own: ZoneRecord | None, mine: ShardMap | None) -> None:
        """Come in, or come back. Nothing of this zone runs until then: its nodes renew only what is in. Another zone
        may have had its shards meanwhile, so it asks for all that it has as for a gain."""
        joins = await self._change_own(lambda record: joining(record, self._node, lease_ms=self._lease_ms))
        if is_met_first(joins, mine):
            await self._meet_new_hub()
        shards = await self._map.fresh()  # not earlier: now no zone gains anything without us
        if mine is not None and is_behind(shards, mine):
            told = mine.epoch
            await self._change_own(lambda record: taken(record, told) if _is(record, "joining") else None)
            there = "no map" if shards is None else f"an older map, of epoch {shards.epoch}"
            raise HubWaits(f"the hub has {there}; this zone has one of epoch {told}: {REMAKE}")
        epoch = 0 if shards is None else shards.epoch
        if shards is not None:
            mine = await self._give_up(shards, mine)
            await self._free_lost(mine, is_forced=True)
        seen = await self._change_own(lambda record: taken(record, epoch) if _is(record, "joining") else None)
        owned = mine.shards_of(self.zone) if mine is not None else frozenset()
        if seen is None or not are_free(owned, epoch, await self.records(), self.zone):
            return
        await self._import(owned)
        if await self._change_own(lambda record: joined(record) if record == seen else None):
            log.info("zone.joined", extra=fields(zone=self.zone, was="new" if own is None else own.state))

    async def _meet_new_hub(self) -> None:
        """Give the hub what this zone has saved, and wait until no node of it can still act by a renewal at the hub
        that was before. Raises HubWaits until then."""
        if self._new_since_s is None:
            for job, of_job in (await self._offsets.of_all()).items():
                own = {shard: each.record for shard, each in of_job.items() if each.record.zone == self.zone}
                await self._copies.copy({f"{job}.{shard}": record for shard, record in own.items()})
            self._new_since_s = monotonic_s()
            log.warning("zone.hub_is_new", extra=fields(zone=self.zone))
        if monotonic_s() - self._new_since_s < self._lease_ms / 1000 + MARGIN_S:
            raise HubWaits("the hub is new: the lease of this zone's nodes at the one before must be over first")
        self._new_since_s = None

    async def _take(self, shards: ShardMap, mine: ShardMap | None, own: ZoneRecord) -> None:
        mine = await self._give_up(shards, mine)
        if own.taken < shards.epoch or own.held:
            is_forced = self._had_their_time(shards)
            if not is_forced and mine is not None and not self._has_taken(mine.epoch):
                return  # what is bound to a lost shard is still under way (ADR 52)
            held = await self._free_lost(mine, is_forced=is_forced)
            if own.taken < shards.epoch or held != frozenset(own.held):
                await self._change_own(lambda record: taken(record, shards.epoch, held) if _is(record, "in") else None)
        gained = gains(shards, mine, self.zone)
        if (mine is None or mine.epoch < shards.epoch) and await self._are_free(gained, shards.epoch):
            await self._import(gained)
            await self._write(shards)

    def _had_their_time(self, shards: ShardMap) -> bool:
        """Return whether runs have had the time to stop that the map gives them, since this keeper saw it."""
        at_s = monotonic_s()
        if self._first[0] != shards.epoch:
            self._first = shards.epoch, at_s
        return at_s - self._first[1] >= shards.drain_ms / 1000

    async def _are_free(self, gained: frozenset[str], epoch: int) -> bool:
        """Return whether no other zone holds these shards. The hub's leader says so after the map was seen: a zone that
        is out there comes in only when it has seen the map, too. The view may be older than the map."""
        if not are_free(gained, epoch, dict(self._life.zones.items()), self.zone):
            return False
        if not gained:
            return True
        zones = await self.records()
        return _is(zones.get(self.zone), "in") and are_free(gained, epoch, zones, self.zone)

    async def _give_up(self, shards: ShardMap, mine: ShardMap | None) -> ShardMap | None:
        """Do the first step: write the map without what this zone gains. Return the zone's map."""
        first = without_gains(shards, mine, self.zone)
        if first is None or mine is None or mine.epoch >= first.epoch:
            return mine
        return await self._write(first)

    async def _write(self, shards: ShardMap) -> ShardMap:
        def change(entry: Entry[bytes] | None) -> tuple[bytes | None, ShardMap]:
            there = None if entry is None else decode_map(entry.raw)
            if there is not None and there.epoch >= shards.epoch:
                return None, there
            return msgspec.json.encode(shards), shards

        written, _ = await self._buckets.routing.update(MAP, change)
        if written is shards:
            log.info("zone.map", extra=fields(zone=self.zone, epoch=shards.epoch))
        return written

    async def records(self) -> dict[str, ZoneRecord]:
        """Read the zones from the leader."""
        return {entry.key: read_zone(entry) for entry in await self._buckets.hub_zones.entries()}

    # ---- what is lost

    async def _free_lost(self, mine: ShardMap | None, *, is_forced: bool) -> frozenset[str]:
        """Close the records of what the zone has lost to runs under older maps, and copy them to the hub. Return the
        shards that a run still has. `is_forced`: runs have had their time, and lose them."""
        if mine is None:
            return frozenset()
        stored = await self._offsets.of_all()
        held = frozenset() if is_forced else still_held(mine, self.zone, _records(stored))
        for job, of_job in stored.items():
            changes = {
                shard: StoredOffset(given_up(each.record, mine.since.get(shard, 0)), each.revision)
                for shard, each in of_job.items()
                if each.record.zone == self.zone and mine.owners.get(shard) != self.zone and shard not in held
            }
            changes = {shard: change for shard, change in changes.items() if change.record != of_job[shard].record}
            _, failed = await self._offsets.write(job, changes)
            if failed:  # a run has saved meanwhile: the next look takes what it saved
                raise next(iter(failed.values()))
            await self._copies.copy({f"{job}.{shard}": change.record for shard, change in changes.items()})
        return held

    # ---- what is gained

    async def _import(self, gained: Iterable[str]) -> None:
        """Bring in the latest of what other zones have saved for these shards."""
        wanted = set(gained)
        copies: dict[str, list[OffsetRecord]] = {}
        for entry in await self._buckets.hub_offsets.entries():
            _, _, key = entry.key.partition(".")
            if key.rpartition(".")[2] in wanted:
                copies.setdefault(key, []).append(decode_offset(entry.key, entry.raw))
        for key, found in copies.items():
            await self._buckets.offsets.update(key, _bring_in(key, latest(found), self.zone))
        if copies:
            log.info("zone.imported", extra=fields(zone=self.zone, offsets=len(copies)))

    # ---- the others

    async def _put_out_silent(self, own: ZoneRecord | None) -> None:
        """Put out each other zone that has not renewed its record for longer than its lease. As long as this zone does
        not hear from the hub, it hears from nobody, and begins to count anew."""
        if _is(own, "in") and not self._life.may_run():
            self._heard.clear()
        at_s = monotonic_s()
        for zone, record in self._life.zones.items():
            beat, since_s = self._heard.get(zone, (-1, at_s))
            if record.beat != beat:
                since_s = at_s
            self._heard[zone] = (record.beat, since_s)
            is_silent = at_s - since_s > record.lease_ms / 1000 + MARGIN_S
            if zone != self.zone and record.state != "out" and is_silent:
                await self._put_out(zone, record)

    async def _put_out(self, zone: str, seen: ZoneRecord) -> None:
        def change(entry: Entry[bytes] | None) -> tuple[bytes | None, bool]:
            if entry is None or read_zone(entry) != seen:
                return None, False  # it was heard of meanwhile
            return msgspec.json.encode(put_out(seen)), True

        is_out, revision = await self._buckets.hub_zones.update(zone, change)
        if is_out:
            log.warning("zone.out", extra=fields(zone=zone, by=self.zone))
            self._life.zones.learn(zone, put_out(seen), revision)

    async def _change_own(self, change: Callable[[ZoneRecord | None], ZoneRecord | None]) -> ZoneRecord | None:
        """Change the zone's record, and return it. `None`: it was left as it is."""

        def changed(entry: Entry[bytes] | None) -> tuple[bytes | None, ZoneRecord | None]:
            after = change(read_zone(entry) if entry is not None else None)
            return (None if after is None else msgspec.json.encode(after)), after

        after, revision = await self._buckets.hub_zones.update(self.zone, changed)
        if after is not None:
            self._life.zones.learn(self.zone, after, revision)
        return after


def _is(record: ZoneRecord | None, state: str) -> TypeGuard[ZoneRecord]:
    return record is not None and record.state == state


def _records(stored: dict[str, Stored]) -> dict[str, dict[str, OffsetRecord]]:
    return {job: records_of(of_job) for job, of_job in stored.items()}


def _bring_in(
    key: str, copy: OffsetRecord | None, zone: str
) -> Callable[[Entry[bytes] | None], tuple[bytes | None, None]]:
    def change(entry: Entry[bytes] | None) -> tuple[bytes | None, None]:
        own = None if entry is None else decode_offset(key, entry.raw)
        brought = imported(own, copy, zone)
        return (None if brought is None else msgspec.json.encode(brought)), None

    return change
