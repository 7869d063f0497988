"""The existing instances: one record each in INSTANCES, followed live, changed only by compare-and-set.

A change is a move of `actors/batch/rules/moves.py`: a plain function from the record to the next one. After a conflict
the record is read and the move is applied again, and also after a write whose reply was lost. So a move must be
harmless when it is applied twice. All of them are. Records that do not decode are logged once and kept out.
"""

from collections.abc import Callable, Iterator

import msgspec
from anyio.abc import TaskStatus
from msgspec.structs import replace

from actors.batch.rules import moves
from actors.batch.rules.meant import called_before, note_of
from actors.batch.rules.newest import LATEST, Newest
from actors.batch.rules.record import FINAL, Instance, is_held
from actors.batch.rules.unfinished import Unfinished
from actors.runtime.live import Live
from streams.buckets.bucket import Bucket
from streams.buckets.entries import Entry
from streams.errors import MalformedMessage, Repeated, RevisionConflict
from streams.messages.batch import NOTHING

TRIES = 20
GONE_S = 3_600
"""For how many seconds a deletion stays visible. A node that was away for longer reads everything anew."""
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Instance).decode


class UnknownInstance(Exception):
    """There is no instance of this id, or it was removed after its time."""

    def __init__(self, instance_id: str) -> None:
        super().__init__(f"no batch {instance_id[:80]!a}; `penstock batch list` shows those that there are")


class InstanceExists(Exception):
    """An instance of this id was made before, for another input."""

    def __init__(self, first: Instance) -> None:
        super().__init__(
            f"batch {first.instance_id!a} exists, of task {first.task!a} with another input; choose another id"
        )
        self.first = first


def decode_instance(raw: bytes) -> Instance:
    """Return the record, or raise MalformedMessage."""
    try:
        return _decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"no record of an instance: {error}") from error


