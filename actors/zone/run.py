"""One run of a job in a zone: over the same shards, under one map, from its claim to its end (ADR 47).

State: the records of its shards as this run wrote them last. In: the calls of the job's code. Out: claims and saves in
OFFSETS. A save that another run has fenced, or whose outcome is not known, ends the run. So does a map that gives its
zone other shards. Then `is_stopped` turns true, and the code returns at its next look.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import anyio
from msgspec.structs import replace

from actors.runtime.failpoints import reach
from actors.runtime.logs import fields
from actors.zone.offsets import Offsets, StoredOffset
from actors.zone.rules.offsets import OffsetRecord, claimed, is_passed, refusal, saved
from actors.zone.rules.routing import ShardMap
from actors.zone.rules.shards import in_order

log = logging.getLogger(__name__)

Row = TypeVar("Row")
Reader = str | int | Callable[[Any], Any]
"""How to find a value in a row: the name of a field or attribute, the place in a tuple, or a function."""


class RunEnded(Exception):
    """The run has ended: its shards have moved, or its time is over. Nothing was saved. Return, and leave the rest to
    the next run."""


class ShardElsewhere(Exception):
    """A record whose shard does not belong to this zone. It was refused."""


class BadOffset(ValueError):
    """An offset that a run may not save."""


class ShardRun:
    """A run that has claimed its shards. `number`: the token of the zone's lease of this job."""

    def __init__(
        self,
        *,
        job: str,
        zone: str,
        number: int,
        shards: ShardMap,
        stored: dict[str, StoredOffset],
        start: int,
        offsets: Offsets,
        may_run: Callable[[], bool],
    ) -> None:
        self.job = job
        self.zone = zone
        self.number = number
        self.shards = shards
        self.start = start
        self.at = start
        """Everything up to here is scanned and saved."""
        self.stopped = anyio.Event()
        self.why = ""
        self._stored = stored
        self._offsets = offsets
        self._may_run = may_run
        self._lock = anyio.Lock()
        self._repeated: Counter[str] = Counter()
        self._passed: Counter[str] = Counter()
        self.ahead = max((each.record.offset for each in stored.values()), default=0)
        """The offset of the shard that was ahead of all when the run began."""
        self._foreign: set[str] = set()

    @property
    def names(self) -> frozenset[str]:
        """The shards of the run."""
        return frozenset(self._stored)

    def stop(self, why: str) -> None:
        """Have the run end after its batch."""
        if not self.stopped.is_set():
            self.why = why
            self.stopped.set()
            log.info("zone.run_stops", extra=fields(job=self.job, zone=self.zone, epoch=self.shards.epoch, why=why))

    def is_stopped(self) -> bool:
        """Return whether the run is to end. Cheap, and right in any thread."""
        return self.stopped.is_set() or not self._may_run()

    # ---- rows

    def owns(self, key: object) -> bool:
        """Return whether a row with this key is in a shard of the run. Raises BadKey."""
        return self.shards.shard_of(key) in self._stored

    def require(self, key: object) -> None:
        """Raise ShardElsewhere, and write a line for the audit, if a record with this key is not the run's."""
        shard = self.shards.shard_of(key)
        if shard not in self._stored:
            owner = self._tell_refused(shard)
            belongs = f"belongs to zone {owner}" if owner else "belongs to no zone"
            raise ShardElsewhere(f"shard {shard[:40]!a} {belongs}, not to this run of {self.job} in zone {self.zone}")

    def _tell_refused(self, shard: str) -> str:
        """Write a line for the audit. Return the zone to which the shard belongs."""
        owner = self.shards.owners.get(shard, "")
        told = fields(job=self.job, zone=self.zone, epoch=self.shards.epoch, shard=shard, owner=owner)
        log.warning("zone.record_refused", extra=told)
        return owner

    def mine(self, rows: Iterable[Row], key: Reader, offset: Reader | None, *, refuse: bool = False) -> list[Row]:
        """Return the rows of the run's shards. With `offset`, leave out those that their shard has passed. Raises
        RunEnded if the run is to end: a batch that has not begun is the next run's. Raises BadKey."""
        if self.is_stopped():
            raise RunEnded(f"{self.job}: the run in zone {self.zone} is to end; nothing of this batch was handled")
        is_behind = self.at < self.ahead
        found: list[Row] = []
        for row in rows:
            shard = self.shards.shard_of(read(row, key))
            if shard not in self._stored:
                self._tell_foreign(shard)
                if refuse:
                    self._tell_refused(shard)
                continue
            if is_behind and offset is not None and is_passed(self._records(), shard, read(row, offset)):
                self._passed[shard] += 1
                continue
            if is_behind and self.at < self._stored[shard].record.offset and offset is None:
                self._repeated[shard] += 1
            found.append(row)
        return found

    def _records(self) -> dict[str, OffsetRecord]:
        return {shard: each.record for shard, each in self._stored.items()}

    def _tell_foreign(self, shard: str) -> None:
        """Say once for each run that a region is in no zone: nobody handles its rows."""
        if shard not in self.shards.owners and shard not in self._foreign and len(self._foreign) < 100:
            self._foreign.add(shard)
            do = "give the region a zone with `penstock routing apply`"
            log.warning("zone.region_unknown", extra=fields(job=self.job, zone=self.zone, region=shard[:64], do=do))

    # ---- saving

    async def save(self, offset: int) -> None:
        """Store that everything up to `offset` was scanned, in all shards of the run. Raises BadOffset, RunEnded."""
        if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < 2**63:
            raise BadOffset(f"{self.job}: offset {str(offset)[:40]!a}: save a whole number of 0 or more")
        async with self._lock:
            if offset < self.at:
                raise BadOffset(f"{self.job}: offset {offset} is before {self.at}, up to which all was scanned")
            reach("zone.save")
            changes = {shard: StoredOffset(self._saved(shard, offset), each.revision)
                       for shard, each in self._stored.items()}  # fmt: skip
            done, failed = await self._offsets.write(self.job, changes)
            self._stored.update(done)
            if failed:
                shard, error = next(iter(failed.items()))
                self.stop(f"the save of shard {shard} was not stored: {error}")
                raise RunEnded(f"{self.job}: the save at {offset} is refused in shard {shard}: {error}") from error
            self.at = offset
            self._repeated.clear()
            self._passed.clear()
            reach("zone.saved")

    def _saved(self, shard: str, offset: int) -> OffsetRecord:
        record = saved(self._stored[shard].record, offset)
        repeated, passed = self._repeated[shard], self._passed[shard]
        if record.came is not None and (repeated or passed):
            came = replace(record.came, repeated=record.came.repeated + repeated, passed=record.came.passed + passed)
            record = replace(record, came=came)
        return record


