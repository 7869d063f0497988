"""What an idle node costs that serves a thousand topics with a rate, and one that serves a thousand batch tasks with
one: nothing is in them, so it may only wait."""

from __future__ import annotations

import os

import anyio
import msgspec

from bench._fetch import Bench, fetch_bench
from bench._limits_app import COUNT
from bench._quiet import cpu_s, memory_mb
from bench._scale_tasks import until_declared
from bench.harness import Result
from streams.clock import monotonic_s

NAME = "idle_limits"
LIMIT_S = 500
MOST_SHARE = 0.02
SETTLED_S = 40.0
"""Until the pulls to which nothing comes last as long as they ever do."""
WINDOW_S = 120.0
"""So long does a pull to which nothing comes last."""


async def run() -> Result:
    """Measure a node of each kind, one after the other."""
    shares, megabytes = dict[str, float](), dict[str, float]()
    for kind in ("topics", "tasks"):
        shares[kind], megabytes[kind] = await _idle(kind)
    worst = max(shares, key=lambda kind: shares[kind])
    return Result(
        what=f"an idle node with {COUNT:,} limits, of {worst}",
        ours=round(100 * shares[worst], 2),
        target=f"< {100 * MOST_SHARE:g} % of a core",
        ok=shares[worst] < MOST_SHARE,
        unit=" % of a core",
        more={f"{kind}_percent": round(100 * share, 2) for kind, share in shares.items()}
        | {f"{kind}_memory_mb": round(memory) for kind, memory in megabytes.items()},
    )


async def _idle(kind: str) -> tuple[float, float]:
    """Return the part of a core that a node uses, and its memory."""
    os.environ["LIMITS_KIND"] = kind
    async with fetch_bench() as bench:
        await bench.bucket("TOPICS").put("default", msgspec.json.encode({"rate": 5}))
        node = await bench.node("node1", "--sink", "none", "--app", "bench._limits_app")
        await _served(bench, kind)
        await anyio.sleep(SETTLED_S)
        used_s, began_s = cpu_s(node.pid), monotonic_s()
        await anyio.sleep(WINDOW_S)
        return (cpu_s(node.pid) - used_s) / (monotonic_s() - began_s), memory_mb(node.pid)


async def _served(bench: Bench, kind: str) -> None:
    """Wait until there is a consumer for each topic, or each task is declared."""
    if kind == "tasks":
        await until_declared(bench, COUNT)
        return
    subject = f"STREAM.INFO.{bench.connection.namespace.stream('JOBS')}"
    while (await bench.connection.api(subject))["state"]["consumer_count"] < COUNT:  # noqa: ASYNC110 # it tells nobody
        await anyio.sleep(0.5)
