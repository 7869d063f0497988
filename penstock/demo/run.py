"""The demo from start to verdict: server, malls, nodes, kills, and the comparison.

Everything is real but the shops: a nats-server process on real files, malls as HTTP servers with faults, nodes as
`penstock up` runs them, a SQLite file. The malls' orders lie in the past half hour, and some come live while the demo
runs.
"""

from __future__ import annotations

import logging
import random as chance  # noqa: TID251 - who is killed next is the demo's own chance, seeded by nothing
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import msgspec

from actors.fetch.ledgers import open_ledgers
from actors.fetch.rules.ledger import Ledger, first_ledger
from actors.fetch.sources import SourceKey, SourceRecord
from actors.runtime.logs import fields
from penstock.demo.processes import MallProcess, NodeProcess, start_mall
from penstock.demo.report import Comparison, Report, compare
from penstock.demo.truth import count_orders, mall_stats, read_changes, read_orders, read_truth
from penstock.demo.watch import Picture, SourceLine, source_line
from penstock.node.config import Config
from streams.buckets.bucket import Bucket
from streams.clock import monotonic_s, now_ms
from streams.embedded.server import embedded_server
from streams.errors import StreamError
from streams.link.connection import Connection, connect
from streams.publish.publisher import Publisher
from streams.pull.backlog import consumers_pending
from streams.subjects import Namespace
from streams.topology.specs import sink_consumer, wanted
from streams.topology.topology import apply, ensure_consumer

log = logging.getLogger(__name__)

__all__ = ["Demo", "Options", "run_demo"]

PAGINGS = ("one", "token", "link")
ADAPTERS = {"one": "mall", "token": "mall_token", "link": "mall_link"}
HISTORY_S = 1_800
LIVE_S = 12
SLICE_MS = 5_000
SETTINGS = {"slice": "5s", "settle": "2s", "overlap_before": "2s", "overlap_after": "1s", "rate": 500, "burst": 100}
RETRIES = {"retry_base": "300ms", "retries": 20, "throttle_wait": "500ms", "again": [], "max_open": 64}
KILLS_EACH = 3
KILL_EVERY_S = 1.5
PICTURE_S = 0.5
DEADLINE_S = 240.0


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What `penstock demo` was asked for."""

    orders: int = 20_000
    platforms: int = 3
    nodes: int = 2
    kill: bool = False
    seed: int = 7


class Demo:
    """A running demo: what its parts share while it runs."""

    def __init__(self, options: Options, folder: Path, connection: Connection, publisher: Publisher) -> None:
        self.options = options
        self.database = folder / "orders.db"
        self.malls: list[MallProcess] = []
        self.nodes: list[NodeProcess] = []
        self._folder = folder
        self._connection = connection
        self._publisher = publisher
        self._ledgers = self._bucket("LEDGERS")
        self._began_s = monotonic_s()

    @property
    def seconds(self) -> float:
        return monotonic_s() - self._began_s

    def _bucket(self, short: str) -> Bucket[bytes]:
        return Bucket(self._connection, self._publisher, self._connection.namespace.bucket(short), bytes)

    # ---- setting up

    async def open_malls(self, stack: AsyncExitStack) -> None:
        """Start one mall for each platform. Each plays another way of paging."""
        share, left = divmod(self.options.orders, self.options.platforms)
        for number in range(self.options.platforms):
            paging = PAGINGS[number % len(PAGINGS)]
            orders = share + (number < left)
            arguments = ["--orders", str(orders), "--seed", str(self.options.seed + number), "--faults", "demo"]
            arguments += ["--history", f"{HISTORY_S}s", "--live", f"{LIVE_S}s", "--late", "1500ms"]
            mall = await start_mall(f"mall{number + 1}", paging, arguments)
            stack.callback(mall.stop)
            self.malls.append(mall)

    async def add_sources(self) -> None:
        """Tell the nodes of the shops: settings and ledger first, the source last."""
        settings = self._bucket("SETTINGS")
        async with open_ledgers(self._ledgers) as ledgers:
            for mall in self.malls:
                await settings.put(f"fetch.{mall.platform}", msgspec.json.encode({**SETTINGS, **RETRIES}))
                for shop in mall.state.shops:
                    source = SourceKey(mall.platform, shop)
                    revision = await settings.put(f"fetch.{source.key}", b"{}")
                    await ledgers.create(source, first_ledger(mall.state.history_start_ms // SLICE_MS * SLICE_MS))
                    account = {"base_url": mall.state.url, "shop": shop}
                    record = SourceRecord(ADAPTERS[mall.paging], account, revision)
                    await settings.put(f"source.{source.key}", msgspec.json.encode(record))

    def start_nodes(self, url: str) -> None:
        """Start the node processes, each with a log of its own."""
        arguments = ["--nats", url, "--sink", f"sqlite:///{self.database}", "--history"]
        for number in range(self.options.nodes):
            name = f"node{number + 1}"
            node = NodeProcess(name, arguments, self._folder / f"{name}.log", {"PENSTOCK_LOG_FORM": "json"})
            node.start()
            self.nodes.append(node)

    # ---- while it runs

    async def kill_nodes(self) -> None:
        """Kill -9 nodes at random moments and start them again, until each was killed often enough."""
        while any(node.kills < KILLS_EACH for node in self.nodes):
            await anyio.sleep(KILL_EVERY_S * (0.5 + chance.random()))
            victim = chance.choice([node for node in self.nodes if node.kills < KILLS_EACH])
            victim.kill()
            log.info("demo.killed", extra=fields(node=victim.name, kills=victim.kills))

    async def picture(self) -> Picture:
        """Look at everything once."""
        ends = {mall.platform: self._end_ms(mall) for mall in self.malls}
        at_ms, lines = now_ms(), list[SourceLine]()
        for entry in await self._ledgers.entries():
            platform, _, shop = entry.key.partition(".")
            ledger = msgspec.json.decode(entry.value, type=Ledger)
            source = SourceKey(platform, shop)
            lines.append(source_line(source, ledger, end_ms=ends[platform], slice_ms=SLICE_MS, now_ms=at_ms))
        return Picture(
            seconds=self.seconds,
            made=sum(mall.state.orders for mall in self.malls),
            stored=await anyio.to_thread.run_sync(count_orders, self.database),
            pages=await self._count("ORDERS"),
            waiting=sum((await consumers_pending(self._connection, self._stream("ORDERS"))).values()),
            sources=tuple(lines),
            nodes=tuple((node.name, node.is_running, node.kills) for node in self.nodes),
        )

    async def watch(self, show: Callable[[Picture], None]) -> Picture:
        """Show a picture twice a second until every window is stored. Return the last one."""
        while True:
            picture = await self.picture()
            show(picture)
            kills_left = self.options.kill and any(node.kills < KILLS_EACH for node in self.nodes)
            is_read = bool(picture.sources) and all(line.done >= 1.0 for line in picture.sources)
            if is_read and picture.waiting == 0 and not kills_left:
                return picture
            await anyio.sleep(PICTURE_S)

    def _end_ms(self, mall: MallProcess) -> int:
        """Return up to where a mall's time has to be read: past its last order."""
        return mall.state.end_ms + SLICE_MS

    def _stream(self, short: str) -> str:
        return self._connection.namespace.stream(short)

    async def _count(self, short: str) -> int:
        answer = await self._connection.api(f"STREAM.INFO.{self._stream(short)}")
        return int(answer["state"]["messages"])

    # ---- the verdict

    async def report(self, picture: Picture | None, reason: str) -> Report:
        """Compare the malls' truth with the database."""
        truth, stats = await read_truth(self.malls), await mall_stats(self.malls)
        changes = await anyio.to_thread.run_sync(read_changes, self.database)
        stored = await anyio.to_thread.run_sync(read_orders, self.database)
        verdict: Comparison = compare(truth, stored, changes)
        holes = sum(line.holes for line in picture.sources) if picture else 0
        seconds = picture.seconds if picture else self.seconds
        return Report(
            ok=verdict.is_whole and holes == 0 and not reason,
            made=verdict.made,
            stored=verdict.stored,
            missing=verdict.missing,
            doubled=verdict.doubled,
            foreign=verdict.foreign,
            versions=len(changes),
            holes=holes,
            killed=sum(node.kills for node in self.nodes),
            slices=sum(line.cut for line in picture.sources) if picture else 0,
            retried=await self._retried(),
            requests=stats.requests,
            faults=stats.faults,
            seconds=round(seconds, 1),
            orders_per_second=round(verdict.stored / seconds),
            platforms=self.options.platforms,
            nodes=self.options.nodes,
            database=str(self.database),
            examples=verdict.examples,
            reason=reason,
        )

    async def _retried(self) -> int:
        """Return how many attempts at slices failed and were made again."""
        subject = self._connection.namespace.pattern("events", "fetch", "slice_failed", ">")
        answer = await self._connection.api(f"STREAM.INFO.{self._stream('EVENTS')}", {"subjects_filter": subject})
        return sum((answer["state"].get("subjects") or {}).values())


