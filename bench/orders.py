"""How fast one node carries orders from a platform over HTTP into the stream, beside a bare aiohttp loop that pages and
decodes the same windows with as many requests under way.

The platform is a mall that takes 20 ms for an answer, less than any real one. `saturated` is the same against a mall
that answers at once: there the machine is the limit.
"""

from __future__ import annotations

import statistics

import aiohttp
import anyio
import msgspec

from actors.fetch.sources import SourceKey
from bench._fetch import Bench, fetch_bench
from bench.harness import Result
from platforms.adapter import Account
from platforms.bounds import Window
from platforms.registry import make_adapter
from streams.clock import monotonic_s
from streams.messages.fetch import decode_orders
from streams.reads.log import read_log

NAME = "orders"
SHOP = "s1"
TARGET = 0.7
ROUNDS = 2
ORDERS = 120_000
HISTORY_S = 3_600
SLICE_MS = 15_000
SLOTS = 16
THINKING = {"late": 1.0, "late_ms": 20}


async def run() -> Result:
    """Pages of 100 by token. Every round reads the same hour anew, by a source of its own."""
    async with fetch_bench() as bench:
        mall = await bench.mall(
            "token", "--orders", str(ORDERS), "--history", f"{HISTORY_S}s", "--change-share", "0", "--late-share", "0"
        )
        await bench.node("node1", "--sink", "none")
        start_ms = mall.state.history_start_ms
        await _set_faults(mall.state.url, THINKING)
        thinking = await _rounds(bench, mall.state.url, start_ms, first=1)
        await _set_faults(mall.state.url, {})
        saturated = await _rounds(bench, mall.state.url, start_ms, first=ROUNDS + 2)
        stored = await _stored(bench)
    ours, theirs = (statistics.median(rates) for rates in zip(*thinking, strict=True))
    ratio = statistics.median(our / their for our, their in thinking)
    return Result(
        what="orders from a platform over HTTP into the stream, one node",
        ours=round(ours),
        theirs=round(theirs),
        ratio=round(ratio, 2),
        target=f">= {TARGET} x a bare aiohttp loop",
        ok=ratio >= TARGET and stored >= 0.98 * ORDERS * 2 * (ROUNDS + 1),
        more={
            "platform": "20 ms an answer, 100 orders a page, 16 requests under way",
            "saturated_ours": round(statistics.median(our for our, _ in saturated)),
            "saturated_theirs": round(statistics.median(their for _, their in saturated)),
            "saturated_ratio": round(statistics.median(our / their for our, their in saturated), 2),
        },
    )


async def _rounds(bench: Bench, url: str, start_ms: int, *, first: int) -> list[tuple[float, float]]:
    rates = []
    for number in range(first, first + ROUNDS + 1):
        ours = await _ours(bench, url, f"round{number}", start_ms)
        theirs = await _bare(url, start_ms)
        rates.append((ours, theirs))
    return rates[1:]


async def _ours(bench: Bench, url: str, name: str, start_ms: int) -> float:
    source = SourceKey("mall", name)
    settings = {"slice": f"{SLICE_MS}ms", "concurrency": SLOTS, "max_open": 128}
    end_ms = _end_ms(start_ms)
    before = await _stored(bench)
    started_s = monotonic_s()
    await bench.add([source], "mall_token", url, start_ms, settings, shop=SHOP)
    await bench.until([source], lambda ledger: ledger.watermark_ms >= end_ms)
    seconds = monotonic_s() - started_s
    return (await _stored(bench) - before) / seconds


async def _stored(bench: Bench) -> int:
    """Return how many orders are in the stream, by reading it."""
    found = 0
    async for entry in read_log(
        bench.connection, bench.connection.namespace.stream("ORDERS"), bench.connection.namespace.pattern("orders", ">")
    ):
        found += len(decode_orders(entry.payload))
    return found


async def _bare(url: str, start_ms: int) -> float:
    """Page and decode the same windows, and keep nothing."""
    adapter, account = make_adapter("mall_token"), Account(SHOP, {"base_url": url, "shop": SHOP})
    windows = [Window(at_ms, at_ms + SLICE_MS) for at_ms in range(start_ms, _end_ms(start_ms), SLICE_MS)]
    seen = 0

    async def worker(session: aiohttp.ClientSession) -> None:
        nonlocal seen
        while windows:
            window, page = windows.pop(), None
            while True:
                asked = adapter.request(window, page, account, 0)
                async with session.request(asked.method, asked.url, params=asked.params) as answer:
                    listing = msgspec.json.decode(await answer.read())
                seen += len(listing["orders"])
                page = listing.get("next_page_token")
                if page is None:
                    break

    started_s = monotonic_s()
    async with aiohttp.ClientSession() as session, anyio.create_task_group() as tasks:
        for _ in range(SLOTS):
            tasks.start_soon(worker, session)
    return seen / (monotonic_s() - started_s)


def _end_ms(start_ms: int) -> int:
    return start_ms + HISTORY_S * 1_000 // SLICE_MS * SLICE_MS - SLICE_MS


async def _set_faults(url: str, faults: dict[str, float]) -> None:
    async with aiohttp.ClientSession() as session, session.post(f"{url}/_mall/faults", json=faults) as answer:
        answer.raise_for_status()
