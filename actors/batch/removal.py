"""Removes everything of an instance that is over: its items and results, its pointers, its files, and last its record.

Nobody may retry it meanwhile: `moves.delete` marks the record first. Instances that wait for its end see it
before it goes. A repeat is harmless. It does not touch a later
instance of the same id, nor an upload that waits for one: it removes only what was there before it saw the record
last. `uploads.py` removes an upload that gets no instance."""

import logging

from actors.batch.instances import Instances, UnknownInstance
from actors.batch.items import BatchItems
from actors.batch.rules.record import Instance
from actors.batch.views import is_upload_of, sheet_of
from actors.runtime.logs import fields
from streams.buckets.files import Files

log = logging.getLogger(__name__)


class Removal:
    """The removal of instances."""

    def __init__(self, instances: Instances, items: BatchItems, files: Files) -> None:
        self._instances = instances
        self._items = items
        self._files = files

    async def remove(self, marked: Instance) -> None:
        """Remove a marked instance. Raises MalformedMessage and the broker's errors."""
        instance_id, upto = marked.instance_id, await self._items.ends()
        files = await self._files.ids_of(instance_id)
        try:
            present = await self._instances.get(instance_id)
        except UnknownInstance:
            return
        if not present.deleted_ms or present.created_ms != marked.created_ms:
            return
        own = sheet_of(instance_id, present.input)
        kept = [name for name in files.values() if is_upload_of(instance_id, name) and (not own or own.file != name)]
        for held in self._instances.followers(instance_id):
            await self._instances.follow(held, present.deleted_ms)
        await self._items.drop(instance_id, marked.task, upto)
        await self._files.delete_ids(file for file, name in files.items() if name not in kept)
        await self._instances.remove(marked)
        log.info("instance.dropped", extra=fields(instance=marked.instance_id, task=marked.task))
