"""How long a killed fetcher's slice waits until another node has it: kill -9 while it reads, then take by the other."""

from __future__ import annotations

import statistics

import aiohttp
import msgspec

from actors.fetch.rules.ledger import Ledger
from actors.fetch.sources import SourceKey
from bench._fetch import Bench, fetch_bench
from bench.harness import Result
from streams.clock import monotonic_s

NAME = "retake"
TARGET_S = 5.0
ROUNDS = 3
SOURCE = SourceKey("mall", "s1")
HANGING = {"late": 1.0, "late_ms": 600_000}


async def run() -> Result:
    """Two nodes. The mall does not answer, so that the slice stays in hand until its holder is killed."""
    waits = []
    async with fetch_bench() as bench:
        mall = await bench.mall("one", "--orders", "100", "--history", "10m")
        async with aiohttp.ClientSession() as session:
            async with session.post(f"{mall.state.url}/_mall/faults", json=HANGING) as answer:
                answer.raise_for_status()
        nodes = [await bench.node(name, "--sink", "none", "--drain", "0") for name in ("node1", "node2")]
        start_ms = mall.state.history_start_ms
        await bench.add([SOURCE], "mall", mall.state.url, start_ms, {"slice": "60s", "max_open": 1, "timeout": "60s"})
        holder, fence = await _holder(bench, above=0)
        for _ in range(ROUNDS):
            next(node for node in nodes if node.name == holder).kill()
            killed_s = monotonic_s()
            holder, fence = await _holder(bench, above=fence)
            waits.append(monotonic_s() - killed_s)
    return Result(
        what="a killed fetcher's slice is taken up by another",
        ours=round(max(waits), 2),
        target=f"<= {TARGET_S:g} s",
        ok=max(waits) <= TARGET_S,
        unit=" s",
        more={"median_s": round(statistics.median(waits), 2), "kills": len(waits)},
    )


async def _holder(bench: Bench, *, above: int) -> tuple[str, int]:
    """Wait until the slice was taken under a higher fence. Return by whom, and the fence."""
    async with bench.bucket("LEDGERS").watch(SOURCE.key) as changes:
        async for change in changes:
            entry = getattr(change, "entry", None)
            if entry is not None:
                held = msgspec.json.decode(entry.value, type=Ledger).open
                if held and held[0].fence > above:
                    return held[0].holder, held[0].fence
    raise AssertionError("a watch does not end")
