"""The operations that every door to batches calls: submit, show, control, get the result. It has no state."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from actors.batch.instances import Instances, UnknownInstance
from actors.batch.item_pages import ItemPages, check_items
from actors.batch.items import BatchItems
from actors.batch.new_batches import NewBatches
from actors.batch.removal import Removal
from actors.batch.rules import moves
from actors.batch.rules.admission import admit, part_of
from actors.batch.rules.callbacks import Allowed
from actors.batch.rules.meant import ANY, Meant, verb_for
from actors.batch.rules.obstacles import ALL_THERE, BatchWhy, NoConsumer, begins, why, why_item
from actors.batch.rules.record import (
    FINAL,
    SHOWN_STATES,
    Instance,
    beat_key,
    files_at,
    is_held,
    known_items,
    shown_state,
)
from actors.batch.rules.refusals import BatchRefused
from actors.batch.rules.unfinished import Unfinished
from actors.batch.tasks import TaskLimits, TaskRecord, Tasks
from actors.batch.views import Beat, View, check_most, find_file, read_place, result_file
from actors.runtime.pieces import in_pieces
from actors.runtime.rules.bounds import read_bound
from actors.runtime.rules.pages import PAGE_BYTES, page_of
from actors.runtime.rules.setting_values import BadSetting, nearest, shown
from actors.runtime.rules.slot_keys import check_path
from actors.runtime.transport import shown_url
from streams.buckets.bucket import Bucket
from streams.buckets.files import FileInfo, Files
from streams.calls import mark_of
from streams.clock import Clock
from streams.messages.batch import NewBatch, RowsSeen
from streams.subjects import check_token

MOST_SHOWN = 1_000


class BatchDesk:
    """One desk. `waits_for` returns what an instance waits for. `missing(task)`: why no process gets a task's work from
    the server. `waits_for_rate(task)`: whether items wait because the task's rate is spent. `callbacks`: the hosts that
    submitters may have called. `new` makes instances, `items` shows items. Raises UnknownTask, UnknownInstance,
    InstanceExists, BatchRefused, MalformedSubject, FileTooLarge, and the broker's errors."""

    def __init__(
        self,
        *,
        tasks: Tasks,
        instances: Instances,
        items: BatchItems,
        files: Files,
        beats: Bucket[bytes],
        clock: Clock,
        waits_for: Callable[[Instance], str] = lambda _record: "",
        callbacks: Allowed | None = None,
        admit: Callable[[str], None] = lambda _subject: None,
        full_key: Callable[[str, str, int], Awaitable[str]] | None = None,
        look_at: Callable[[str, Sequence[Raw], int], Awaitable[RowsSeen | None]] | None = None,
        missing: Callable[[str], NoConsumer] = lambda _task: ALL_THERE,
        waits_for_rate: Callable[[str], Awaitable[bool]] | None = None,
    ) -> None:
        self._tasks = tasks
        self._instances = instances
        self._files = files
        self._beats = beats
        self._clock = clock
        self._waits_for = waits_for
        self._missing = missing
        self._waits_for_rate = waits_for_rate
        self._removal = Removal(instances, items, files)
        self.items = ItemPages(tasks=tasks, instances=instances, items=items, files=files, full_key=full_key)
        self.new = NewBatches(
            tasks=tasks,
            instances=instances,
            files=files,
            removal=self._removal,
            clock=clock,
            callbacks=callbacks or Allowed(),
            admit=admit,
            look_at=look_at,
        )

    async def submit(self, new: NewBatch, *, upload: AsyncIterable[bytes] | None = None) -> View:
        """Make an instance, and return it as it is then (`NewBatches.submit`)."""
        return self._view(await self.new.submit(new, upload=upload))

    async def show(self, instance_id: str) -> View:
        """Return an instance as it is now."""
        record = await self._instances.get(check_token("batch", instance_id))
        return self._view(record, await self._beat(record))

    async def why(self, instance_id: str, item: int | None = None, *, row: int | None = None) -> BatchWhy:
        """Return what keeps an instance from running, or one of its items, or the item of this row of its sheet."""
        record = await self._instances.get(check_token("batch", instance_id))
        if row is not None:
            [item] = await self.items.named(record, [] if item is None else [item], [row])
        limits = self._tasks.current(record.task).limits
        if limits.item_rate and self._waits_for_rate is not None and not await self._waits_for_rate(record.task):
            limits = replace(limits, item_rate=0.0)  # its processes' places are in the way, and not the rate
        unfinished, missing = self._instances.unfinished(record.task), self._missing(record.task)
        now_ms = self._clock.now_ms()
        at_work = [each for each in unfinished.at_work.values() if not each.is_paused]
        part, _ = part_of(record, at_work)
        found = why(
            record,
            limits,
            waits_for=self._waits_for(record),
            before=await self._how_far_is_before(record) if is_held(record) else "",
            running=len(at_work),
            last_start_ms=self._instances.last_start_ms(record.task),
            now_ms=now_ms,
            missing=missing,
            ahead=_ahead(record, unfinished, now_ms) if limits.main_rate else 0,
            part=part,
        )
        if item is None:
            return found
        if item < 0 or item >= (known_items(record) or item + 1):
            check_items(record, [item])
        place = await self.items.place(record, item)
        return replace(why_item(found, record, limits, item, place, now_ms, missing=missing, part=part), row=row)

    async def _how_far_is_before(self, held: Instance) -> str:
        """Return how far the instance is for which this one waits, in words."""
        try:
            before = await self._instances.get(held.after)
        except UnknownInstance:
            return ""
        if before.created_ms != held.after_created_ms:
            return "; that was deleted, and this is seen within moments"
        items = known_items(before)
        return f"; that is {shown_state(before)}" + (f", {before.counts.ended} of {items} items" if items else "")

    async def all(
        self,
        *,
        task: str = "",
        state: str = "",
        tenant: str | None = None,
        most: int = 100,
        after: str = "",
        most_bytes: int = PAGE_BYTES,
        is_shown: Callable[[View], bool] = lambda _view: True,
    ) -> tuple[list[View], str]:
        """Return a page of instances, the newest first, and the place of the last one if there are more. `after`: such
        a place. `most_bytes`: of the page as JSON, which has one instance at least."""
        check_most(most, MOST_SHOWN)
        if state and state not in SHOWN_STATES:
            raise BatchRefused(f"state {state[:64]!a}: is none; {nearest(state, SHOWN_STATES)}", field="state")
        found = list[View]()
        async for record in in_pieces(self._instances.behind(read_place(after))):
            is_asked = (not task or record.task == task) and (not state or shown_state(record) == state)
            if is_asked and tenant in (None, record.tenant) and is_shown(view := self._view(record)):
                found.append(view)
                if len(found) > most:
                    break
        return page_of(found, most, most_bytes, lambda view: view.place)

    async def _change(
        self, verb: str, instance_id: str, meant: Meant, move: Callable[[Instance], Instance]
    ) -> Instance:
        """Apply `move` to an instance, once for all tries of a call."""
        return await self._instances.move(check_token("batch", instance_id), meant.once(verb, move))

    async def start(self, instance_id: str, meant: Meant = ANY) -> View:
        """Let it begin now, though it waits for its time or for the end of another one. A repeat changes nothing."""
        now_ms = self._clock.now_ms()
        record = await self._change("start", instance_id, meant, lambda before: moves.begin_now(before, now_ms))
        if record.state in FINAL:
            reason = f"{instance_id} is {record.state}; `penstock batch retry {instance_id}` runs it again"
            raise BatchRefused(reason, code="state")
        return self._view(record)

    async def pause(self, instance_id: str, meant: Meant = ANY) -> View:
        """Start nothing more of it. Running items end."""
        return self._view(await self._change("pause", instance_id, meant, moves.pause))

    async def resume(self, instance_id: str, meant: Meant = ANY) -> View:
        """Go on with it."""
        return self._view(await self._change("resume", instance_id, meant, moves.resume))

    async def cancel(self, instance_id: str, meant: Meant = ANY) -> View:
        """End it. Running items end, the rest is cancelled."""
        now_ms = self._clock.now_ms()
        return self._view(await self._change("cancel", instance_id, meant, lambda before: moves.cancel(before, now_ms)))

    async def retry(
        self, instance_id: str, items: Sequence[int] = (), *, rows: Sequence[int] = (), meant: Meant = ANY
    ) -> View:
        """Run failed or cancelled items again, or only these items, or those of these rows of the sheet, and make the
        result anew."""
        verb = verb_for("retry", items, rows)
        before = await self._instances.get(check_token("batch", instance_id))
        if meant.is_done(before, verb):
            return self._view(before)
        if before.state not in FINAL:
            raise _not_run_again(before)
        check_items(before, items)
        named = await self.items.named(before, items, rows)
        told = await self.items.reasons_of(before, named)
        meant = meant if meant.nonce else meant._replace(nonce=secrets.token_hex(8))
        refused: Exception | None = None

        def again(record: Instance) -> Instance:
            nonlocal refused
            after = moves.retry(record, named, told)
            refused = _not_run_again(record) if after is record else None  # another caller's retry or delete came first
            return after

        after = await self._change(verb, instance_id, meant, again)
        if after.deleted_ms and not meant.is_done(after, verb):
            raise UnknownInstance(instance_id)
        if refused is not None:
            raise refused
        return self._view(after)

    async def delete(self, instance_id: str, meant: Meant = ANY) -> View:
        """Remove an instance that is over, with its items and files. Return how it stood."""
        now_ms = self._clock.now_ms()
        record = await self._change("delete", instance_id, meant, lambda before: moves.delete(before, now_ms))
        if not record.deleted_ms:
            reason = f"{instance_id} is {shown_state(record)}; cancel it first (`penstock batch cancel {instance_id}`)"
            raise BatchRefused(f"{reason}, and delete it when it is over", code="state")
        await self._removal.remove(record)
        return self._view(record)

    async def result(self, instance_id: str, name: str = "") -> tuple[FileInfo, AsyncIterator[bytes]]:
        """Return a file of the result and its bytes. Without a name it is the first file."""
        view = await self.show(instance_id)
        chosen = result_file(view, name)
        info = await find_file(self._files, view, chosen)
        if info is None:
            raise BatchRefused(f"{instance_id}: the file {chosen[:80]!a} is not there any more", code="not_found")
        return info, self._files.read(info)

    def tasks(
        self,
        *,
        after: str = "",
        most: int = MOST_SHOWN,
        most_bytes: int = PAGE_BYTES,
        is_shown: Callable[[str], bool] = lambda _task: True,
    ) -> tuple[list[TaskRecord], str]:
        """Return a page of tasks by name, and the name of the last one if there are more. `after`: such a name."""
        check_most(most, MOST_SHOWN)
        names = (name for name in sorted(self._tasks.known()) if name > after and is_shown(name))
        return page_of(map(self._tasks.current, names), most, most_bytes, lambda record: record.task)

    async def limit(self, task: str, changes: Mapping[str, object]) -> TaskRecord:
        """Change some of a task's limits. `None` resets one to what the code says. They outlive a restart."""
        self._tasks.named(task)
        return await self._tasks.limit(task, lambda record: _changed(record, changes), mark_of(changes))

    # ---- views

    def _view(self, record: Instance, beat: Beat | None = None) -> View:
        return View(
            instance_id=record.instance_id,
            task=record.task,
            state=shown_state(record),
            items=known_items(record),
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
            waits=begins(record, self._clock.now_ms()) or self._waits_for(record),
            due_ms=record.due_ms,
            after=record.after,
            after_state=record.after_state if record.after else "",
            result=msgspec.json.decode(record.result),
            files_at=files_at(record.instance_id, record.result_fence),
            callback=shown_url(record.callback) if record.callback else "",
            calls=record.moments if record.callback else (),
        )

    async def _beat(self, record: Instance) -> Beat | None:
        if record.state not in ("splitting", "reducing"):
            return None
        entry = await self._beats.get(beat_key(record))
        return None if entry is None else msgspec.json.decode(entry.raw, type=Beat)