def read(row: Any, reader: Reader) -> Any:
    """Return a value of a row."""
    if callable(reader):
        return reader(row)
    try:
        return row[reader]
    except (TypeError, KeyError, IndexError):
        if isinstance(reader, str):
            return getattr(row, reader)
        raise


async def claim(
    offsets: Offsets,
    *,
    job: str,
    zone: str,
    number: int,
    shards: ShardMap,
    names: Sequence[str],
    stored: dict[str, StoredOffset],
    start: int,
    now_ms: int,
    may_run: Callable[[], bool],
) -> ShardRun | None:
    """Claim the shards, and return the run. `stored`: their records, just read. `None`: another run was faster, or a
    newer map is in force. Shards that were claimed before that stay claimed, which harms nobody."""
    changes: dict[str, StoredOffset] = {}
    for shard in in_order(names):
        record, revision = stored.get(shard, StoredOffset(OffsetRecord(), 0))
        if why := refusal(record, epoch=shards.epoch, zone=zone, run=number, is_forced=True):
            log.info("zone.not_claimed", extra=fields(job=job, zone=zone, shard=shard, epoch=shards.epoch, why=why))
            return None
        asked_ms = shards.changed_ms
        new = claimed(record, epoch=shards.epoch, zone=zone, run=number, start=start, asked_ms=asked_ms, now_ms=now_ms)
        changes[shard] = StoredOffset(new, revision)
    done, failed = await offsets.write(job, changes)
    if failed:
        shard, error = next(iter(failed.items()))
        log.info("zone.not_claimed", extra=fields(job=job, zone=zone, shard=shard, why=str(error)))
        return None
    reach("zone.claim")
    _tell(job, zone, shards.epoch, stored, done)
    return ShardRun(
        job=job, zone=zone, number=number, shards=shards, stored=done, start=start, offsets=offsets, may_run=may_run
    )


def _tell(job: str, zone: str, epoch: int, before: dict[str, StoredOffset], after: dict[str, StoredOffset]) -> None:
    log.info("zone.run_begins", extra=fields(job=job, zone=zone, epoch=epoch, shards=len(after)))
    for shard, (record, _) in after.items():
        came = record.came
        if came is not None and (shard not in before or before[shard].record.came != came):
            told = fields(
                job=job,
                shard=shard,
                before=came.before,
                zone=zone,
                epoch=epoch,
                offset=came.offset,
                start=came.start,
                took_ms=came.taken_ms - came.asked_ms,
                is_forced=came.is_forced,
            )
            log.info("zone.shard_taken", extra=told)
