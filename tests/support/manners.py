"""A mall with one manner, read to its end by a node and stored by a sink: what is missing there, what is doubled."""

from __future__ import annotations

import sqlite3
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from actors.fetch import sink
from actors.fetch.rules.ledger import Ledger
from actors.fetch.sources import SourceKey
from actors.fetch.stores.sqlite import SqliteStore
from platforms.mall.server import Mall
from streams.connection import Connection
from streams.publisher import Publisher
from streams.specs import sink_consumer
from streams.topology import ensure_consumer
from tests.support.engine import Node, add_source, history_start_ms, ledger_when, put_setting
from tests.support.sinks import unsettled

SHOP = SourceKey("manner", "s1")


class Judged(NamedTuple):
    """The sink beside the mall's own truth. missing: orders that it does not hold in their last state. doubled: changes
    that changed nothing, or a version that came twice. published: orders in the stream's messages."""

    orders: int
    missing: int
    doubled: int


async def add_manner(
    connection: Connection, publisher: Publisher, mall: Mall, table: dict[str, Any], **own: Any
) -> None:
    """Add the mall's shop with an adapter of its own."""
    await put_setting(connection, publisher, "adapter.manner", {**table, "name": "manner"})
    start_ms = history_start_ms(mall)
    await add_source(connection, publisher, SHOP, adapter="manner", url=mall.url, start_ms=start_ms, **own)


async def read_to_end(node: Node, mall: Mall, *, within_s: float) -> Ledger:
    """Wait until all of the mall's history was read, or given up."""
    end_ms = mall.start_ms

    def is_over(ledger: Ledger) -> bool:
        return ledger.frontier_ms > end_ms and all(held.start_ms >= end_ms for held in ledger.open)

    return await ledger_when(node.engine, SHOP, is_over, within_s=within_s)


async def store_all(connection: Connection, publisher: Publisher, path: Path) -> None:
    """Run a sink into a SQLite file, which keeps each change, until it has stored what is in the stream."""
    await ensure_consumer(connection, sink_consumer(connection.namespace, "main"))
    stop = anyio.Event()
    run = partial(
        sink.run,
        sink.Settings(name="main", wait_ms=5, batch=500),
        connection=connection,
        publisher=publisher,
        store=SqliteStore(path, history=True, synchronous="NORMAL"),
        stop=stop,
    )
    async with anyio.create_task_group() as tasks:
        await tasks.start(lambda task_status: run(task_status=task_status))
        with anyio.fail_after(120):
            while await unsettled(connection) != (0, 0):
                await anyio.lowlevel.checkpoint()
        stop.set()


def judge(mall: Mall, path: Path) -> Judged:
    """Compare what is stored with what the mall says that it has. The mall's own number for a state is its version."""
    told = {str(key): int(str(version)) for key, version, *_ in mall.shops["s1"].truth()}
    connection = sqlite3.connect(path)
    try:
        held = dict(connection.execute("SELECT order_key, json_extract(body, '$.version') FROM orders"))
        applied = connection.execute("SELECT order_key, json_extract(body, '$.version') FROM order_changes").fetchall()
    finally:
        connection.close()
    missing = sum(held.get(key) != version for key, version in told.items()) + len(set(held) - set(told))
    return Judged(len(told), missing, sum(count - 1 for count in Counter(applied).values()))
