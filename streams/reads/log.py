"""A stream as a log: reads stored messages in their order, page by page, without a consumer.

Direct gets request the next messages from a sequence on. So nothing stays behind on the server, a reader may stop
anywhere, and its memory is one page. Messages stored during the reading are read too, deleted ones are left out.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar

import anyio

from streams.errors import OutcomeUnknown, StreamError
from streams.link.connection import Connection
from streams.link.frames import Message
from streams.reads.direct_get import NONE, TOO_MANY, get_batch, get_each
from streams.reads.leader_get import ask_until_led, get_of_leader, led_info

PAGE = 256
MOST_LAST = 1024
PAGE_BYTES = 2 * 1024 * 1024
"""Bytes of one answer, and at most one message more: over a slow link it arrives long before TIMEOUT_S."""
TIMEOUT_S = 15.0
COUNTS_AT_ONCE = 64
AT_ONCE = 32
"""Requests about one message each that are on their way at a time."""
ALONE_S = 5.0
"""One try of a delete where no leader can be missing: a repeat would not know whether the first one has done it."""
FROM_THE_FIRST: Mapping[str, object] = MappingProxyType({"seq": 1})


class Behind(StreamError):
    """The replica that answered may be behind. The leader has the current state."""


class LogEntry(NamedTuple):
    """One stored message. `stored_ms` is by the server's clock."""

    seq: int
    subject: str
    stored_ms: int
    payload: bytes


class _Numbered(Protocol):
    @property
    def seq(self) -> int: ...


E = TypeVar("E", bound=_Numbered)
T = TypeVar("T")
R = TypeVar("R")


class Extent(NamedTuple):
    """What a stream holds: messages, the first and last sequence, and when the first one was stored (0: empty)."""

    messages: int
    first_seq: int
    last_seq: int
    first_ms: int


async def read_log(
    connection: Connection,
    stream: str,
    subject: str,
    *,
    start_ms: int | None = None,
    start_seq: int = 1,
    page: int = PAGE,
    timeout_s: float = TIMEOUT_S,
) -> AsyncIterator[LogEntry]:
    """Yield the messages whose subject matches, oldest first, from `start_seq` or from those stored at `start_ms` on.

    At most `page` messages are in memory. `timeout_s` is for one page. Raises NoStream, Disconnected."""
    begin: dict[str, object] = {"seq": start_seq} if start_ms is None else {"start_time": _server_time(start_ms)}
    async for message in read_messages(connection, stream, subject, begin=begin, page=page, timeout_s=timeout_s):
        yield entry_of(message)


async def read_messages(
    connection: Connection,
    stream: str,
    subject: str,
    *,
    begin: Mapping[str, object] = FROM_THE_FIRST,
    page: int = PAGE,
    timeout_s: float = TIMEOUT_S,
    domain: str = "",
) -> AsyncIterator[Message]:
    """Do as `read_log`, but yield the messages themselves with their headers, from the place that `begin` names.
    `domain`: where the stream is, if not in the server's own."""
    while True:
        request = {**begin, "next_by_subj": subject, "batch": page, "max_bytes": PAGE_BYTES}
        messages, end = await get_batch(connection, stream, request, timeout_s=timeout_s, domain=domain)
        for message in messages:
            yield message
        if end.status == NONE or not messages or end.headers.get("Nats-Num-Pending", "0") == "0":
            return
        begin = {"seq": int(messages[-1].headers["Nats-Sequence"]) + 1}


