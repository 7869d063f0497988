"""What idle nodes cost: two share a thousand sources whose shops are quiet, over several whole slices."""

from __future__ import annotations

from bench._quiet import SLICE_S, quiet_sources, shares
from bench.harness import Result

NAME = "idle"
LIMIT_S = 240
MOST_SHARE, MOST_MB = 0.03, 120
SOURCES, NODES, SLICES = 1_000, 2, 2


async def run() -> Result:
    """Each source has as many slices in the window as it is long, whenever they fall due."""
    async with quiet_sources(SOURCES) as bench:
        found = await shares(bench, NODES, slices=SLICES)
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
            "slices": SLICES,
            "slice": f"{SLICE_S:g}s",
        },
    )
