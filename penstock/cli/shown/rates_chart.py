"""Draws a rate's target and what was begun each second, as SVG.

matplotlib is an extra (`penstock[charts]`), so it is imported when a chart is asked for.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.terminal.output import moment
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.cli.shown.rates_report import RateReport

__all__ = ["check_chart", "draw"]

INSTALL = "charts are drawn with a package that is not installed here: pip install 'penstock[charts]'"
SIZE = 10.0, 4.0
"""Inches."""


def check_chart(file: Path) -> None:
    """Raise UsageError if a chart cannot be drawn into this file, before anybody waits for it."""
    try:
        import matplotlib.figure  # noqa: F401 # only whether it is there
    except ImportError as error:
        raise UsageError(f"--svg: {INSTALL}") from error
    folder = file.absolute().parent
    if file.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"--svg: {str(file)[:80]!a} cannot be written; name a file in a folder of yours")


def draw(report: "RateReport", file: Path) -> None:
    """Write the chart. Text stays text in it. Raises OSError."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    edges = [*range(report.seconds + 1)]
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    axes.stairs(report.begun, edges, fill=True, color="#9ecae1", label="begun")
    axes.stairs(_broken(report.targets), edges, baseline=None, color="#d94801", linewidth=1.5, label="target")
    axes.set(
        title=f"{report.name}: {report.near:.1%} of the seconds within 1 % of the target",
        xlabel=f"seconds from {moment(report.began_ms)}",
        ylabel="begun a second",
        xlim=(0, report.seconds),
        ylim=(0, 1.15 * max(1, *report.begun, *report.targets)),
    )
    axes.legend(loc="lower right")
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": report.name}):
        figure.savefig(file, format="svg", metadata={"Date": None})


def _broken(targets: Sequence[float]) -> list[float]:
    """Return the targets, with a gap where there was none."""
    return [target or float("nan") for target in targets]
