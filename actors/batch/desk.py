"""The operations that every door to batches calls: submit, show, control, get the result. It has no state."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from actors.batch.callback_transport import BadCallback, check_callback
from actors.batch.instances import InstanceExists, Instances, UnknownInstance
from actors.batch.item_rows import index_of_row
from actors.batch.items import BatchItems
from actors.batch.removal import Removal
from actors.batch.rules import moves
from actors.batch.rules.callbacks import Allowed
from actors.batch.rules.encodings import known_encoding, unknown_encoding
from actors.batch.rules.meant import ANY, Meant
from actors.batch.rules.obstacles import ALL_THERE, BatchWhy, ItemPlace, NoConsumer, begins, why, why_item
from actors.batch.rules.record import (
    FINAL,
    Instance,
    beat_key,
    files_at,
    is_at_work,
    is_held,
    known_items,
    made_so_far,
    shown_state,
)
from actors.batch.rules.refusals import BatchRefused
from actors.batch.rules.row_looks import MOST_LOOKED_AT, SHOWN, cells_alone, look_at, readable_cells
from actors.batch.rules.sheet_lines import MOST_COLUMNS, SheetHead, cells_of, head_of, names_columns, row_of
from actors.batch.tasks import TaskLimits, TaskRecord, Tasks
from actors.batch.uploads import FRESH_MS
from actors.batch.views import (
    MOST_ROWS,
    UPLOAD_BYTES,
    Beat,
    ItemPage,
    ItemShown,
    SheetInput,
    View,
    Wanted,
    find_file,
    is_upload_of,
    pages_of,
    read_place,
    result_file,
    sheet_of,
    upload_name,
)
from actors.runtime.rules.bounds import read_bound
from actors.runtime.rules.pages import PAGE_BYTES, page_of
from actors.runtime.rules.setting_values import BadSetting
from actors.runtime.rules.slot_keys import check_path, key_reader
from actors.runtime.rules.traceparents import is_traceparent
from actors.runtime.tracing import traces
from actors.runtime.transport import shown_url
from streams.batch_messages import (
    LOST,
    NOTHING,
    Chunk,
    ChunkResult,
    NewBatch,
    Outcome,
    RowsSeen,
    Status,
    last_outcomes,
    lost_parts,
)
from streams.bucket import Bucket
from streams.clock import Clock
from streams.errors import Repeated
from streams.files import FileInfo, Files
from streams.job_messages import LONGEST_DELAY_MS
from streams.subjects import check_token, token_of

INPUT_BYTES = 64 * 1024
"""Limit in bytes of an input that is given as JSON: it stands in the instance's record, which every step writes."""
LONGEST_NAME = 255
NO_CALLBACK = "none"
"""In place of a URL: no callback, whatever the task says."""
MOST_ITEMS = 1_000
MOST_REDONE = 1_000
MOST_SHOWN = 1_000
SCANNED = 16
"""How many chunks one page of items reads at most, so that a page of rare failures stays quick."""
ROOM_EACH = 100
MOST_INFO = 300
"""Characters of an item's reason in a `why`."""


