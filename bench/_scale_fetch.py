"""The lines of `bench scale` about sources: their settings, ledgers, lists, and the nodes that tend them."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple, cast

import anyio
import msgspec
from msgspec import structs

from actors.fetch.rules.ledger import first_ledger
from actors.fetch.rules.steering import pause
from actors.fetch.settings.levels import LevelName
from actors.fetch.settings.replay import Kept, newest_together, replayed
from actors.fetch.settings.watch import LiveSettings
from actors.fetch.source_import import SourceRow
from actors.fetch.sources import SourceKey, SourceRecord
from actors.runtime.membership import Members, NodeRecord
from actors.runtime.pieces import in_pieces
from actors.runtime.supervisor import Supervisor
from actors.runtime.tending import tended_by
from bench._fetch import Bench, fetch_bench
from bench._quiet import memory_mb
from bench._scale import Line
from penstock.admin.records import Records
from penstock.admin.sources import Wanted, add
from penstock.node.app import COLLECT_AFTER, SWITCH_S
from penstock.node.config import Config
from penstock.node.fetch.engine import FetchEngine, open_fetch_engine
from penstock.node.fetch.source_doors import open_source_desk
from penstock.node.node import Node, open_node
from penstock.node.session import Session
from streams.clock import monotonic_s, now_ms
from streams.publish.outcomes import Outgoing

SIZES, MANY = (1_000, 10_000), (10_000, 100_000)
START_S, IMPORT_S, MOST_MB, BLOCKED_MS, PIECE_MS, PAGE_MS = 5.0, 10.0, 200, 50, 10, 50
NODES = 100
SCANS, CHANGES = 3, 8
NOWHERE = "http://127.0.0.1:1"
TICK_S = 0.001
LOOK_S, IDLE_S = 0.5, 0.02
"""A starting node is settled once it uses no more in so long."""


class Costs(NamedTuple):
    """What was measured at one size."""

    start_s: float
    blocked_ms: float
    megabytes: float
    change_ms: float
    scan_us: float
    page_ms: float
    list_us: float
    add_ms: float
    import_s: float


async def lines() -> list[Line]:
    """Measure each in turn."""
    return [*_levels(), *await _of_stored(SIZES), await _members()]


async def far_lines() -> list[Line]:
    """Measure a hundred thousand sources, for which there are no limits. It takes two minutes."""
    return [structs.replace(line, most=None) for line in await _of_stored(MANY)]


async def _of_stored(sizes: tuple[int, int]) -> list[Line]:
    """Measure what sources cost that are there, and are paused."""
    small, large = [await _measured(size) for size in sizes]

    def line(what: str, unit: str, costs: tuple[float, float], *limit: object) -> Line:
        reached, most, of = cast(tuple[float, float, str], limit) if limit else (None, None, "")
        return Line(
            what=what, things="sources", unit=unit, sizes=sizes, costs=costs, reached=reached, most=most, of=of
        )  # fmt: skip

    each_ms = tuple(1000 * found.start_s / size for found, size in zip((small, large), sizes, strict=True))
    import_ms = tuple(1000 * found.import_s / size for found, size in zip((small, large), sizes, strict=True))
    page_us = tuple(1000 * found.page_ms / size for found, size in zip((small, large), sizes, strict=True))
    kb = tuple(1000 * found.megabytes / size for found, size in zip((small, large), sizes, strict=True))
    return [
        line("a node starts", "ms a source", (each_ms[0], each_ms[1]), large.start_s, START_S, "s"),
        line("a node's memory", "kB a source", (kb[0], kb[1]), large.megabytes, MOST_MB, "MB"),
        line(
            "the loop of a starting node",
            "ms blocked",
            (max(small.blocked_ms, BLOCKED_MS), max(large.blocked_ms, BLOCKED_MS)),
            large.blocked_ms,
            BLOCKED_MS,
            "ms",
        ),
        line("one source's settings change on a node", "ms a change", (small.change_ms, large.change_ms)),
        line("the monitor's scan", "us a source", (small.scan_us, large.scan_us)),
        line("a node's page of sources", "us a source", (page_us[0], page_us[1]), large.page_ms, PAGE_MS, "ms of CPU"),
        line("sources list", "us a source", (small.list_us, large.list_us)),
        line("sources add", "us a source that is there", (small.add_ms, large.add_ms / 10)),
        line("sources import", "ms a source", (import_ms[0], import_ms[1]), large.import_s, IMPORT_S, "s"),
    ]


# ---- pure


def _levels() -> list[Line]:
    """All levels are taken at once, and with one that is refused."""
    together, one_refused = list[float](), list[float]()
    for size in SIZES:
        kept = [Kept(n + 1, LevelName("mall", f"s{n}").key, b'{"retries":7}') for n in range(size)]
        began_s = time.process_time()
        assert newest_together(kept) is not None
        together.append((time.process_time() - began_s) * 1e6 / size)
        began_s = time.process_time()
        found = replayed([*kept, Kept(size + 1, "fetch.mall", b'{"retries":-1}')])
        one_refused.append((time.process_time() - began_s) * 1e6 / size)
        assert len(found.levels.names()) == size
        assert list(found.refused) == ["fetch.mall"]
    return [
        Line(what=what, things="sources", unit="us a source", sizes=SIZES, costs=(costs[0], costs[1]))
        for what, costs in (("levels of settings", together), ("levels, one of them refused", one_refused))
    ]


class _Crowd:
    """Stands for the live nodes."""

    def __init__(self, count: int) -> None:
        self.name = "n0"
        self.count = count
        self.heard: list[object] = []

    def live(self) -> dict[str, NodeRecord]:
        return {f"n{n}": NodeRecord(node=f"n{n}", run="") for n in range(self.count)}

    def on_change(self, listener: object) -> None:
        self.heard.append(listener)


async def _members() -> Line:
    """A node comes, and each source's owner is looked up again, in pieces."""
    costs, held = list[float](), _Held()
    for size in SIZES:
        crowd = _Crowd(NODES)
        is_ours = tended_by(cast(Members, crowd), "allocator")
        keys = [f"mall/s{n}" for n in range(size)]
        assert any(map(is_ours, keys))
        crowd.count += 1
        began_s = time.process_time()
        for listener in crowd.heard:
            listener()  # type: ignore[operator]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(held.watch)
            async for key in in_pieces(keys):
                is_ours(key)
            tasks.cancel_scope.cancel()
        costs.append((time.process_time() - began_s) * 1e6 / size)
    return Line(
        what=f"a node comes to {NODES}",
        things="sources",
        unit="us a source",
        sizes=SIZES,
        costs=(costs[0], costs[1]),
        reached=1000 * held.most_s,
        most=PIECE_MS,
        of="ms blocked",
    )


