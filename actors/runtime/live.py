"""A live view of a bucket: its records followed, decoded and listened to.

In: the watch of a bucket. Out: calls of the listeners, each change once. State: the decoded records in memory; the
bucket is the truth.

The view may be run again, and the watch starts anew after each lost link. Each time, records that vanished while nobody
followed are dropped, and the listeners hear of them; records that did not change are not decoded again
(`actors/runtime/rules/known_records.py`). A record that cannot be read costs itself alone: it is logged once and kept
out.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import anyio
from anyio.abc import TaskStatus

from actors.runtime.logs import fields
from actors.runtime.rules.known_records import KnownRecords
from streams.bucket import Bucket
from streams.entries import Change, Entry, Synced

log = logging.getLogger(__name__)

R = TypeVar("R")
Listener = Callable[[str], None]


class Live(Generic[R]):
    """The records under `pattern`; cheap to look at at any time. `read` makes of an entry what is kept; if it raises,
    the record is unreadable, and the event `unreadable` is logged. Of an unreadable record the view has no
    value; with `keeps_last` it has the last one that could be read."""

    def __init__(
        self,
        bucket: Bucket[bytes],
        read: Callable[[Entry[bytes]], R],
        *,
        unreadable: str = "record.unreadable",
        pattern: str = ">",
        keeps_last: bool = False,
    ) -> None:
        self._bucket = bucket
        self._read = read
        self._unreadable = unreadable
        self._pattern = pattern
        self._keeps_last = keeps_last
        self._records: KnownRecords[R] = KnownRecords()
        self._listeners: list[Listener] = []

    def __contains__(self, key: str) -> bool:
        """Whether there is a record, readable or not."""
        return key in self._records

    def __len__(self) -> int:
        """How many records there are, readable or not."""
        return len(self._records)

    def get(self, key: str) -> R | None:
        """Return a record; `None` if there is none, or none that can be read."""
        known = self._records.get(key)
        return None if known is None else known.value

    def items(self) -> Iterator[tuple[str, R]]:
        """Yield the records that can be read, by key."""
        return self._records.items()

    def fault(self, key: str) -> str:
        """Return why the stored record cannot be read; empty if it can, or if there is none."""
        known = self._records.get(key)
        return "" if known is None else known.fault

    def on_change(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with the key of each record that came, changed or went; it must be short. Return its
        remover."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def learn(self, key: str, value: R, revision: int) -> None:
        """Take a record that this process wrote or read itself, before the watch reports it."""
        if self._records.learn(key, value, revision):
            self._tell(key)

    def drop(self, key: str) -> None:
        """Forget a record that is gone, before the watch reports it."""
        if self._records.drop(key):
            self._tell(key)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Follow the bucket until cancelled; started once all present records are known. Raises NoStream, Refused."""
        is_started = False
        async with self._bucket.watch(self._pattern, on_reading=self._records.begin) as changes:
            async for change in changes:
                if isinstance(change, Synced):
                    for key in self._records.end():
                        self._tell(key)
                    if not is_started:  # there is one after each reading
                        is_started = True
                        task_status.started()
                else:
                    self._hear(change)

    def _hear(self, change: Change[bytes]) -> None:
        key, entry = change
        if entry is None:
            self.drop(key)
        elif self._records.is_news(key, entry.revision, entry.stored_ms):
            value, fault = self._made(entry)
            self._records.hear(key, value, entry.revision, entry.stored_ms, fault=fault)
            self._tell(key)

    def _made(self, entry: Entry[bytes]) -> tuple[R | None, str]:
        """Return the record, and why it cannot be read."""
        try:
            return self._read(entry), ""
        except Exception as error:  # people write records by hand; no record may end the view of the others
            last = self.get(entry.key) if self._keeps_last else None
            facts = fields(key=entry.key, error=str(error), keeps_last=last is not None)
            log.warning(self._unreadable, extra=facts)
            return last, str(error)

    def _tell(self, key: str) -> None:
        for listener in tuple(self._listeners):
            listener(key)
