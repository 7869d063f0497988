"""What every door to batches calls: submit, look, steer, and fetch the result. Holds no state of its own."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from actors.batch_instances import Instances
from actors.batch_items import BatchItems
from actors.batch_tasks import TaskLimits, TaskRecord, Tasks, UnknownTask
from actors.model import batch_moves as moves
from actors.model.batch_record import FINAL, Instance, shown_state
from penstock.batch_sheets import SheetInput
from penstock.errors import UsageError
from streams.batch_messages import Counts, Status, last_outcomes
from streams.bucket import Bucket
from streams.clock import Clock
from streams.files import FileInfo, Files
from streams.subjects import check_token

__all__ = ["BatchDesk", "Beat", "ItemPage", "ItemView", "View"]

UPLOAD_BYTES = 200 * 1024 * 1024
MOST_ITEMS = 1_000
SCANNED = 16
"""Chunks that one page of items looks through at most, so that a page of rare failures stays quick."""
Wanted = Literal["all", "ok", "failed", "unknown", "skipped", "cancelled"]


class Beat(Struct, frozen=True):
    """How far a split or a reduce is."""

    by: str = ""
    done: int = 0
    total: int | None = None


class View(Struct, frozen=True, kw_only=True):
    """An instance as people see it. `items`: how many there are, None before the split has ended."""

    instance_id: str
    task: str
    state: str
    items: int | None
    counts: Counts
    created_ms: int
    started_ms: int
    ended_ms: int
    tenant: str = ""
    priority: int = 0
    passes: int = 1
    reason: str = ""
    reasons: tuple[str, ...] = ()
    step: Beat | None = None
    result: Any = None

    @property
    def is_over(self) -> bool:
        return self.state in FINAL


class ItemView(Struct, frozen=True):
    """An item and how it stands; None: it has not ended."""

    index: int
    item: Any
    status: Status | None
    info: Any = None


class ItemPage(Struct, frozen=True):
    """Some items, and where the next page begins; empty: there is none."""

    items: list[ItemView]
    cursor: str = ""


class BatchDesk:
    """One desk. Raises UnknownTask, UnknownInstance, InstanceExists, UsageError, and the broker's errors."""

    def __init__(
        self,
        *,
        tasks: Tasks,
        instances: Instances,
        items: BatchItems,
        files: Files,
        beats: Bucket[bytes],
        clock: Clock,
    ) -> None:
        self._tasks = tasks
        self._instances = instances
        self._items = items
        self._files = files
        self._beats = beats
        self._clock = clock

    async def submit(
        self,
        task: str,
        given: Any = None,
        *,
        instance_id: str = "",
        upload: AsyncIterable[bytes] | None = None,
        name: str = "",
        sheet: str = "",
        tenant: str = "",
        priority: int = 0,
        weight: int = 1,
    ) -> View:
        """Make an instance of a task, of `given` (any JSON value) or of an uploaded file with `given` as its params.
        The same again under an id of the caller's own is one instance."""
        self._tasks.current(task)
        chosen = check_token("instance", instance_id or secrets.token_hex(8))
        if not 1 <= weight <= 1_000 or not -100 <= priority <= 100:
            raise UsageError(f"weight {weight}, priority {priority}: use 1 to 1000, and -100 to 100")
        if upload is not None:
            file = f"{chosen}/upload"
            await self._files.put(file, upload, most_bytes=UPLOAD_BYTES, description=name[:200])
            given = SheetInput(file=file, name=name, sheet=sheet, params=Raw(msgspec.json.encode(given)))
        record = Instance(
            instance_id=chosen,
            task=task,
            created_ms=self._clock.now_ms(),
            input=Raw(msgspec.json.encode(given)),
            tenant=tenant,
            priority=priority,
            weight=weight,
        )
        return self._view(await self._instances.create(record))

    async def show(self, instance_id: str) -> View:
        """Return an instance as it is now."""
        record = await self._instances.get(check_token("instance", instance_id))
        return self._view(record, await self._beat(record))

    async def all(self, *, task: str = "", state: str = "", tenant: str | None = None, most: int = 100) -> list[View]:
        """Return instances, the newest first."""
        found = sorted(self._instances.known(), key=lambda record: -record.created_ms)
        views = (self._view(record) for record in found if not task or record.task == task)
        wanted = (view for view in views if (not state or view.state == state) and tenant in (None, view.tenant))
        return [view for view, _ in zip(wanted, range(most), strict=False)]

    async def items(self, instance_id: str, *, status: Wanted = "all", cursor: str = "", most: int = 100) -> ItemPage:
        """Return a page of an instance's items in their order, those that stand as wanted."""
        record = await self._instances.get(check_token("instance", instance_id))
        chunk, skip = _read_cursor(cursor)
        found: list[ItemView] = []
        fence, chunks = (record.seal.fence, record.seal.chunks) if record.seal else (record.step_fence, record.staged)
        for number in range(chunk, min(chunk + SCANNED, chunks)):
            for at, view in enumerate(await self._of_chunk(record, fence, number)):
                if (number, at) < (chunk, skip) or (status != "all" and view.status != status):
                    continue
                found.append(view)
                if len(found) >= min(most, MOST_ITEMS):
                    return ItemPage(found, f"{number}.{at + 1}")
        after = chunk + SCANNED
        return ItemPage(found, f"{after}.0" if after < chunks else "")

    async def pause(self, instance_id: str) -> View:
        """Start nothing more of it; what runs, ends."""
        return self._view(await self._instances.move(check_token("instance", instance_id), moves.pause))

    async def resume(self, instance_id: str) -> View:
        """Go on with it."""
        return self._view(await self._instances.move(check_token("instance", instance_id), moves.resume))

    async def cancel(self, instance_id: str) -> View:
        """End it: what runs ends, the rest is cancelled."""
        now_ms = self._clock.now_ms()
        move = await self._instances.move(
            check_token("instance", instance_id), lambda record: moves.cancel(record, now_ms)
        )
        return self._view(move)

    async def retry(self, instance_id: str, items: Sequence[int] = ()) -> View:
        """Run what failed or was cancelled again, or only these items, and make the result anew."""
        before = await self._instances.get(check_token("instance", instance_id))
        if before.state not in ("done", "failed"):
            raise UsageError(f"{instance_id} is {shown_state(before)}; only what is done or failed can be retried")
        after = await self._instances.move(instance_id, lambda record: moves.retry(record, items))
        if after.state == before.state:
            raise UsageError(f"{instance_id}: nothing failed, so there is nothing to run again; name items to do so")
        return self._view(after)

    async def result(self, instance_id: str, name: str = "") -> tuple[FileInfo, AsyncIterator[bytes]]:
        """Return a file of the result, its first one without a name, and its bytes."""
        view = await self.show(instance_id)
        names = view.result.get("files", []) if isinstance(view.result, dict) else []
        if not name and not names:
            raise UsageError(f"{instance_id} is {view.state} and has no file")
        info = await self._files.info(f"{instance_id}/{name or names[0]}")
        if info is None:
            raise UsageError(f"{instance_id} has no file {name[:80]!a}; it has {', '.join(names) or 'none'}")
        return info, self._files.read(info)

    def tasks(self) -> list[TaskRecord]:
        """Return all tasks."""
        return [self._tasks.current(task) for task in self._tasks.known()]

    async def limit(self, task: str, limits: TaskLimits) -> TaskRecord:
        """Set a task's limits; they outlive a restart of the application."""
        if task not in self._tasks.known():
            raise UnknownTask(task)
        return await self._tasks.limit(task, limits)

    # ---- views

    def _view(self, record: Instance, beat: Beat | None = None) -> View:
        return View(
            instance_id=record.instance_id,
            task=record.task,
            state=shown_state(record),
            items=record.seal.items if record.seal is not None else None,
            counts=record.counts,
            created_ms=record.created_ms,
            started_ms=record.started_ms,
            ended_ms=record.ended_ms,
            tenant=record.tenant,
            priority=record.priority,
            passes=record.passes,
            reason=record.reason,
            reasons=record.reasons,
            step=beat,
            result=msgspec.json.decode(record.result),
        )

    async def _beat(self, record: Instance) -> Beat | None:
        if record.state not in ("splitting", "reducing"):
            return None
        entry = await self._beats.get(f"{record.instance_id}.{record.step_fence}")
        return None if entry is None else msgspec.json.decode(entry.raw, type=Beat)

    async def _of_chunk(self, record: Instance, fence: int, number: int) -> list[ItemView]:
        chunk = await self._items.chunk(record.instance_id, fence, number)
        if chunk is None:
            return []
        results = (await self._items.results(record.instance_id, [number]))[number]
        decode = msgspec.json.decode
        views = []
        for at, (item, end) in enumerate(zip(chunk.items, last_outcomes(chunk, results), strict=True)):
            if end is None or end.status == "again":
                views.append(ItemView(chunk.first + at, decode(item), None))
            else:
                views.append(ItemView(chunk.first + at, decode(item), end.status, decode(end.info)))
        return views


def _read_cursor(cursor: str) -> tuple[int, int]:
    first, dot, second = cursor.partition(".")
    if not cursor:
        return 0, 0
    if not dot or not first.isdecimal() or not second.isdecimal() or len(cursor) > 20:
        raise UsageError(f"cursor {cursor[:80]!a}: use the one of the page before, unchanged")
    return int(first), int(second)
