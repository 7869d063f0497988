"""Removes everything of an instance that is over: its items and results, its pointers, its files, and last its record.

Nobody may retry it meanwhile: `moves.delete` marks the record first. A repeat is harmless. It does not touch a later
instance of the same id."""

import logging

from actors.batch.instances import Instances, UnknownInstance
from actors.batch.items import BatchItems
from actors.batch.rules.record import Instance
from actors.runtime.logs import fields
from streams.files import Files

log = logging.getLogger(__name__)


class Removal:
    """The removal of instances."""

    def __init__(self, instances: Instances, items: BatchItems, files: Files) -> None:
        self._instances = instances
        self._items = items
        self._files = files

    async def remove(self, marked: Instance) -> None:
        """Remove a marked instance. Raises MalformedMessage and the broker's errors."""
        try:
            present = await self._instances.get(marked.instance_id)
        except UnknownInstance:
            return
        if not present.deleted_ms or present.created_ms != marked.created_ms:
            return
        await self._items.drop(marked.instance_id, marked.task)
        await self._files.delete_of(marked.instance_id)  # actors/batch/uploads.py removes what this leaves
        await self._instances.remove(marked.instance_id)
        log.info("instance.dropped", extra=fields(instance=marked.instance_id, task=marked.task))
