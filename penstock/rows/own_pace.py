"""The pace of work that one process does on its own: a number of pieces a second, in small groups."""

from aiolimiter import AsyncLimiter

TURNS_A_SECOND = 10
"""Groups a second at most, so that a rate of 100 goes as ten and ten."""


class OwnPace:
    """At most `per_s` a second, plus one group, over any span of time. `None`: no limit. Make it in the loop that uses
    it."""

    def __init__(self, per_s: float | None, *, most: int) -> None:
        self.group = most if per_s is None else max(1, min(most, int(per_s / TURNS_A_SECOND)))
        """The pieces in one group, at most `most`."""
        self._limiter = None if per_s is None else AsyncLimiter(self.group, self.group / per_s)

    async def wait(self, count: int) -> None:
        """Wait until `count` more may go. `count` is at most a group."""
        if self._limiter is not None:
            await self._limiter.acquire(count)
