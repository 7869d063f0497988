"""The seconds of rates one by one, as `penstock rates watch` and `report` get them, and how one looks."""

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import IO, TYPE_CHECKING

import anyio
from msgspec import Struct

from streams.clock import monotonic_s
from streams.messages.begun import MOST_SECONDS

if TYPE_CHECKING:
    from actors.flow.rates_desk import RatesView

__all__ = [
    "LEVELS",
    "PLAIN_LEVELS",
    "RateSecond",
    "Second",
    "each_second",
    "is_near",
    "levels_of",
    "nodes_text",
    "rate_text",
    "sparkline",
]

LEVELS, PLAIN_LEVELS = "▁▂▃▄▅▆▇█", "_.:-=+*#"
ABOVE = "!"
FULL = 0.99
"""The part of the target from which a second is drawn as full."""
SOON_S, AGAIN_S = 0.85, 0.1
"""How long after a new second the next one is asked for, and how often until it is over."""


class RateSecond(Struct, frozen=True, kw_only=True):
    """What was begun in one second. `rate`: the target, 0 for no limit."""

    kind: str
    name: str
    rate: float
    begun: int


class Second(Struct, frozen=True, kw_only=True):
    """One full second from `at_ms` on, by the server's clock."""

    at_ms: int
    governor: str
    answered: int
    asked: int
    silent: Sequence[str]
    rates: Sequence[RateSecond]


async def each_second(ask: "Callable[[int], Awaitable[RatesView]]") -> AsyncGenerator[Second, None]:
    """Yield each full second once, the last one first of all, for ever. `ask(seconds)` returns the last ones. If it
    takes long, the seconds that passed follow at once. What is older than the nodes know is left out."""
    until_ms, heard_s = 0, monotonic_s()
    while True:
        seconds = min(MOST_SECONDS, math.ceil(monotonic_s() - heard_s) + 2)
        view = await ask(seconds)
        fresh = min(seconds, (view.until_ms - until_ms) // 1000) if until_ms else 1
        for back in range(fresh, 0, -1):
            yield _second(view, back)
        if fresh > 0:
            until_ms, heard_s = view.until_ms, monotonic_s()
        await anyio.sleep(SOON_S if fresh > 0 else AGAIN_S)


def _second(view: "RatesView", back: int) -> Second:
    """Return the second that is the last but `back - 1`."""
    return Second(
        at_ms=view.until_ms - 1000 * back,
        governor=view.governor,
        answered=view.answered,
        asked=view.asked,
        silent=view.silent,
        rates=[
            RateSecond(kind=each.kind, name=each.name, rate=each.rate, begun=each.begun[-back]) for each in view.rates
        ],
    )


def is_near(begun: int, rate: float) -> bool:
    """Return whether a second is within 1 % of its target. If the target is no whole number, the whole numbers on
    both sides of it are."""
    return abs(begun - rate) <= rate / 100 or begun in (math.floor(rate), math.ceil(rate))


def sparkline(seconds: Sequence[tuple[int, float]], levels: str = LEVELS) -> str:
    """Draw each second's count against its target, one sign a second: eight levels, `!` above the target."""
    return "".join(_sign(begun, rate, levels) for begun, rate in seconds)


def _sign(begun: int, rate: float, levels: str) -> str:
    if rate <= 0:
        return " "
    if begun > rate and not is_near(begun, rate):
        return ABOVE
    part = begun / rate
    return levels[-1] if part >= FULL else levels[int(part * (len(levels) - 1))]


def levels_of(file: IO[str]) -> str:
    """Return signs for the levels that the stream can write."""
    try:
        LEVELS.encode(getattr(file, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return PLAIN_LEVELS
    return LEVELS


def nodes_text(view: "RatesView | Second") -> list[str]:
    """Return who deals the shares, and which nodes did not answer."""
    governor = (
        f"governor: {view.governor}"
        if view.governor
        else "no governor now: work that waits for a rate has one elected, in seconds"
    )
    if not view.silent:
        return [governor]
    silent = f"{view.answered} of {view.asked} nodes answered, so counts are too low; silent: {', '.join(view.silent)}"
    return [governor, silent]


def rate_text(rate: float) -> str:
    """Return a rate for eyes. Rates below one a second read better by the minute or the hour."""
    if not rate:
        return "no limit"
    if rate >= 0.5:
        return f"{rate:g}/s"
    return f"{rate * 60:g}/m" if rate * 60 >= 0.5 else f"{rate * 3600:g}/h"