# ---- on a server


async def _measured(size: int) -> Costs:
    async with fetch_bench() as bench:
        await _fill(bench, size)
        began_s = monotonic_s()
        process = await bench.node("n1", "--sink", "none")
        start_s = monotonic_s() - began_s
        megabytes = memory_mb(process.pid)
        await process.stop()
        held = _Held()
        async with _node(bench, held) as (node, engine):
            blocked_ms = 1000 * held.most_s
            held.scope.cancel()
            await _settled()
            change_ms = await _change_ms(bench, node.settings)
            scan_us = await _scan_us(engine, size)
            page_ms = await _page_ms(bench, node)
        records = Records(Session(bench.connection, bench.publisher))
        began_s = monotonic_s()
        assert len(await records.source_desk.overviews()) == size
        list_us = (monotonic_s() - began_s) * 1e6 / size
        began_s = monotonic_s()
        account = {"base_url": NOWHERE, "shop": "new"}
        await add(records, Wanted(SourceKey("mall", "new"), "mall", account, start="-1d", is_paused=True))
        add_ms = (monotonic_s() - began_s) * 1e3
        began_s = monotonic_s()
        rows = [
            SourceRow(source=f"new/s{n}", adapter="mall", account=account, settings={"retries": 7}, paused=True)
            for n in range(size)
        ]
        assert (await records.importer.run(rows)).added == size
        import_s = monotonic_s() - began_s
    return Costs(start_s, blocked_ms, megabytes, change_ms, scan_us, page_ms, list_us, add_ms, import_s)


