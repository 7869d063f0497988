"""The line of `bench scale` about nodes that share quiet sources."""

from __future__ import annotations

from bench._quiet import SETTLED_S, SLICE_S, quiet_sources, shares
from bench._scale import Line

SOURCES, NODES = 3_000, (1, 8)
MOST_GROWTH = 1.5
"""How much more all nodes together may use than one alone."""


async def lines() -> list[Line]:
    """Measure one node alone, then all of them, each over two slices of every source. The first slices after nodes came
    are read in another rhythm than the later ones, and are not measured."""
    async with quiet_sources(SOURCES) as bench:
        measured = [await shares(bench, count, slices=2, settled_s=SLICE_S + SETTLED_S) for count in NODES]
    one, all_ = [100 * sum(found.nodes) for found in measured]
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
