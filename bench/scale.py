"""How far it goes: what one unit costs at two sizes, the second ten times the first.

The lines come from `bench/_scale_fetch.py` (sources, settings, members), `bench/_scale_jobs.py` (topics, jobs),
`bench/_scale_tasks.py` (tasks of batches) and `bench/_scale_nodes.py` (nodes that share sources). No line may cost more
than 1.3 times as much a unit at the larger size, or exceed a limit of its own. `SCALE_BENCH_PARTS=fetch,jobs,tasks`
measures some of them. Two parts are left out unless they are named: `far` has ten million waiting jobs, and `crowd` a
hundred thousand sources."""

from __future__ import annotations

import os

import msgspec

from bench import _scale_fetch, _scale_jobs, _scale_nodes, _scale_tasks
from bench._scale import MOST_GROWTH, Line
from bench.harness import Result

NAME = "scale"
LIMIT_S = 3_600
PARTS = {
    "fetch": _scale_fetch.lines,
    "jobs": _scale_jobs.lines,
    "nodes": _scale_nodes.lines,
    "tasks": _scale_tasks.lines,
}
FAR = {"far": _scale_jobs.far_lines, "crowd": _scale_fetch.far_lines}


class ScaleResult(Result, kw_only=True, frozen=True):
    """The table of all lines."""

    lines: tuple[Line, ...] = ()

    def as_json(self) -> str:
        """Return one JSON object on one line."""
        return msgspec.json.encode(
            {**msgspec.to_builtins(self), "lines": [line.document() for line in self.lines]}
        ).decode()

    def as_row(self) -> str:
        """Return the verdict, and a line for each cost."""
        return "\n  ".join([super().as_row(), *map(str, self.lines)])


async def run() -> ScaleResult:
    """Measure every line, or those of some parts."""
    parts = os.environ.get("SCALE_BENCH_PARTS", ",".join(PARTS)).split(",")
    lines = [line for part in parts for line in await {**PARTS, **FAR}[part]()]
    return ScaleResult(
        what="the steepest cost of a unit at ten times the size",
        ours=round(max(line.growth for line in lines), 2),
        target=f"no line above {MOST_GROWTH} x or above its own limits",
        ok=all(line.ok for line in lines),
        unit=" x",
        lines=tuple(lines),
    )
