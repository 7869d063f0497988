"""Whether the event loop turns in time.

A process that starts, on a machine without a free core, has a loop that is late by tens or hundreds of milliseconds.
What must be done to the millisecond is better done by another node then.
"""

from collections.abc import Callable

import anyio

from streams.clock import monotonic_s

EACH_S = 0.02
"""Between two looks of `until_prompt`."""
LATE_S = 0.02
"""A sleep that is later than this says that the loop is late."""
TICKS = 10
"""So many sleeps in a row must have been in time."""


class Promptness:
    """Judges the loop by sleeps that happen anyway. It is not prompt before the first `TICKS` of them."""

    def __init__(self) -> None:
        self._in_time = 0
        self.was_prompt = False
        """Whether it was prompt at any time."""

    @property
    def is_prompt(self) -> bool:
        """Whether the latest sleeps were all in time."""
        return self._in_time >= TICKS

    async def sleep(self, seconds: float) -> bool:
        """Sleep. Return whether the loop has become prompt by it."""
        began_s, was_prompt = monotonic_s(), self.is_prompt
        await anyio.sleep(seconds)
        is_late = monotonic_s() - began_s > seconds + LATE_S
        self._in_time = 0 if is_late else self._in_time + 1
        self.was_prompt = self.was_prompt or self.is_prompt
        return self.is_prompt and not was_prompt


async def until_prompt(most_s: float, others: Callable[[], bool]) -> None:
    """Wait until the loop turns in time, while there are `others` who can do the work, for `most_s` at most."""
    promptness = Promptness()
    with anyio.move_on_after(most_s):
        while others() and not await promptness.sleep(EACH_S):
            pass
