"""When which delayed job is due, and who fires it: a timer, or the server by its own schedule. Pure.

A job is known here only by its name, `topic.key`. The job itself is read shortly before it is due. So an outdated entry
(the job was cancelled, replaced, fired) does no harm: it finds no job or a later one. The name's checksum decides to
which of the `PARTITIONS` it belongs. One timer at a time holds each of them.

Memory is bounded. When the entries exceed it, the later half of them is dropped. From `horizon_ms` on, jobs are not
known any more. The owner of the times reads the stream again before that.

Who fires. The server loads the schedules that are due and stores what they fire **without a second look**. If it
processes a timer's publish in between, that makes a second copy. A publish processed before the schedule's own time
never does. The server's time is later than the job's by a backstop. The timer fires only jobs whose publish will
certainly be processed before it (`may_fire`, by the recent round trips), and it fires no more while the server is
silent. All others are left to the server (ADR 14).
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple
from zlib import crc32

PARTITIONS = 8
"""How many timers can share the work. A constant of the installation: those who add and those who fire must agree."""
MARGIN_MS = 8.0
"""How long a publish may wait in our own process after the look at the clock, and the difference of the clocks."""
FEW = 8
MEMORY_MS = 1_000
UNKNOWN_TRIP_MS = 1.0
EACH_MS = 0.1
"""The time that the server needs for one conditional publish, at most."""
PATIENCE_MS = 2.0
PATIENT_TRIPS = 2
MOST_BYTES = 160_000_000
"""About two million jobs with names of 30 characters. A node uses 250 MB for a million."""
MOST_SHARED = 50_000
"""A timer with more jobs of a partition does not pass them on: it sorts them for each request, and fires nothing
meanwhile."""
_DUE_BYTES = 6
_LATEST_MS = 2 ** (8 * _DUE_BYTES) - 1
_OVERHEAD = 48
"""Bytes of a Python bytes object beside its content, rounding, and the heap's place for it."""
_SAMPLES = 1_000


class Due(NamedTuple):
    """A job that may be due at `due_ms`."""

    due_ms: int
    name: bytes


def partition_of(name: str | bytes) -> int:
    """Return the partition of the job `topic.key`."""
    return crc32(name.encode() if isinstance(name, str) else name) % PARTITIONS


