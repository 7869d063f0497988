"""A database with rows to execute, the nodes that do it, and what they did when."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
from anyio import fail_after

from actors.flow.flows import FlowProgress
from actors.flow.governor import LEASE
from streams.buckets.bucket import Bucket
from streams.buckets.lease import read_record
from streams.clock import monotonic_s
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.support.command import Running, node
from tests.support.flow_app import make
from tests.support.server import Reachable
from tests.support.sqlite import sqlite_file

WITHIN_S = 90.0
IN_HAND = 1_000
"""What one node has in its hands at most: two calls of 500 rows."""


class Bank:
    """A database with rows to execute, and nodes that do."""

    def __init__(self, server: Reachable, connection: Connection, folder: Path) -> None:
        self.connection = connection
        self._nodes: list[Running] = []
        self._server = server
        self._path = folder / "bank.db"
        self.tables = 0

    def make(self, tables: int, rows: int) -> None:
        self.tables = tables
        make(str(self._path), tables, rows)

    def fill(self, rows: int) -> None:
        """Have so many rows in each table, which has none."""
        with sqlite_file(self._path) as db:
            for number in range(self.tables):
                db.executemany(f"INSERT INTO prizes_{number} VALUES (?, 0)", [(key,) for key in range(rows)])

    @asynccontextmanager
    async def node(
        self, name: str, *arguments: str, url: str = "", off_ms: int = 0, **environment: str
    ) -> AsyncIterator[Running]:
        """Run a node until the block ends. `url`: where it reaches the server. `off_ms`: by how much its clock is
        wrong."""
        where = ("--nats", url or self._server.url, "--name", name, "--sink", "none", "--log-level", "info")
        named = {
            "PENSTOCK_NAMESPACE": self.connection.namespace.name,
            "PENSTOCK_LOG_FORM": "json",
            "PENSTOCK_HTTP": "off",
            "FLOW_DB": str(self._path),
            "FLOW_TABLES": str(self.tables),
        }
        how = ("-m", "tests.support.odd_node", str(off_ms), "up") if off_ms else ("-m", "penstock", "up")
        app = () if "--app" in arguments else ("--app", "tests.support.flow_app")
        async with node(*where, *app, *arguments, command=how, environment={**named, **environment}) as running:
            self._nodes.append(running)
            yield running

    def ran(self) -> Counter[tuple[str, int]]:
        """Return how often each row was executed."""
        with sqlite_file(self._path) as db:
            return Counter(db.execute("SELECT shard, key FROM runs"))

    def has_run_each_once(self) -> bool:
        """Return whether each row was executed once. A node that stood still may have repeated what it had in its
        hands."""
        ran = self.ran()
        stood_still = any(node.stood_still() for node in self._nodes)
        return sum(ran.values()) - len(ran) <= (IN_HAND if stood_still else 0)

    def began(self, *, pid: int = 0) -> list[float]:
        """Return when rows were executed, in order, by the machine's monotonic clock. `pid`: by this process alone."""
        which = " WHERE pid = ?" if pid else ""
        with sqlite_file(self._path) as db:
            rows = db.execute(f"SELECT at FROM runs{which} ORDER BY at", (pid,) if pid else ())
            return [at_s for (at_s,) in rows]

    def ticks(self) -> list[tuple[int, float]]:
        """Return the occurrences of the schedule: when each was due, and when it began by the monotonic clock."""
        with sqlite_file(self._path) as db:
            return db.execute("SELECT due_ms, at FROM ticks ORDER BY due_ms").fetchall()

    async def calls(self, count: int) -> list[tuple[str, float, float, int]]:
        """Return the calls of the flow with slots, once there are so many: side, begin, end, process."""
        with fail_after(WITHIN_S):
            while True:
                with sqlite_file(self._path) as db:
                    found = db.execute("SELECT side, began, ended, pid FROM calls").fetchall()
                if len(found) >= count:
                    return found
                await anyio.sleep(0.05)

    async def until(self, is_enough: Callable[[Counter[tuple[str, int]]], bool]) -> Counter[tuple[str, int]]:
        with fail_after(WITHIN_S):
            while not is_enough(ran := self.ran()):  # noqa: ASYNC110 # a file tells nobody that it changed
                await anyio.sleep(0.05)
        return ran

    async def runs_for(self, seconds: float) -> tuple[float, float]:
        """Let it run, and return from when to when."""
        from_s = monotonic_s()
        await anyio.sleep(seconds)
        return from_s, monotonic_s()

    async def progress(self, flow: str = "prizes") -> FlowProgress:
        async with Publisher(self.connection) as publisher:
            bucket = Bucket(self.connection, publisher, self.connection.namespace.bucket("FLOWS"), bytes)
            entry = await bucket.get(f"{flow}.round")
        return FlowProgress() if entry is None else msgspec.json.decode(entry.raw, type=FlowProgress)

    async def governor(self) -> str:
        """Return the name of the node that is the governor, once one is."""
        async with Publisher(self.connection) as publisher:
            leases = Bucket(self.connection, publisher, self.connection.namespace.bucket("LEASES"), bytes)
            with fail_after(WITHIN_S):
                while True:
                    entry = await leases.get(LEASE)
                    record = read_record(entry.raw) if entry is not None else None
                    if record is not None:
                        return record.holder
                    await anyio.sleep(0.05)


def fullest(began: Sequence[float]) -> tuple[int, float]:
    """Return how many began in the fullest second, and when that second began. `began`: in order."""
    counts = ((bisect.bisect_left(began, at_s + 1.0) - place, at_s) for place, at_s in enumerate(began))
    return max(counts, default=(0, 0.0))


def between(began: Sequence[float], from_s: float, to_s: float) -> int:
    return bisect.bisect_left(began, to_s) - bisect.bisect_left(began, from_s)


def each_second(began: Sequence[float], from_s: float, to_s: float) -> list[int]:
    """Return how many began in each whole second from `from_s` on."""
    return [between(began, from_s + at, from_s + at + 1) for at in range(int(to_s - from_s))]
