"""A node's part of the hub that joins zones on servers of their own (ADR 46)."""

from __future__ import annotations

from dataclasses import dataclass

from anyio.abc import TaskStatus

from actors.runtime.measures import HubFigures
from actors.runtime.supervisor import ActorSpec
from actors.zone.hub_life import HubLife, follow
from actors.zone.keeper import Buckets, Keeper
from actors.zone.offset_copies import AllOffsets
from actors.zone.offsets import Offsets
from actors.zone.routing import Routing
from penstock.node.node import Node
from streams.buckets.bucket import Bucket

__all__ = ["ZoneHub", "zone_hub"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneHub:
    """What a node has of the hub. `changes`: where the map is changed. `offsets`: of all zones, for the desk."""

    changes: Bucket[bytes]
    routing: Routing
    life: HubLife
    keeper: Keeper
    offsets: AllOffsets

    def actors(self) -> tuple[ActorSpec, ...]:
        """Return the actors in start order."""
        return (
            ActorSpec(name="map of the hub", role="", run=self._follow),
            ActorSpec(name="lease of the zone", role="", run=self.life.run),
            ActorSpec(name="zone keeper", role="conductor", run=self.keeper.run),
        )

    def figures(self, own: Routing) -> HubFigures:
        """Return how the zone stands with the hub. `own`: the zone's map."""
        there, here = self.routing.current(), own.current()
        behind = 0 if there is None else there.epoch - (0 if here is None else here.epoch)
        life = self.life
        return HubFigures(life.is_linked, life.may_run(), life.heard_s, behind)

    async def _follow(self, *, task_status: TaskStatus[None]) -> None:
        task_status.started()  # the hub may be away for long
        await follow(self.routing.run)


def zone_hub(node: Node) -> ZoneHub | None:
    """Return a node's part of the hub. `None`: all zones are on one cluster."""
    config = node.config
    if not config.hub:
        return None
    changes = node.bucket("HUB_ROUTING", domain=config.hub)
    zones, copies = node.bucket("HUB_ZONES", domain=config.hub), node.bucket("HUB_OFFSETS", domain=config.hub)
    own_offsets = node.bucket("OFFSETS")
    routing = Routing(changes)

    def has_taken(epoch: int) -> bool:
        return all(one.taken >= epoch for one in node.members.live().values() if one.zone == config.zone)

    life = HubLife(zone=config.zone, node=node.members.name, zones=zones)
    keeper = Keeper(
        node=node.members.name,
        shards=routing,
        buckets=Buckets(hub_zones=zones, hub_offsets=copies, routing=node.bucket("ROUTING"), offsets=own_offsets),
        leases=node.bucket("LEASES"),
        life=life,
        lease_ms=round(config.zone_lease_s * 1000),
        stop=node.stop,
        has_taken=has_taken,
    )
    node.members.on_change(keeper.wake)
    return ZoneHub(
        changes=changes, routing=routing, life=life, keeper=keeper, offsets=AllOffsets(Offsets(own_offsets), copies)
    )
