"""How a claim is measured: ours and theirs in turns, on one server, in one run.

The machine's mood changes from minute to minute, so a ratio is taken between neighbours in time, and the median of the
rounds counts. A first round of each, not counted, warms caches, the server and the code.
"""

import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import msgspec
from anyio.abc import Process

from streams.clock import monotonic_s
from streams.embedded.server import EmbeddedServer, embedded_server


class Result(msgspec.Struct, kw_only=True, frozen=True):
    """One claim, measured. `ours` and `theirs` are in `unit`. `more` has further figures by name."""

    what: str
    ours: float
    theirs: float | None = None
    ratio: float | None = None
    target: str
    ok: bool
    unit: str = "/s"
    more: dict[str, Any] = {}

    def as_json(self) -> str:
        """Return one JSON object on one line, `more` among the rest."""
        return msgspec.json.encode({**self.more, **_fields(self)}).decode()

    def as_row(self) -> str:
        """Return one line for people."""
        beside = "" if self.theirs is None else f"  theirs {_shown(self.theirs)}{self.unit}"
        ratio = "" if self.ratio is None else f"  ratio {self.ratio:.2f}"
        more = "".join(f"  {name.replace('_', ' ')} {_shown(value)}" for name, value in self.more.items())
        verdict = "ok    " if self.ok else "MISSED"
        return f"{verdict} {self.what}: {_shown(self.ours)}{self.unit}{beside}{ratio}  (target {self.target}){more}"


class Rounds(NamedTuple):
    """Rates of the counted rounds, in the order in which they ran."""

    ours: list[float]
    theirs: list[float]

    @property
    def ratio(self) -> float:
        return statistics.median(ours / theirs for ours, theirs in zip(self.ours, self.theirs, strict=True))


Side = Callable[[int], Awaitable[int]]
"""One round of one side: takes the round's number, returns how many it has done."""


async def in_turns(ours: Side, theirs: Side, *, rounds: int = 3) -> Rounds:
    """Run both sides in turns. Return their rates per second without the first, warming round."""
    rates = Rounds([], [])
    for number in range(rounds + 1):
        our_rate, their_rate = await rate_of(ours, number), await rate_of(theirs, number)
        if number:
            rates.ours.append(our_rate)
            rates.theirs.append(their_rate)
    return rates


async def rate_of(side: Side, number: int) -> float:
    """Return how much one round does in a second."""
    started_s = monotonic_s()
    return await side(number) / (monotonic_s() - started_s)


def reached(what: str, rates: Rounds, *, reach: float, or_ratio: float, is_sound: bool, **more: object) -> Result:
    """Return the result of a claim that holds by its own figure, or by its ratio to the other side's.

    `is_sound`: the measured work was really done. A fast loss is no result.
    """
    ours, theirs, ratio = statistics.median(rates.ours), statistics.median(rates.theirs), rates.ratio
    return Result(
        what=what,
        ours=round(ours),
        theirs=round(theirs),
        ratio=round(ratio, 2),
        target=f">= {reach:,.0f}/s, or {or_ratio} x theirs",
        ok=is_sound and (ours >= reach or ratio >= or_ratio),
        more={**more, "is_sound": is_sound},
    )


@asynccontextmanager
async def fresh_server() -> AsyncIterator[EmbeddedServer]:
    """Run a server on an empty store, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        async with embedded_server(Path(folder)) as server:
            yield server


@asynccontextmanager
async def two_of(module: str, *arguments: str) -> AsyncIterator[None]:
    """Run two processes of a module, each of which says `ready`, until the block ends."""
    processes: list[Process] = []
    try:
        for _ in range(2):
            process = await anyio.open_process([sys.executable, "-m", module, *arguments], stderr=None)
            processes.append(process)
            assert process.stdout is not None
            assert (await process.stdout.receive()).strip() == b"ready"
        yield
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.aclose()


def _fields(result: Result) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(result)
    return {name: value for name, value in fields.items() if name != "more"}


def _shown(value: object) -> str:
    if isinstance(value, float | int) and not isinstance(value, bool):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"
    return str(value)
