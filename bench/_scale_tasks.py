"""What a batch task costs that a node serves and that nothing is to be done for, and its first instance."""

from __future__ import annotations

import os
import statistics

import anyio
from msgspec import Struct

import penstock
from bench._fetch import LOOK_S, Bench, fetch_bench
from bench._quiet import cpu_s, memory_mb
from bench._scale import Line
from penstock.sdk.client import Client

TASKS = (500, 5_000)
FIRST = 50
FIRST_MS = 1_000.0


class _Served(Struct, frozen=True):
    """What was measured with a node that serves so many tasks. The first of each task of some is done by then."""

    server_s: float
    node_s: float
    megabytes: float
    first_ms: tuple[float, ...]


async def lines() -> list[Line]:
    """Measure at both sizes, above what a node with one task costs."""
    none, small, large = [await _with_tasks(size) for size in (1, *TASKS)]

    def line(what: str, unit: str, costs: tuple[float, float]) -> Line:
        return Line(what=what, things="tasks", unit=unit, sizes=TASKS, costs=costs)

    def each(one: float, other: float, base: float, factor: float) -> tuple[float, float]:
        return (one - base) * factor / TASKS[0], (other - base) * factor / TASKS[1]

    firsts = statistics.median(small.first_ms), statistics.median(large.first_ms)
    slow_ms = statistics.quantiles(large.first_ms, n=20)[18]
    return [
        line("tasks are served, the server", "us a task", each(small.server_s, large.server_s, none.server_s, 1e6)),
        line("tasks are served, the node", "us a task", each(small.node_s, large.node_s, none.node_s, 1e6)),
        line("tasks are served, memory", "kB a task", each(small.megabytes, large.megabytes, none.megabytes, 1e3)),
        Line(
            what="a task's first instance", things="tasks", unit="ms", sizes=TASKS, costs=firsts, reached=slow_ms,
            most=FIRST_MS, of="ms at p95",
        ),
    ]  # fmt: skip


async def _with_tasks(size: int) -> _Served:
    os.environ |= {"LIMITS_KIND": "tasks", "LIMITS_COUNT": str(size)}
    async with fetch_bench() as bench, penstock.connect(bench.url) as client:
        server_s, before_mb = cpu_s(bench.server_pid), memory_mb(bench.server_pid)
        node = await bench.node("node1", "--sink", "none", "--app", "bench._limits_app")
        await until_declared(bench, size)
        await _first_ms(client, size - 1)
        used_s, node_s = cpu_s(bench.server_pid) - server_s, cpu_s(node.pid)
        megabytes = memory_mb(bench.server_pid) - before_mb + memory_mb(node.pid)
        firsts = [await _first_ms(client, number) for number in range(min(FIRST, size - 1))]
        return _Served(used_s, node_s, megabytes, tuple(firsts))


async def _first_ms(client: Client, number: int) -> float:
    batch = await client.batches.submit(f"task{number}", {})
    ended = await client.batches.wait(batch.instance_id)
    return ended.ended_ms - ended.created_ms


async def until_declared(bench: Bench, count: int) -> None:
    """Wait until nodes have declared so many tasks."""
    subject = f"STREAM.INFO.KV_{bench.connection.namespace.bucket('TASKS')}"
    while (await bench.connection.api(subject))["state"]["messages"] < count:  # noqa: ASYNC110 # it tells nobody
        await anyio.sleep(LOOK_S)
