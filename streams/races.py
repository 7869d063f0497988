"""Writers that race for one record: the loser reads again and decides again, a bounded number of times."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from streams.backoff import Backoff
from streams.chance import chance
from streams.errors import RevisionConflict

R = TypeVar("R")
ASIDE = Backoff(growth="linear", base_ms=2, cap_ms=50, spread=1.0)
"""A writer that keeps losing waits a few times as long as a write takes, and not in step with its rivals."""


async def step_aside(lost: int) -> None:
    """Wait before the next try after `lost` lost races. After the first one do not wait."""
    if lost > 1:
        await anyio.sleep(ASIDE.wait_s(lost - 1, chance=chance()))


async def race(attempt: Callable[[], Awaitable[R]], *, tries: int) -> R:
    """Return what `attempt` returns. `attempt` reads, decides and writes at the revision that it read. It is called
    again after a RevisionConflict. After `tries` conflicts the last one is raised, with what to do."""
    for lost in range(1, tries + 1):
        try:
            return await attempt()
        except RevisionConflict as conflict:
            last = conflict
        await step_aside(lost)
    raise RevisionConflict(
        f"not changed: another writer was first {tries} times in a row; try again, or find out what keeps changing it",
        subject=last.subject,
    ) from last
