"""What a schedule has done in place of a job of its topic: a batch, or a look of a source at a past window. Pure.

Each occurrence is a job of a built-in topic, whose handler is in every node with the role `worker`
(penstock/node/jobs/schedule_targets.py). So attempts, dead letters and the record of the run are those of the job. The
batch has an id that is made of the job's id, so a job that comes twice makes one batch.
"""

import hashlib
import re
from datetime import UTC, datetime
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from actors.jobs.rules.cron import BadRecurrence
from actors.jobs.rules.schedule_record import Schedule
from actors.runtime.rules.setting_values import BadSetting, span_ms
from streams.messages.batch import NewBatch
from streams.subjects import TOKEN

W = TypeVar("W", bound=Struct)
TOPIC = "schedule-targets"
LONGEST_ID = 64
LONGEST_LOOK_MS = 31 * 86_400_000
PART = "--"
"""Separates a tenant's name from an id of that tenant's."""


class BatchWish(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a schedule of batches: what a submit takes, but for the task, the id and a file."""

    input: Raw = Raw(b"null")
    name: str = ""
    priority: int = 0
    weight: int = 1
    callback: str = ""


class LookWish(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a schedule of looks. `last`: how much of the time before each occurrence is read again, as in 2h."""

    last: str


class Look(Struct, frozen=True, kw_only=True):
    """A half-open window that a source reads once more. `name` is the same in each repeat."""

    source: str
    name: str
    start_ms: int
    end_ms: int


class TargetJob(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of a job of the built-in topic. One of the fields is there."""

    batch: NewBatch | None = None
    look: Look | None = None


def has_target(record: Schedule) -> bool:
    """True if its jobs are those of the built-in topic."""
    return bool(record.batch or record.source)


def target_of(record: Schedule, job_id: str, name: str, due_ms: int) -> TargetJob:
    """Return what the job of an occurrence asks for. Raises BadRecurrence for a body that asks for nothing like it."""
    moment = datetime.fromtimestamp(due_ms / 1000, UTC)
    if record.batch:
        wish = _wish(record, BatchWish, 'write {"input": …}, with name, priority, weight and callback if need be')
        return TargetJob(
            batch=NewBatch(
                task=record.batch,
                id=_batch_id(record.tenant, name, job_id, moment),
                tenant=record.tenant,
                input=with_time(wish.input, record.data_time, moment),
                name=wish.name,
                priority=wish.priority,
                weight=wish.weight,
                callback=wish.callback,
            )
        )
    last = _wish(record, LookWish, 'write {"last": "2h"}').last
    try:
        last_ms = span_ms("last", last)
    except BadSetting as error:
        raise BadRecurrence("body", last, error.why, error.do) from error
    if not 1_000 <= last_ms <= LONGEST_LOOK_MS:
        raise BadRecurrence("body", last, "is out of range", "use 1s to 31d")
    start_ms = max(0, due_ms - last_ms)
    return TargetJob(look=Look(source=record.source, name=f"s-{_digest(job_id)}", start_ms=start_ms, end_ms=due_ms))


def check_target(record: Schedule) -> None:
    """Raise BadRecurrence for a target that cannot be meant."""
    if record.batch and record.source:
        raise BadRecurrence("source", record.source, "stands beside a batch", "give one of them")
    if record.batch and not TOKEN.fullmatch(record.batch):
        raise BadRecurrence("batch", record.batch, "is no name of a task", "use 1 to 64 of A-Z a-z 0-9 _ -")
    platform, slash, source = record.source.partition("/")
    if record.source and not (slash and TOKEN.fullmatch(platform) and TOKEN.fullmatch(source)):
        raise BadRecurrence("source", record.source, "is no source", "write PLATFORM/SOURCE, as in mall/s1")
    if record.source and record.data_time:
        raise BadRecurrence("data_time", record.data_time, "has no place in a look", "leave it out")
    if record.tenant and not TOKEN.fullmatch(record.tenant):
        raise BadRecurrence("tenant", record.tenant, "is no tenant", "use 1 to 64 of A-Z a-z 0-9 _ -")


def with_time(body: Raw, field: str, moment: datetime) -> Raw:
    """Return the body with the occurrence's time in this field. Raises msgspec's errors for one that has no fields."""
    if not field:
        return body
    fields: dict[str, Raw | str] = {**(msgspec.json.decode(body, type=dict[str, Raw] | None) or {})}
    text = moment.isoformat(timespec="milliseconds" if moment.microsecond else "seconds").replace("+00:00", "Z")
    return Raw(msgspec.json.encode(fields | {field: text}))


def _wish(record: Schedule, form: type[W], hint: str) -> W:
    try:
        return msgspec.json.decode(record.body, type=form)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        shown = bytes(record.body)[:80].decode("utf-8", "replace")
        raise BadRecurrence("body", shown, f"is not what the target takes ({error})", hint) from error


def _batch_id(tenant: str, name: str, job_id: str, moment: datetime) -> str:
    """Return the id of an occurrence's batch: `nightly-20261121T093000Z-1f0c9a2b`. The end follows from the job's id,
    which names the topic too."""
    prefix = f"{tenant}{PART}" if tenant else ""
    ending = f"-{moment:%Y%m%dT%H%M%SZ}-{_digest(job_id)}"
    plain = re.sub("-+", "-", name).strip("-")
    return f"{prefix}{plain[: LONGEST_ID - len(prefix) - len(ending)]}{ending}"


def _digest(job_id: str) -> str:
    return hashlib.blake2b(job_id.encode(), digest_size=5).hexdigest()
