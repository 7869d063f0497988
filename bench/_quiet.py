"""What nodes cost that share sources whose shops are quiet, with default slices of a minute."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from msgspec import Struct

from actors.fetch.sources import SourceKey
from bench._fetch import Bench, fetch_bench
from streams.clock import monotonic_s, now_ms

SLICE_S = 60.0
SETTLED_S = 20.0
"""After the sources were added, and after nodes came, until each does nothing but its share."""
STILL_S = 3.0
"""The slices of a minute come together. When no ledger has changed for so long, all of them are read."""
TICKS = 100


class Shares(Struct, frozen=True):
    """What each node used over a window, in shares of a core, and what the server used. `updates`: how often a ledger
    changed in a second. `megabytes`: the largest node's."""

    nodes: tuple[float, ...]
    server: float
    updates: float
    megabytes: float


@asynccontextmanager
async def quiet_sources(count: int) -> AsyncIterator[Bench]:
    """Open a bench with one node and `count` sources that are read up to now."""
    async with fetch_bench() as bench:
        mall = await bench.mall("one", "--orders", "1000", "--shops", str(count), "--history", "1s")
        await bench.node("node1", "--sink", "none")
        sources = [SourceKey("mall", f"s{number + 1}") for number in range(count)]
        settings: dict[str, object] = {"again": ["10m", "2h", "1d"], "settle": "3s"}
        await bench.add(sources, "mall", mall.state.url, now_ms() - 10_000, settings)
        yield bench


async def shares(bench: Bench, nodes: int, *, slices: int, settled_s: float = SETTLED_S) -> Shares:
    """Return what `nodes` nodes use while each source has as many slices. Starts those that are missing."""
    while len(bench.nodes) < nodes:
        await bench.node(f"node{len(bench.nodes) + 1}", "--sink", "none")
    await anyio.sleep(settled_s)
    await _until_between_slices(bench)
    pids = [bench.server_pid, *(node.pid for node in bench.nodes)]
    updates, used_s, began_s = await _updates(bench), [cpu_s(pid) for pid in pids], monotonic_s()
    await anyio.sleep(slices * SLICE_S)
    took_s = monotonic_s() - began_s
    server, *each = [(cpu_s(pid) - before_s) / took_s for pid, before_s in zip(pids, used_s, strict=True)]
    changed = (await _updates(bench) - updates) / took_s
    return Shares(tuple(each), server, changed, max(memory_mb(node.pid) for node in bench.nodes))


async def _until_between_slices(bench: Bench) -> None:
    """Wait until no slice is read, for a minute at most. A window that began within them would have parts of two."""
    before = -1
    with anyio.move_on_after(SLICE_S):
        while (now := await _updates(bench)) != before:
            before = now
            await anyio.sleep(STILL_S)


async def _updates(bench: Bench) -> int:
    stream = f"KV_{bench.connection.namespace.bucket('LEDGERS')}"
    return int((await bench.connection.api(f"STREAM.INFO.{stream}"))["state"]["last_seq"])


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has used (Linux)."""
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / TICKS


def memory_mb(pid: int) -> float:
    """Return the memory that a process holds (Linux)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024
