"""The existing tasks: what an application declared of each, one record in TASKS, followed live.

An application that serves a task writes its record when it starts, and again when its code changes. Limits that a
person set by `penstock batch task` win, so that a restart does not undo them. The record has the limits in force
(`limits`) and those of the code (`declared`). If the two differ in a limit, a person set it.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Annotated

import msgspec
from anyio.abc import TaskStatus
from msgspec import Meta

from actors.runtime.live import Live
from actors.runtime.logs import fields
from actors.runtime.rules.setting_values import near_or
from actors.runtime.rules.slot_keys import Slots
from streams.backoff import Backoff
from streams.buckets.bucket import Bucket
from streams.buckets.entries import Entry
from streams.errors import MalformedMessage
from streams.messages.slots import MOST_SLOTS, WhenFull

log = logging.getLogger(__name__)

MOST_IN_ALL = 10_000
"""Tasks of an installation. Each that is at work has two consumers, which the server keeps."""

Share = Annotated[float, Meta(ge=0, le=1)]
Rate = Annotated[float, Meta(ge=0, le=1_000_000)]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]


class TaskLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a task may happen at once, over the whole cluster. `0`: no limit. Rates are per second."""

    main_concurrency: Count = 10
    """Instances that split, run or reduce at the same time. The others wait in their order."""
    main_rate: Rate = 0.0
    item_rate: Rate = 0.0
    item_concurrency: Count = 0
    slots: Annotated[int, Meta(ge=0, le=MOST_SLOTS)] = 0
    """Items at once under each key."""
    slot_key: str = ""
    """Where the key is in an item, as a dotted path. Empty: all items are under one key."""
    when_full: WhenFull = "queue"
    """What becomes of an item whose key has no free slot."""
    zone: str = ""
    """Where its code may run (actors/runtime/rules/bounds.py). Empty: anywhere."""
    region_key: str = ""
    """Where the key by which an item finds its shard is, as a dotted path. An item of another zone's shard fails."""


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All facts about a task. `version`: of the application that declared it."""

    task: str
    app: str = ""
    version: str = ""
    limits: TaskLimits = TaskLimits()
    declared: TaskLimits | None = None
    """The limits of the application's code. `None` in records that are older than this field."""
    attempts: Annotated[int, Meta(ge=1, le=100)] = 3
    retry_base_ms: Annotated[int, Meta(ge=1)] = 1_000
    retry_cap_ms: Annotated[int, Meta(ge=1)] = 60_000
    most_failures: Share = 1.0
    """Share of the items that may fail before the instance is stopped."""
    is_idempotent: bool = True
    """Whether an item may run twice. If not, an item whose end is not known ends as `unknown`."""
    has_check: bool = False
    """Whether the task can check what happened to an item whose end is not known."""
    is_streaming: bool = False
    """Whether items may run before the split has ended."""
    chunk_items: Annotated[int, Meta(ge=1, le=10_000)] = 1_000
    item_timeout_ms: Annotated[int, Meta(ge=1)] = 60_000
    step_timeout_ms: Annotated[int, Meta(ge=1)] = 21_600_000
    """How long a split or a reduce may take. One that never returns fails then, and is begun again."""
    keep_days: Annotated[int, Meta(ge=1, le=365)] = 14
    is_sheet: bool = False
    """Whether its items are rows of a sheet, which are stored with their number."""
    executor: str = "python"
    """`python`, or where an external program runs the items: `http:URL`, `nats:SUBJECT`."""
    callback: str = ""
    """The callback URL for instances whose submitter names none."""

    @property
    def slots(self) -> Slots | None:
        """How many items of a key may run at once, with a path into the items as they are stored. `None`: no limit."""
        limits = self.limits
        if not limits.slots:
            return None
        path = f"1.{limits.slot_key}" if limits.slot_key and self.is_sheet else limits.slot_key
        return Slots(limits.slots, path, limits.when_full)

    @property
    def retries(self) -> Backoff:
        """Return how failed items run again, and how often steps do. A step is begun again at once."""
        return Backoff(
            retries=self.attempts - 1, growth="exponential", base_ms=self.retry_base_ms, cap_ms=self.retry_cap_ms
        )


START_IT = "start the application that serves it, or see `penstock batch tasks`"
"""What to do about a task that no application has declared."""


class UnknownTask(Exception):
    """No application has declared this task. The text names the nearest one of `known`, if one is near."""

    def __init__(self, task: str, known: Iterable[str] = ()) -> None:
        self.task = task
        super().__init__(f"no task {task[:80]!a}; {near_or(task, known, START_IT)}")


