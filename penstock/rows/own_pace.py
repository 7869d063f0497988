"""The pace of what one process does on its own: so many a second, in small groups."""

from aiolimiter import AsyncLimiter

TURNS_A_SECOND = 10
"""So often a group may go, so that a rate of 100 comes as ten and ten."""


class OwnPace:
    """At most `per_s` a second, over any span of time and one group more. `None`: no limit. Made in the loop that uses
    it."""

    def __init__(self, per_s: float | None, *, most: int) -> None:
        self.group = most if per_s is None else max(1, min(most, int(per_s / TURNS_A_SECOND)))
        """How many may go together, at most `most`."""
        self._limiter = None if per_s is None else AsyncLimiter(self.group, self.group / per_s)

    async def wait(self, count: int) -> None:
        """Wait until `count` more may go, which is at most a group."""
        if self._limiter is not None:
            await self._limiter.acquire(count)
