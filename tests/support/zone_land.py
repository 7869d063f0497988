"""Nodes of several zones over one database of rows, in processes of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeVar

import anyio
from anyio import fail_after

from actors.zone.offsets import Offsets, Stored
from penstock.sdk.calls import ServiceClient
from penstock.sdk.client_zones import ZoneCalls
from streams.buckets.bucket import Bucket
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.support.command import Running, node
from tests.support.server import make_topology, topology_for
from tests.support.sqlite import sqlite_file
from tests.support.zone_rows import make

WITHIN_S = 120.0

Seen = TypeVar("Seen")


class Land:
    """A database of rows, and nodes that handle them in their zones."""

    def __init__(self, connection: Connection, publisher: Publisher, url: str, folder: Path) -> None:
        self.connection = connection
        self.publisher = publisher
        self.url = url
        self.path = folder / "land.db"
        self.zones = ZoneCalls(ServiceClient(connection, "zones", 30.0))
        self.bucket = Bucket(connection, publisher, connection.namespace.bucket("OFFSETS"), bytes)
        self.offsets = Offsets(self.bucket)
        self.app = "tests.support.zone_app"
        self.shards = 10
        self._count = 0

    async def open(self) -> None:
        await make_topology(self.connection, topology_for(self.connection))
        make(str(self.path))

    def node(self, name: str, zone: str, *arguments: str, **environment: str) -> AbstractAsyncContextManager[Running]:
        """Run a node until the block ends."""
        where = ("--nats", self.url, "--name", name, "--sink", "none", "--log-level", "info", "--zone", zone)
        named = {
            "PENSTOCK_NAMESPACE": self.connection.namespace.name,
            "PENSTOCK_LOG_FORM": "json",
            "PENSTOCK_HTTP": "off",
            "ZONE_DB": str(self.path),
        }
        return node(*where, "--app", self.app, *arguments, environment={**named, **environment})

    def add(self, count: int) -> int:
        """Add rows, and return the number of the last one. A row's key is its number."""
        first = self._count + 1
        self._count += count
        with sqlite_file(self.path) as db:
            db.executemany("INSERT INTO rows VALUES (?, ?)", [(row, row) for row in range(first, self._count + 1)])
        return self._count

    def handled(self, job: str) -> Counter[int]:
        """Return how often each row was handled."""
        with sqlite_file(self.path) as db:
            return Counter(row for (row,) in db.execute("SELECT id FROM handled WHERE job = ?", (job,)))

    def by(self, job: str, rows: Iterable[int]) -> set[str]:
        """Return the zones that handled these rows."""
        wanted = set(rows)
        with sqlite_file(self.path) as db:
            found = db.execute("SELECT id, zone FROM handled WHERE job = ?", (job,)).fetchall()
        return {zone for row, zone in found if row in wanted}

    def refused(self) -> list[tuple[str, int, str, int]]:
        """Return the saves that were refused: job, offset, zone, epoch."""
        with sqlite_file(self.path) as db:
            return db.execute("SELECT job, offset, zone, epoch FROM refused").fetchall()

    async def all_handled(self, job: str, within_s: float = WITHIN_S) -> Counter[int]:
        """Wait until every row was handled."""
        return await self.until(lambda: self.handled(job), lambda found: len(found) >= self._count, within_s)

    async def until(
        self, look: Callable[[], Seen], is_enough: Callable[[Seen], bool], within_s: float = WITHIN_S
    ) -> Seen:
        with fail_after(within_s):
            while not is_enough(found := look()):  # noqa: ASYNC110 # a file tells nobody that it changed
                await anyio.sleep(0.05)
        return found

    async def owned(self, zones: dict[str, str], within_s: float = WITHIN_S) -> None:
        """Wait until the map gives the zones these shards. A dead zone's are dealt some seconds after its death."""
        with fail_after(within_s):
            while (await self.zones.routing()).zones != zones:  # noqa: ASYNC110 # the server is asked
                await anyio.sleep(0.05)

    async def offsets_reach(self, job: str, offset: int, within_s: float = WITHIN_S) -> Stored:
        """Wait until every shard of the job has an offset, and none is below this one."""
        with fail_after(within_s):
            while True:
                stored = await self.offsets.of_job(job)
                if len(stored) == self.shards and all(each.record.offset >= offset for each in stored.values()):
                    return stored
                await anyio.sleep(0.05)