def decode_task(raw: bytes) -> TaskRecord:
    """Return the record, or raise MalformedMessage."""
    try:
        return msgspec.json.decode(raw, type=TaskRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"no record of a task: {error}") from error


def _limits_with(fresh: TaskLimits, before: TaskRecord) -> TaskLimits:
    """Return the limits of the present code, but keep those that a person set."""
    if before.declared is None:
        return before.limits
    names = TaskLimits.__struct_fields__
    set_by_hand = {name for name in names if getattr(before.limits, name) != getattr(before.declared, name)}
    return msgspec.structs.replace(fresh, **{name: getattr(before.limits, name) for name in set_by_hand})


def _declared(record: TaskRecord, entry: Entry[bytes] | None) -> TaskRecord:
    """Return the record to store in place of this entry. Limits that a person set stay."""
    limits = record.limits
    if entry is not None:
        try:
            limits = _limits_with(limits, decode_task(entry.raw))
        except MalformedMessage as error:
            log.warning("task.unreadable", extra=fields(key=record.task, error=str(error)))
    return msgspec.structs.replace(record, declared=record.limits, limits=limits)


class Tasks:
    """A live view of the tasks. `current` is cheap at any time."""

    def __init__(self, bucket: Bucket[bytes]) -> None:
        self._bucket = bucket
        self._live = Live(
            bucket,
            lambda entry: decode_task(entry.raw),
            unreadable="task.unreadable",
            keeps_last=True,
            changed="task.settings",
            settings=lambda record: msgspec.structs.asdict(record.limits),
        )

    def current(self, task: str) -> TaskRecord:
        """Return a task's record as last seen. Raises UnknownTask."""
        record = self._live.get(task)
        if record is None:
            raise UnknownTask(task)
        return record

    def named(self, task: str) -> TaskRecord:
        """Do as `current` for somebody who wrote the name: the error names the nearest one."""
        if task not in self._live:
            raise UnknownTask(task, self.known())
        return self.current(task)

    def of_any(self, task: str) -> TaskRecord:
        """Return a task's record as last seen. If somebody removed the record, return the defaults. Raises UnknownTask
        if there is one that this node cannot read."""
        return self.current(task) if task in self._live else TaskRecord(task=task)

    def known(self) -> tuple[str, ...]:
        """Return the keys of all tasks."""
        return tuple(sorted(task for task, _ in self._live.items()))

    def bound_of(self, task: str) -> str:
        """Return where a task's code may run."""
        record = self._live.get(task)
        return "" if record is None else record.limits.zone

    def revision_of(self, task: str) -> int:
        """Return the revision of a task's record. 0: there is none."""
        return self._live.revision(task)

    @property
    def seen(self) -> int:
        """The revision of the last record that was heard of."""
        return self._live.seen

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the key of each task that changed or vanished. It must be short."""
        self._live.on_change(listener)

    async def refresh(self, *tasks: str) -> None:
        """Take what is stored now, of all tasks or of these. Raises NoStream, Disconnected."""
        await self._live.refresh(*tasks)

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Follow the bucket until cancelled. Started once all present records are known."""
        await self._live.run(task_status=task_status)

    async def declare(self, record: TaskRecord) -> None:
        """Store an application's declaration of its task. Limits that a person set stay. A repeat stores nothing.
        The view knows it at once."""

        def change(entry: Entry[bytes] | None) -> tuple[bytes | None, TaskRecord]:
            after = _declared(record, entry)
            raw = msgspec.json.encode(after)
            return (None if entry is not None and entry.raw == raw else raw), after

        stored, revision = await self._bucket.update(record.task, change)
        self._live.learn(record.task, stored, revision)

    async def limit(self, task: str, change: Callable[[TaskRecord], TaskLimits], mark: str = "") -> TaskRecord:
        """Change a task's present limits, which `current` knows at once, unless the call of this mark has done so
        (streams/calls.py). Raises UnknownTask, MalformedMessage, RevisionConflict."""

        def limited(entry: Entry[bytes] | None) -> tuple[bytes | None, TaskRecord]:
            if entry is None:
                raise UnknownTask(task)
            record = decode_task(entry.raw)
            if mark in entry.calls:
                return None, record
            record = msgspec.structs.replace(record, limits=change(record))
            return msgspec.json.encode(record), record

        record, revision = await self._bucket.update(task, limited, mark=mark)
        self._live.learn(task, record, revision)
        return record