class Instances:
    """A live view of all instances, and the way to change one. `run` follows them. `get` and `move` need no `run`. The
    view holds the records without their inputs, which may be long. `get` reads one with its input."""

    def __init__(self, bucket: Bucket[bytes]) -> None:
        self._bucket = bucket
        self._live = Live(bucket, lambda entry: _kept(decode_instance(entry.raw)), unreadable="instance.unreadable")
        self._live.on_change(self._sort)
        self._newest = Newest()
        self._unfinished: dict[str, Unfinished] = {}
        self._task_of: dict[str, str] = {}
        self._last_starts_ms: dict[str, int] = {}
        self._followers: dict[str, set[str]] = {}
        self._followed_by: dict[str, str] = {}

    def known(self) -> Iterator[Instance]:
        """Yield all instances as last seen."""
        return (record for _, record in self._live.items())

    def behind(self, place: tuple[int, str] = LATEST) -> Iterator[Instance]:
        """Yield the instances behind a place, the newest first, as last seen. They may change meanwhile."""
        seen = map(self.seen, self._newest.behind(place))
        return (record for record in seen if record is not None)

    def unfinished(self, task: str) -> Unfinished:
        """Return a task's instances that have not ended, as last seen. They go on changing."""
        return self._unfinished.get(task) or Unfinished()

    def is_at_work(self, task: str) -> bool:
        """Return whether an instance of the task is at work, or was when it was last seen."""
        return bool(self.unfinished(task).at_work)

    def task_of(self, instance_id: str) -> str:
        """Return the task of an instance that has not ended. Empty if there is none."""
        return self._task_of.get(instance_id, "")

    def all_unfinished(self) -> Iterator[Instance]:
        """Yield the instances that have not ended, of all tasks, as last seen."""
        return (record for of_task in self._unfinished.values() for record in of_task)

    def followers(self, instance_id: str) -> list[Instance]:
        """Return the instances that wait for the end of this one, as last seen."""
        seen = map(self.seen, self._followers.get(instance_id, ()))
        return [record for record in seen if record is not None]

    def last_start_ms(self, task: str) -> int:
        """Return when the last of a task's instances began, as last seen. 0 if none has."""
        return self._last_starts_ms.get(task, 0)

    def seen(self, instance_id: str) -> Instance | None:
        """Return an instance as last seen."""
        return self._live.get(instance_id)

    def on_change(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call `listener` with the id of each instance that changed or vanished. It must be short. Return a function
        that removes the listener."""
        return self._live.on_change(listener)

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Follow the bucket until cancelled. Started once all present records are known."""
        await self._live.run(task_status=task_status)

    async def get(self, instance_id: str) -> Instance:
        """Read an instance. Raises UnknownInstance, MalformedMessage, Disconnected."""
        entry = await self._bucket.get(instance_id)
        if entry is None:
            raise UnknownInstance(instance_id)
        return decode_instance(entry.raw)

    async def create(self, record: Instance) -> Instance:
        """Store a new instance, and return it. A repeat with the same task and input returns the first one in its
        present state. Any other record under its id raises InstanceExists. A try of a call whose instance was deleted
        since raises Repeated."""

        def heir(note: str) -> bytes:
            gone, calls = called_before(note)
            if record.nonce and gone == record.nonce:
                raise Repeated("it was stored before, and deleted since", subject=record.instance_id)
            return _encode(replace(record, calls=calls))

        try:
            await self._bucket.create(record.instance_id, _encode(record), heir=heir)
        except Repeated:
            raise
        except RevisionConflict:
            first = await self.get(record.instance_id)
            if (first.task, first.input, first.tenant) != (record.task, record.input, record.tenant):
                raise InstanceExists(first) from None
            return first
        return record

    async def move(self, instance_id: str, move: Callable[[Instance], Instance]) -> Instance:
        """Apply `move` to the stored record, store the result if it is another object, and return the record that is
        stored now. Raises UnknownInstance, RevisionConflict after many conflicts, OutcomeUnknown, Disconnected."""

        def change(entry: Entry[bytes] | None) -> tuple[bytes | None, Instance]:
            if entry is None:
                raise UnknownInstance(instance_id)
            before = decode_instance(entry.raw)
            after = move(before)
            return (None if after is before else _encode(after)), after

        record, revision = await self._bucket.update(instance_id, change, tries=TRIES)
        if instance_id in self._live:  # so that work is counted before the watch reports it
            self._live.learn(instance_id, _kept(record), revision)
        return record

    async def move_own(self, own: Instance, move: Callable[[Instance], Instance]) -> Instance:
        """Apply `move` as above, but to this instance alone. If it was deleted and its id is another's now, that raises
        UnknownInstance."""

        def checked(before: Instance) -> Instance:
            if before.created_ms != own.created_ms:
                raise UnknownInstance(own.instance_id)
            return move(before)

        return await self.move(own.instance_id, checked)

    async def follow(self, held: Instance, now_ms: int) -> None:
        """Let an instance that waits for another one go on, or fail, if that is over. One that was retried since `held`
        was read looks anew: what is read here may be older than the retries. Raises as `move` does, and
        MalformedMessage."""
        try:
            before: Instance | None = await self.get(held.after)
        except UnknownInstance:
            before = None

        def follow(record: Instance) -> Instance:
            return moves.follow(record, before, now_ms) if record.passes == held.passes else record

        await self.move_own(held, follow)

    async def is_there(self, own: Instance) -> bool:
        """Return whether this instance is still the one of its id. It costs a read only where the view has another, or
        none."""
        seen = self.seen(own.instance_id)
        try:
            return (seen or await self.get(own.instance_id)).created_ms == own.created_ms
        except UnknownInstance:
            return False

    async def remove(self, own: Instance) -> None:
        """Remove a record for good, but none of a later instance of its id. A repeat is harmless."""
        while (entry := await self._bucket.get(own.instance_id)) is not None:
            record = decode_instance(entry.raw)
            if record.created_ms != own.created_ms:
                return
            try:
                await self._bucket.delete(own.instance_id, revision=entry.revision, ttl_s=GONE_S, note=note_of(record))
            except RevisionConflict:  # a call was recorded in it meanwhile
                continue
            return

    def _sort(self, instance_id: str) -> None:
        """Keep the unfinished instances of each task apart. A removed id may be another task's later."""
        if (task := self._task_of.pop(instance_id, None)) is not None:
            self._unfinished[task].drop(instance_id)
        if followed := self._followed_by.pop(instance_id, ""):
            self._followers[followed].discard(instance_id)
            if not self._followers[followed]:
                del self._followers[followed]
        record = self._live.get(instance_id)
        if record is None:
            self._newest.drop(instance_id)
            return
        self._newest.put(instance_id, record.created_ms)
        if is_held(record):
            self._followed_by[instance_id] = record.after
            self._followers.setdefault(record.after, set()).add(instance_id)
        self._last_starts_ms[record.task] = max(self.last_start_ms(record.task), record.started_ms)
        if record.state not in FINAL:
            self._task_of[instance_id] = record.task
            self._unfinished.setdefault(record.task, Unfinished()).put(record)


def _kept(record: Instance) -> Instance:
    """Return the part of a record that stays in memory as long as the instance exists. `result` is a copy, since a
    decoded value keeps the whole message in memory."""
    return msgspec.structs.replace(record, input=NOTHING, result=msgspec.Raw(bytes(record.result)))
