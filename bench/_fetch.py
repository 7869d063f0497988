"""What the claims about fetching share: a server, malls, node processes, and the ledgers to watch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import msgspec

from actors.fetch.ledgers import open_ledgers
from actors.fetch.rules.ledger import Ledger, first_ledger
from actors.fetch.sources import SourceKey, SourceRecord
from penstock.demo.processes import MallProcess, NodeProcess, start_mall
from streams.buckets.bucket import Bucket
from streams.embedded.server import EmbeddedServer, embedded_server
from streams.link.connection import Connection, connect
from streams.publish.publisher import Publisher
from streams.subjects import Namespace
from streams.topology.specs import wanted
from streams.topology.topology import apply

FAST = {"overlap_before": "0s", "overlap_after": "0s", "rate": 100_000, "burst": 10_000, "settle": "1s", "again": []}
"""Settings that leave the pace to the machine."""


LOOK_S = 0.02


class Bench:
    """A server with the topology on it, and what runs beside it until the block ends."""

    def __init__(self, server: EmbeddedServer, folder: Path, connection: Connection, publisher: Publisher) -> None:
        self.url = server.url
        self.server_pid = server.pid
        self.folder = folder
        self.connection = connection
        self.publisher = publisher
        self.nodes: list[NodeProcess] = []
        self._stack = AsyncExitStack()

    def bucket(self, short: str) -> Bucket[bytes]:
        return Bucket(self.connection, self.publisher, self.connection.namespace.bucket(short), bytes)

    async def mall(self, paging: str, *arguments: str) -> MallProcess:
        """Start a mall that plays the platform `mall`."""
        mall = await start_mall("mall", paging, arguments)
        self._stack.callback(mall.stop)
        return mall

    async def node(self, name: str, *arguments: str) -> NodeProcess:
        """Start a node process and wait until it is live."""
        node = NodeProcess(
            name, ["--nats", self.url, *arguments], self.folder / f"{name}.log", {"PENSTOCK_LOG_LEVEL": "warning"}
        )
        self._stack.push_async_callback(node.stop)
        self.nodes.append(node)
        node.start()
        async with self.bucket("NODES").watch(name) as changes:
            async for change in changes:
                if getattr(change, "entry", None) is not None:
                    return node
        raise AssertionError("a watch does not end")

    async def add(
        self,
        sources: list[SourceKey],
        adapter: str,
        url: str,
        start_ms: int,
        settings: dict[str, object],
        *,
        shop: str = "",
    ) -> None:
        """Add sources of the platform `mall`: settings and ledgers first, the records at last.
        A source reads the shop of its own name, or `shop`."""
        bucket = self.bucket("SETTINGS")
        await bucket.put("fetch.mall", msgspec.json.encode({**FAST, **settings}))
        async with open_ledgers(self.bucket("LEDGERS")) as ledgers:
            for source in sources:
                await ledgers.create(source, first_ledger(start_ms))
        for source in sources:
            revision = await bucket.put(f"fetch.{source.key}", b"{}")
            record = SourceRecord(adapter, {"base_url": url, "shop": shop or source.source}, revision)
            await bucket.put(f"source.{source.key}", msgspec.json.encode(record))

    async def until(self, sources: list[SourceKey], holds: Callable[[Ledger], bool]) -> None:
        """Wait until `holds` is true of the ledger of each source. It looks now and then, to leave the cores alone."""
        ledgers = self.bucket("LEDGERS")
        for source in sources:
            while True:
                entry = await ledgers.get(source.key)
                if entry is not None and holds(msgspec.json.decode(entry.value, type=Ledger)):
                    break
                await anyio.sleep(LOOK_S)

    async def count(self, short: str) -> int:
        """Return how many messages a stream holds."""
        answer = await self.connection.api(f"STREAM.INFO.{self.connection.namespace.stream(short)}")
        return int(answer["state"]["messages"])


@asynccontextmanager
async def fetch_bench(*, job_streams: int = 1) -> AsyncIterator[Bench]:
    """Open a bench on a fresh server. Everything that it started ends with the block."""
    namespace = Namespace(job_streams=job_streams)
    with TemporaryDirectory(prefix="penstock-bench-") as folder:
        async with embedded_server(Path(folder) / "server") as server:
            async with (
                connect(server.url, name="bench", namespace=namespace) as connection,
                Publisher(connection) as publisher,
            ):
                await apply(connection, wanted(namespace, profile="fast"))
                bench = Bench(server, Path(folder), connection, publisher)
                try:
                    yield bench
                finally:
                    with anyio.CancelScope(shield=True):
                        await bench._stack.aclose()