async def last_entries(
    connection: Connection, stream: str, subjects: Sequence[str], *, timeout_s: float = TIMEOUT_S, least_seq: int = 0
) -> dict[str, LogEntry]:
    """Return the last message on each subject, by subject. Subjects without one are left out.

    `subjects` are literal ones, or patterns. If the server calls them too many, they are requested in halves. One
    pattern that is too many by itself is read as a log. `timeout_s` is for one answer. Raises NoStream, Disconnected,
    and Behind if the replica that answers is not known to have what is stored up to `least_seq`. One that finds nothing
    does not tell.
    """
    found: dict[str, LogEntry] = {}
    seq = 1
    while subjects:
        request = {"multi_last": list(subjects), "batch": MOST_LAST, "max_bytes": PAGE_BYTES, "seq": seq}
        messages, end = await get_batch(connection, stream, request, timeout_s=timeout_s)
        if end.status == TOO_MANY:
            return await _last_of_many(connection, stream, subjects, timeout_s, least_seq)
        if int(end.headers.get("Nats-UpTo-Sequence", 0)) < least_seq:
            raise Behind(f"{stream}: the replica that answered may not have what is stored up to {least_seq}")
        found |= {entry.subject: entry for entry in map(entry_of, messages)}
        if not messages or end.headers.get("Nats-Num-Pending", "0") == "0":
            break
        seq = int(messages[-1].headers["Nats-Sequence"]) + 1
    return found


async def _last_of_many(
    connection: Connection, stream: str, subjects: Sequence[str], timeout_s: float, least_seq: int
) -> dict[str, LogEntry]:
    if len(subjects) == 1:
        entries = read_log(connection, stream, subjects[0], timeout_s=timeout_s)
        return {entry.subject: entry async for entry in entries}
    middle = len(subjects) // 2
    first = await last_entries(connection, stream, subjects[:middle], timeout_s=timeout_s, least_seq=least_seq)
    return first | await last_entries(connection, stream, subjects[middle:], timeout_s=timeout_s, least_seq=least_seq)


async def entry_at(connection: Connection, stream: str, seq: int) -> LogEntry | None:
    """Return the message at a sequence as the stream's leader has it, None if it is not there (any more)."""
    return await _asked_of_leader(connection, stream, {"seq": seq}, 5.0)


async def still_there(connection: Connection, stream: str, entries: Iterable[E]) -> list[E]:
    """Return those of these messages that the stream's leader still has. A page that was read shows what was removed
    since, and what a replica had that was behind. Raises as `entry_at`."""
    all_ = list(entries)
    found = await _for_each(all_, lambda each: entry_at(connection, stream, each.seq))
    return [each for each, there in zip(all_, found, strict=True) if there is not None]


async def last_entry(connection: Connection, stream: str, subject: str, *, timeout_s: float = 5.0) -> LogEntry | None:
    """Return the last message whose subject matches, as the stream's leader has it, None if there is none."""
    return await _asked_of_leader(connection, stream, {"last_by_subj": subject}, timeout_s)


async def next_entry(connection: Connection, stream: str, subject: str, *, start_seq: int = 1) -> LogEntry | None:
    """Return the first message from a sequence on whose subject matches, as the stream's leader has it."""
    return await _asked_of_leader(connection, stream, {"seq": start_seq, "next_by_subj": subject}, 5.0)


async def _asked_of_leader(
    connection: Connection, stream: str, asked: dict[str, object], timeout_s: float
) -> LogEntry | None:
    found = await get_of_leader(connection, stream, asked, timeout_s=timeout_s)
    return found and LogEntry(found.seq, found.subject, milliseconds_of(found.time), found.payload)


async def delete_entry(connection: Connection, stream: str, seq: int, *, erase: bool = False) -> bool:
    """Remove one message for good. Return False if it was gone before. `erase`: overwrite it in the server's files, so
    that a server that is killed does not find it again (ADR 35). Raises OutcomeUnknown also if it is gone, and an
    earlier try may have removed it."""
    request, try_s = f"STREAM.MSG.DELETE.{stream}", 0.0 if connection.is_clustered else ALONE_S
    asked = {"seq": seq, "no_erase": not erase}
    answer, is_repeated = await ask_until_led(connection, request, asked, try_s=try_s)
    if answer is None and is_repeated:
        raise OutcomeUnknown("it is gone, and an earlier try may have removed it", subject=f"{request} {seq}")
    return answer is not None


async def delete_entries(
    connection: Connection, stream: str, seqs: Iterable[int], *, erase: bool = False
) -> list[bool]:
    """Remove messages for good, some at a time. Return for each whether it was there. One of which it is not known is
    looked for, and was if it is gone. `erase`: as above."""
    removed = await remove_entries(connection, stream, seqs, erase=erase)
    return [was_there is not False for was_there in removed]


