"""Overdue jobs: makes jobs ready that came due while the store was full.

nats-server 2.15.1 does not repeat a firing that it could not store: it believes that it is on its way, until its next
start. So when there is room again, every schedule whose time has passed is moved to its ready subject.

In: the state of the store (actors/runtime/store_watch.py). Out: moves, each on the condition that the job stands where
it was read. State: none. Every node of the role looks; of two that move a job one is refused. When it cannot go on: it
looks again, and at its next start the server fires them all.
"""

import logging

import anyio
from anyio.abc import TaskStatus

from actors.jobs.store import JobStore
from actors.runtime.actor import FATAL
from actors.runtime.logs import fields
from streams.connection import Connection
from streams.errors import StreamError

log = logging.getLogger(__name__)

LOOK_S = 1.0
AGAIN_S, LOOKS = 5.0, 4
"""How often is looked after there is room. What came due in the last moments is late by then as well."""
LATE_MS = 3_000
"""A server that fires by itself is never so late after the room has come, unless it has a great deal to fire."""


class OverdueJobs:
    """A node's part in it."""

    def __init__(self, connection: Connection, store: JobStore) -> None:
        self._connection = connection
        self._store = store

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Look after every end of a full store. Raises FATAL errors."""
        task_status.started()
        left = 0
        while True:
            await anyio.sleep(AGAIN_S if left else LOOK_S)
            if self._connection.store.kind == "full":
                left = LOOKS
            elif left:
                left -= 1
                await self._look()

    async def _look(self) -> None:
        try:
            if made := await self._store.make_overdue_ready(LATE_MS):
                log.warning("jobs.overdue", extra=fields(made_ready=made))
        except FATAL:
            raise
        except StreamError as error:
            log.info("jobs.overdue_not_seen", extra=fields(error=str(error)))
