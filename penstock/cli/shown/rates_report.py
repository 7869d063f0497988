"""What `penstock rates report` counts and says of a rate."""

import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING

from msgspec import Struct

from penstock.cli.shown.rate_seconds import Second, each_second, is_near

if TYPE_CHECKING:
    from actors.flow.rates_desk import RatesView

__all__ = ["RateReport", "collect", "report_of"]


class RateReport(Struct, frozen=True, kw_only=True):
    """Some seconds of a rate. `rate`: the target in the last one. `near`: the share of seconds within 1 % of their
    target. `above`: seconds more than that above it. Seconds without a limit count in
    neither. `unheard`: seconds in which a node did not answer. `begun` and
    `targets`: of each second."""

    name: str
    began_ms: int
    seconds: int
    rate: float
    least: int
    most: int
    mean: float
    near: float
    above: int
    unheard: int
    begun: Sequence[int]
    targets: Sequence[float]


async def collect(ask: "Callable[[int], Awaitable[RatesView]]", seconds: int) -> list[Second]:
    """Return so many full seconds from now on. A terminal shows how far it is."""
    seen: list[Second] = []
    with _progress(seconds) as advance:
        async with aclosing(each_second(ask)) as each:
            async for second in each:
                seen.append(second)
                advance()
                if len(seen) > seconds:
                    break
    return seen[1:]  # the first one was over before anybody looked


@contextmanager
def _progress(seconds: int) -> Iterator[Callable[[], None]]:
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = TextColumn("counting"), BarColumn(), TextColumn("{task.completed} of {task.total} seconds")
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=seconds, completed=-1)
        yield lambda: bar.advance(task)


def report_of(seen: Sequence[Second]) -> RateReport:
    """Return what the seconds of one rate were."""
    own = [second.rates[0] for second in seen]
    begun, targets = [each.begun for each in own], [each.rate for each in own]
    limited = [(count, target) for count, target in zip(begun, targets, strict=True) if target > 0]
    near = [is_near(count, target) for count, target in limited]
    return RateReport(
        name=f"{own[0].kind}/{own[0].name}",
        began_ms=seen[0].at_ms,
        seconds=len(seen),
        rate=targets[-1],
        least=min(begun),
        most=max(begun),
        mean=round(sum(begun) / len(begun), 3),
        near=round(sum(near) / len(near), 4) if near else 0.0,
        above=sum(count > target and not is_near(count, target) for count, target in limited),
        unheard=sum(bool(second.silent) for second in seen),
        begun=begun,
        targets=targets,
    )