async def remove_entries(
    connection: Connection, stream: str, seqs: Iterable[int], *, erase: bool = False
) -> list[bool | None]:
    """Do as `delete_entries`. None: it is gone, and this call or another has removed it."""

    async def remove(seq: int) -> bool | None:
        try:
            return await delete_entry(connection, stream, seq, erase=erase)
        except OutcomeUnknown:
            if await entry_at(connection, stream, seq) is not None:
                raise
            return None

    return await _for_each(list(seqs), remove)


async def _for_each(things: Sequence[T], call: Callable[[T], Awaitable[R]]) -> list[R]:
    """Call for each of the things, some at a time. Return the results in order. Raises the first error."""
    results, errors = dict[int, R](), list[StreamError]()
    left = iter(enumerate(things))

    async def work() -> None:
        for at, thing in left:
            try:
                results[at] = await call(thing)
            except StreamError as error:
                errors.append(error)
            if errors:
                return

    async with anyio.create_task_group() as tasks:
        for _ in range(min(AT_ONCE, len(things))):
            tasks.start_soon(work)
    if errors:
        raise errors[0]
    return [results[at] for at in range(len(things))]


async def purge_subject(connection: Connection, stream: str, subject: str, *, before_seq: int = 0) -> int:
    """Remove all messages whose subject matches, with `before_seq` only those before it. Return how many they were, at
    the last try."""
    limit = {"seq": before_seq} if before_seq else {}
    answer, _ = await ask_until_led(connection, f"STREAM.PURGE.{stream}", {"filter": subject, **limit})
    return int(answer["purged"]) if answer else 0


async def count_of(connection: Connection, stream: str, subject: str) -> int:
    """Return how many messages there are whose subject matches. Raises NoStream, Disconnected."""
    [count] = await count_each(connection, stream, [subject])
    return count


async def count_each(
    connection: Connection, stream: str, patterns: Sequence[str], *, timeout_s: float = TIMEOUT_S
) -> list[int]:
    """Return how many messages there are for each pattern. The server looks at each subject of a pattern, 25 ms for
    1,000,000. Raises as `get_each`."""
    counts: list[int] = []
    for start in range(0, len(patterns), COUNTS_AT_ONCE):
        some = patterns[start : start + COUNTS_AT_ONCE]
        asks = [{"seq": 1, "next_by_subj": pattern, "batch": 1} for pattern in some]
        for first in await get_each(connection, stream, asks, timeout_s=timeout_s):
            counts.append(0 if first is None else 1 + int(first.headers.get("Nats-Num-Pending", "0")))
    return counts


async def subjects_of(connection: Connection, stream: str, pattern: str) -> dict[str, int]:
    """Return how many messages each subject that matches has. The server gives up to 100,000 subjects an answer, so
    this is for streams with few. Raises NoStream, Disconnected, OutcomeUnknown."""
    found: dict[str, int] = {}
    while True:
        request = {"subjects_filter": pattern, "offset": len(found)}
        answer = await led_info(connection, stream, request)
        page = answer["state"].get("subjects") or {}
        found |= page
        if not page or len(found) >= answer.get("total", 0):
            return found


async def extent_of(connection: Connection, stream: str) -> Extent:
    """Return what the stream holds now. Raises NoStream, Disconnected, OutcomeUnknown."""
    state = (await led_info(connection, stream))["state"]
    first_ms = milliseconds_of(state["first_ts"]) if state["messages"] else 0
    return Extent(state["messages"], state["first_seq"], state["last_seq"], first_ms)


def entry_of(message: Message) -> LogEntry:
    """Return the entry in a direct get's answer."""
    headers = message.headers
    stored_ms = milliseconds_of(headers["Nats-Time-Stamp"])
    return LogEntry(int(headers["Nats-Sequence"]), headers["Nats-Subject"], stored_ms, message.payload)


def milliseconds_of(text: str) -> int:
    """Return a time as the server writes it (RFC 3339, up to nanoseconds) in whole milliseconds."""
    moment = datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)
    return (moment.days * 86_400 + moment.seconds) * 1000 + moment.microseconds // 1000


def _server_time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{at_ms % 1000:03d}Z"