class BatchDesk:
    """One desk. `waits_for` returns what an instance waits for. `missing(task)`: why no process gets a task's work from
    the server. `callbacks`: the hosts that submitters may have called.
    Raises UnknownTask, UnknownInstance, InstanceExists, BatchRefused, MalformedSubject, FileTooLarge, and the broker's
    errors."""

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
    ) -> None:
        self._tasks = tasks
        self._instances = instances
        self._items = items
        self._files = files
        self._beats = beats
        self._clock = clock
        self._waits_for = waits_for
        self._callbacks = callbacks or Allowed()
        self._admit = admit
        self._full_key = full_key
        self._look_at = look_at
        self._missing = missing
        self._removal = Removal(instances, items, files)

    async def submit(self, new: NewBatch, *, upload: AsyncIterable[bytes] | None = None) -> View:
        """Make an instance. `upload`: a file to run it on, in place of one that `new` names. A repeat under the
        caller's own id is the same instance, which stays as it was made first."""
        self._admit("batches")
        callback, input_json, encoding = self.check(new)
        before = await self._predecessor(new)
        chosen = check_token("instance", new.id or secrets.token_hex(8))
        file = new.file
        if upload is not None:
            file = upload_name(chosen)
            await self._files.put(file, upload, most_bytes=UPLOAD_BYTES, description=new.name)
        if file:
            named = {"name": new.name, "sheet": new.sheet, "encoding": encoding}
            input_json = await self._sheet_input(chosen, file, params=input_json, **named)
        now_ms = self._clock.now_ms()
        record = Instance(
            instance_id=chosen,
            task=new.task,
            created_ms=now_ms,
            input=input_json,
            tenant=new.tenant,
            priority=new.priority,
            weight=new.weight,
            callback=callback,
            traceparent=new.traceparent if is_traceparent(new.traceparent) else traces.current(),
            due_ms=new.due_ms or (now_ms + new.delay_ms if new.delay_ms else 0),
            after=new.after,
            after_created_ms=before.created_ms if before is not None else 0,
            after_state=new.after_state,
            step_fence=now_ms if new.id else 0,  # what an earlier one of this id still writes stands under others
            nonce=new.nonce and token_of(new.nonce),  # it may stand in a header
        )
        return self._view(await self._create(record))

    def check(self, new: NewBatch) -> tuple[str, Raw, str]:
        """Return the callback, the input and the encoding of a submission that can be made. Nothing is stored."""
        callback = self._checked_callback(new.callback or self._tasks.current(new.task).callback)
        if new.id:
            check_token("instance", new.id)
        if not 1 <= new.weight <= 1_000 or not -100 <= new.priority <= 100:
            raise BatchRefused(f"weight {new.weight}, priority {new.priority}: use 1 to 1000, and -100 to 100")
        input_json = _checked_input(new.input)
        if new.tenant:
            check_token("tenant", new.tenant)
        _check_begin(new, self._clock.now_ms())
        _check_name("name", new.name)
        _check_name("sheet", new.sheet)
        return callback, input_json, _checked_encoding(new.encoding)

    async def look(self, new: NewBatch, rows: Sequence[Raw], *, shown: int = SHOWN) -> RowsSeen:
        """Return how the task's code reads these rows, of a submission that can be made. Nothing is stored, and nothing
        runs."""
        self.check(new)
        if new.file:
            raise BatchRefused("file: a look takes rows; send the file over HTTP", field="file")
        if len(rows) > MOST_LOOKED_AT or not 0 <= shown <= MOST_LOOKED_AT:
            what = f"{len(rows)} rows, {shown} shown"
            raise BatchRefused(f"{what}: look at up to {MOST_LOOKED_AT} at a time", field="rows")
        if any(row_of(row) is None for row in rows):
            raise BatchRefused('rows: each is a number and cells, as [2, {"sku": "T-100"}]', field="rows")
        is_sheet = self._tasks.current(new.task).is_sheet
        seen = await self._look_at(new.task, rows, shown) if is_sheet and self._look_at is not None else None
        if seen is not None:
            return seen
        why = f"no process serves {new.task}; start one with `penstock work`, and look again"
        if not is_sheet:
            why = f"{new.task} has a split of its own, which makes the items when it runs"
        return replace(look_at(rows, readable_cells if is_sheet else cells_alone, str, shown=shown), unchecked=why)

    async def _predecessor(self, new: NewBatch) -> Instance | None:
        """Return the instance after whose end the new one begins. It was made before, so there are no circles."""
        if not new.after:
            return None
        try:
            before = await self._instances.get(new.after)
        except UnknownInstance as error:
            raise BatchRefused(f"after {new.after}: {error}", code="not_found", field="after") from error
        if before.deleted_ms:
            raise BatchRefused(f"after {new.after}: it is being deleted", code="not_found", field="after")
        return before

    def _checked_callback(self, url: str) -> str:
        if url in ("", NO_CALLBACK):
            return ""
        try:
            check_callback(url, self._callbacks)
        except BadCallback as error:
            raise BatchRefused(str(error), code="bad", field="callback") from error
        return url

    async def _sheet_input(self, instance_id: str, file: str, *, params: Raw, **named: str) -> Raw:
        info = await self._files.info(file) if is_upload_of(instance_id, file) else None
        if info is None:
            raise BatchRefused(
                f"file {file[:80]!a}: not in the object store; put it there as {instance_id}/upload-…, then submit it"
            )
        await self._check_fresh(instance_id, file)
        given = SheetInput(file=file, params=params, digest=info.digest, **named)
        return Raw(msgspec.json.encode(given))

    async def _check_fresh(self, instance_id: str, file: str) -> None:
        """Refuse a file that may be removed before its instance is made. A file that has its instance stays."""
        stored_ms = await self._files.stored_ms(file)
        if stored_ms is not None and stored_ms >= self._clock.now_ms() - FRESH_MS:
            return
        if self._instances.seen(instance_id) is None:
            raise BatchRefused(
                f"file {file[:80]!a}: it lies there for more than {FRESH_MS // 3_600_000} hours; send it again"
            )

    async def _create(self, record: Instance) -> Instance:
        """Store the record. Of two equal ones, with the same bytes in their files, the first stands. The other file is
        removed. One whose delete is under way is removed first."""
        try:
            first = await self._instances.create(record)
        except InstanceExists as taken:
            if not taken.first.deleted_ms:
                return await self._same(record, taken)
            first = taken.first
        except Repeated as gone:
            made = f"{record.instance_id} was made by an earlier try of this call, and deleted since; submit it anew"
            raise BatchRefused(made, code="state") from gone
        if not first.deleted_ms:
            return first
        await self._removal.remove(first)
        if (given := sheet_of(record.instance_id, record.input)) is not None:
            await self._sheet_input(record.instance_id, given.file, params=NOTHING)  # it may have been the same file
        return await self._create(record)

    async def _same(self, record: Instance, taken: InstanceExists) -> Instance:
        """Return the first instance, if the new one is the same. Else raise what says that it exists."""
        first, ours = (sheet_of(each.instance_id, each.input) for each in (taken.first, record))
        if ours is not None and (first is None or first.file != ours.file):
            await self._files.delete(ours.file)
        is_same_task = (taken.first.task, taken.first.tenant) == (record.task, record.tenant)
        if not is_same_task or first is None or ours is None or replace(first, file=ours.file) != ours:
            raise taken
        return taken.first

    async def show(self, instance_id: str) -> View:
        """Return an instance as it is now."""
        record = await self._instances.get(check_token("instance", instance_id))
        return self._view(record, await self._beat(record))

    async def why(self, instance_id: str, item: int | None = None, *, row: int | None = None) -> BatchWhy:
        """Return what keeps an instance from running, or one of its items, or the item of this row of its sheet."""
        record = await self._instances.get(check_token("instance", instance_id))
        if row is not None:
            [item] = await self._named(record, [] if item is None else [item], [row])
        limits = self._tasks.current(record.task).limits
        unfinished, missing = self._instances.unfinished(record.task), self._missing(record.task)
        found = why(
            record,
            limits,
            waits_for=self._waits_for(record),
            before=await self._how_far_is(record.after) if is_held(record) else "",
            running=sum(is_at_work(each) and not each.is_paused for each in unfinished),
            last_start_ms=self._instances.last_start_ms(record.task),
            now_ms=self._clock.now_ms(),
            missing=missing,
        )
        if item is None:
            return found
        if item < 0 or item >= (known_items(record) or item + 1):
            _check_items(record, [item])
        place = await self._place(record, item)
        return replace(why_item(found, record, limits, item, place, self._clock.now_ms(), missing=missing), row=row)

    async def _how_far_is(self, instance_id: str) -> str:
        """Return how far an instance is for which another one waits, in words."""
        try:
            before = await self._instances.get(instance_id)
        except UnknownInstance:
            return ""
        items = known_items(before)
        return f"; that is {shown_state(before)}" + (f", {before.counts.ended} of {items} items" if items else "")

    async def _place(self, record: Instance, index: int) -> ItemPlace:
        """Return what is known of an item."""
        made = made_so_far(record)
        low, high = 0, made.chunks if made is not None else 0
        while low < high:
            middle = (low + high) // 2
            chunk = await self._items.chunk(record, middle)
            if chunk is None:
                gap = await self._items.gap(record, middle)
                if index in gap.indexes:
                    [end] = last_outcomes(Chunk(first=index, items=(NOTHING,)), gap.results)
                    known = ("failed", LOST) if end is None or end.status == "again" else (end.status, _info(end))
                    return ItemPlace(gap.chunks.start, *known)
                low, high = (low, gap.chunks.start) if index < gap.indexes.start else (gap.chunks.stop, high)
            elif index < chunk.first:
                high = middle
            elif index >= chunk.first + len(chunk.items):
                low = middle + 1
            else:
                return await self._place_in(record, middle, chunk, index)
        return ItemPlace()

    async def _place_in(self, record: Instance, number: int, chunk: Chunk, index: int) -> ItemPlace:
        results = await self._items.results(record, [number], least_seq=record.counted_seq)
        end = list(last_outcomes(chunk, results[number]))[index - chunk.first]
        slots, full = self._tasks.of_any(record.task).slots, ""
        if slots is not None and self._full_key is not None and (end is None or end.status == "again"):
            key = key_reader(slots.key)(bytes(chunk.items[index - chunk.first]))
            full = await self._full_key(f"batch.{record.task}", key, slots.most)
        return ItemPlace(number, *(("", "") if end is None else (end.status, _info(end))), full)

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
        _check_most(most, MOST_SHOWN)
        at_ms, at_id = read_place(after)

        def is_wanted(record: Instance) -> bool:
            is_behind = not after or (-record.created_ms, record.instance_id) > (-at_ms, at_id)
            return is_behind and (not task or record.task == task) and tenant in (None, record.tenant)

        found = sorted(
            filter(is_wanted, self._instances.known()), key=lambda record: (-record.created_ms, record.instance_id)
        )
        views = (view for view in map(self._view, found) if (not state or view.state == state) and is_shown(view))
        return page_of(views, most, most_bytes, lambda view: view.place)

    async def items(
        self,
        instance_id: str,
        *,
        status: Wanted = "all",
        cursor: str = "",
        most: int = 100,
        most_bytes: int = PAGE_BYTES,
    ) -> ItemPage:
        """Return a page of an instance's items with the wanted status, in their order. A page may hold fewer than
        `most`, or none, and still not be the last."""
        _check_most(most, MOST_ITEMS)
        record = await self._whole(check_token("instance", instance_id))
        first, skip = _read_cursor(cursor)
        found: list[ItemShown] = []
        is_rows = self._is_rows(record)
        made = made_so_far(record)
        chunks = made.chunks if made is not None else 0
        size = 0
        for number in range(first, min(first + SCANNED, chunks)):
            for at, (view, own) in enumerate([each async for each in self._of_chunk(record, number, is_rows)]):
                if (number, at) < (first, skip) or (status != "all" and view.status != status):
                    continue
                if found and size + own > most_bytes:
                    return ItemPage(found, f"{number}.{at}")
                found.append(view)
                size += own
                if len(found) == most:
                    return ItemPage(found, f"{number}.{at + 1}")
        after = first + SCANNED
        return ItemPage(found, f"{after}.0" if after < chunks else "")

    async def _whole(self, instance_id: str) -> Instance:
        """Return an instance whose items are not being deleted: those would look lost."""
        record = await self._instances.get(instance_id)
        if record.deleted_ms:
            raise UnknownInstance(instance_id)
        return record

    async def sheet(self, instance_id: str, *, status: Wanted = "all") -> SheetHead:
        """Return how the sheet of an instance that is over is written. `items` has what is in it. With a status it is a
        sheet of these items alone, to be put right and handed in again."""
        record = await self._instances.get(check_token("instance", instance_id))
        if record.state not in FINAL:
            reason = f"{instance_id} is {shown_state(record)}; its sheet can be made when it is over"
            raise BatchRefused(reason, code="state")
        if made_so_far(record) is None:
            reason = f"{instance_id} is {record.state}, and none of its items is known"
            raise BatchRefused(f"{reason}{record.reason and f': {record.reason}'}", code="not_found", field="name")
        is_rows = self._is_rows(record)
        columns = dict[str, None]()
        is_headed = is_rows and await self._has_header(record)
        async for items in pages_of(lambda cursor: self.items(instance_id, cursor=cursor, most=MOST_ITEMS)):
            for item in items:
                columns |= dict.fromkeys(cells_of(item.index, item.item, is_rows=is_rows)[1])
            if (columns and is_headed) or len(columns) >= MOST_COLUMNS:
                break
        return head_of(list(columns), is_rows=is_rows, is_whole=status == "all")

    async def _has_header(self, record: Instance) -> bool:
        """Return whether the first row of an instance's upload named the columns, so that all rows have the same."""
        given = sheet_of(record.instance_id, record.input)
        info = None if given is None else await self._files.info(given.file)
        if info is None:
            return False
        async for start in self._files.read(info):
            return names_columns(start)
        return False

    async def _change(self, instance_id: str, meant: Meant, move: Callable[[Instance], Instance]) -> Instance:
        """Apply `move` to an instance, once for all tries of a call."""
        return await self._instances.move(check_token("instance", instance_id), meant.once(move))

    async def start(self, instance_id: str, meant: Meant = ANY) -> View:
        """Let it begin now, though it waits for its time or for the end of another one. A repeat changes nothing."""
        now_ms = self._clock.now_ms()
        record = await self._change(instance_id, meant, lambda before: moves.begin_now(before, now_ms))
        if record.state in FINAL:
            reason = f"{instance_id} is {record.state}; `penstock batch retry {instance_id}` runs it again"
            raise BatchRefused(reason, code="state")
        return self._view(record)

    async def pause(self, instance_id: str, meant: Meant = ANY) -> View:
        """Start nothing more of it. Running items end."""
        return self._view(await self._change(instance_id, meant, moves.pause))

    async def resume(self, instance_id: str, meant: Meant = ANY) -> View:
        """Go on with it."""
        return self._view(await self._change(instance_id, meant, moves.resume))

    async def cancel(self, instance_id: str, meant: Meant = ANY) -> View:
        """End it. Running items end, the rest is cancelled."""
        now_ms = self._clock.now_ms()
        return self._view(await self._change(instance_id, meant, lambda before: moves.cancel(before, now_ms)))

    async def retry(
        self, instance_id: str, items: Sequence[int] = (), *, rows: Sequence[int] = (), meant: Meant = ANY
    ) -> View:
        """Run failed or cancelled items again, or only these items, or those of these rows of the sheet, and make the
        result anew."""
        before = await self._instances.get(check_token("instance", instance_id))
        if meant.is_done(before):
            return self._view(before)
        if before.state not in FINAL:
            reason = f"{instance_id} is {shown_state(before)}; only what is done, failed or cancelled can be retried"
            raise BatchRefused(reason, code="state")
        _check_items(before, items)
        named = await self._named(before, items, rows)
        told = await self._reasons_of(before, named)
        after = await self._change(instance_id, meant, lambda record: moves.retry(record, named, told))
        if after.state == before.state:
            reason = f"{instance_id}: nothing failed, so there is nothing to run again; name items to do so"
            raise BatchRefused(reason, code="state")
        return self._view(after)

    def _is_rows(self, record: Instance) -> bool:
        """Return whether the items are rows of a sheet. If the task is not there any more, its input tells."""
        if record.task in self._tasks.known():
            return self._tasks.current(record.task).is_sheet
        return sheet_of(record.instance_id, record.input) is not None

    async def _named(self, record: Instance, items: Sequence[int], rows: Sequence[int]) -> Sequence[int]:
        """Return the indexes of these items, or of the items of these rows."""
        if not rows:
            return items
        if items:
            raise BatchRefused("items and rows: name one of them", field="rows")
        if len(rows) > MOST_ROWS:
            raise BatchRefused(f"{len(rows)} rows: name at most {MOST_ROWS}, or none for all that failed", field="rows")
        if not self._is_rows(record):
            raise BatchRefused(f"row {rows[0]}: items of {record.task} are no rows of a sheet; name items", field="row")
        return [await index_of_row(self._items, record, row) for row in rows]

    async def _reasons_of(self, record: Instance, items: Sequence[int]) -> list[str]:
        """Return those of the record's few reasons that are of these items."""
        named, found = set(items), list[str]()
        for reason in record.reasons if named else ():
            kind, _, number = reason.partition(":")[0].rpartition(" ")
            if number.isdecimal() and kind in ("item", "row"):
                index = int(number) if kind == "item" else await index_of_row(self._items, record, int(number))
                found += [reason] if index in named else []
        return found

    async def delete(self, instance_id: str, meant: Meant = ANY) -> View:
        """Remove an instance that is over, with its items and files. Return how it stood."""
        now_ms = self._clock.now_ms()
        record = await self._change(instance_id, meant, lambda before: moves.delete(before, now_ms))
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
        _check_most(most, MOST_SHOWN)
        names = (name for name in sorted(self._tasks.known()) if name > after and is_shown(name))
        return page_of(map(self._tasks.current, names), most, most_bytes, lambda record: record.task)

    async def limit(self, task: str, changes: Mapping[str, object]) -> TaskRecord:
        """Change some of a task's limits. `None` resets one to what the code says. They outlive a restart."""
        self._tasks.current(task)
        return await self._tasks.limit(task, lambda record: _changed(record, changes))

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

    async def _of_chunk(self, record: Instance, number: int, is_rows: bool) -> AsyncIterator[tuple[ItemShown, int]]:
        """Yield a chunk's items, each with its size in bytes. For missing chunks in a row, yield all at the first."""
        chunk = await self._items.chunk(record, number)
        rest = _NOT_ENDED if record.state not in FINAL else _LOST if record.gone else _CANCELLED
        if chunk is not None:
            found = await self._items.results(record, [number], least_seq=record.counted_seq)
            for pair in _views(chunk, found[number], rest, is_rows=is_rows):
                yield pair
        else:
            await self._whole(record.instance_id)
            gap = await self._items.lost(record, number)
            for part in lost_parts(gap.indexes.start, gap.indexes.stop):
                for pair in _views(part, gap.results, _LOST, is_rows=False):
                    yield pair


