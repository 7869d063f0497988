"""Reads the last messages of a stream for certain: as they are, not as a server that is cut off still has them.

A leader that the others do not reach is followed by another one within some six seconds, and does not know it at once.
For about ten seconds more it answers reads, and refuses conditional writes, by what it had: a deleted job was there,
and a job that the new leader had stored was not (each time on 2.15.1, three servers). But it stores nothing. So a
reader first stores a message of its own, and takes an answer only with that message in it, or a later one on the same
subject: whoever has it, leader or not, has all that was stored before. Those who read at the same time share one.

It takes as long as a write and a direct get. One server alone is not behind, and needs none of this.
"""

from collections.abc import Sequence
from itertools import chain, repeat

import anyio

from streams.clock import monotonic_s
from streams.errors import OutcomeUnknown, StreamError
from streams.link.connection import Connection
from streams.publish.outcomes import Outgoing, block_of
from streams.publish.publisher import Publisher
from streams.reads.log import LogEntry, last_entries

_BLOCK = block_of(None, None, None, 10)
"""The message goes by itself after ten seconds. A read is over by then. Two of them do no harm, so it is sent again."""
PAUSES_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""Waits for a server that is behind, the last one again and again."""


class SureReads:
    """Reads of one stream, which allows messages with a TTL and one message on a subject. `subject`: the stream's, for
    the messages of this reader. Safe for many callers at once."""

    def __init__(self, connection: Connection, publisher: Publisher, stream: str, subject: str) -> None:
        self._connection = connection
        self._publisher = publisher
        self._stream = stream
        self._subject = subject
        self._message = Outgoing(subject, b"", block=_BLOCK)
        self._lock = anyio.Lock()
        self._asked = 0
        self._covered = 0
        """All who asked up to this one have `_stored`."""
        self._stored = 0

    async def last_entries(self, patterns: Sequence[str], *, timeout_s: float) -> dict[str, LogEntry]:
        """Return the last message on each subject that matches, by subject, with all that was stored before the call.

        Raises OutcomeUnknown if that is not known in time, and as `Publisher.try_many` and `log.last_entries`."""
        deadline_s = monotonic_s() + timeout_s
        seq = await self.mark(timeout_s=timeout_s)
        for pause_s in chain(PAUSES_S, repeat(PAUSES_S[-1])):
            left_s = deadline_s - monotonic_s()
            if left_s <= 0:
                break
            found = await last_entries(self._connection, self._stream, [*patterns, self._subject], timeout_s=left_s)
            own = found.pop(self._subject, None)
            if own is not None and own.seq >= seq:
                return found
            await anyio.sleep(pause_s)
        raise OutcomeUnknown(
            "the server that answers is behind the others, so it may have changed", subject=self._stream
        )

    async def mark(self, *, timeout_s: float) -> int:
        """Return the sequence of a message that was stored after this was called. Raises as `last_entries`."""
        deadline_s = monotonic_s() + timeout_s
        self._asked += 1
        place = self._asked
        async with self._lock:
            if self._covered < place:
                covered = self._asked
                self._stored = await self._store(deadline_s)
                self._covered = covered
            return self._stored

    async def _store(self, deadline_s: float) -> int:
        (outcome,) = await self._publisher.try_many([self._message], until_s=deadline_s)
        if isinstance(outcome, OutcomeUnknown):
            raise OutcomeUnknown("most of the servers do not answer, so it may have changed", subject=self._stream)
        if isinstance(outcome, StreamError):
            raise outcome
        return outcome.seq
