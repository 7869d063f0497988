"""Typed key-value over the server's own protocol, so that the `nats kv` command shows and changes the same values.

A write has three ends here too: a revision, RevisionConflict (another client was first: read, decide again), or
unknown. After a lost answer, `publish/marked.py` finds out whether the write was ours or another client's.

A read by key is the leader's answer, so it holds every confirmed write. So do reads of many keys, up to 1,024. A watch
may begin a moment late, and goes on.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Generic, TypeVar

import anyio

from streams.buckets.entries import Codec, Entry, Synced, T
from streams.buckets.watch import Watch
from streams.calls import KEPT_HEADER, kept_with
from streams.errors import Disconnected, OutcomeUnknown, RevisionConflict, StreamError
from streams.link.connection import Connection
from streams.link.frames import Message
from streams.publish.marked import MarkedWriter
from streams.publish.publisher import Publisher
from streams.races import race
from streams.reads.leader_get import ELECTED_S, get_of_leader, info_of_leader, is_of_most, last_of_leader
from streams.reads.log import Behind, milliseconds_of, subjects_of
from streams.reads.snapshot import last_of_each
from streams.subjects import check_key, check_key_pattern, kv_stream

R = TypeVar("R")
READ_S = 2.0
KEYS_AT_ONCE = 512
"""Keys of one read: half of what the server answers at once."""
NOTE = "Penstock-Note"
"""The header of a deleted key's marker that has the note."""
BEHIND_S, BEHIND_TRIES = 0.005, 3
"""Before a replica that was behind is asked again, and how often. One that finds none of some keys counts as behind, as
it does not tell how far it is. Then the leader is asked for each of them."""


