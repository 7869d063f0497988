"""Work over many things in pieces, so that the loop has a turn in between and no heartbeat is late."""

from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

from anyio.lowlevel import checkpoint

from streams.clock import monotonic_s

T = TypeVar("T")

HOLD_S = 0.005
"""After this time the loop gets a turn."""


async def in_pieces(things: Iterable[T], *, hold_s: float = HOLD_S) -> AsyncIterator[T]:
    """Yield the things in their order. What the caller does with one of them comes on top of `hold_s`."""
    until_s = monotonic_s() + hold_s
    for thing in things:
        yield thing
        if monotonic_s() >= until_s:
            await checkpoint()
            until_s = monotonic_s() + hold_s
