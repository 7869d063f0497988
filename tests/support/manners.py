"""Malls with manners, read to their ends by a node and stored by a sink: what is missing there, what is doubled, and
whether `verify` knows it."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from actors.fetch import sink
from actors.fetch.rules.ledger import Ledger
from actors.fetch.sources import SourceKey
from actors.fetch.stores.sqlite import SqliteStore
from penstock.admin.coverage import Coverage, cover
from platforms.mall.dialects.dialect import number_of
from platforms.mall.server import Mall
from streams.link.connection import Connection
from streams.messages.fetch import SliceCompleted, decode_event
from streams.publish.publisher import Publisher
from streams.reads.log import read_log
from streams.topology.specs import sink_consumer
from streams.topology.topology import ensure_consumer
from tests.support.engine import Node, add_source, history_start_ms, ledger_when, put_setting
from tests.support.moments import a_moment
from tests.support.sinks import unsettled

SHOP = SourceKey("manner", "s1")


class Judged(NamedTuple):
    """The sink beside the mall's own truth. missing: orders that it does not hold in their last state. doubled: changes
    that changed nothing, or a version that came twice."""

    orders: int
    missing: int
    doubled: int


async def add_manner(
    connection: Connection,
    publisher: Publisher,
    mall: Mall,
    table: dict[str, Any] | str,
    *,
    source: SourceKey = SHOP,
    **own: Any,
) -> None:
    """Add the mall's shop with an adapter of its own (a table), or with one that is built in (a name)."""
    if not isinstance(table, str):
        await put_setting(connection, publisher, f"adapter.{source.platform}", {**table, "name": source.platform})
        table = source.platform
    start_ms = history_start_ms(mall)
    await add_source(connection, publisher, source, adapter=table, start_ms=start_ms, **{"url": mall.url, **own})


async def read_to_end(node: Node, mall: Mall, *, within_s: float, source: SourceKey = SHOP) -> Ledger:
    """Wait until all of the mall's history was read, or given up, or the source is parked."""
    end_ms = mall.start_ms

    def is_over(ledger: Ledger) -> bool:
        return ledger.state == "parked" or (
            ledger.frontier_ms > end_ms and all(held.start_ms >= end_ms for held in ledger.open)
        )

    return await ledger_when(node.engine, source, is_over, within_s=within_s)


async def coverage_of(connection: Connection, mall: Mall, ledger: Ledger, source: SourceKey) -> Coverage:
    """Return what `penstock verify` answers for the mall's history."""
    subject = connection.namespace.event("fetch", "slice_completed", source.platform, source.source)
    found: list[SliceCompleted] = []
    async for entry in read_log(connection, connection.namespace.stream("EVENTS"), subject):
        event = decode_event(entry.payload)
        assert isinstance(event, SliceCompleted)
        found.append(event)
    return cover(ledger, found, history_start_ms(mall), mall.start_ms)


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
                await a_moment()
        stop.set()


def judge(mall: Mall, path: Path, source: SourceKey = SHOP) -> Judged:
    """Compare what is stored with what the mall says that it has. The mall's own number for a state is its version."""
    told = {number_of(str(key)): int(str(version)) for key, version, *_ in mall.shops["s1"].truth()}
    held, applied = _stored(path, source)
    missing = sum(held.get(number) != version for number, version in told.items()) + len(set(held) - set(told))
    return Judged(len(told), missing, sum(count - 1 for count in Counter(applied).values()))


def silent(mall: Mall, path: Path, coverage: Coverage, source: SourceKey = SHOP) -> int:
    """Return how many orders are missing of time that `verify` takes for read."""
    held, _ = _stored(path, source)
    read = [(each.start_ms, each.end_ms) for each in coverage.stretches if each.state == "read"]
    return sum(
        held.get(number_of(str(key))) != version and any(start <= int(str(at_ms)) < end for start, end in read)
        for key, version, at_ms, *_ in mall.shops["s1"].truth()
    )


def _stored(path: Path, source: SourceKey) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """Return the version of each order that is held, and each change that was applied, by the mall's number."""
    query = "SELECT order_key, json_extract(body, '$.version') FROM {} WHERE platform = ? AND source = ?"
    connection = sqlite3.connect(path)
    try:
        orders, changes = (
            [
                (number_of(key), version)
                for key, version in connection.execute(query.format(table), (source.platform, source.source))
            ]
            for table in ("orders", "order_changes")
        )
    finally:
        connection.close()
    return dict(orders), changes


def references(folder: Path, account: Mapping[str, str]) -> dict[str, str]:
    """Return the account's values as references to files, as secrets have to be."""
    for name, value in account.items():
        path = folder / f"{name}-{value}"
        path.write_text(value)
        path.chmod(0o600)
    return {name: f"file:{folder}/{name}-{value}" for name, value in account.items()}
