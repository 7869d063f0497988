"""The offsets of jobs, in OFFSETS: a record for each job and shard, under `<job>.<shard>`.

Each write is a compare-and-set on the revision that was read or written last, so a claim fences every earlier run (ADR
47). Reads come from the leader, and hold every confirmed write.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

import anyio
import msgspec

from actors.runtime.logs import fields
from actors.zone.rules.offsets import OffsetRecord, freed, to_free
from actors.zone.rules.routing import ShardMap
from streams.buckets.bucket import Bucket
from streams.errors import MalformedMessage, RevisionConflict, StreamError

log = logging.getLogger(__name__)


class StoredOffset(NamedTuple):
    """A record, and its revision. 0: it is not stored yet."""

    record: OffsetRecord
    revision: int


Stored = dict[str, StoredOffset]


def decode_offset(key: str, raw: bytes) -> OffsetRecord:
    """Return a stored record. Raises MalformedMessage."""
    try:
        return msgspec.json.decode(raw, type=OffsetRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"offset {key}: {error}; mend it by hand, no run begins over it") from error


def records_of(stored: Mapping[str, StoredOffset]) -> dict[str, OffsetRecord]:
    """Return the records without their revisions."""
    return {shard: each.record for shard, each in stored.items()}


class Offsets:
    """The offsets of all jobs. Raises MalformedMessage for a record that does not decode, and the broker's errors."""

    def __init__(self, bucket: Bucket[bytes]) -> None:
        self._bucket = bucket

    async def of_job(self, job: str) -> Stored:
        """Return a job's records by shard."""
        return (await self._read(f"{job}.*")).get(job, {})

    async def of_all(self) -> dict[str, Stored]:
        """Return the records of all jobs."""
        return await self._read(">")

    async def _read(self, pattern: str) -> dict[str, Stored]:
        found: dict[str, Stored] = {}
        for entry in await self._bucket.entries(pattern):
            job, _, shard = entry.key.partition(".")
            found.setdefault(job, {})[shard] = StoredOffset(decode_offset(entry.key, entry.raw), entry.revision)
        return found

    async def write(self, job: str, changes: Mapping[str, StoredOffset]) -> tuple[Stored, dict[str, StreamError]]:
        """Store each record if its shard is at the revision that is given. Return what is stored, and the failures by
        shard. Some may be stored and others not."""
        done: Stored = {}
        failed: dict[str, StreamError] = {}

        async def write_one(shard: str, record: OffsetRecord, revision: int) -> None:
            raw = msgspec.json.encode(record)
            try:
                stored = await self._bucket.compare_and_set(f"{job}.{shard}", raw, revision)
            except StreamError as error:
                failed[shard] = error
            else:
                done[shard] = StoredOffset(record, stored)

        async with anyio.create_task_group() as writes:
            for shard, (record, revision) in changes.items():
                writes.start_soon(write_one, shard, record, revision)
        return done, failed

    async def free_lost(self, job: str, zone: str, shards: ShardMap) -> None:
        """Mark free what the zone has of the job, and does not own by the map any more. Call it while no run of the job
        is under way in the zone."""
        stored = await self.of_job(job)
        lost = to_free(shards, zone, records_of(stored))
        changes = {shard: StoredOffset(freed(stored[shard].record), stored[shard].revision) for shard in lost}
        done, failed = await self.write(job, changes)
        if done:
            log.info("zone.freed", extra=fields(job=job, zone=zone, epoch=shards.epoch, shards=sorted(done)))
        for shard, error in failed.items():
            if not isinstance(error, RevisionConflict):  # another zone has it already
                log.warning("zone.not_freed", extra=fields(job=job, shard=shard, error=str(error)))
