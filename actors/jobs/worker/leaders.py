"""Asks three servers whether they have what this node sent about its jobs.

A server that is cut off from the two others goes on replying to its nodes. A consumer without a leader hears nobody,
and the node's own server replies all the same. So two things have to be confirmed. The leaders of the consumers reply
that they have all that was sent before. And most of the servers store a message, so we are not cut off with a leader
that the others have replaced.

Acknowledgements are not replied to, and go to nobody while there is no leader. After a silence they are sent again,
once a leader has replied: those sent before may have come before the leader did, and it would hand the jobs out again.
That does no harm. A leader that hands over in order tells those who wait for jobs. It may have lost what it was sent in
that moment, though no turn was without a reply, so acknowledgements are sent again then, too. One server alone has what
was sent when it replies to a ping.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

from actors.jobs.worker.restarts import Restarts
from streams.clock import monotonic_s
from streams.errors import Disconnected, StoreFull
from streams.link.connection import Connection
from streams.pull.delivery import consumer_of
from streams.pull.puller import Puller


class Leaders:
    """`store(timeout_s)`: has most of the servers store a message. `pullers()`: of all topics of the node."""

    def __init__(
        self,
        connection: Connection,
        restarts: Restarts,
        *,
        store: Callable[[float], Awaitable[object]],
        pullers: Callable[[], Iterable[Puller]],
    ) -> None:
        self._connection = connection
        self._restarts = restarts
        self._store = store
        self._pullers = pullers
        self._are_behind = False
        self._refusals = 0

    async def confirm(self, timeout_s: float) -> None:
        """Return when the leaders have what was sent. Raises a StreamError if that is not known in time."""
        if not self._connection.is_clustered:
            return
        refusals = sum(puller.refusals for puller in self._pullers())
        may_be_lost = self._are_behind or refusals != self._refusals
        self._are_behind, self._refusals = True, refusals
        try:
            async with asyncio.timeout(timeout_s):
                with suppress(StoreFull):  # the leaders' replies have to do: what they are for makes room
                    await self._store(timeout_s)
                await self._ask(self._subjects(), monotonic_s() + timeout_s)
                if may_be_lost:  # only now is it known that they get what is sent
                    self._restarts.acknowledge_again()
                    await self._ask(self._subjects(), monotonic_s() + timeout_s)
        except TimeoutError:
            raise Disconnected("most of the servers do not reply") from None
        self._are_behind = False

    async def _ask(self, subjects: Iterable[str], deadline_s: float) -> None:
        replies = []
        try:
            for subject in subjects:
                replies.append(await self._connection.send_request(subject, b"+WPI", deadline_s=deadline_s))
            if any([(await reply).status == 503 for reply in replies]):
                raise Disconnected("a consumer has no leader")
        finally:
            for reply in replies:
                reply.cancel()

    def _subjects(self) -> list[str]:
        """Return one subject of each consumer of which we hold or have acknowledged something. What is acknowledged is
        not extended by it."""
        some = {consumer_of(reply): reply for reply in self._restarts.acked}
        for puller in self._pullers():
            for delivery in puller.unsettled:
                some[consumer_of(delivery.reply)] = delivery.reply
                break
        return [reply.decode() for reply in some.values()]
