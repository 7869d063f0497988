"""How many requests and seconds 90 days of 30,000 orders cost with default settings, by the platform's own count.

Beside it the ideal reader: one that knows where the orders lie, asks for full pages only, and for no window twice. Six
shops are read at once, each with its own rate of ten a second: windows with two bounds and pages of 100 and of 20, a
list of pages by link, a list with a lower bound only, and a quiet shop with ten orders a day.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import anyio
import msgspec

import platforms
from actors.fetch.ledgers import open_ledgers
from actors.fetch.rules.ledger import first_ledger
from actors.fetch.sources import SourceKey, SourceRecord
from bench._fetch import Bench, fetch_bench
from bench.harness import Result
from penstock.demo.processes import MallProcess
from streams.clock import monotonic_s, now_ms
from streams.messages.fetch import decode_orders
from streams.reads.log import read_log

NAME = "history"
LIMIT_S = 255.0
TARGET = 1.3
DAYS = 90
ORDERS = 30_000
DAY_MS = 86_400_000


class Case(NamedTuple):
    """One shop. `params`: of the request, without those that all have."""

    name: str
    paging: str = "one"
    size: int = 100
    orders: int = ORDERS
    has_end: bool = True

    @property
    def ideal(self) -> int:
        """Requests of the ideal reader: full pages, and windows as long as the platform allows."""
        return max(-(-self.orders // self.size), DAYS if self.has_end else 1)

    def adapter(self) -> dict[str, Any]:
        table = tomllib.loads((Path(platforms.__file__).parent / "mall_link.toml").read_text())
        table["name"] = self.name
        table["pages"]["size"] = self.size
        if self.paging == "one":
            table["pages"] = {"style": "one", "size": self.size, "total": "total"}
        if not self.has_end:
            del table["request"]["params"]["to"]
            table["window"]["upper"] = "absent"
        return table


CASES = (
    Case("two_bounds"),
    Case("two_bounds_20", size=20),
    Case("links", paging="link"),
    Case("lower_bound_only", has_end=False),
    Case("lower_bound_links", paging="link", has_end=False),
    Case("quiet", orders=10 * DAYS),
)


class Cost(NamedTuple):
    requests: int
    seconds: float


async def run() -> Result:
    """Read all shops at once. Each has a platform, and so a rate, of its own."""
    costs: dict[str, Cost] = {}
    async with fetch_bench() as bench:
        malls = {case: await _mall(bench, case) for case in CASES}
        await bench.node("node1", "--roles", "allocator,fetcher,monitor")
        began_s = monotonic_s()
        async with anyio.create_task_group() as tasks:
            for case, mall in malls.items():
                tasks.start_soon(_read, bench, case, mall, began_s, costs)
        stored = await _stored(bench)
    ratios = {case.name: costs[case.name].requests / case.ideal for case in CASES}
    is_whole = all(stored.get(case.name, 0) == case.orders for case in CASES)
    more: dict[str, Any] = {"is_whole": is_whole}
    for case in CASES:
        cost = costs[case.name]
        more[f"{case.name}_requests"], more[f"{case.name}_ideal"] = cost.requests, case.ideal
        more[f"{case.name}_ratio"], more[f"{case.name}_s"] = round(ratios[case.name], 2), round(cost.seconds, 1)
    return Result(
        what=f"requests for {DAYS} days of {ORDERS:,} orders, beside the ideal reader",
        ours=costs[CASES[0].name].requests,
        theirs=CASES[0].ideal,
        ratio=round(max(ratios.values()), 2),
        target=f"at most {TARGET} x in every shop, all orders stored",
        ok=is_whole and max(ratios.values()) <= TARGET,
        unit=" requests",
        more=more,
    )


async def _mall(bench: Bench, case: Case) -> MallProcess:
    """Start the shop's platform. Its orders end three minutes ago, so all of them have settled."""
    end_ms = str(now_ms() - 180_000)
    settings = ("--orders", str(case.orders), "--page-size", str(case.size), "--history", f"{DAYS}d")
    return await bench.mall(case.paging, *settings, "--start-ms", end_ms)


async def _read(bench: Bench, case: Case, mall: MallProcess, began_s: float, costs: dict[str, Cost]) -> None:
    """Add the shop with default settings, and wait until its history is read."""
    source, bucket = SourceKey(case.name, "s1"), bench.bucket("SETTINGS")
    start_ms = mall.state.end_ms - DAYS * DAY_MS
    await bucket.put(f"adapter.{case.name}", msgspec.json.encode(case.adapter()))
    revision = await bucket.put(f"fetch.{source.key}", b"{}")
    async with open_ledgers(bench.bucket("LEDGERS")) as ledgers:
        await ledgers.create(source, first_ledger(start_ms))
    record = SourceRecord(case.name, {"base_url": mall.state.url, "shop": "s1"}, revision)
    await bucket.put(f"source.{source.key}", msgspec.json.encode(record))
    await bench.until([source], lambda ledger: ledger.watermark_ms >= mall.state.end_ms)
    async with aiohttp.ClientSession() as session, session.get(f"{mall.state.url}/_mall/stats") as answer:
        requests = int((await answer.json())["requests"])
    costs[case.name] = Cost(requests, monotonic_s() - began_s)


async def _stored(bench: Bench) -> dict[str, int]:
    """Return how many orders of each platform are stored."""
    keys: dict[str, set[str]] = {}
    namespace = bench.connection.namespace
    async for entry in read_log(bench.connection, namespace.stream("ORDERS"), namespace.pattern("orders", ">")):
        for order in decode_orders(entry.payload):
            keys.setdefault(order.platform, set()).add(order.order_key)
    return {platform: len(found) for platform, found in keys.items()}
