"""What an idle node costs: a thousand sources whose shops are quiet, read with default slices of a minute."""

from __future__ import annotations

from pathlib import Path

import anyio

from actors.fetch.sources import SourceKey
from bench._fetch import fetch_bench
from bench.harness import Result
from streams.clock import monotonic_s, now_ms

NAME = "idle"
MOST_SHARE, MOST_MB = 0.02, 120
SOURCES = 1_000
WINDOW_S = 20.0
TICKS = 100


async def run() -> Result:
    """Sources that are read up to now and have their next slice within the minute, as live ones do."""
    async with fetch_bench() as bench:
        mall = await bench.mall("one", "--orders", "1000", "--shops", str(SOURCES), "--history", "1s")
        node = await bench.node("node1", "--sink", "none")
        sources = [SourceKey("mall", f"s{number + 1}") for number in range(SOURCES)]
        settings: dict[str, object] = {"again": ["10m", "2h", "1d"], "settle": "3s"}
        await bench.add(sources, "mall", mall.state.url, now_ms() - 10_000, settings)
        used_s, began_s = cpu_s(node.pid), monotonic_s()
        await anyio.sleep(WINDOW_S)
        share = (cpu_s(node.pid) - used_s) / (monotonic_s() - began_s)
        megabytes = memory_mb(node.pid)
    return Result(
        what="an idle node with a thousand quiet sources",
        ours=round(100 * share, 2),
        target=f"<= {100 * MOST_SHARE:g} % of a core and <= {MOST_MB} MB",
        ok=share <= MOST_SHARE and megabytes <= MOST_MB,
        unit=" % of a core",
        more={"memory_mb": round(megabytes), "sources": SOURCES, "slice": "60s"},
    )


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has used (Linux)."""
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / TICKS


def memory_mb(pid: int) -> float:
    """Return the memory that a process holds (Linux)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024
