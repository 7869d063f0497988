"""Due times from another timer that knows them, so that one that starts does not read the stream.

A sweep takes the server some 50 ms a page, and publishes wait for that, also those of the timers that fire. Another
timer has the same times in memory. One timer that knows a partition replies to each request on `due.<partition>.known`,
with the next few jobs after the one in the request. The requester asks until there are no more. Notices report what is
delayed meanwhile. If no timer replies, or it has too many jobs, the requester sweeps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial

from actors.jobs.rules.due_times import Due
from streams.errors import ConnectionLost, Disconnected, MalformedMessage, NoStream, OutcomeUnknown
from streams.jobs.delayed import encode_notice, read_notice
from streams.link.connection import Connection
from streams.link.frames import publish_frame
from streams.subjects import Namespace

A_REPLY = 2_000
"""Jobs in a reply. Its sender makes it in some 2 ms, and fires nothing meanwhile."""
REPLY_S = 1.0
"""A timer that is stopped does not reply."""
_QUEUE = "known"

Give = Callable[[int, Due | None, int], list[Due] | None]
"""Returns so many jobs at most of a partition, those after one, earliest first. `None`: not from here."""


class SharedTimes:
    """Replies with the due times that this timer knows, and requests those that it does not know. `newest_seq(name)`:
    up to where this timer knows the stream of a job."""

    def __init__(
        self, connection: Connection, namespace: Namespace, give: Give, newest_seq: Callable[[bytes], int]
    ) -> None:
        self._connection = connection
        self._namespace = namespace
        self._give = give
        self._newest_seq = newest_seq
        self._sids: dict[int, int] = {}

    def share(self, partitions: Collection[int]) -> None:
        """Reply to requests for these partitions, and for no others."""
        for n in self._sids.keys() - set(partitions):
            self._connection.unlisten(self._sids.pop(n))
        for n in set(partitions) - self._sids.keys():
            subject = self._namespace.due_known(n)
            self._sids[n] = self._connection.listen(subject, partial(self._reply, n), _QUEUE)

    async def get(self, n: int, take: Callable[[list[tuple[int, int, bytes]]], None]) -> bool:
        """Call `take` with the jobs that another timer knows of a partition. Return whether these were all. Raises
        Disconnected."""
        last = b""
        while True:
            try:
                reply = await self._connection.request(self._namespace.due_known(n), last, timeout_s=REPLY_S)
                jobs = read_notice(reply.payload)
            except (NoStream, OutcomeUnknown, MalformedMessage):
                return False
            take(jobs)
            if not jobs:
                return True
            last = encode_notice([(jobs[-1][0], 0, jobs[-1][2].decode())])

    def _reply(self, n: int, subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
        with suppress(MalformedMessage, Disconnected, ConnectionLost):
            last = next((Due(due_ms, name) for due_ms, _, name in read_notice(payload)), None) if payload else None
            known = self._give(n, last, A_REPLY)
            told = [(due.due_ms, self._newest_seq(due.name), due.name.decode()) for due in known or ()]
            page = b"" if known is None else encode_notice(told)
            self._connection.client.send(publish_frame(reply.decode(), "", b"", page))
