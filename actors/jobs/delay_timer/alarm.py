"""A wait that ends at a time or at a call of `ring`, whichever comes first. On the hot path: plain futures, no task."""

import asyncio


class Alarm:
    """For one task that waits, and any that ring. A ring while no task waits ends the next wait at once."""

    def __init__(self) -> None:
        self._has_rung = False
        self._waiting: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """End the wait."""
        self._has_rung = True
        _end(self._waiting)

    async def wait(self, seconds: float | None) -> None:
        """Wait until `ring`, for `seconds` at most. `None`: no limit."""
        if not self._has_rung and (seconds is None or seconds > 0):
            loop = asyncio.get_running_loop()
            self._waiting = waiting = loop.create_future()
            timer = None if seconds is None else loop.call_later(seconds, _end, waiting)
            try:
                await waiting
            finally:
                self._waiting = None
                if timer is not None:
                    timer.cancel()
        self._has_rung = False


def _end(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
