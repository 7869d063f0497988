"""What the demo shows while it runs: one picture of the ledgers, the stream and the nodes, drawn twice a second."""

from __future__ import annotations

import msgspec
from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from actors.fetch.rules.ledger import Ledger
from actors.fetch.sources import SourceKey

__all__ = ["Picture", "SourceLine", "drawn", "source_line"]


class SourceLine(msgspec.Struct, frozen=True):
    """One source at one moment. `done` is the share of its time that is stored, 0 to 1."""

    source: SourceKey
    done: float
    lag_s: float
    cut: int
    open: int
    taken: int
    retrying: int
    holes: int


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """Everything at one moment. `pages` of orders are in the stream, `waiting` of them not stored. `nodes` are (name,
    is live, kills)."""

    seconds: float
    made: int
    stored: int
    pages: int
    waiting: int
    sources: tuple[SourceLine, ...]
    nodes: tuple[tuple[str, bool, int], ...]


def source_line(source: SourceKey, ledger: Ledger, *, end_ms: int, slice_ms: int, now_ms: int) -> SourceLine:
    """Return a source's line. Its time ends at `end_ms`."""
    whole = max(1, end_ms - ledger.start_ms)
    return SourceLine(
        source=source,
        done=min(1.0, (ledger.watermark_ms - ledger.start_ms) / whole),
        lag_s=max(0, min(now_ms, end_ms) - ledger.watermark_ms) / 1000,
        cut=(ledger.frontier_ms - ledger.start_ms) // slice_ms,
        open=len(ledger.open),
        taken=sum(held.is_taken for held in ledger.open),
        retrying=sum(held.attempt > 1 for held in ledger.open),
        holes=len(ledger.holes),
    )


def drawn(picture: Picture) -> Group:
    """Return the picture for a terminal."""
    head = Text(
        f"{picture.seconds:5.1f} s   orders stored {picture.stored:,} of {picture.made:,}   "
        f"pages fetched {picture.pages:,}, waiting for the sink {picture.waiting:,}"
    )
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("source", "watermark", "lag", "cut", "open", "taken", "retrying", "holes"):
        table.add_column(name, justify="left" if name in ("source", "watermark") else "right")
    for line in picture.sources:
        counts = (str(n) for n in (line.cut, line.open, line.taken, line.retrying, line.holes))
        table.add_row(
            str(line.source), ProgressBar(total=1.0, completed=line.done, width=30), f"{line.lag_s:.0f} s", *counts
        )
    nodes = Text("nodes  ")
    for name, is_live, kills in picture.nodes:
        nodes.append(f"{name} ", style="green" if is_live else "red")
        nodes.append(f"killed {kills}   " if kills else "  ", style="dim")
    return Group(head, table, nodes)
