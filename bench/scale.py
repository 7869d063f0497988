"""How far it goes: what one unit costs at two sizes, the second ten times the first.

The lines come from `bench/_scale_fetch.py` (sources, settings, members) and `bench/_scale_jobs.py` (topics, jobs,
batches). No line may cost more than 1.3 times as much a unit at the larger size, or exceed a limit of its own."""

from __future__ import annotations

import msgspec

from bench import _scale_fetch, _scale_jobs
from bench._scale import MOST_GROWTH, Line
from bench.harness import Result

NAME = "scale"
LIMIT_S = 240


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
    """Measure every line."""
    lines = (*await _scale_fetch.lines(), *await _scale_jobs.lines())
    return ScaleResult(
        what="the steepest cost of a unit at ten times the size",
        ours=round(max(line.growth for line in lines), 2),
        target=f"no line above {MOST_GROWTH} x, or above its own limit",
        ok=all(line.ok for line in lines),
        unit=" x",
        lines=lines,
    )
