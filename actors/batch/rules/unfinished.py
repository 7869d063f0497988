"""The instances of one task that have not ended, sorted as they come, so that what begins next is found without a look
at all that wait. Pure."""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator
from typing import TypeVar

from actors.batch.rules.record import FINAL, Instance, is_held

Row = tuple[int, int, str]
"""The urgency, the weight and the tenant of those that wait in the same row."""
K = TypeVar("K", bound=tuple[object, ...])


class Unfinished:
    """A task's unfinished instances. `at_work`: those that have begun. `held`: those that wait for the end of another
    one. `rows`: those that may begin, in order, each as the time of its making and its id. A paused or cancelled one is
    in no row."""

    def __init__(self) -> None:
        self.at_work: dict[str, Instance] = {}
        self.held: dict[str, Instance] = {}
        self.rows: dict[Row, list[tuple[int, str]]] = defaultdict(list)
        self._all: dict[str, Instance] = {}
        self._later: list[tuple[int, str]] = []

    def __iter__(self) -> Iterator[Instance]:
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, instance_id: str) -> Instance:
        return self._all[instance_id]

    def put(self, record: Instance) -> None:
        """Take a record in place of the earlier one of its id."""
        self.drop(record.instance_id)
        if record.state in FINAL:
            return
        self._all[record.instance_id] = record
        if record.state != "pending":
            self.at_work[record.instance_id] = record
        elif is_held(record):
            self.held[record.instance_id] = record
        elif not record.is_paused and not record.is_cancelling:
            if record.due_ms:
                insort(self._later, (record.due_ms, record.instance_id))
            else:
                insort(self.rows[_row(record)], _place(record))

    def drop(self, instance_id: str) -> None:
        """Forget an instance, if there is one of this id."""
        record = self._all.pop(instance_id, None)
        if record is None:
            return
        self.at_work.pop(instance_id, None)
        self.held.pop(instance_id, None)
        _remove(self._later, (record.due_ms, instance_id))
        if (row := _row(record)) in self.rows:
            _remove(self.rows[row], _place(record))
            if not self.rows[row]:
                del self.rows[row]

    def come_due(self, now_ms: int) -> int | None:
        """Let those whose time has come into their rows. Return when the next one's comes. `None`: there is none."""
        count = bisect_left(self._later, (now_ms + 1, ""))
        for _, instance_id in self._later[:count]:
            record = self._all[instance_id]
            insort(self.rows[_row(record)], _place(record))
        del self._later[:count]
        return self._later[0][0] if self._later else None


def _row(record: Instance) -> Row:
    return -record.priority, record.weight, record.tenant


def _place(record: Instance) -> tuple[int, str]:
    return record.created_ms, record.instance_id


def _remove(there: list[K], one: K) -> None:
    at = bisect_left(there, one)
    if at < len(there) and there[at] == one:
        del there[at]
