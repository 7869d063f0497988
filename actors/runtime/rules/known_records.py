"""What a node knows of a bucket's records: what the watch reports, and what the node wrote itself. Pure.

The watch reads the whole bucket (a reading) and then reports each change. After a lost link it starts the next reading.

- A write of our own is known at once. Until the watch reports it, the watch is behind, and an older revision that it
  reports is ignored. This holds within one reading: a write that the server confirmed before a reading began is part of
  what is read, or it is gone.
- At the end of a reading, a record that this reading did not confirm is gone.
- A lower revision in a later reading is true: the server was put back to an earlier state. A server that was put back
  assigns revisions again, so a record is the same one only if its revision and its time are the same.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

R = TypeVar("R")


class KnownRecord(Generic[R]):
    """One record. `value`: `None` if the stored record cannot be read, and `fault` says why. `stored_ms`: when the
    server stored it. It is 0 while only our own write has reported it. `reading`: the last one that confirmed it."""

    __slots__ = ("fault", "reading", "revision", "stored_ms", "value")

    def __init__(self, value: R | None, revision: int, stored_ms: int, reading: int, fault: str) -> None:
        self.value = value
        self.revision = revision
        self.stored_ms = stored_ms
        self.reading = reading
        self.fault = fault


class KnownRecords(Generic[R]):
    """The known records by key."""

    def __init__(self) -> None:
        self._known: dict[str, KnownRecord[R]] = {}
        self._reading = 0

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._known))

    def items(self) -> Iterator[tuple[str, R]]:
        """Yield the readable records with their keys. They may change meanwhile."""
        return ((key, known.value) for key, known in tuple(self._known.items()) if known.value is not None)

    def get(self, key: str) -> KnownRecord[R] | None:
        return self._known.get(key)

    def begin(self) -> None:
        """A reading begins."""
        self._reading += 1

    def is_news(self, key: str, revision: int, stored_ms: int) -> bool:
        """Return whether the caller must take a reported record with `hear`. A known record is confirmed."""
        known = self._known.get(key)
        if known is None:
            return True
        is_ahead = known.stored_ms == 0 and known.reading == self._reading
        if known.revision == revision and (is_ahead or known.stored_ms == stored_ms):
            known.stored_ms, known.reading = stored_ms, self._reading
            return False
        return not (is_ahead and revision < known.revision)

    def hear(self, key: str, value: R | None, revision: int, stored_ms: int, *, fault: str = "") -> None:
        """Take a reported record that is news."""
        self._known[key] = KnownRecord(value, revision, stored_ms, self._reading, fault)

    def learn(self, key: str, value: R, revision: int) -> bool:
        """Take a record that we wrote or read ourselves. Return False if a later one is known."""
        known = self._known.get(key)
        if known is not None and known.reading == self._reading and known.revision >= revision:
            return False
        self._known[key] = KnownRecord(value, revision, 0, self._reading, "")
        return True

    def drop(self, key: str) -> bool:
        """Forget a record that is gone. Return False if it was not known."""
        return self._known.pop(key, None) is not None

    def end(self) -> list[str]:
        """The reading is complete. Forget the records that it did not confirm, and return their keys."""
        gone = [key for key, known in self._known.items() if known.reading != self._reading]
        for key in gone:
            del self._known[key]
        return gone
