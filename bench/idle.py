"""What idle nodes cost: two share a thousand sources whose shops are quiet, over several whole slices.
`IDLE_BENCH_SLICES=1` measures one of them, in two minutes and a quarter."""

from __future__ import annotations

import os

from bench._quiet import SLICE_S, quiet_sources, shares
from bench.harness import Result

NAME = "idle"
LIMIT_S = 240
MOST_SHARE, MOST_MB = 0.03, 120
SOURCES, NODES = 1_000, 2
FIRST_S = 65.0
"""Until each source's first window, which begins where it was added, has been read."""


async def run() -> Result:
    """Each source has as many slices in the window as it is long, whenever they fall due."""
    slices = int(os.environ.get("IDLE_BENCH_SLICES", "2"))
    async with quiet_sources(SOURCES) as bench:
        found = await shares(bench, NODES, slices=slices, settled_s=FIRST_S)
    share = max(found.nodes)
    return Result(
        what=f"the busier of {NODES} idle nodes with {SOURCES:,} quiet sources",
        ours=round(100 * share, 2),
        target=f"<= {100 * MOST_SHARE:g} % of a core and <= {MOST_MB} MB",
        ok=share <= MOST_SHARE and found.megabytes <= MOST_MB,
        unit=" % of a core",
        more={
            "each": [round(100 * each, 2) for each in found.nodes],
            "server": round(100 * found.server, 2),
            "ledger_updates_per_s": round(found.updates, 1),
            "memory_mb": round(found.megabytes),
            "slices": slices,
            "slice": f"{SLICE_S:g}s",
        },
    )