class DueTimes:
    """The due times of the kept partitions, earliest first.

    An entry is one bytes object, due time and name: they sort by time, and cost some 80 bytes each.
    """

    def __init__(self, *, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._heaps: dict[int, list[bytes]] = {}
        self._bytes = 0
        self.horizon_ms: int | None = None

    def __len__(self) -> int:
        return sum(map(len, self._heaps.values()))

    @property
    def kept(self) -> frozenset[int]:
        """The kept partitions."""
        return frozenset(self._heaps)

    def keep(self, partition: int) -> None:
        """Keep a partition from now on. A repeat does nothing."""
        self._heaps.setdefault(partition, [])

    def drop(self, partition: int) -> None:
        """Keep the partition no longer."""
        self._bytes -= sum(map(_size, self._heaps.pop(partition, [])))

    def add(self, jobs: Iterable[tuple[int, bytes]], only: Collection[int] | None = None) -> None:
        """Take due times and names of jobs, but not those whose partition is not kept (or not one of `only`), or that
        are beyond the horizon. A repeat does no harm. A time before 1970 counts as 1970, one after the year 10,000 as
        never."""
        heaps = {n: heap for n, heap in self._heaps.items() if only is None or n in only}
        end_ms = _LATEST_MS if self.horizon_ms is None else self.horizon_ms - 1
        size = 0
        for due_ms, name in jobs:
            heap = heaps.get(crc32(name) % PARTITIONS)
            if heap is not None and due_ms <= end_ms:
                entry = _entry(due_ms, name)
                heappush(heap, entry)
                size += len(entry) + _OVERHEAD
        self._bytes += size
        while self._bytes > self._most_bytes:
            self._shed()

    def has_any(self, partition: int) -> bool:
        """Return whether a job of the partition is known."""
        return bool(self._heaps.get(partition))

    def next_ms(self, only: Collection[int]) -> int | None:
        """Return the earliest due time of these partitions, or None if there is none."""
        first = min((heap[0] for heap in self._of(only) if heap), default=None)
        return None if first is None else _due_of(first)

    def after(self, partition: int, last: Due | None, most: int) -> list[Due] | None:
        """Return up to `most` jobs of a partition, those after `last`, earliest first. `None`: there are more than
        `MOST_SHARED`, or some were dropped for lack of memory."""
        heap = self._heaps[partition]
        if len(heap) > MOST_SHARED or self.horizon_ms is not None:
            return None
        heap.sort()  # still a heap, and nearly sorted at the next call
        begin = 0 if last is None else bisect_right(heap, _entry(*last))
        return [Due(_due_of(entry), entry[_DUE_BYTES:]) for entry in heap[begin : begin + most]]

    def pass_over(self, until_ms: int, only: Collection[int], most: int) -> int:
        """Drop up to `most` jobs of these partitions that are due by `until_ms`: others fire them. Return how many. A
        thousand take some 2 ms, and a crowd has hundreds of thousands."""
        left = most
        for heap in self._of(only):
            while heap and left and _due_of(heap[0]) <= until_ms:
                self._bytes -= _size(heappop(heap))
                left -= 1
        return most - left

    def take(self, until_ms: int, most: int, only: Collection[int]) -> list[Due]:
        """Remove and return up to `most` jobs of these partitions that are due by `until_ms`, earliest first, each
        once."""
        taken: list[Due] = []
        last = b""
        heaps = self._of(only)
        while len(taken) < most:
            heap = min((heap for heap in heaps if heap), key=_first, default=None)
            if heap is None or _due_of(heap[0]) > until_ms:
                break
            entry = heappop(heap)
            self._bytes -= _size(entry)
            if entry != last:
                taken.append(Due(_due_of(entry), entry[_DUE_BYTES:]))
                last = entry
        return taken

    def _of(self, only: Collection[int]) -> list[list[bytes]]:
        return [heap for n, heap in self._heaps.items() if n in only]

    def _shed(self) -> None:
        """Drop the later half, by the median of a sample."""
        sample = sorted(
            entry for heap in self._heaps.values() for entry in heap[:: max(1, len(heap) * PARTITIONS // _SAMPLES)]
        )
        self.horizon_ms = _due_of(sample[len(sample) // 2])
        end = self.horizon_ms.to_bytes(_DUE_BYTES, "big")
        for partition, heap in self._heaps.items():
            kept = [entry for entry in heap if entry < end]
            heapify(kept)
            self._heaps[partition] = kept
        self._bytes = sum(_size(entry) for heap in self._heaps.values() for entry in heap)


class RoundTrips:
    """How long the server takes to process a publish, by the latest round trips. All times are milliseconds of one
    clock.

    The shortest trip counts: in the long ones our own process mostly waits for its turn to read the reply. If the
    server itself is slow, the shortest one is long too. A trip is forgotten after `MEMORY_MS`, so that after a slow
    time the timer tries again.
    """

    def __init__(self) -> None:
        self._trips: deque[tuple[float, float]] = deque(maxlen=FEW)

    def took(self, trip_ms: float, at_ms: float) -> None:
        """Record a trip that ended at `at_ms`."""
        self._trips.append((trip_ms, at_ms))

    def expected_ms(self, at_ms: float, in_flight: int) -> float:
        """Return how many ms the next one will take with so many before it."""
        recent = (trip_ms for trip_ms, ended_ms in self._trips if at_ms - ended_ms <= MEMORY_MS)
        return min(recent, default=UNKNOWN_TRIP_MS) + in_flight * EACH_MS

    def patience_ms(self, at_ms: float) -> float:
        """Return how many ms the oldest publish may stay without a reply before it delays the others. A server that
        stands still processes pending publishes when it goes on, just when it fires overdue jobs. The fewer publishes
        are pending, the fewer jobs come twice."""
        return max(PATIENCE_MS, PATIENT_TRIPS * self.expected_ms(at_ms, 0))


def may_fire(now_ms: float, server_ms: float, trip_ms: float) -> bool:
    """Return whether the server will process a publish sent now, after `trip_ms`, before it fires at `server_ms`."""
    return now_ms + trip_ms + MARGIN_MS <= server_ms


def _entry(due_ms: int, name: bytes) -> bytes:
    return (due_ms if due_ms > 0 else 0).to_bytes(_DUE_BYTES, "big") + name


def _due_of(entry: bytes) -> int:
    return int.from_bytes(entry[:_DUE_BYTES], "big")


def _size(entry: bytes) -> int:
    return len(entry) + _OVERHEAD


def _first(heap: list[bytes]) -> bytes:
    return heap[0]
