"""An installation under attack: a server of its own, simulated shops, node processes, and the verdict at the end."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import anyio
import msgspec

from actors.fetch.ledgers import open_ledgers
from actors.fetch.rules.ledger import Ledger, first_ledger
from actors.fetch.sources import SourceKey, SourceRecord
from platforms.mall.config import MallConfig
from platforms.mall.server import Mall, open_mall
from streams.buckets.bucket import Bucket
from streams.clock import monotonic_s, now_ms
from streams.embedded.server import EmbeddedServer, embedded_server
from streams.errors import StreamError
from streams.link.connection import Connection, connect
from streams.publish.publisher import Publisher
from streams.pull.backlog import consumers_pending
from streams.subjects import Namespace
from streams.topology.specs import sink_consumer, wanted
from streams.topology.topology import apply, ensure_consumer
from tests.support.chaos_history import History, Judged, Rows, Verdict, judge, read_history, sqlite_rows
from tests.support.chaos_nodes import ChaosNode

ADAPTERS = {"one": "mall", "token": "mall_token", "link": "mall_link"}
SETTINGS = {
    "slice": "1s",
    "settle": "500ms",
    "overlap_before": "500ms",
    "overlap_after": "500ms",
    "rate": 10_000,
    "burst": 1_000,
    "max_open": 16,
    "again": [],
    "retry_base": "100ms",
    "retries": 30,
    "throttle_wait": "200ms",
}
"""Small windows of a mall that is read as fast as it goes. What decides about losses is left at its default."""
SLICE_MS = 1_000
LOOK_S = 0.1


class Form(msgspec.Struct, frozen=True):
    """How much is asked of a run: the short form of CI or the long one, and the seed of its chances."""

    is_long: bool
    seed: int

    def pick(self, short: int, long: int) -> int:
        return long if self.is_long else short

    def chance(self, scenario: str) -> random.Random:
        return random.Random(f"{self.seed}/{scenario}")


class World:
    """One installation. `shops` are what it is judged by; `facts` go into the verdict."""

    def __init__(
        self, folder: Path, server: EmbeddedServer, connection: Connection, publisher: Publisher, stack: AsyncExitStack
    ) -> None:
        self.folder = folder
        self.server = server
        self.connection = connection
        self.publisher = publisher
        self.database = folder / "orders.db"
        self.sink = f"sqlite:///{self.database}"
        self.rows: Callable[[], Awaitable[Rows]] = self._sqlite_rows
        self.nodes: dict[str, ChaosNode] = {}
        self.shops: list[Judged] = []
        self.facts: dict[str, Any] = {}
        self.kills = 0
        """Of others than nodes."""
        self.settings = self.bucket("SETTINGS")
        self._ledgers = self.bucket("LEDGERS")
        self._stack = stack
        self._began_s = monotonic_s()

    def bucket(self, short: str) -> Bucket[bytes]:
        return Bucket(self.connection, self.publisher, self.connection.namespace.bucket(short), bytes)

    # ---- what it is made of

    def new_node(self, name: str, *arguments: str, url: str = "") -> ChaosNode:
        """Return a node that is not started yet; `url` is another way to the server."""
        told = ["--nats", url or self.server.url, "--sink", self.sink, "--history", *arguments]
        node = self.nodes[name] = ChaosNode(name, told, self.folder)
        self._stack.push_async_callback(node.close)
        return node

    async def node(self, name: str, *arguments: str, url: str = "", **how: Any) -> ChaosNode:
        """Start a node, `how` as ChaosNode.start takes it."""
        node = self.new_node(name, *arguments, url=url)
        await node.start(**how)
        return node

    async def add_mall(
        self,
        name: str = "mall",
        *,
        wave: str = "",
        settings: dict[str, object] | None = None,
        until_ms: int | None = None,
        ago_ms: int = 0,
        **config: Any,
    ) -> Mall:
        """Run one more mall and add its shops as sources of the platform `name`; `wave` begins their names.
        `until_ms` (its own clock) ends the time that is judged; else all of it is. `ago_ms`: so long ago its history
        ended; with more than its settling, there is nothing to wait for."""
        config = {"shops": 2, "orders": 400, "history_ms": 60_000, "late_ms": 400, **config}
        mall_config = msgspec.convert(config, MallConfig)
        start_ms = now_ms() + mall_config.clock_offset_ms - ago_ms
        mall = await self._stack.enter_async_context(open_mall(mall_config, start_ms=start_ms))
        await self.settings.put(f"fetch.{name}", msgspec.json.encode({**SETTINGS, **(settings or {})}))
        start_ms = (mall.start_ms - mall.config.history_ms) // SLICE_MS * SLICE_MS
        end_ms = mall.start_ms + mall.config.live_ms if until_ms is None else until_ms
        for shop in mall.shops:
            source = SourceKey(name, f"{wave}{shop}")
            await self._add_source(source, ADAPTERS[mall.config.paging], {"base_url": mall.url, "shop": shop}, start_ms)
            self.shops.append(Judged(source, mall, shop, start_ms, end_ms))
        return mall

    async def _add_source(self, source: SourceKey, adapter: str, account: dict[str, str], start_ms: int) -> None:
        """Settings and ledger first, the record last, as the command does it."""
        revision = await self.settings.put(f"fetch.{source.key}", b"{}")
        async with open_ledgers(self._ledgers) as ledgers:
            await ledgers.create(source, first_ledger(start_ms))
        await self.settings.put(f"source.{source.key}", msgspec.json.encode(SourceRecord(adapter, account, revision)))

    # ---- what it does

    async def ledgers(self) -> dict[SourceKey, Ledger]:
        """Return every ledger as it is stored."""
        found = {}
        for entry in await self._ledgers.entries():
            platform, _, source = entry.key.partition(".")
            found[SourceKey(platform, source)] = msgspec.json.decode(entry.value, type=Ledger)
        return found

    async def retire(self, source: SourceKey) -> None:
        """Remove a source's record: no node reads it any more. What it has is judged all the same."""
        await self.settings.delete(f"source.{source.key}")

    async def is_read(self) -> bool:
        """True once every shop's time is read up to its end, by second looks too."""
        ledgers = await self.ledgers()
        return all(_is_read(ledgers[shop.source], shop.end_ms) for shop in self.shops)

    async def takes(self) -> int:
        """Return how often slices were taken so far."""
        return sum(ledger.fence for ledger in (await self.ledgers()).values())

    async def is_stored(self) -> bool:
        """True once nothing waits for the sink."""
        pending = await consumers_pending(self.connection, self.connection.namespace.stream("ORDERS"))
        return sum(pending.values()) == 0

    async def finish(self, within_s: float = 90.0) -> str:
        """Wait until everything is read and stored; return what was not, empty if all was."""
        try:
            await eventually(self.is_read, within_s, "not everything was read")
            await eventually(self.is_stored, within_s, "not everything was stored")
        except TimeoutError as late:
            return str(late)
        return ""

    async def history(self) -> History:
        """Return what is there now."""
        return await read_history(self.connection, self._ledgers, await self.rows())

    async def _sqlite_rows(self) -> Rows:
        return await anyio.to_thread.run_sync(sqlite_rows, self.database)

    async def verdict(self, scenario: str, form: Form, *, within_s: float = 90.0) -> Verdict:
        """Wait for the end, and judge."""
        reason = await self.finish(within_s)
        seconds = monotonic_s() - self._began_s
        return judge(
            await self.history(),
            self.shops,
            scenario=scenario,
            seed=form.seed,
            is_long=form.is_long,
            seconds=seconds,
            kills=self.kills + sum(node.kills for node in self.nodes.values()),
            facts=self.facts,
            reason=reason,
        )


