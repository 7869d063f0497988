"""Zones with their keepers, in one process: each on its own server, joined at the hub."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio

from actors.zone.hub_life import HubLife, follow
from actors.zone.keeper import Buckets, Keeper
from actors.zone.offsets import Offsets, StoredOffset, decode_offset
from actors.zone.routing import MAP, Routing, change_map, decode_map
from actors.zone.rules.hub import EPOCHS
from actors.zone.rules.offsets import OffsetRecord, claimed, freed, saved
from actors.zone.rules.routing import ShardMap, made, next_map
from actors.zone.takeover import Takeover
from streams.buckets.bucket import Bucket
from streams.clock import SYSTEM, now_ms
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from streams.topology.specs import BucketSpec, Topology, hub
from streams.topology.topology import apply
from tests.support.zones import HUB, Zones, at, zones

LEASE_MS = 2_000
JOB = "mail"


class Zone:
    """A zone as one node sees it, with a stand-in for its runners."""

    def __init__(self, name: str, connection: Connection, publisher: Publisher) -> None:
        self.name = name
        self.connection = connection
        self._publisher = publisher
        self.routing, self._offsets = self.here("ROUTING"), Offsets(self.here("OFFSETS"))
        self.life = HubLife(zone=name, node=f"{name}-1", zones=self.far("HUB_ZONES"))
        self.hub_map = Routing(self.far("HUB_ROUTING"))
        self.has_taken = True
        """Whether no node of the zone works on what is bound to a shard that it lost."""
        self.keeper = self.new_keeper()
        self.takeover = Takeover(
            node=f"{name}-1",
            routing=self.hub_map,
            bucket=self.far("HUB_ROUTING"),
            leases=self.here("LEASES"),
            life=self.life,
            clock=SYSTEM,
            step=EPOCHS,
        )
        self._tasks = anyio.CancelScope()

    def here(self, short: str) -> Bucket[bytes]:
        return Bucket(self.connection, self._publisher, self.connection.namespace.bucket(short), bytes)

    def far(self, short: str) -> Bucket[bytes]:
        return Bucket(self.connection, self._publisher, self.connection.namespace.bucket(short), bytes, domain=HUB)

    def new_keeper(self, *, has_views: bool = True) -> Keeper:
        """Return a keeper. Without views it has not heard of anything yet."""
        life = HubLife(zone=self.name, node=f"{self.name}-1", zones=self.far("HUB_ZONES"))
        return Keeper(
            node=f"{self.name}-1",
            shards=self.hub_map if has_views else Routing(self.far("HUB_ROUTING")),
            buckets=Buckets(
                hub_zones=self.far("HUB_ZONES"),
                hub_offsets=self.far("HUB_OFFSETS"),
                routing=self.here("ROUTING"),
                offsets=self.here("OFFSETS"),
            ),
            leases=self.here("LEASES"),
            life=self.life if has_views else life,
            lease_ms=LEASE_MS,
            stop=anyio.Event(),
            has_taken=lambda _epoch: self.has_taken,
        )

    async def run(self) -> None:
        """Run until `die`."""
        with self._tasks:
            async with anyio.create_task_group() as tasks:
                await tasks.start(self.life.run)
                await tasks.start(self.keeper.run)
                await tasks.start(self.takeover.run)
                tasks.start_soon(follow, self.hub_map.run)

    def die(self) -> None:
        """End at once, as if the zone's nodes were killed."""
        self._tasks.cancel()

    # ---- what a runner does

    async def map(self) -> ShardMap | None:
        entry = await self.routing.get(MAP)
        return None if entry is None else decode_map(entry.raw)

    async def shards(self) -> frozenset[str]:
        """Return the shards that a run of this zone may have now."""
        shards = await self.map()
        return shards.shards_of(self.name) if shards is not None and self.life.may_run() else frozenset()

    async def record(self, shard: str) -> StoredOffset:
        entry = await self.here("OFFSETS").get(f"{JOB}.{shard}")
        if entry is None:
            return StoredOffset(OffsetRecord(), 0)
        return StoredOffset(decode_offset(entry.key, entry.raw), entry.revision)

    async def claim(self, shard: str, run: int = 1) -> StoredOffset:
        shards, stored = await self.map(), await self.record(shard)
        assert shards is not None
        record = claimed(
            stored.record, epoch=shards.epoch, zone=self.name, run=run, start=0, asked_ms=0, now_ms=now_ms()
        )
        return await self.write(shard, StoredOffset(record, stored.revision))

    async def save(self, shard: str, stored: StoredOffset, offset: int) -> StoredOffset:
        return await self.write(shard, StoredOffset(saved(stored.record, offset), stored.revision))

    async def free(self, shard: str) -> StoredOffset:
        stored = await self.record(shard)
        return await self.write(shard, StoredOffset(freed(stored.record), stored.revision))

    async def write(self, shard: str, stored: StoredOffset) -> StoredOffset:
        done, failed = await self._offsets.write(JOB, {shard: stored})
        if failed:
            raise failed[shard]
        return done[shard]

    async def copy_at_hub(self, shard: str) -> OffsetRecord | None:
        """Return this zone's copy of a record, as the hub has it."""
        entry = await self.far("HUB_OFFSETS").get(f"{self.name}.{JOB}.{shard}")
        return None if entry is None else decode_offset(entry.key, entry.raw)

    async def is_copied(self, shard: str, offset: int) -> None:
        """Wait until the hub has what was saved."""

        async def is_so() -> bool:
            copy = await self.copy_at_hub(shard)
            return copy is not None and copy.offset >= offset

        await until(is_so)


