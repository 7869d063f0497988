"""A live view of a bucket. It follows and decodes the records, and calls listeners.

In: the watch of a bucket. Out: calls of the listeners, once for each change. State: the decoded records in memory. The
bucket is the truth.

The view may be run again, and the watch starts anew after each lost link. Each time, the view drops records that
vanished while nobody followed, and calls the listeners for them. It does not decode unchanged records again
(`actors/runtime/rules/known_records.py`). An unreadable record does not affect the others: it is logged once and kept
out.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

import anyio
from anyio.abc import TaskStatus

from actors.runtime.logs import fields
from actors.runtime.rules.known_records import KnownRecords
from streams.buckets.bucket import Bucket
from streams.buckets.entries import Change, Entry, Synced

log = logging.getLogger(__name__)

R = TypeVar("R")
Listener = Callable[[str], None]
AT_ONCE = 32
"""Records that are decoded before others have their turn. A thousand schedules take 40 ms."""


class Live(Generic[R]):
    """The records under `pattern`. Reads are cheap at any time. `read` turns an entry into the value that the view
    keeps. If it raises, the record is unreadable, and the event `unreadable` is logged. The view has no value of an
    unreadable record. With `keeps_last` it keeps the last readable value. `changed`: the event that tells how the
    `settings` of a record were before and after each change of them."""

    def __init__(
        self,
        bucket: Bucket[bytes],
        read: Callable[[Entry[bytes]], R],
        *,
        unreadable: str = "record.unreadable",
        pattern: str = ">",
        keeps_last: bool = False,
        changed: str = "",
        settings: Callable[[R], Mapping[str, object]] = lambda _record: {},
    ) -> None:
        self._bucket = bucket
        self._read = read
        self._unreadable = unreadable
        self._pattern = pattern
        self._keeps_last = keeps_last
        self._changed = changed
        self._settings = settings
        self._records: KnownRecords[R] = KnownRecords()
        self._listeners: list[Listener] = []
        self.seen = 0
        """The revision of the last record that the watch has reported."""

    def __contains__(self, key: str) -> bool:
        """Return whether there is a record, readable or not."""
        return key in self._records

    def __len__(self) -> int:
        """Return how many records there are, readable or not."""
        return len(self._records)

    def get(self, key: str) -> R | None:
        """Return a record. `None`: there is none, or it cannot be read."""
        known = self._records.get(key)
        return None if known is None else known.value

    def items(self) -> Iterator[tuple[str, R]]:
        """Yield the readable records with their keys."""
        return self._records.items()

    def revision(self, key: str) -> int:
        """Return the revision of a record, readable or not. 0: there is none."""
        known = self._records.get(key)
        return 0 if known is None else known.revision

    def fault(self, key: str) -> str:
        """Return why the stored record cannot be read. Empty if it can, or if there is none."""
        known = self._records.get(key)
        return "" if known is None else known.fault

    def on_change(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with the key of each record that came, changed or went. It must be short. Return a function
        that removes the listener."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def learn(self, key: str, value: R, revision: int) -> None:
        """Take a record that this process wrote or read itself, before the watch reports it."""
        before = self.get(key)
        if self._records.learn(key, value, revision):
            self._tell(key, before, value)
            self._notify(key)

    def drop(self, key: str) -> None:
        """Forget a record that is gone, before the watch reports it."""
        if self._records.drop(key):
            self._notify(key)

    def forget(self) -> None:
        """Forget all records, without a word to the listeners. Not while `run` runs."""
        self._records = KnownRecords()

    async def refresh(self, *keys: str) -> None:
        """Take what the leader has now, of all records or of these. The watch may be behind: a little, after a write at
        another node, and more after the process stood still. Raises NoStream, Disconnected."""
        for entry in await (self._bucket.entries_of(keys) if keys else self._bucket.entries(self._pattern)):
            if entry.revision > self.revision(entry.key):
                value, fault = self._made(entry)
                if value is not None and not fault:  # the watch reports the others
                    self.learn(entry.key, value, entry.revision)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Follow the bucket until cancelled. Started once all present records are known. Raises NoStream, Refused."""
        is_started, heard = False, 0
        async with self._bucket.watch(self._pattern, on_reading=self._records.begin) as changes:
            async for change in changes:
                if isinstance(change, Synced):
                    for key in self._records.end():
                        self._notify(key)
                    if not is_started:  # a Synced follows each reading
                        is_started = True
                        task_status.started()
                else:
                    self._hear(change)
                    heard += 1
                    if heard % AT_ONCE == 0:
                        await anyio.lowlevel.checkpoint()

    def _hear(self, change: Change[bytes]) -> None:
        key, entry = change
        if entry is None:
            self.drop(key)
        elif self._records.is_news(key, entry.revision, entry.stored_ms):
            value, fault = self._made(entry)
            self._tell(key, self.get(key), value)
            self._records.hear(key, value, entry.revision, entry.stored_ms, fault=fault)
            self._notify(key)
        if entry is not None:
            self.seen = entry.revision

    def _made(self, entry: Entry[bytes]) -> tuple[R | None, str]:
        """Return the record, and why it cannot be read."""
        try:
            return self._read(entry), ""
        except Exception as error:  # people write records by hand: no record may end the view of the others
            last = self.get(entry.key) if self._keeps_last else None
            facts = fields(key=entry.key, error=str(error), keeps_last=last is not None)
            log.warning(self._unreadable, extra=facts)
            return last, str(error)

    def _tell(self, key: str, before: R | None, after: R | None) -> None:
        if self._changed and before is not None and after is not None:
            was, now = dict(self._settings(before)), dict(self._settings(after))
            names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
            if names:
                facts = {
                    "before": {name: was.get(name) for name in names},
                    "after": {name: now.get(name) for name in names},
                }
                log.info(self._changed, extra=fields(key=key, **facts))

    def _notify(self, key: str) -> None:
        for listener in tuple(self._listeners):
            listener(key)