_NOT_ENDED: tuple[Status | None, str | None] = (None, None)
_LOST: tuple[Status | None, str | None] = ("failed", LOST)
_CANCELLED: tuple[Status | None, str | None] = ("cancelled", None)
"""How an item without an end stands: at work, in an instance that lost chunks, and in one that is over."""


def _views(
    chunk: Chunk, results: Sequence[ChunkResult], rest: tuple[Status | None, str | None], *, is_rows: bool
) -> Iterator[tuple[ItemShown, int]]:
    """Yield the items with their sizes. `rest`: how those without an end stand."""
    decode = msgspec.json.decode
    for index, (item, end) in enumerate(zip(chunk.items, last_outcomes(chunk, results), strict=True), chunk.first):
        size, row = len(bytes(item)) + ROOM_EACH, row_of(item) if is_rows else None
        if end is not None and end.status != "again":
            yield ItemShown(index, decode(item), end.status, decode(end.info), row), size + len(bytes(end.info))
        else:
            yield ItemShown(index, decode(item), *rest, row), size


def _info(end: Outcome) -> str:
    return "" if bytes(end.info) == b"null" else bytes(end.info).decode(errors="replace")[:MOST_INFO]


def _checked_input(given: Raw) -> Raw:
    """Return a copy, which keeps no request in memory."""
    raw = bytes(given)
    if len(raw) > INPUT_BYTES:
        raise BatchRefused(f"input: {len(raw)} bytes, at most {INPUT_BYTES}; send it as a file")
    return Raw(raw or b"null")


