"""The line of `bench scale` about nodes that share quiet sources."""

from __future__ import annotations

from bench._quiet import quiet_sources, shares
from bench._scale import Line

SOURCES, NODES = 3_000, (1, 8)
MOST_GROWTH = 1.5
"""How much more all nodes together may use than one alone."""


async def lines() -> list[Line]:
    """Measure one node alone, then all of them, each over a whole slice of every source."""
    async with quiet_sources(SOURCES) as bench:
        one, all_ = [100 * sum((await shares(bench, count, slices=1)).nodes) for count in NODES]
    return [
        Line(
            what=f"nodes that share {SOURCES:,} quiet sources",
            things="nodes",
            unit="% of a core in all",
            sizes=NODES,
            costs=(one, all_),
            most_growth=MOST_GROWTH,
        )
    ]
