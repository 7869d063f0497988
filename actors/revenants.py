"""Revenants: removes from work queues what a killed server has brought back, though it was settled.

In: the time, and each reconnect. Out: deletes of messages below the ack floor of their consumer (streams/revenants.py).
State: none. Every node of the role looks; a message that another has removed is gone. When it cannot go on: it looks
again next time.
"""

import logging
from collections.abc import Sequence

import anyio
from anyio.abc import TaskStatus

from actors.actor import FATAL
from actors.logs import fields
from streams.connection import Connection
from streams.errors import StreamError
from streams.revenants import remove_revenants

log = logging.getLogger(__name__)

__all__ = ["Revenants"]

EVERY_S = 60.0
"""In a cluster another server than ours may have been killed."""
SETTLE_S = 10.0
"""How long after a reconnect: until then what was in hand has come again, and the ack floor has risen past it."""


class Revenants:
    """A node's part in it, for some streams."""

    def __init__(self, connection: Connection, streams: Sequence[str]) -> None:
        self._connection = connection
        self._streams = streams

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Look for ever. Raises FATAL errors."""
        is_back = anyio.Event()
        remove = self._connection.on_reconnect(lambda: is_back.set())
        task_status.started()
        try:
            while True:
                for stream in self._streams:
                    await self._look(stream)
                with anyio.move_on_after(EVERY_S):
                    await is_back.wait()
                    is_back = anyio.Event()
                    await anyio.sleep(SETTLE_S)
        finally:
            remove()

    async def _look(self, stream: str) -> None:
        try:
            removed = await remove_revenants(self._connection, stream)
        except FATAL:
            raise
        except StreamError as error:
            log.info("revenants.not_looked", extra=fields(stream=stream, error=str(error)))
        else:
            if removed:
                log.warning("revenants.removed", extra=fields(stream=stream, messages=removed))
