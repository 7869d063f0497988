"""Resurrected messages: looks for messages of work queues that lie below the ack floor of their consumer.

In: the time, and each reconnect. Out: deletes of settled messages that are back. If the server may have lost
acknowledged data: resets of consumers (streams/resurrected.py, ADR 26). State: none. The node's memory knows which
streams are in doubt. Rendezvous hashing over the live nodes of the role says who looks at a stream, so a look costs
its consumers, and not its consumers times the nodes. While nodes come and go two may look: if another node has removed
a message, the delete finds nothing. A node that is in doubt of a stream looks itself, once. When it cannot go on: it
looks again next time.
"""

import logging
from collections.abc import Callable, Sequence

import anyio
from anyio.abc import TaskStatus

from actors.runtime.actor import FATAL
from actors.runtime.logs import fields
from streams.errors import StreamError
from streams.link.connection import Connection
from streams.resurrected import hand_out_again, remove_resurrected
from streams.store_memory import StoreMemory

log = logging.getLogger(__name__)

EVERY_S, ALONE_S = 60.0, 600.0
"""Between two looks without a reconnect. In a cluster a server other than ours may have been killed. A single server is
ours, and a look reads once for each consumer."""
SETTLE_S = 10.0
"""Wait after a reconnect before a look. In this time the messages in hand are redelivered, the ack floor rises past
them, and every node has checked whether the server lost data."""


class ResurrectedMessages:
    """The looks of one node at some streams. `tends(key)`: whether this node looks for all. The key of a stream is its
    name."""

    def __init__(
        self, connection: Connection, streams: Sequence[str], memory: StoreMemory, tends: Callable[[str], bool]
    ) -> None:
        self._connection = connection
        self._streams = streams
        self._memory = memory
        self._tends = tends

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Look for ever. Raises FATAL errors."""
        is_back = anyio.Event()
        remove = self._connection.on_reconnect(lambda: is_back.set())
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._heed_doubts)
                task_status.started()
                while True:
                    for stream in self._streams:
                        await self._look(stream)
                    with anyio.move_on_after(EVERY_S if self._connection.is_clustered else ALONE_S):
                        await is_back.wait()
                        is_back = anyio.Event()
                        await anyio.sleep(SETTLE_S)
        finally:
            remove()

    async def _heed_doubts(self) -> None:
        """Look at once at a stream in doubt. A node that does not know of the doubt yet must find nothing to remove."""
        while True:
            await self._memory.doubted()
            for stream in self._streams:
                if self._memory.is_in_doubt(stream):
                    await self._look(stream)

    async def _look(self, stream: str) -> None:
        if not self._memory.is_fresh:
            return
        try:
            if self._memory.is_in_doubt(stream):
                again = await hand_out_again(self._connection, stream)
                self._memory.has_settled(stream)
                if again:
                    log.warning("resurrected.handed_out_again", extra=fields(stream=stream, consumers=again))
            elif self._tends(stream) and (removed := await remove_resurrected(self._connection, stream)):
                log.warning("resurrected.removed", extra=fields(stream=stream, messages=removed))
        except FATAL:
            raise
        except StreamError as error:
            log.info("resurrected.not_looked", extra=fields(stream=stream, error=str(error)))