def _checked_encoding(name: str) -> str:
    known = known_encoding(name)
    if known is None:
        raise BatchRefused(unknown_encoding(name))
    return known


def _check_begin(new: NewBatch, now_ms: int) -> None:
    if not 0 <= new.delay_ms <= LONGEST_DELAY_MS:
        raise BatchRefused(f"delay_ms {new.delay_ms}: use 0 to {LONGEST_DELAY_MS}", field="delay_ms")
    if new.due_ms is not None and new.delay_ms:
        raise BatchRefused("due_ms and delay_ms: give one of them", field="due_ms")
    if new.due_ms is not None and not 0 <= new.due_ms <= now_ms + LONGEST_DELAY_MS:
        raise BatchRefused(f"due_ms {new.due_ms}: use a moment within ten years", field="due_ms")
    if new.after:
        check_token("after", new.after)
        if new.after == new.id:
            raise BatchRefused(f"after {new.after}: it would wait for itself", field="after")
    elif new.after_state != "done":
        raise BatchRefused(f"after_state {new.after_state}: say after which batch", field="after_state")


def _check_name(field: str, name: str) -> None:
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise BatchRefused(f"{field} {name[:80]!a}: use up to {LONGEST_NAME} printable characters")


def _check_most(most: int, largest: int) -> None:
    if not 1 <= most <= largest:
        raise BatchRefused(f"most {most}: use 1 to {largest}")


def _check_items(record: Instance, items: Sequence[int]) -> None:
    count = known_items(record) or 0
    if len(items) > MOST_REDONE:
        raise BatchRefused(f"{len(items)} items: name at most {MOST_REDONE}, or none for all that failed")
    for index in items:
        if not 0 <= index < count:
            raise BatchRefused(f"item {index}: {record.instance_id} has items 0 to {count - 1}")


def _changed(record: TaskRecord, changes: Mapping[str, object]) -> TaskLimits:
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
        raise BatchRefused(f"limits: {error}") from error
    except msgspec.ValidationError as error:
        known = ", ".join(TaskLimits.__struct_fields__)
        raise BatchRefused(f"limits: {error}; there are {known}") from error


def _read_cursor(cursor: str) -> tuple[int, int]:
    first, dot, second = cursor.partition(".")
    if not cursor:
        return 0, 0
    digits = first + second
    if not dot or not first or not second or len(cursor) > 20 or not (digits.isascii() and digits.isdecimal()):
        raise BatchRefused(f"cursor {cursor[:80]!a}: use the one of the page before, unchanged")
    return int(first), int(second)
