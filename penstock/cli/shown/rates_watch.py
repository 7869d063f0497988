"""What `penstock rates watch` prints: a table that changes on a terminal, a line a second elsewhere."""

import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from penstock.cli.shown.rate_seconds import (
    RateSecond,
    Second,
    each_second,
    levels_of,
    nodes_text,
    rate_text,
    sparkline,
)
from penstock.cli.terminal.output import Output, moment

if TYPE_CHECKING:
    from actors.flow.rates_desk import RatesView

__all__ = ["RatesTable", "line_of", "lines", "live_table"]

Ask = Callable[[int], "Awaitable[RatesView]"]
PAST = 60
"""Seconds of which the table has a sign, if the terminal is wide enough."""
MEAN_S = 10
OTHER_COLUMNS = 40
"""Characters of the columns beside the name and the signs."""
WIDEST_NAME = 40


async def lines(out: Output, ask: Ask, seconds: int) -> None:
    """Print a line a second, with `--json` a document a second."""
    levels = levels_of(sys.stdout)
    async for second in _first(ask, seconds):
        out.say(line_of(second, levels))
        out.result(second)
        sys.stdout.flush()


def line_of(second: Second, levels: str) -> str:
    """Return a second in one line."""
    rates = ", ".join(
        f"{each.kind}/{each.name} {each.begun} of {rate_text(each.rate)} "
        f"{sparkline([(each.begun, each.rate)], levels)}".rstrip()
        for each in second.rates
    )
    wrong = "" if second.governor and not second.silent else "; ".join(("", *nodes_text(second)))
    return f"{moment(second.at_ms)} {rates or 'no rates'}{wrong}"


async def live_table(out: Output, ask: Ask, seconds: int) -> None:
    """Change a table on the terminal each second, until interrupted."""
    from rich.console import Console
    from rich.live import Live

    console, past = Console(highlight=False), RatesTable()
    levels = levels_of(console.file)
    with Live(console=console, auto_refresh=False) as live:
        async for second in _first(ask, seconds):
            past.add(second)
            live.update(past.table(second, console.width, levels), refresh=True)


class RatesTable:
    """The last seconds of each rate."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str], deque[tuple[int, float]]] = {}

    def add(self, second: Second) -> None:
        """Add a second. Rates that are not in it are forgotten."""
        self._seconds = {(each.kind, each.name): self._with(each) for each in second.rates}

    def _with(self, each: RateSecond) -> deque[tuple[int, float]]:
        known = self._seconds.get((each.kind, each.name)) or deque(maxlen=PAST)
        known.append((each.begun, each.rate))
        return known

    def table(self, second: Second, width: int, levels: str) -> Any:
        """Return the table, no wider than `width`."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        name_width = min(WIDEST_NAME, max((len(f"{kind}/{name}") for kind, name in self._seconds), default=4))
        signs = max(8, min(PAST, width - OTHER_COLUMNS - name_width))
        caption = "; ".join((moment(second.at_ms), *nodes_text(second)))
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=Text(caption), caption_justify="left")
        for column in ("name", "rate", "now", "10 s mean"):
            table.add_column(column, overflow="fold", justify="left" if column == "name" else "right")
        table.add_column("each second against its target", no_wrap=True, max_width=signs)
        for (kind, name), past in self._seconds.items():
            begun, rate = past[-1]
            lately = [count for count, _ in [*past][-MEAN_S:]]
            cells = f"{kind}/{name}", rate_text(rate), str(begun), f"{sum(lately) / len(lately):.4g}"
            table.add_row(*map(Text, cells), Text(sparkline([*past][-signs:], levels)))
        return table


async def _first(ask: Ask, most: int) -> AsyncIterator[Second]:
    async with aclosing(each_second(ask)) as each:
        async for second in each:
            yield second
            most -= 1
            if not most:
                return
