"""Both sides of the comparison: what the malls made, by asking them, and what the database holds, by reading it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import aiohttp
import msgspec

from penstock.demo.processes import MallProcess
from penstock.demo.report import OrderId

__all__ = ["count_orders", "mall_stats", "read_changes", "read_orders", "read_truth"]

_line = msgspec.json.Decoder(tuple[str, int, int, int, int])


class MallStats(msgspec.Struct, frozen=True):
    """What the malls say they did, added up."""

    requests: int
    faults: int


async def read_truth(malls: Sequence[MallProcess]) -> dict[OrderId, int]:
    """Return every order of every mall with its last version."""
    truth: dict[OrderId, int] = {}
    async with aiohttp.ClientSession() as session:
        for mall in malls:
            for shop in mall.state.shops:
                async with session.get(f"{mall.state.url}/_mall/truth", params={"shop": shop}) as answer:
                    answer.raise_for_status()
                    async for line in answer.content:
                        key, version, *_ = _line.decode(line)
                        truth[mall.platform, shop, key] = version
    return truth


async def mall_stats(malls: Sequence[MallProcess]) -> MallStats:
    """Return how many requests the malls had, and how many of them they spoilt."""
    requests = faults = 0
    async with aiohttp.ClientSession() as session:
        for mall in malls:
            async with session.get(f"{mall.state.url}/_mall/stats") as answer:
                stats = await answer.json()
                requests += stats["requests"]
                faults += sum(stats["faults"].values())
    return MallStats(requests, faults)


def count_orders(database: Path) -> int:
    """Return how many orders are stored, 0 while there is no table."""
    if not database.exists():
        return 0
    try:
        with closing(sqlite3.connect(database)) as connection:
            return int(connection.execute("SELECT count(*) FROM orders").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def read_orders(database: Path) -> dict[OrderId, int]:
    """Return every stored order with its version."""
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT platform, source, order_key, version FROM orders")
        return {(platform, source, key): version for platform, source, key, version in rows}


def read_changes(database: Path) -> list[tuple[str, str, str, int]]:
    """Return every change of a row that the database went through."""
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute("SELECT platform, source, order_key, version FROM order_changes").fetchall()
