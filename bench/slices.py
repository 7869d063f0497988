"""How many empty slices one node cuts, offers, fetches over HTTP and completes in a second.

Beside it, in the same run: the bare client, which only asks the same windows of the same mall by HTTP.
"""

from __future__ import annotations

import statistics

import aiohttp
import anyio

from actors.fetch.sources import SourceKey
from bench._fetch import Bench, fetch_bench
from bench.harness import Result
from platforms.adapter import Account
from platforms.bounds import Window
from platforms.registry import make_adapter
from streams.clock import monotonic_s, now_ms

NAME = "slices"
TARGET = 2_000
SLICES = 6_000
ROUNDS = 3
SLOTS = 64


async def run() -> Result:
    """One source, empty slices of a second. Three rounds, each on a source of its own."""
    async with fetch_bench() as bench:
        mall = await bench.mall("one", "--orders", "1", "--shops", str(ROUNDS + 1), "--history", "1s")
        await bench.node("node1", "--roles", "allocator,fetcher,monitor")
        ours, theirs = [], []
        for number in range(ROUNDS + 1):
            rate = await _round(bench, mall.state.url, number)
            bare = await _bare(mall.state.url)
            if number:
                ours.append(rate)
                theirs.append(bare)
        events = await bench.count("EVENTS")
    rate = statistics.median(ours)
    return Result(
        what="empty slices cut, offered, fetched and completed by one node",
        ours=round(rate),
        theirs=round(statistics.median(theirs)),
        ratio=round(statistics.median(o / t for o, t in zip(ours, theirs, strict=True)), 2),
        target=f">= {TARGET:,}/s",
        ok=rate >= TARGET and events >= SLICES * (ROUNDS + 1),
        more={"theirs_is": "bare aiohttp requests for the same windows", "slices": SLICES},
    )


async def _round(bench: Bench, url: str, number: int) -> float:
    source = SourceKey("mall", f"s{number + 1}")
    end_ms = now_ms() - 60_000
    settings = {"slice": "1s", "concurrency": SLOTS, "max_open": 256}
    started_s = monotonic_s()
    await bench.add([source], "mall", url, end_ms - SLICES * 1_000, settings)
    await bench.until([source], lambda ledger: ledger.watermark_ms >= end_ms)
    return SLICES / (monotonic_s() - started_s)


async def _bare(url: str) -> float:
    adapter, account = make_adapter("mall"), Account("s1", {"base_url": url, "shop": "s1"})
    at_ms = now_ms() - SLICES * 1_000
    windows = [Window(at_ms + n * 1_000, at_ms + (n + 1) * 1_000) for n in range(SLICES)]

    async def worker(session: aiohttp.ClientSession) -> None:
        while windows:
            asked = adapter.request(windows.pop(), None, account, 0)
            async with session.request(asked.method, asked.url, params=asked.params) as answer:
                await answer.read()

    started_s = monotonic_s()
    async with aiohttp.ClientSession() as session, anyio.create_task_group() as tasks:
        for _ in range(SLOTS):
            tasks.start_soon(worker, session)
    return SLICES / (monotonic_s() - started_s)
