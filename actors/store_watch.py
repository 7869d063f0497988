"""Store watch: keeps a node's memory of the server's streams, and tells what went back in time.

In: the time, and each reconnect. Out: what is in doubt, to whoever asks the memory (streams/store_memory.py); a notice
in the log. State: in the memory and its file. When it cannot go on: it looks again soon, and nothing is swept before.
"""

import logging

import anyio
from anyio.abc import TaskStatus

from actors.actor import FATAL
from actors.logs import fields
from streams.connection import Connection
from streams.errors import StreamError
from streams.store_memory import StoreMemory, WentBack

log = logging.getLogger(__name__)

__all__ = ["StoreWatch"]

LOOK_S = 5.0
"""What a server that does not sync acknowledged within this, before it alone lost its power, may not be missed."""
AGAIN_S = 0.5


class StoreWatch:
    """A node's watch."""

    def __init__(self, connection: Connection, memory: StoreMemory) -> None:
        self._connection = connection
        self._memory = memory
        self._soon = anyio.Event()

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Look for ever, once before it has started. Raises FATAL errors."""
        remove = self._connection.on_reconnect(self._reconnected)
        is_started = False
        try:
            while True:
                pause_s = LOOK_S if await self._look() else AGAIN_S
                if not is_started:
                    is_started = True
                    task_status.started()
                with anyio.move_on_after(pause_s):
                    await self._soon.wait()
                self._soon = anyio.Event()
        finally:
            remove()

    def _reconnected(self) -> None:
        self._memory.reconnected()
        self._soon.set()

    async def _look(self) -> bool:
        try:
            behind = await self._memory.look()
        except FATAL:
            raise
        except StreamError as error:
            log.info("store.not_seen", extra=fields(error=str(error)))
            return False
        if behind:
            _tell(behind)
        return True


def _tell(behind: list[WentBack]) -> None:
    log.error(
        "store.went_back",
        extra=fields(
            streams={one.stream: {"last_seq": one.has, "was": one.had, "is_another": one.is_another} for one in behind},
            means="an older copy of the server's files is in place, or a power cut lost what was not synced",
            do="see 'An older copy was restored' in docs/operations.md",
        ),
    )