class Bucket(Generic[T]):
    """One bucket by its full name (`Namespace.bucket`). Its values have one type: `bytes` as they are, else JSON.

    `domain`: the JetStream domain where the bucket is, if it is not the server's own. While that domain cannot be
    reached, reads and writes raise Disconnected, and a watch waits."""

    def __init__(
        self, connection: Connection, publisher: Publisher, bucket: str, type_: type[T], *, domain: str = ""
    ) -> None:
        self.name = bucket
        self._connection = connection
        self._codec = Codec(type_)
        self._stream = kv_stream(bucket)
        self._prefix = f"$KV.{bucket}."
        self.domain = domain
        self._writer = MarkedWriter(connection, publisher, self._stream, domain=domain)

    # ---- reading

    async def get(self, key: str, *, timeout_s: float = 10.0) -> Entry[T] | None:
        """Return the key's entry, None if there is none. Raises Disconnected, NoStream (no such bucket)."""
        subject = self._prefix + check_key(key)
        try:
            found = await get_of_leader(
                self._connection, self._stream, {"last_by_subj": subject}, timeout_s=timeout_s, domain=self.domain
            )
        except OutcomeUnknown as unknown:
            raise Disconnected(f"{subject}: no answer within {timeout_s} s") from unknown
        if found is None or _is_deleted(found.headers):
            return None
        stored_ms = milliseconds_of(found.time)
        calls = found.headers.get(KEPT_HEADER, "").split()
        return Entry(key, found.payload, found.seq, self._codec.decode, stored_ms=stored_ms, calls=calls)

    async def entries(self, pattern: str = ">", *, timeout_s: float = 30.0) -> list[Entry[T]]:
        """Return all entries whose keys match, in the order of their keys.

        Raises MalformedMessage for one that does not decode (never for bytes), Disconnected, NoStream.
        """
        try:
            with anyio.fail_after(timeout_s):
                found = await self._read_all(check_key_pattern(pattern), timeout_s)
        except TimeoutError:
            raise Disconnected(f"bucket {self.name}: not read within {timeout_s} s") from None
        for entry in found:
            _ = entry.value  # raises for what does not decode
        return sorted(found, key=lambda entry: entry.key)

    async def keys(self, pattern: str = ">") -> list[str]:
        """Return the keys that match, in order, for a fiftieth of what their entries cost. A deleted one is among them
        for as long as its marker stays. Raises NoStream, Disconnected, OutcomeUnknown."""
        subjects = await subjects_of(self._connection, self._stream, self._prefix + check_key_pattern(pattern))
        return sorted(subject.removeprefix(self._prefix) for subject in subjects)

    async def entries_of(self, keys: Sequence[str], *, timeout_s: float = 30.0) -> list[Entry[T]]:
        """Return the entries of these keys, in no order. Those that are not there are left out. Raises Disconnected,
        NoStream."""
        found: list[Entry[T]] = []
        for start in range(0, len(keys), KEYS_AT_ONCE):
            some = keys[start : start + KEYS_AT_ONCE]
            answers = await self._last_of_each([self._prefix + check_key(key) for key in some], timeout_s)
            if answers is not None:
                found += [entry for answer in answers if (entry := self._entry(answer))]
            else:  # they are too large for one answer, or no replica tells
                found += [entry for key in some if (entry := await self.get(key, timeout_s=timeout_s))]
        return found

    async def last_revision(self, pattern: str = ">") -> int:
        """Return the revision of the last change of a key that matches. 0: there is none. Raises as `get`."""
        asked = {"last_by_subj": self._prefix + check_key_pattern(pattern)}
        last = await get_of_leader(self._connection, self._stream, asked, timeout_s=10.0, domain=self.domain)
        return 0 if last is None else last.seq

    def watch(self, pattern: str = ">", *, on_reading: Callable[[], None] = lambda: None) -> Watch[T]:
        """Return a context manager whose iterator yields changes: `async with bucket.watch() as changes: async for …`.

        First it yields every matching key (raw: an entry is decoded when its `value` is read), then Synced, then each
        change as it comes. After a reconnect it yields all keys again, those that vanished as deleted, and then Synced.
        An expired key is yielded as deleted within 0.3 s. Entering raises NoStream if there is no such bucket.

        `on_reading` is called before each time that all keys are read. The keys then include everything that one
        server confirmed before the call. On three servers the latest may follow as changes.
        """
        return Watch(
            self._connection,
            self._stream,
            self._prefix,
            check_key_pattern(pattern),
            self._codec,
            self._expired_or_not,
            on_reading,
            domain=self.domain,
        )

    # ---- writing

    async def create(
        self,
        key: str,
        value: T,
        *,
        ttl_s: int | None = None,
        timeout_s: float | None = None,
        heir: Callable[[str], T] | None = None,
    ) -> int:
        """Store a key that must not exist (a deleted one does not), and return its revision. `heir`: returns the value
        to store in the place of a key that was deleted with a note, which it gets. Raises RevisionConflict, and what
        `heir` raises."""
        return await self.compare_and_set(key, value, 0, ttl_s=ttl_s, timeout_s=timeout_s, heir=heir)

    async def compare_and_set(
        self,
        key: str,
        value: T,
        revision: int,
        *,
        ttl_s: int | None = None,
        timeout_s: float | None = None,
        heir: Callable[[str], T] | None = None,
        kept: str = "",
    ) -> int:
        """Store the key if it is at `revision` (0: must not exist), and return the new revision.

        `ttl_s`: whole seconds, at least 1, until the key expires. A write without it makes the key permanent. `kept`:
        the marks of calls, as `kept_with` returns them (streams/calls.py). Raises RevisionConflict, OutcomeUnknown
        (after `timeout_s`, else the publisher's deadline), TooLarge, StoreFull.
        """
        subject, payload = self._prefix + check_key(key), self._codec.encode(value)
        headers = {KEPT_HEADER: kept} if kept else None
        expected = revision
        for tries_left in (2, 1, 0):
            try:
                return await self._writer.write(
                    subject, payload, expected=expected, headers=headers, ttl_s=ttl_s, timeout_s=timeout_s
                )
            except RevisionConflict:
                # A deleted key does not exist, but its marker's revision is the one to name, as long as it stays.
                marker = await self._marker(subject) if revision == 0 and tries_left else None
                if marker is None:
                    raise
                expected, note = marker
                if note and heir is not None:
                    payload = self._codec.encode(heir(note))
        raise AssertionError("the last try returns or raises")

    async def put(self, key: str, value: T, *, ttl_s: int | None = None, timeout_s: float | None = None) -> int:
        """Store the key whatever it holds, and return its revision. Raises OutcomeUnknown, TooLarge, StoreFull."""
        subject, payload = self._prefix + check_key(key), self._codec.encode(value)
        mark = self._writer.next_mark()
        receipt = await self._writer.publish(subject, payload, message_id=mark, ttl_s=ttl_s, timeout_s=timeout_s)
        return receipt.seq

    async def update(
        self, key: str, change: Callable[[Entry[T] | None], tuple[T | None, R]], *, tries: int = 10, mark: str = ""
    ) -> tuple[R, int]:
        """Change a key by compare-and-set, however many clients change it at once. Return the result and the key's
        revision.

        `change` gets the entry (`None`: there is none), and returns the value to store (`None`: leave the key as it is)
        and a result. After a lost race it is called again with the newer entry, so it must be harmless when it is
        applied twice. `mark`: of the call that makes this change (streams/calls.py). The record keeps it, and `change`
        finds it there in a late try. The revision is 0 if there is no such key. Raises what `change` raises,
        RevisionConflict after `tries` lost races, and the errors of `compare_and_set`.
        """

        async def attempt() -> tuple[R, int]:
            entry = await self.get(key)
            value, result = change(entry)
            revision = 0 if entry is None else entry.revision
            if value is not None:
                kept = kept_with(() if entry is None else entry.calls, mark)
                revision = await self.compare_and_set(key, value, revision, kept=kept)
            return result, revision

        return await race(attempt, tries=tries)

    async def delete(
        self,
        key: str,
        *,
        revision: int | None = None,
        ttl_s: int | None = None,
        timeout_s: float | None = None,
        note: str = "",
    ) -> None:
        """Delete the key. With `revision`, delete it only at that one (else RevisionConflict). A repeat is harmless.

        A marker stays, as `nats kv del` leaves it. With `ttl_s` it is a purge, with all earlier values, and the marker
        goes too after that many seconds. The bucket must allow it. `note` stays in the marker, for `create`.
        """
        headers = {"KV-Operation": "DEL"} if ttl_s is None else {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}
        headers |= {NOTE: note} if note else {}
        subject = self._prefix + check_key(key)
        if revision is None:
            mark = self._writer.next_mark()
            await self._writer.publish(subject, b"", message_id=mark, headers=headers, ttl_s=ttl_s, timeout_s=timeout_s)
        else:
            await self._writer.write(subject, b"", expected=revision, headers=headers, ttl_s=ttl_s, timeout_s=timeout_s)

    async def _marker(self, subject: str) -> tuple[int, str] | None:
        """Return a deleted key's marker: its revision, 0 without any message, and its note. None: the key lives, or
        there is no answer."""
        try:
            last = await self._writer.last(subject)
        except StreamError:
            return None
        if last is None:
            return 0, ""
        revision, headers = last
        return (revision, headers.get(NOTE, "")) if _is_deleted(headers) else None

    @property
    def is_clustered(self) -> bool:
        """Whether several servers keep it, as far as this connection knows."""
        return self._connection.is_clustered

    async def server_now_ms(self) -> int:
        """Return the time by the clock that `stored_ms` comes from, a moment ago. Raises NoStream, Disconnected."""
        answer = await self._connection.api(f"STREAM.INFO.{self._stream}", domain=self.domain)
        return milliseconds_of(answer["ts"])

    async def check_most(self) -> None:
        """Raise Disconnected unless most of the servers that keep it are in touch. Those that are not show what was.
        Raises NoStream, OutcomeUnknown."""
        if not is_of_most(await info_of_leader(self._connection, self._stream, timeout_s=READ_S)):
            raise self._away()

    def _away(self) -> Disconnected:
        return Disconnected(f"bucket {self.name}: most of its servers are away, so what is there cannot be known")

    # ---- one read

    async def _read_all(self, pattern: str, timeout_s: float) -> list[Entry[T]]:
        answers = await self._last_of_each([self._prefix + pattern], timeout_s)
        if answers is not None:
            return [entry for answer in answers if (entry := self._entry(answer))]
        found: dict[str, Entry[T] | None] = {}
        async with self.watch(pattern) as changes:
            async for change in changes:
                if isinstance(change, Synced):
                    break
                found[change.key] = change.entry
        return [entry for entry in found.values() if entry]

    async def _last_of_each(self, patterns: Sequence[str], timeout_s: float) -> list[Message] | None:
        """Return what `last_of_each` does, with all that the server has confirmed. Any of three servers answers that,
        and may be behind: one in four reads did not have what the same client had just written. So the leader says
        first what there is. None also for several patterns if no replica is known to have that."""
        connection, stream, domain = self._connection, self._stream, self.domain
        if not (connection.is_clustered or domain):
            return await last_of_each(connection, stream, patterns, timeout_s=timeout_s)
        for tried in count(1):
            asked = patterns[0] if len(patterns) == 1 else ""
            led_s = min(timeout_s, ELECTED_S)
            try:
                seq = await last_of_leader(connection, stream, asked, timeout_s=led_s, domain=domain)
            except OutcomeUnknown as unknown:
                raise self._away() from unknown
            if seq is None:
                return []
            with suppress(Behind):
                return await last_of_each(
                    connection, stream, patterns, timeout_s=timeout_s, least_seq=seq, domain=domain
                )
            if tried == BEHIND_TRIES and not asked:
                break
            await anyio.sleep(BEHIND_S)
        return None

    async def _expired_or_not(self, key: str) -> Entry[T] | None:
        return await self.get(key, timeout_s=READ_S)

    def _entry(self, answer: Message) -> Entry[T] | None:
        headers = answer.headers
        if _is_deleted(headers):
            return None
        key = headers["Nats-Subject"].removeprefix(self._prefix)
        stored_ms = milliseconds_of(headers["Nats-Time-Stamp"])
        revision, calls = int(headers["Nats-Sequence"]), headers.get(KEPT_HEADER, "").split()
        return Entry(key, answer.payload, revision, self._codec.decode, stored_ms=stored_ms, calls=calls)


def _is_deleted(headers: Mapping[str, str]) -> bool:
    return "KV-Operation" in headers or "Nats-Marker-Reason" in headers