async def _fill(bench: Bench, size: int) -> None:
    """Store sources that are paused, so that nothing is read."""
    ledger = msgspec.json.encode(pause(first_ledger(now_ms()), "bench"))

    def records() -> Iterable[Outgoing]:
        settings, ledgers = (f"$KV.{bench.connection.namespace.bucket(name)}" for name in ("SETTINGS", "LEDGERS"))
        yield Outgoing(f"{settings}.fetch.mall", b'{"retries":6}')
        for n in range(size):
            source = SourceKey("mall", f"s{n}")
            record = SourceRecord("mall", {"base_url": NOWHERE, "shop": source.source})
            yield Outgoing(f"{ledgers}.{source.key}", ledger)
            yield Outgoing(f"{settings}.fetch.{source.key}", b'{"retries":7}')
            yield Outgoing(f"{settings}.source.{source.key}", msgspec.json.encode(record))

    await bench.publisher.publish_many(list(records()))


class _Held:
    """The longest time between two turns of the loop, without its own wait."""

    def __init__(self) -> None:
        self.most_s = 0.0
        self.scope = anyio.CancelScope()

    async def watch(self) -> None:
        with self.scope:
            while True:
                began_s = monotonic_s()
                await anyio.sleep(TICK_S)
                self.most_s = max(self.most_s, monotonic_s() - began_s - TICK_S)


@asynccontextmanager
async def _node(bench: Bench, held: _Held) -> AsyncIterator[tuple[Node, FetchEngine]]:
    """Run a node's fetch engine in this process, which collects garbage and switches threads as a node does. `held`
    sees how long the loop was blocked."""
    sys.setswitchinterval(SWITCH_S)
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    config, stop = Config(nats=bench.url, roles=("allocator", "monitor")), anyio.Event()
    async with open_node(config, bench.connection, NodeRecord(node="n1", run="r1"), stop) as node:
        async with open_fetch_engine(node) as engine, anyio.create_task_group() as tasks:
            specs = [spec for spec in (*node.actors(), *engine.actors()) if config.has_role(spec.role)]
            tasks.start_soon(held.watch)
            await tasks.start(Supervisor(specs, stop=stop, drain_s=1.0, chance=lambda: 0.0).run)
            assert engine.allocator.tended()
            yield node, engine
            tasks.cancel_scope.cancel()


async def _settled() -> None:
    """Wait until this process does next to nothing: the first looks at all sources are over."""
    used_s = 1.0
    while used_s > IDLE_S:
        began_s = time.process_time()
        await anyio.sleep(LOOK_S)
        used_s = time.process_time() - began_s


async def _change_ms(bench: Bench, settings: LiveSettings) -> float:
    """Return what one change costs this process, apart from its wait for the next turn."""
    bucket, source, heard = bench.bucket("SETTINGS"), SourceKey("mall", "s1"), anyio.Event()
    settings.on_change(lambda changed: heard.set() if changed == source else None)
    began_s = time.process_time()
    for retries in range(10, 10 + CHANGES):
        heard = anyio.Event()
        await bucket.put("fetch.mall.s1", b'{"retries":%d}' % retries)
        with anyio.fail_after(30):
            await heard.wait()
    return (time.process_time() - began_s) * 1e3 / CHANGES


async def _page_ms(bench: Bench, node: Node) -> float:
    """Return what a page of 100 out of the middle costs this process, as who asks a node's gateway for it."""
    desk = open_source_desk(Session(bench.connection, bench.publisher), node.clock, live=node.settings)
    began_s = time.process_time()
    for _ in range(SCANS):
        assert len(await desk.overviews(after="mall/s5", limit=100)) == 100
    return (time.process_time() - began_s) * 1e3 / SCANS


async def _scan_us(engine: FetchEngine, size: int) -> float:
    """Return what a scan costs after the first one."""
    await engine.monitor.elected.wait()
    await engine.monitor.scan()
    began_s = time.process_time()
    for _ in range(SCANS):
        await engine.monitor.scan()
    return (time.process_time() - began_s) * 1e6 / SCANS / size
