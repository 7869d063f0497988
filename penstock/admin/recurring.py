"""Schedules, as people change them: records in a bucket. The leading node (actors/jobs/scheduler.py) does the
rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from actors.jobs.rules.cron import BadRecurrence
from actors.jobs.rules.schedule_changes import backfilled, begun, paused, removed, resumed, triggered
from actors.jobs.rules.schedule_checks import check_schedule, check_wanted
from actors.jobs.rules.schedule_record import Schedule, decode_schedule, names_of
from actors.jobs.rules.schedule_times import next_dues, occurrence_id
from actors.runtime.rules.setting_values import nearest
from penstock.errors import PenstockError, UsageError
from penstock.times import time_text
from streams.bucket import Bucket
from streams.entries import Entry
from streams.errors import MalformedMessage, MalformedSubject, RevisionConflict
from streams.subjects import check_token

__all__ = [
    "BUCKET",
    "Record",
    "add",
    "backfill",
    "check",
    "find",
    "pause",
    "read_name",
    "read_topic",
    "records",
    "remove",
    "resume",
    "trigger",
    "upcoming",
]

BUCKET = "RECURRING"
R = TypeVar("R")
_LEADERS = (
    "last_ms",
    "added_ms",
    "adding",
    "stale",
    "claim_ms",
    "triggered",
    "backfill",
    "cancelling",
    "buffered_ms",
    "left_out",
    "runs",
    "is_paused",
    "is_removed",
)
"""Fields that the leading node writes, or a person by another command than a definition."""


class Record(NamedTuple):
    """A schedule as it is stored. `recurring` is None if it cannot be followed, and `fault` says why."""

    topic: str
    name: str
    recurring: Schedule | None
    fault: str = ""

    def __str__(self) -> str:
        return f"{self.topic}/{self.name}"


def read_topic(text: str) -> str:
    """Return the topic that an option names, empty for none. Raises UsageError."""
    try:
        return check_token("topic", text) if text else ""
    except MalformedSubject as error:
        raise UsageError(str(error)) from error


def read_name(text: str) -> tuple[str, str]:
    """Return topic and name of TOPIC/NAME. Raises UsageError."""
    topic, slash, name = text.partition("/")
    try:
        if slash:
            return check_token("topic", topic), check_token("name", name)
    except MalformedSubject as error:
        raise UsageError(f"{error}; a schedule is named TOPIC/NAME, as in mail/nightly") from error
    raise UsageError(f"schedule {text[:80]!r}: write TOPIC/NAME, as in mail/nightly")


async def records(bucket: Bucket[bytes], topic: str = "") -> list[Record]:
    """Return all schedules, or those of a topic, by topic and name."""
    found = [_record(entry) for entry in await bucket.entries(f"{topic}.*" if topic else ">")]
    return [each for each in found if each.recurring is None or not each.recurring.is_removed]


async def find(bucket: Bucket[bytes], topic: str, name: str) -> Record:
    """Return one record. Raises UsageError with the nearest name if there is none."""
    return (await _find(bucket, topic, name))[0]


async def add(
    bucket: Bucket[bytes], topic: str, name: str, wanted: Schedule, *, now_ms: int, is_replaced: bool = False
) -> tuple[Schedule, bool]:
    """Store a schedule. Return it as stored, and whether anything changed. A repeat changes nothing.

    Raises UsageError if it cannot be followed, or if another of that name exists and is not to be replaced."""
    check(wanted)

    def change(entry: Entry[bytes] | None) -> tuple[bytes | None, tuple[Schedule, bool]]:
        before = None if entry is None else _record(entry).recurring
        if before is not None and not before.is_removed:
            if _definition(before, wanted.start_ms) == _definition(wanted, wanted.start_ms):
                return None, (before, False)
            if not is_replaced:
                raise UsageError(f"{topic}/{name} is there already, and otherwise; add --replace, or use another name")
        if 0 < wanted.at_ms <= now_ms:
            raise UsageError(f"{topic}/{name}: {time_text(wanted.at_ms)} is past; give a later moment")
        stored = begun(wanted, before, now_ms=now_ms)
        return msgspec.json.encode(stored), (stored, True)

    return await _update(bucket, topic, name, change)


async def pause(bucket: Bucket[bytes], topic: str, name: str) -> bool:
    """Add no further jobs. Return whether that is new. A job that was added and is not due yet is removed."""
    return await _move(bucket, topic, name, lambda record: record if record.is_paused else paused(record))


async def resume(bucket: Bucket[bytes], topic: str, name: str, *, now_ms: int) -> bool:
    """Resume from now on. Return whether it was paused."""
    return await _move(
        bucket, topic, name, lambda record: resumed(record, now_ms=now_ms) if record.is_paused else record
    )


async def trigger(bucket: Bucket[bytes], topic: str, name: str, *, now_ms: int) -> str:
    """Have a job added now. Return its id."""
    ids: list[str] = []

    def move(record: Schedule) -> Schedule:
        after = triggered(record, now_ms=now_ms)
        ids.append(occurrence_id(name, after.triggered[-1]))
        return after

    await _move(bucket, topic, name, move)
    return ids[-1]


async def backfill(bucket: Bucket[bytes], topic: str, name: str, from_ms: int, to_ms: int, *, now_ms: int) -> None:
    """Have all occurrences of the half-open range added."""
    await _move(bucket, topic, name, lambda record: backfilled(record, from_ms, to_ms, now_ms=now_ms))


async def remove(bucket: Bucket[bytes], topic: str, name: str) -> None:
    """Have the leading node remove it. A record that cannot be followed is deleted at once."""
    record, revision = await _find(bucket, topic, name)
    if record.recurring is None:
        await bucket.delete(f"{topic}.{name}", revision=revision)
    else:
        await _move(bucket, topic, name, removed)


def upcoming(record: Schedule, *, now_ms: int, most: int) -> list[int]:
    """Return the moments at which it is due next, none while it is paused."""
    return [] if record.is_paused else next_dues(record, now_ms, most)


async def _find(bucket: Bucket[bytes], topic: str, name: str) -> tuple[Record, int]:
    """Return a record with its revision. Raises UsageError."""
    entry = await bucket.get(f"{topic}.{name}")
    record = _there(entry)
    if entry is None or record is None:
        known = [str(each) for each in await records(bucket)]
        hint = nearest(f"{topic}/{name}", known) if known else "there is none at all"
        raise UsageError(f"no schedule {topic}/{name}; {hint}")
    return record, entry.revision


def _there(entry: Entry[bytes] | None) -> Record | None:
    """Return what is there, `None` if it is removed or being removed."""
    record = None if entry is None else _record(entry)
    is_removed = record is not None and record.recurring is not None and record.recurring.is_removed
    return None if is_removed else record


async def _move(bucket: Bucket[bytes], topic: str, name: str, move: Callable[[Schedule], Schedule]) -> bool:
    """Change one record. Return whether anything changed. Raises UsageError, PenstockError."""
    await _find(bucket, topic, name)  # its error names the nearest

    def change(entry: Entry[bytes] | None) -> tuple[bytes | None, bool]:
        record = _there(entry)
        if record is None:
            raise UsageError(f"no schedule {topic}/{name}; it was removed just now")
        if record.recurring is None:
            raise PenstockError(f"{record} cannot be followed: {record.fault}; put a correct one with --replace")
        try:
            after = move(record.recurring)
        except BadRecurrence as error:
            raise UsageError(str(error)) from error
        is_changed = after is not record.recurring
        return (msgspec.json.encode(after) if is_changed else None), is_changed

    return await _update(bucket, topic, name, change)


async def _update(
    bucket: Bucket[bytes], topic: str, name: str, change: Callable[[Entry[bytes] | None], tuple[bytes | None, R]]
) -> R:
    try:
        result, _ = await bucket.update(f"{topic}.{name}", change)
    except RevisionConflict as error:
        raise PenstockError(
            f"{topic}/{name}: others changed it again and again; nothing was changed, try again"
        ) from error
    return result


def check(record: Schedule) -> None:
    """Raise UsageError unless it can be followed."""
    try:
        check_wanted(record)
    except BadRecurrence as error:
        raise UsageError(str(error)) from error


def _definition(record: Schedule, start_ms: int) -> Schedule:
    """Return the definition alone. Without a start of the person's own, the time of the add is left out."""
    fresh = {name: getattr(Schedule(), name) for name in _LEADERS}
    return replace(record, start_ms=record.start_ms if start_ms else 0, **fresh)


def _record(entry: Entry[bytes]) -> Record:
    topic, _, name = entry.key.partition(".")
    try:
        names_of(entry.key)
        return Record(topic, name, check_schedule(decode_schedule(entry.raw)))
    except (MalformedMessage, BadRecurrence) as error:
        return Record(topic, name, None, str(error))
