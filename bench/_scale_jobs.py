"""The lines of `bench scale` about topics, jobs and batches."""

from __future__ import annotations

from bench._fetch import fetch_bench
from bench._scale import Line
from streams.clock import monotonic_s
from streams.publisher import Outgoing

SIZES = (10_000, 100_000)


async def lines() -> list[Line]:
    """Measure each in turn."""
    return [await _adds()]


async def _adds() -> Line:
    """Store jobs of one topic that are due in a year."""
    costs: list[float] = []
    async with fetch_bench() as bench:
        namespace = bench.connection.namespace
        for size in SIZES:
            jobs = [Outgoing(namespace.job("ready", f"scale{size}", str(n)), b"{}") for n in range(size)]
            began_s = monotonic_s()
            await bench.publisher.publish_many(jobs)
            costs.append((monotonic_s() - began_s) * 1e6 / size)
    return Line(what="ready jobs are stored", things="jobs", unit="us a job", sizes=SIZES, costs=(costs[0], costs[1]))
