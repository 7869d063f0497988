"""Overdue jobs: makes jobs ready that came due while the store was full.

nats-server 2.15.1 does not repeat a firing that it could not store: until its next start it believes that the firing is
on its way. So when there is room again, every schedule whose time has passed is moved to its ready subject. In: the
state of the store (actors/runtime/broker/store_watch.py). Out: moves, each on the condition that the job's message has
not changed since it was read. State: none. Every node of the role looks. If two move the same job, the server refuses
one. When it cannot go on: it looks again, and the server fires them all at its next start.
"""

import logging

import anyio
from anyio.abc import TaskStatus

from actors.jobs.store import JobStore
from actors.runtime.actor import FATAL
from actors.runtime.logs import fields
from streams.clock import until_turn_s
from streams.errors import StreamError
from streams.link.connection import Connection

log = logging.getLogger(__name__)

LOOK_S = 1.0
AGAIN_S, LOOKS = 5.0, 4
"""How often it looks after there is room. Jobs that came due in the last moments are late by then as well."""
LATE_MS = 3_000
"""A server that fires by itself is never this late after there is room, unless it has a great deal to fire."""


class OverdueJobs:
    """A node's part of this."""

    def __init__(self, connection: Connection, store: JobStore) -> None:
        self._connection = connection
        self._store = store

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Look after every end of a full store. Raises FATAL errors."""
        task_status.started()
        left = 0
        while True:
            await anyio.sleep(until_turn_s(AGAIN_S if left else LOOK_S))
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
