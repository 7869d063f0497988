"""Copies a zone's offsets to the hub, where they are found when the zone is dead (ADR 46).

In: the offsets of the zone. Out: a record in HUB_OFFSETS for each, under the zone's name. State: which keys have
changed since they were copied. A copy never goes back: it is replaced by compare-and-set, and only by a later record.
"""

from __future__ import annotations

import logging

import anyio
import msgspec

from actors.runtime.live import Live
from actors.runtime.logs import fields
from actors.zone.hub_life import AGAIN_S, follow
from actors.zone.offsets import Offsets, Stored, StoredOffset, decode_offset
from actors.zone.rules.hub import is_later, latest
from actors.zone.rules.offsets import OffsetRecord
from streams.buckets.bucket import Bucket
from streams.buckets.entries import Entry
from streams.errors import Disconnected, MalformedMessage, OutcomeUnknown, Refused

log = logging.getLogger(__name__)

COPY_S = 0.1
"""Between two rounds of copies. Of many saves of a shard the last one is copied."""
COPIES = 256
"""Under way at once."""
ROUND_S = 5.0
FAILURES = (Disconnected, OutcomeUnknown, Refused, MalformedMessage)


class OffsetCopies:
    """The copies of one zone. Its keeper runs them."""

    def __init__(self, zone: str, offsets: Bucket[bytes], hub_offsets: Bucket[bytes]) -> None:
        self._zone = zone
        self._hub = hub_offsets
        self._live = Live(offsets, _read_offset, unreadable="zone.bad_offset")
        self._waiting: set[str] = set()
        self._live.on_change(self._waiting.add)

    @property
    def waiting(self) -> int:
        """Records that have changed since they were copied."""
        return len(self._waiting)

    async def run(self) -> None:
        """Copy what changes, until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow, self._live.run)
            while True:
                while self._waiting:
                    await self._copy_some([*self._waiting][:COPIES])
                await anyio.sleep(COPY_S)

    async def _copy_some(self, keys: list[str]) -> None:
        records = {key: record for key in keys if (record := self._live.get(key)) is not None}
        self._waiting.difference_update(keys)
        try:
            with anyio.fail_after(ROUND_S):
                await self.copy({key: record for key, record in records.items() if record.zone == self._zone})
        except (*FAILURES, TimeoutError) as error:
            self._waiting.update(keys)
            log.debug("zone.not_copied", extra=fields(zone=self._zone, error=str(error)))
            await anyio.sleep(AGAIN_S)

    async def copy(self, records: dict[str, OffsetRecord]) -> None:
        """Store these at the hub, unless something later is there. Raises the broker's errors."""
        failures: list[Exception] = []

        async def copy_one(key: str, record: OffsetRecord) -> None:
            def change(entry: Entry[bytes] | None) -> tuple[bytes | None, None]:
                there = None if entry is None else decode_offset(entry.key, entry.raw)
                return (msgspec.json.encode(record) if is_later(record, there) else None), None

            try:
                await self._hub.update(f"{self._zone}.{key}", change)
            except FAILURES as error:
                failures.append(error)

        async with anyio.create_task_group() as tasks:
            for key, record in records.items():
                tasks.start_soon(copy_one, key, record)
        if failures:
            raise failures[0]


class AllOffsets:
    """The offsets of all zones, for people: those of the own zone, and what the hub has later copies of."""

    def __init__(self, own: Offsets, hub_offsets: Bucket[bytes]) -> None:
        self._own = own
        self._hub = hub_offsets

    async def of_all(self) -> dict[str, Stored]:
        """Return the latest record of each shard, of all jobs. Raises MalformedMessage, and the broker's errors."""
        found = await self._own.of_all()
        for entry in await self._hub.entries():
            _, job, shard = entry.key.split(".", 2)
            copy, of_job = decode_offset(entry.key, entry.raw), found.setdefault(job, {})
            own = of_job.get(shard)
            if own is None or latest((own.record, copy)) is copy:
                of_job[shard] = StoredOffset(copy, entry.revision)
        return found


def _read_offset(entry: Entry[bytes]) -> OffsetRecord:
    return decode_offset(entry.key, entry.raw)
