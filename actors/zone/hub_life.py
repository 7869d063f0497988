"""Whether this node's zone may work, and which other zones live, if zones have servers of their own (ADR 46).

Each node renews the zone's record at the hub for itself. In: the records of all zones (HUB_ZONES). Out: renewals.
State: until when this node may act, in memory.

A node may act for the length of the lease after it *sent* its last confirmed renewal, by its own monotonic clock. The
others count from the moment when they *received* the last change, and longer. So a node that is cut off stops before
anybody takes over, and no clock is compared with another.

When it cannot go on: without the hub it tries again, three times in a lease. The lease ends meanwhile.
"""

import logging
import math
from collections.abc import Awaitable, Callable

import anyio
import msgspec
from anyio.abc import TaskStatus

from actors.runtime.live import Live
from actors.runtime.logs import fields
from actors.zone.rules.hub import ZoneRecord, renewed
from streams.buckets.bucket import Bucket
from streams.buckets.entries import Entry
from streams.clock import monotonic_s
from streams.errors import Disconnected, OutcomeUnknown, Refused

log = logging.getLogger(__name__)

LEASE_MS = 10_000
RENEWALS = 3
"""In the time of a lease."""
TRY_S = 2.0
"""Seconds of one renewal, at most. A link that stands still does not answer."""
MARGIN_S = 0.5
"""How much before its lease ends a node stops: a run is looked after so often (actors/zone/runner.py)."""
AGAIN_S = 0.3
"""Before the next try, and before a view of the hub is opened again."""


def read_zone(entry: Entry[bytes]) -> ZoneRecord:
    """Return the record of a zone."""
    return msgspec.json.decode(entry.raw, type=ZoneRecord)


class HubLife:
    """One node's part. `zones`: the bucket HUB_ZONES at the hub."""

    def __init__(self, *, zone: str, node: str, zones: Bucket[bytes]) -> None:
        self.zone = zone
        self.zones = Live(zones, read_zone, unreadable="zone.unreadable")
        self._node = node
        self._bucket = zones
        self._until_s = -math.inf
        self._lease_s = LEASE_MS / 1000
        self._held = False
        self.is_linked = False
        """Whether the hub answered the last renewal, with yes or no."""
        self._heard_s = monotonic_s()
        self._is_back = anyio.Event()
        self.lapses = 0
        """How often this node might not act, and may again."""
        self._listeners: list[Callable[[], None]] = []
        self.zones.on_change(self._zone_changed)

    # ---- what the engine asks

    def may_run(self) -> bool:
        """Return whether this node may act for its zone now, by its own clock."""
        return self.left_s > 0

    def dead(self) -> frozenset[str]:
        """Return the zones that are out."""
        return frozenset(zone for zone, record in self.zones.items() if record.state == "out")

    def nodes(self) -> dict[str, list[str]]:
        """Return the zones that are not out, each with the node that renewed its record last."""
        return {zone: [record.node] for zone, record in self.zones.items() if record.state != "out"}

    @property
    def left_s(self) -> float:
        """Seconds for which this node may certainly act without another renewal."""
        return max(0.0, self._until_s - monotonic_s())

    @property
    def heard_s(self) -> float:
        """Seconds since the last confirmed renewal, or since the start."""
        return monotonic_s() - self._heard_s

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` when a zone came or went, and when the own zone may act or may not any more. Return a
        function that removes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # ---- the loops

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Follow the zones and renew, until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow, self.zones.run)
            tasks.start_soon(self._end_in_time)
            task_status.started()
            while True:
                is_renewed = await self._renew()
                await self._rest(self._lease_s / RENEWALS if is_renewed else AGAIN_S)

    async def _renew(self) -> bool:
        """Renew once. Return whether the hub confirmed it."""
        begun_s = monotonic_s()
        try:
            with anyio.fail_after(min(TRY_S, self._lease_s / RENEWALS)):
                record, _ = await self._bucket.update(self.zone, self._renewal)
        except (TimeoutError, Disconnected, OutcomeUnknown, Refused) as error:
            log.debug("zone.not_renewed", extra=fields(zone=self.zone, error=str(error)))
            self.is_linked = False
            return False
        self.is_linked = True
        if record is None:
            self._until_s = -math.inf
        else:
            self._lease_s = record.lease_ms / 1000
            self._heard_s = monotonic_s()
            self.lapses += not self.may_run()
            self._until_s = begun_s + self._lease_s - min(MARGIN_S, self._lease_s / 4)
        self._tell_own()
        return record is not None

    def _renewal(self, entry: Entry[bytes] | None) -> tuple[bytes | None, ZoneRecord | None]:
        record = renewed(read_zone(entry) if entry is not None else None, self._node)
        return (None if record is None else msgspec.json.encode(record)), record

    async def _rest(self, seconds: float) -> None:
        """Wait for the next renewal, or until the zone has come in."""
        self._is_back = anyio.Event()
        with anyio.move_on_after(seconds):
            await self._is_back.wait()

    async def _end_in_time(self) -> None:
        """Call the listeners at the moment when the lease ends."""
        while True:
            await anyio.sleep(self.left_s if self.may_run() else AGAIN_S / 3)
            self._tell_own()

    def _tell_own(self) -> None:
        if self._held != self.may_run():
            self._held = not self._held
            log.info("zone.holds" if self._held else "zone.stops", extra=fields(zone=self.zone, node=self._node))
            self._tell()

    def _zone_changed(self, zone: str) -> None:
        own = self.zones.get(self.zone)
        if zone == self.zone and own is not None and own.state == "in" and not self.may_run():
            self._is_back.set()
        self._tell()

    def _tell(self) -> None:
        for listener in tuple(self._listeners):
            listener()


async def follow(run: Callable[..., Awaitable[None]]) -> None:
    """Run a view of a bucket for ever, also while the hub cannot be reached."""
    while True:
        try:
            await run(task_status=anyio.TASK_STATUS_IGNORED)
        except (Disconnected, OutcomeUnknown, Refused) as error:
            log.warning("zone.no_hub", extra=fields(error=str(error)))
        await anyio.sleep(AGAIN_S)
