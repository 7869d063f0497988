"""How long the handlers' places of a node may work before the event loop gets a turn.

Without this limit, handlers that wait for nothing, with many ready jobs, would keep the loop for a tenth of a second.
The node's timers and its replies to the server would wait meanwhile.
"""

import asyncio

from streams.clock import monotonic_s

SLICE_S = 0.002


class Slices:
    """One slice for all places together. It begins anew with each turn of the loop that a place requested."""

    def __init__(self) -> None:
        self.until_s = 0.0
        """Past this moment a place calls `breathe` before it takes another job."""
        self._is_turning = False

    async def breathe(self) -> None:
        if not self._is_turning:
            self._is_turning = True
            asyncio.get_running_loop().call_soon(self._turned)
        await asyncio.sleep(0)

    def _turned(self) -> None:
        self._is_turning = False
        self.until_s = monotonic_s() + SLICE_S
