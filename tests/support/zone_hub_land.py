"""Node processes of zones on servers of their own, set up by the commands of docs/howto/clusters.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio

from actors.zone.hub_life import read_zone
from actors.zone.offsets import decode_offset
from streams.buckets.bucket import Bucket
from streams.errors import Disconnected
from streams.publish.publisher import Publisher
from tests.support.command import Ended, Running, penstock
from tests.support.sqlite import sqlite_file
from tests.support.zone_land import Land
from tests.support.zone_rows import make
from tests.support.zones import HUB, Zones, at, zones

LEASE_S = 3.0
JOBS = ("guarded", "tick")
MAP = """
shards = 10
takeover = "0s"
drain = "10s"
[zones]
east = "0-4"
west = "5-9"
"""


class HubLand:
    """One database, and a `Land` for each zone. The rows are added by any one of them, `rows`."""

    def __init__(self, servers: Zones, lands: Mapping[str, Land]) -> None:
        self.servers = servers
        self.lands = lands
        self.rows = next(iter(lands.values()))
        self.map = self.rows.path.with_name("map.toml")
        self.map.write_text(MAP)

    @asynccontextmanager
    async def node(self, zone: str, number: int = 1, **environment: str) -> AsyncIterator[Running]:
        """Run a node of a zone until the block ends. It is ready."""
        named = {"PENSTOCK_HUB": HUB, "PENSTOCK_ZONE_LEASE_S": str(LEASE_S), **environment}
        async with self.lands[zone].node(f"{zone}{number}", zone, **named) as running:
            await running.logged("node.ready")
            yield running

    async def type(self, zone: str, *arguments: str) -> Ended:
        """Type a command at a terminal of this zone, and have it succeed."""
        done = await penstock(*arguments, "--nats", self.servers.url(zone))
        assert done.code == 0, f"{zone}: penstock {' '.join(arguments)}: {done.code}\n{done.out}\n{done.err}"
        return done

    async def told(self, zone: str, *arguments: str) -> Any:
        """Type a command, and return its document."""
        return (await self.type(zone, *arguments, "--json")).json()

    async def holds(self, zone: str, shards: str, within_s: float = 60.0) -> None:
        """Wait until each job of the zone has claimed these shards, all of them."""
        with anyio.fail_after(within_s):
            while True:
                owned = {
                    job: {
                        shard for shard, each in stored.items() if each.record.zone == zone and not each.record.is_free
                    }
                    for job, stored in (await self.lands[zone].offsets.of_all()).items()
                }
                if all(owned.get(job) == set(shards) for job in JOBS):
                    return
                await anyio.sleep(0.05)

    async def copied(self, zone: str, offset: int, within_s: float = 60.0) -> None:
        """Wait until the hub has this offset of each shard of the zone, in both jobs."""
        bucket = self._at_hub(zone, "HUB_OFFSETS")
        with anyio.fail_after(within_s):
            while True:
                found = [entry for entry in await bucket.entries() if entry.key.startswith(f"{zone}.")]
                offsets = [decode_offset(entry.key, entry.raw).offset for entry in found]
                if len(offsets) == 5 * len(JOBS) and min(offsets) >= offset:
                    return
                await anyio.sleep(0.05)

    async def comes_in(self, zone: str, within_s: float = 60.0) -> None:
        """Wait until the hub knows the zone as one that is in: until then what it is given is dealt to others again."""
        bucket = self._at_hub(zone, "HUB_ZONES")
        with anyio.fail_after(within_s):
            while True:
                with suppress(Disconnected):  # the link may not be whole yet
                    entry = await bucket.get(zone)
                    if entry is not None and read_zone(entry).state == "in":
                        return
                await anyio.sleep(0.05)

    def _at_hub(self, zone: str, short: str) -> Bucket[bytes]:
        land = self.lands[zone]
        return Bucket(land.connection, land.publisher, land.connection.namespace.bucket(short), bytes, domain=HUB)

    def sent(self) -> Counter[int]:
        """Return how often each order was sent."""
        return Counter(row for (row,) in self._read("SELECT id FROM sent"))

    def senders(self, after: int) -> dict[int, str]:
        """Return by shard which zone sent the orders whose numbers are greater."""
        return dict(self._read("SELECT DISTINCT id % 10, zone FROM sent WHERE id > ?", after))

    async def works(self, zone: str = "%", within_s: float = 60.0) -> None:
        """Wait until a zone, or any, sends one more order."""
        [(before,)] = self._read("SELECT count(*) FROM sent WHERE zone LIKE ?", zone)
        with anyio.fail_after(within_s):
            while self._read("SELECT count(*) FROM sent WHERE zone LIKE ?", zone) == [(before,)]:  # noqa: ASYNC110
                await anyio.sleep(0.05)

    def epochs_never_go_back(self) -> None:
        """Check that no order was sent under an older epoch of its shard than one before it."""
        latest: dict[int, int] = {}
        for shard, epoch in self._read("SELECT id % 10, epoch FROM sent ORDER BY rowid"):
            assert epoch >= latest.get(shard, 0), f"shard {shard} at {epoch} after {latest[shard]}"
            latest[shard] = epoch

    def fenced(self) -> list[tuple[str, int, int]]:
        """Return the batches that the database refused: zone, epoch, process."""
        return self._read("SELECT zone, epoch, pid FROM fenced")

    async def all_done(self) -> None:
        """Wait until every row was handled by both jobs, and each order sent once."""
        await self.rows.all_handled("tick")
        last = self.rows.add(0)
        sent = await self.rows.until(self.sent, lambda found: len(found) >= last)
        assert set(sent.values()) == {1}

    def _read(self, query: str, *values: object) -> list[Any]:
        with sqlite_file(self.rows.path) as db:
            return db.execute(query, values).fetchall()


@asynccontextmanager
async def hub_land(folder: Path) -> AsyncIterator[HubLand]:
    """Run a hub and two zones, and set them up as a person types it. Nodes and map are left to the test."""
    async with zones(folder) as servers, AsyncExitStack() as stack:
        lands: dict[str, Land] = {}
        for zone in servers.names:
            connection = await stack.enter_async_context(at(servers.url(zone)))
            publisher = await stack.enter_async_context(Publisher(connection))
            lands[zone] = Land(connection, publisher, servers.url(zone), folder)
            lands[zone].app = "tests.support.zone_guarded_app"
        land = HubLand(servers, lands)
        make(str(land.rows.path))
        _make_guarded(str(land.rows.path))
        await land.type(HUB, "init", "--hub")
        for zone in servers.names:
            await land.type(zone, "init")
        yield land


def _make_guarded(path: str) -> None:
    """Make what the guarded job needs in a file of rows."""
    with sqlite_file(path) as db:
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT NOT NULL)")
        db.execute("CREATE TRIGGER ordered AFTER INSERT ON rows BEGIN INSERT INTO orders VALUES (NEW.id, 'new'); END")
        db.execute("CREATE TABLE fence (shard INTEGER PRIMARY KEY, epoch INTEGER NOT NULL)")
        db.executemany("INSERT INTO fence VALUES (?, 0)", [(shard,) for shard in range(10)])
        db.execute("CREATE TABLE sent (id INTEGER, zone TEXT, epoch INTEGER, pid INTEGER)")
        db.execute("CREATE TABLE fenced (zone TEXT, epoch INTEGER, pid INTEGER)")
