"""Pages of a pattern that has very many messages, at the cost of the page.

A batched direct get also says how many messages are left, and for that the server looks at every subject of the
pattern: 25 ms at 1,000,000, 50 ms where other subjects lie in between (2.15.1). A get of one message does not count,
and takes 0.2 ms. So a page of a crowded pattern is read by gets of one message, many at once: from guessed places on,
each goes on to where the next one began.

A get that finds nothing near looks through all that lies ahead, 11 ms for each 1,000,000. So one get looks ahead, and
only if it finds a message near do the others look in between.

A replica that is behind ends early, and others may not. What lies after such an end is left to the next page, so no
page leaves out a message.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from streams.errors import StreamError
from streams.link.connection import Connection
from streams.reads.direct_get import get_batch, get_each
from streams.reads.log import LogEntry, entry_of, extent_of

CROWDED = 20_000
"""Messages of a pattern from which on a page is cheaper by gets of one message: those take 4 ms for 100."""
MOST_KNOWN = 10_000
"""Crowded patterns that are remembered."""
WAYS = 64
"""Gets at once."""
NEAR = 4
"""A message is near up to so many times further than expected."""
MISSES = 3
"""Looks ahead that find nothing near, before the rest is left to a batch: each may have looked through the stream."""
GET_S = 2.0


class CrowdPage(NamedTuple):
    """Some entries in order. `seq`: where to go on. `is_end`: there are no more."""

    entries: list[LogEntry]
    seq: int
    is_end: bool


class _Crowd(NamedTuple):
    """A crowded pattern: no message is below `begins`, and `gap` sequences, on average, are from one to the next."""

    begins: int
    gap: float


class _Window:
    """What is found from a place to another, `end`. `is_whole`: nothing else is there."""

    __slots__ = ("end", "entries", "is_whole", "left_bytes", "seq")

    def __init__(self, seq: int, end: int, most_bytes: int) -> None:
        self.seq = seq
        self.end = end
        self.entries: list[LogEntry] = []
        self.is_whole = False
        self.left_bytes = most_bytes

    def take(self, entry: LogEntry | None, most: int) -> bool:
        """Take the next message, and return whether to ask for the one after it. None: the replica is behind the one
        that looked ahead."""
        if entry is None:
            return False
        if entry.seq < self.end:
            self.entries.append(entry)
            self.left_bytes -= len(entry.payload)
            self.seq = entry.seq + 1
        self.is_whole = entry.seq + 1 >= self.end
        return not self.is_whole and len(self.entries) < most and self.left_bytes > 0


class Crowds:
    """Pages of one stream. Safe for many callers. State: the crowded patterns, in memory. Messages only come at the
    end, so nothing comes below the place where a pattern began."""

    def __init__(self, connection: Connection, stream: str) -> None:
        self._connection = connection
        self._stream = stream
        self._crowds: OrderedDict[str, _Crowd] = OrderedDict()

    async def page(self, pattern: str, seq: int, most: int, most_bytes: int, *, timeout_s: float) -> CrowdPage:
        """Return up to `most` messages from `seq` on whose subject matches, of at most `most_bytes`, but at least one
        if there is one. Tokens of the pattern may be `*`. The page may be a moment old. Raises as `get_batch`."""
        crowd = self._crowds.get(pattern)
        if crowd is not None and most > 1:
            with suppress(StreamError):  # a server does not answer: a batch is asked for until one does
                if (page := await self._one_by_one(pattern, crowd, seq, most, most_bytes)) is not None:
                    return page
        request = {"seq": seq, "next_by_subj": pattern, "batch": most, "max_bytes": most_bytes}
        messages, end = await get_batch(self._connection, self._stream, request, timeout_s=timeout_s)
        entries = [entry_of(message) for message in messages]
        left = int(end.headers.get("Nats-Num-Pending", "0"))
        if left >= CROWDED:
            begins = entries[0].seq if seq <= 1 else crowd.begins if crowd else 1
            self._learn(pattern, _Crowd(begins, (entries[-1].seq - entries[0].seq + 1) / len(entries)))
        elif seq <= 1:
            self._crowds.pop(pattern, None)
        return CrowdPage(entries, entries[-1].seq + 1 if entries else seq, not left)

    def _learn(self, pattern: str, crowd: _Crowd) -> None:
        self._crowds[pattern] = crowd
        self._crowds.move_to_end(pattern)
        if len(self._crowds) > MOST_KNOWN:
            self._crowds.popitem(last=False)

    async def _one_by_one(self, pattern: str, crowd: _Crowd, seq: int, most: int, most_bytes: int) -> CrowdPage | None:
        """Return a page by gets of one message. None: a batch is better, since the messages lie far apart, or these
        are the last ones."""
        found: list[LogEntry] = []
        at, gap, misses, is_led = seq, crowd.gap, 0, True
        if seq <= crowd.begins:
            found, at = await self._first(pattern, crowd.begins)
        left_bytes = most_bytes - sum(len(entry.payload) for entry in found)
        while len(found) < most and left_bytes > 0:
            began = at
            if is_led:
                entries, at = await self._spread(pattern, at, most - len(found), gap, left_bytes)
            else:
                entry = await self._get(pattern, at)
                if entry is None:
                    return None
                entries, at = [entry], entry.seq + 1
            if not entries:
                misses += 1
                if misses > MISSES:
                    return None
            elif is_led or found:
                gap = (at - began) / len(entries)
            is_led = bool(entries)
            found += entries
            left_bytes -= sum(len(entry.payload) for entry in entries)
        found = _within(found[:most], most_bytes)
        begins = found[0].seq if seq <= crowd.begins else crowd.begins
        self._learn(pattern, _Crowd(begins, gap))
        return CrowdPage(found, found[-1].seq + 1, False)

    async def _first(self, pattern: str, begins: int) -> tuple[list[LogEntry], int]:
        """Return the message at the place where the pattern may begin, if it is one of it, and the next place. From the
        stream's first message on, a get by subject would look at every subject of the pattern."""
        at = max(begins, (await extent_of(self._connection, self._stream)).first_seq)
        [entry] = await self._get_many({}, [at])
        return [entry] if entry is not None and _is_of(pattern, entry.subject) else [], at + 1

    async def _spread(
        self, pattern: str, seq: int, wanted: int, gap: float, left_bytes: int
    ) -> tuple[list[LogEntry], int]:
        """Read about `wanted` messages, many at once. Return them and where to go on. No messages: none is near."""
        ways = min(WAYS, wanted)
        width = max(1, round(wanted * gap / ways))
        starts = [seq + way * width for way in range(ways)]
        ahead = await self._get(pattern, starts[-1])
        if ahead is None or ahead.seq - starts[-1] > NEAR * width * ways:
            return [], seq
        windows = [_Window(start, start + width, left_bytes // ways) for start in starts[:-1]]
        open_ = windows
        while open_:
            found = await self._get_many({"next_by_subj": pattern}, [window.seq for window in open_])
            open_ = [window for window, entry in zip(open_, found, strict=True) if window.take(entry, wanted)]
        entries: list[LogEntry] = []
        for window in windows:
            entries += window.entries
            if not window.is_whole:
                return entries, window.seq
        return [*entries, ahead], ahead.seq + 1

    async def _get(self, pattern: str, seq: int) -> LogEntry | None:
        [found] = await self._get_many({"next_by_subj": pattern}, [seq])
        return found

    async def _get_many(self, kind: Mapping[str, str], seqs: Sequence[int]) -> list[LogEntry | None]:
        """Return for each place the message there, or by subject the first from there on. Raises as `get_each`."""
        asks = [{"seq": seq, **kind} for seq in seqs]
        found = await get_each(self._connection, self._stream, asks, timeout_s=GET_S)
        return [None if message is None else entry_of(message) for message in found]


def _is_of(pattern: str, subject: str) -> bool:
    wanted, tokens = pattern.split("."), subject.split(".")
    return len(wanted) == len(tokens) and all(one in ("*", other) for one, other in zip(wanted, tokens, strict=True))


def _within(entries: list[LogEntry], most_bytes: int) -> list[LogEntry]:
    """Return the first entries up to `most_bytes`, and the one that exceeds them if it is the first."""
    size = 0
    for at, entry in enumerate(entries):
        size += len(entry.payload)
        if size > most_bytes:
            return entries[: max(1, at)]
    return entries