def _is_read(ledger: Ledger, end_ms: int) -> bool:
    looks = [each.cursor_ms for each in ledger.passes if each.kind == "a"]
    unfinished = [piece.start_ms for piece in ledger.open if piece.kind == "a"]
    return min([ledger.watermark_ms, *looks, *unfinished]) >= end_ms


class OnAServer(Protocol):
    """What stands on one server; it is told how often that was killed."""

    server: EmbeddedServer
    server_kills: int


async def kill_again_and_again(world: OnAServer, form: Form) -> None:
    """Kill the server and start it again, a few times."""
    chance = form.chance("server kills")
    for _ in range(form.pick(2, 20)):
        await anyio.sleep(chance.uniform(0.3, form.pick(1, 3)))
        await world.server.kill()
        world.server_kills += 1
        await anyio.sleep(chance.uniform(0.0, form.pick(1, 3)))
        await world.server.start()


async def eventually(holds: Callable[[], Awaitable[bool]], within_s: float, otherwise: str) -> None:
    """Wait until `holds` is true; a server that does not answer only delays it. Raises TimeoutError(otherwise)."""
    give_up_s = monotonic_s() + within_s
    while True:
        with suppress(StreamError):
            if await holds():
                return
        if monotonic_s() > give_up_s:
            raise TimeoutError(f"{otherwise} within {within_s:g} s")
        await anyio.sleep(LOOK_S)


@asynccontextmanager
async def open_world(folder: Path, *, store: Path | None = None) -> AsyncIterator[World]:
    """Open an installation in a folder, on a server of its own (its files in `store`); end it at the end."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(embedded_server(store or folder / "server"))
        connection = await stack.enter_async_context(connect(server.url, name="chaos", namespace=Namespace()))
        await apply(connection, wanted(connection.namespace, profile="fast"))
        await ensure_consumer(connection, sink_consumer(connection.namespace, "database"))
        publisher = await stack.enter_async_context(Publisher(connection))
        world = World(folder, server, connection, publisher, stack)
        await world.settings.put("fetch.default", b'{"scan_every": "1s"}')
        yield world


def soon_ms(seconds: float) -> int:
    """Return the moment so many seconds from now."""
    return now_ms() + round(seconds * 1000)
