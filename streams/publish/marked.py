"""Conditional writes whose outcome can always be found out.

A stream on one server checks a write's expected sequence before it looks for repeats (2.15.1, with three replicas it is
the other way round). So if an answer was lost, the repeat of our own write that had arrived comes back as a conflict.
Therefore each conditional write carries a mark of its own (`Penstock-Write`). After a lost answer the writer reads the
subject back from the stream's leader: the write is ours if the mark is, however equal two writers' payloads may be. If
a third writer has already built upon ours, the outcome is a conflict. A caller that decides again must accept that the
move was made.
"""

import secrets
from collections.abc import Mapping
from itertools import count

import anyio

from streams.errors import NoStream, OutcomeUnknown, RevisionConflict, StreamError, unreachable
from streams.link.connection import Connection
from streams.publish.outcomes import Receipt
from streams.publish.publisher import Publisher
from streams.reads.leader_get import get_of_leader
from streams.subjects import api_prefix

MARK = "Penstock-Write"
PAUSES_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
"""Seconds. In a cluster a write is refused while another to its subject is under way. A moment later it is known which
of them won."""
_UNDER_WAY = 10164
READ_S = 4.0
"""Seconds to read back what was stored. The link may just be coming back."""


class MarkedWriter:
    """Writes conditionally into one stream. `domain`: where the stream is, if not in the server's own."""

    def __init__(self, connection: Connection, publisher: Publisher, stream: str, *, domain: str = "") -> None:
        self._connection = connection
        self._publisher = publisher
        self._stream = stream
        self._domain = domain
        self._mark = secrets.token_hex(8)
        self._marks = count(1)

    async def publish(
        self,
        subject: str,
        payload: bytes,
        *,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        expected_seq: int | None = None,
        ttl_s: int | None = None,
        timeout_s: float | None = None,
    ) -> Receipt:
        """Do as `Publisher.publish`, in the stream's domain. Raises Disconnected if the domain was never reached."""
        try:
            return await self._publisher.publish(
                f"{api_prefix(self._domain)}{subject}" if self._domain else subject,
                payload,
                message_id=message_id,
                headers=headers,
                expected_seq=expected_seq,
                ttl_s=ttl_s,
                timeout_s=timeout_s,
            )
        except NoStream as nobody:
            raise unreachable(self._domain, nobody) from nobody

    def next_mark(self) -> str:
        """Return an id that no other write has."""
        return f"{self._mark}{next(self._marks)}"

    async def write(
        self,
        subject: str,
        payload: bytes,
        *,
        expected: int,
        headers: Mapping[str, str] | None = None,
        ttl_s: int | None = None,
        timeout_s: float | None = None,
        again: str | None = None,
    ) -> int:
        """Store a message if the last one is at `expected` (0: none), and return its sequence.

        `again`: the id from `next_mark` under which this same write was tried before, or may be later.
        Raises RevisionConflict, OutcomeUnknown, and as Publisher.publish.
        """
        mark = again or self.next_mark()
        headers = {**(headers or {}), MARK: mark}
        is_doubtful, under_way = bool(again), [*PAUSES_S]
        while True:
            try:
                receipt = await self.publish(
                    subject, payload, headers=headers, expected_seq=expected, ttl_s=ttl_s, timeout_s=timeout_s
                )
            except RevisionConflict as conflict:
                is_doubtful = is_doubtful or conflict.is_after_retry
                if conflict.err_code == _UNDER_WAY and under_way:
                    await anyio.sleep(under_way.pop(0))
                    continue
                if not is_doubtful:
                    raise
                return await self._resolved(subject, mark, expected, conflict)
            except OutcomeUnknown as unknown:
                return await self._resolved(subject, mark, expected, unknown)
            return receipt.seq

    async def last(self, subject: str) -> tuple[int, Mapping[str, str]] | None:
        """Return sequence and headers of the last message on a subject as the leader has it, None if there is none."""
        asked = {"last_by_subj": subject}
        found = await get_of_leader(self._connection, self._stream, asked, timeout_s=READ_S, domain=self._domain)
        return (found.seq, found.headers) if found else None

    async def _resolved(self, subject: str, mark: str, expected: int, end: RevisionConflict | OutcomeUnknown) -> int:
        """Return the sequence of a write that was stored although it ended as `end`. Otherwise raise the outcome as it
        is known now. `expected`: where the subject was before."""
        try:
            last = await self.last(subject)
        except StreamError:
            raise OutcomeUnknown(f"not read back after {end}", subject=subject, message_id=mark) from end
        sequence, headers = last or (0, {})
        if headers.get(MARK) == mark:
            return sequence
        if isinstance(end, RevisionConflict) and end.err_code == _UNDER_WAY:  # that may be our own first try
            raise OutcomeUnknown(f"not known to be stored: {end}", subject=subject, message_id=mark) from end
        if isinstance(end, RevisionConflict) or sequence == expected:
            raise end  # if it is not there, it may still be on its way
        raise RevisionConflict(f"wrong last sequence: {sequence}", subject=subject) from end