def _not_run_again(record: Instance) -> Exception:
    """Return why a retry changes nothing."""
    if record.deleted_ms:
        return UnknownInstance(record.instance_id)
    if record.state not in FINAL:
        reason = f"{shown_state(record)}; only what is done, failed or cancelled can be retried"
        return BatchRefused(f"{record.instance_id} is {reason}", code="state")
    reason = "nothing failed, so there is nothing to run again; name items to do so"
    return BatchRefused(f"{record.instance_id}: {reason}", code="state")


def _changed(record: TaskRecord, changes: Mapping[str, object]) -> TaskLimits:
    if unknown := sorted(changes.keys() - set(TaskLimits.__struct_fields__)):
        hint = nearest(unknown[0], TaskLimits.__struct_fields__)
        raise BatchRefused(f"{unknown[0][:80]!a}: is not a limit of tasks; {hint}", field=unknown[0][:80])
    kept = [name for name in TaskLimits.__struct_fields__ if changes.get(name, 0) is not None]
    values = {name: getattr(record.limits, name) for name in kept}
    changed = {name: value for name, value in changes.items() if value is not None}
    declared = msgspec.to_builtins(record.declared or TaskLimits())
    try:
        limits = msgspec.convert({**declared, **values, **changed}, TaskLimits)
        check_path("slot_key", limits.slot_key)
        check_path("region_key", limits.region_key)
        read_bound("zone", limits.zone)
        return limits
    except BadSetting as error:
        raise BatchRefused(str(error), field=error.name) from error
    except msgspec.ValidationError as error:
        said, _, name = str(error).rstrip("`").partition(" - at `$.")
        raise BatchRefused(f"{name} {shown(changes.get(name))}: {said}", field=name) from error


def _ahead(record: Instance, unfinished: Unfinished, now_ms: int) -> int:
    """Return how many instances of the task begin before this one."""
    unfinished.come_due(now_ms)
    in_order = admit(unfinished.rows, unfinished.at_work.values(), 0)
    return next((at for at, each in enumerate(in_order) if each == record.instance_id), 0)