class Country:
    """The hub and all zones that run."""

    def __init__(self, servers: Zones, zones: dict[str, Zone], routing: Bucket[bytes]) -> None:
        self.servers = servers
        self.zones = zones
        self._routing = routing

    async def set_map(self, owners: dict[str, Sequence[int]], *, drain_ms: int = 60_000, above: int = 0) -> int:
        """Change the map at the hub, and return its epoch."""

        def change(before: ShardMap | None) -> ShardMap:
            after = made(owners, count=sum(map(len, owners.values())), drain_ms=drain_ms, takeover_ms=0)
            least = before.epoch + EPOCHS - 1 if before is not None else 0
            return next_map(before, after, at_ms=now_ms(), by="test", why="", above=max(least, above))

        return (await change_map(self._routing, change)).epoch

    async def has(self, zone: str, shards: Collection[int], within_s: float = 60.0) -> None:
        """Wait until the runs of a zone may have exactly these shards."""
        wanted = {str(shard) for shard in shards}

        async def is_so() -> bool:
            return await self.zones[zone].shards() == wanted

        await until(is_so, within_s)


@asynccontextmanager
async def country(folder: Path, names: Sequence[str] = ("east", "west")) -> AsyncIterator[Country]:
    """Run servers, and a node with a keeper in each zone."""
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(zones(folder, names))
        places, opened = {}, {}
        for name in (HUB, *names):
            connection = await stack.enter_async_context(at(servers.url(name)))
            places[name] = connection
            await apply(connection, hub(connection.namespace, profile="fast") if name == HUB else _own(connection))
            opened[name] = await stack.enter_async_context(Publisher(connection))
        running = {name: Zone(name, places[name], opened[name]) for name in names}
        central = Zone(HUB, places[HUB], opened[HUB])
        async with anyio.create_task_group() as tasks:
            for zone in running.values():
                tasks.start_soon(zone.run)
            yield Country(servers, running, central.here("HUB_ROUTING"))
            tasks.cancel_scope.cancel()


def _own(connection: Connection) -> Topology:
    bucket = connection.namespace.bucket
    return Topology(
        profile="fast",
        buckets=(
            BucketSpec(name=bucket("ROUTING"), about="test"),
            BucketSpec(name=bucket("OFFSETS"), about="test"),
            BucketSpec(name=bucket("LEASES"), about="test", has_ttl=True),
        ),
    )


async def until(condition: Callable[[], Awaitable[bool]], within_s: float = 60.0) -> None:
    """Wait for a condition."""
    with anyio.fail_after(within_s):
        while True:
            if await condition():
                return
            await anyio.sleep(0.02)
