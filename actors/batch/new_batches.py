"""Makes instances of the batches that are submitted: checks them, takes the file, stores the record."""

import secrets
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from actors.batch.callback_transport import BadCallback, check_callback
from actors.batch.instances import InstanceExists, Instances, UnknownInstance
from actors.batch.removal import Removal
from actors.batch.rules.callbacks import Allowed
from actors.batch.rules.encodings import known_encoding, unknown_encoding
from actors.batch.rules.record import Instance
from actors.batch.rules.refusals import BatchRefused
from actors.batch.rules.row_looks import MOST_LOOKED_AT, SHOWN, cells_alone, look_at, readable_cells
from actors.batch.rules.sheet_lines import row_of
from actors.batch.tasks import Tasks
from actors.batch.uploads import FRESH_MS
from actors.batch.views import UPLOAD_BYTES, SheetInput, is_upload_of, sheet_of, upload_name
from actors.runtime.rules.depth import DEEPEST, is_too_deep
from actors.runtime.rules.traceparents import is_traceparent
from actors.runtime.tracing import traces
from streams.buckets.files import Files
from streams.clock import Clock
from streams.errors import Repeated
from streams.messages.batch import NOTHING, NewBatch, RowsSeen
from streams.messages.jobs import LONGEST_DELAY_MS
from streams.subjects import check_token, token_of

INPUT_BYTES = 64 * 1024
"""Limit in bytes of an input that is given as JSON: it stands in the instance's record, which every step writes."""
LONGEST_NAME = 255
NO_CALLBACK = "none"
"""In place of a URL: no callback, whatever the task says."""


class NewBatches:
    """What is submitted to one desk. `look_at(task, rows, shown)`: how a process of the task reads rows. `None`: none
    serves it. For the rest, and for what is raised, see `BatchDesk`."""

    def __init__(
        self,
        *,
        tasks: Tasks,
        instances: Instances,
        files: Files,
        removal: Removal,
        clock: Clock,
        callbacks: Allowed,
        admit: Callable[[str], None],
        look_at: Callable[[str, Sequence[Raw], int], Awaitable[RowsSeen | None]] | None,
    ) -> None:
        self._tasks = tasks
        self._instances = instances
        self._files = files
        self._removal = removal
        self._clock = clock
        self._callbacks = callbacks
        self._admit = admit
        self._look_at = look_at

    async def submit(self, new: NewBatch, *, upload: AsyncIterable[bytes] | None = None) -> Instance:
        """Make an instance. `upload`: a file to run it on, in place of one that `new` names. A repeat under the
        caller's own id is the same instance, which stays as it was made first."""
        self._admit("batches")
        callback, input_json, encoding = self.check(new, has_file=upload is not None or bool(new.file))
        before = await self._predecessor(new)
        chosen = check_token("batch", new.id or secrets.token_hex(8))
        file = new.file
        if upload is not None:
            file = upload_name(chosen)
            await self._files.put(file, self._while_room(upload), most_bytes=UPLOAD_BYTES, description=new.name)
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
        return await self._create(record)

    def check(self, new: NewBatch, *, has_file: bool) -> tuple[str, Raw, str]:
        """Return the callback, the input and the encoding of a submission that can be made. Nothing is stored."""
        task = self._tasks.named(new.task)
        if task.is_sheet and not has_file:
            raise BatchRefused(f"file: the items of {new.task} are the rows of a file; give one", field="file")
        callback = self._checked_callback(new.callback or task.callback)
        if new.id:
            check_token("batch", new.id)
        if not 1 <= new.weight <= 1_000 or not -100 <= new.priority <= 100:
            raise BatchRefused(f"weight {new.weight}, priority {new.priority}: use 1 to 1000, and -100 to 100")
        input_json = _checked_input(new.input)
        if new.tenant:
            check_token("tenant", new.tenant)
        _check_begin(new, self._clock.now_ms())
        _check_name("name", new.name)
        _check_name("sheet", new.sheet)
        return callback, input_json, _checked_encoding(new.encoding)

    def check_upload(self, new: NewBatch) -> None:
        """Return if a submission can be made, and there is room for its file, which the submitter stores by itself."""
        self._admit("batches")
        self.check(new, has_file=True)

    async def look(self, new: NewBatch, rows: Sequence[Raw], *, shown: int = SHOWN) -> RowsSeen:
        """Return how the task's code reads these rows, of a submission that can be made. Nothing is stored, and nothing
        runs."""
        self.check(new, has_file=True)
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

    async def _while_room(self, upload: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        """Yield the parts of a file while there is room: it may be larger than what is kept for settles and deletes."""
        async for part in upload:
            self._admit("batches")
            yield part

    async def _predecessor(self, new: NewBatch) -> Instance | None:
        """Return the instance after whose end the new one begins. It was made before, so there are no circles. A repeat
        of a submission may find it no more."""
        if not new.after:
            return None
        before: Instance | None = None
        try:
            before = await self._instances.get(new.after)
            why = "it is being deleted" if before.deleted_ms else ""
        except UnknownInstance as error:
            why = str(error)
        if why and not await self._is_made(new.id):
            raise BatchRefused(f"after {new.after}: {why}", code="not_found", field="after")
        return before

    async def _is_made(self, instance_id: str) -> bool:
        try:
            return bool(instance_id) and not (await self._instances.get(instance_id)).deleted_ms
        except UnknownInstance:
            return False

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


def _checked_input(given: Raw) -> Raw:
    """Return a copy, which keeps no request in memory."""
    raw = bytes(given)
    if len(raw) > INPUT_BYTES:
        raise BatchRefused(f"input: {len(raw)} bytes, at most {INPUT_BYTES}; send it as a file")
    try:
        msgspec.json.decode(raw or b"null")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BatchRefused(f"input: {error}", field="input") from error
    if is_too_deep(given):
        raise BatchRefused(f"input: nested too deeply; use at most {DEEPEST} levels", field="input")
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
