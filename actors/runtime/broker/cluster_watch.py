"""Cluster watch: leaves a server that is cut off from its cluster.

In: the time. Out: a reconnect to another server, once the connection's own has had no leader of JetStream for ten
seconds (streams/link/contact.py). State: memory only. A single server has no others, and is never left.
"""

import anyio
from anyio.abc import TaskStatus

from actors.runtime.actor import FATAL
from streams.clock import monotonic_s, until_turn_s
from streams.errors import NO_LEADER, Refused, StreamError
from streams.link.connection import Connection
from streams.link.contact import Contact

LOOK_S = 2.0


class ClusterWatch:
    """The watch over one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._contact = Contact()

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Look for ever. Raises FATAL errors."""
        task_status.started()
        while True:
            await anyio.sleep(until_turn_s(LOOK_S))
            if self._connection.can_leave and await self._is_to_leave():
                await self._connection.leave("it has no contact with its cluster")

    async def _is_to_leave(self) -> bool:
        if await self._is_alone():
            return self._contact.alone(monotonic_s())
        self._contact.answered()
        return False

    async def _is_alone(self) -> bool:
        """Return whether the server says that no server leads. It passes the question on to the leader of JetStream
        itself, so one that is slow has a leader."""
        try:
            await self._connection.api("INFO", timeout_s=LOOK_S)
        except FATAL:
            raise
        except Refused as refused:
            return refused.err_code == NO_LEADER
        except StreamError:
            return False
        self._connection.contact.answered()
        return False