@asynccontextmanager
async def _opened(config: Config, options: Options) -> AsyncIterator[tuple[Demo, str]]:
    """Open a fresh folder, its server, and a connection to it."""
    folder = config.data_folder() / "demo"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    async with embedded_server(folder / "server") as server:
        async with connect(server.url, name="penstock-demo", namespace=Namespace()) as connection:
            await apply(connection, wanted(connection.namespace, profile="fast"))
            await ensure_consumer(connection, sink_consumer(connection.namespace, "database"))
            async with Publisher(connection) as publisher:
                yield Demo(options, folder, connection, publisher), server.url


async def run_demo(config: Config, options: Options, show: Callable[[Picture], None]) -> Report:
    """Run the demo and return its verdict. `show` gets a picture twice a second.
    Raises ServerNotStarted, and RuntimeError for a mall that does not start."""
    async with _opened(config, options) as (demo, url), AsyncExitStack() as stack:
        await demo.open_malls(stack)
        stack.push_async_callback(_stop_nodes, demo.nodes)
        demo.start_nodes(url)
        await demo.add_sources()
        picture, reason = None, ""
        async with anyio.create_task_group() as tasks:
            if options.kill:
                tasks.start_soon(demo.kill_nodes)
            try:
                with anyio.fail_after(DEADLINE_S):
                    picture = await demo.watch(show)
            except TimeoutError:
                reason = f"not everything was stored within {DEADLINE_S:g} s"
            except StreamError as error:
                reason = str(error)
            tasks.cancel_scope.cancel()
        await _stop_nodes(demo.nodes)
        return await demo.report(picture, reason)


async def _stop_nodes(nodes: list[NodeProcess]) -> None:
    """Stop them all in order, side by side."""
    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as tasks:
            for node in nodes:
                tasks.start_soon(node.stop)
