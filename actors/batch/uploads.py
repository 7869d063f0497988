"""Uploads: removes files that were sent for an instance which was never made, and files of reduces that do not count
any more.

In: a look every hour, on the one node that rendezvous hashing names. Out: nothing. State: the object store and the
instances. Under repetition: a removed file stays removed.

A file is stored before its instance is made, so a file without an instance may be about to get one. It is removed when
it is `KEEP_MS` old by the server's clock. The desk makes no instance of a file that is older than half of that, so that
no submission, however slow, meets the removal. If a process stands still for the other half, between the two, it makes
an instance whose split fails and reports that the file is missing.

Each reduce writes in a place of its own, so a stopped one that wakes up overwrites nothing. Files in a place that has
no result, and will have none, are removed: those of a reduce that failed or came late, and those of the pass before
once there is a newer result. When it cannot go on: it looks again in an hour.
"""

import logging

from anyio import Event
from anyio.abc import TaskStatus

from actors.batch.instances import Instances, UnknownInstance
from actors.batch.rules.record import FILES_OF, is_superseded
from actors.runtime.actor import FATAL, ticks
from actors.runtime.logs import fields
from actors.runtime.membership import Members
from actors.runtime.tending import tended_by
from streams.buckets.files import Files
from streams.clock import Clock
from streams.errors import MalformedMessage, StreamError

log = logging.getLogger(__name__)

KEEP_MS = 24 * 3_600_000
"""A person who must try again comes back the same day."""
FRESH_MS = KEEP_MS // 2
LOOK_S = 3_600
ROLE = "conductor"


class Uploads:
    """One node's part of the removal."""

    def __init__(self, files: Files, instances: Instances, members: Members, clock: Clock) -> None:
        self._files = files
        self._instances = instances
        self._tends = tended_by(members, ROLE)
        self._clock = clock

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Look every hour until cancelled."""
        task_status.started()
        async for _ in ticks(lambda: LOOK_S, Event()):
            try:
                if self._tends("uploads"):
                    await self.sweep(self._clock.now_ms())
            except FATAL:
                raise
            except StreamError as error:
                log.warning("uploads.look_failed", extra=fields(error=str(error)))

    async def sweep(self, now_ms: int) -> int:
        """Remove the uploads that got no instance in time, the pieces of unfinished ones, and the files of reduces that
        do not count any more. Return how many they were."""
        removed = await self._files.remove_unfinished(now_ms - KEEP_MS)
        async for info in self._files.all():
            if await self._may_go(info.name, now_ms) and await self._files.delete(info.name):
                removed += 1
                log.info("file.removed", extra=fields(file=info.name))
        return removed

    async def _may_go(self, file: str, now_ms: int) -> bool:
        instance_id, _, name = file.partition("/")
        fence, slash, _ = name.removeprefix(FILES_OF).partition("/")
        if name.startswith(FILES_OF) and slash and fence.isascii() and fence.isdecimal():
            return await self._is_superseded(instance_id, int(fence))
        if not name.startswith("upload-") or await self._is_there(instance_id):
            return False
        stored_ms = await self._files.stored_ms(file)
        return stored_ms is not None and stored_ms < now_ms - KEEP_MS

    async def _is_there(self, instance_id: str) -> bool:
        """Return whether there is such an instance. One that does not decode exists too."""
        try:
            await self._instances.get(instance_id)
        except UnknownInstance:
            return False
        except MalformedMessage:
            return True
        return True

    async def _is_superseded(self, instance_id: str, fence: int) -> bool:
        try:
            return is_superseded(await self._instances.get(instance_id), fence)
        except UnknownInstance:
            return True
        except MalformedMessage:
            return False
