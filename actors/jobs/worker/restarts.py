"""Jobs whose hand-out or acknowledgement a single killed server has forgotten.

nats-server records a consumer's deliveries ten times a second. When it is killed, it forgets its last tenth of a
second, and delivers again, as if for the first time, what handlers hold at that moment or have just finished. So a node
that is back at a restarted server reports to all nodes what it holds and has finished. Jobs that were ready before wait
here for an ack wait, as the jobs of any vanished holder do. A job with a holder is left to it: the holder's ack ends
it, and if the holder dies the job comes again by itself. A finished job is acknowledged by the node that gets it. A
cluster has all of this from its other servers.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress

import msgspec

from actors.runtime.logs import fields
from streams.clock import Clock, monotonic_s
from streams.errors import ConnectionLost, Disconnected
from streams.link.connection import Connection
from streams.link.frames import Message, publish_frame
from streams.pull.delivery import Delivery, Facts, ack_of, read_reply

log = logging.getLogger(__name__)

LASTS_S = 60.0
"""How long after a restart the server may deliver what it forgot."""

_OVER = 1 << 31
"""In place of a delivery's number: the job was finished, whatever the server says."""
_Message = tuple[int, int]
"""Its sequence, and when it was stored: a store that went back gives a sequence a second time."""
_Report = tuple[int, int, int]
"""A message, and its latest delivery with a holder, or _OVER."""
_decode = msgspec.json.Decoder(list[_Report]).decode


class Restarts:
    """The restarts as one node sees them. `held()`: what it holds at present. `wait_s`: the consumers' ack wait."""

    def __init__(
        self, connection: Connection, clock: Clock, *, wait_s: float, held: Callable[[], Iterable[Delivery]]
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._wait_s = wait_s
        self._held = held
        self._memory = connection.memory
        self._acked: list[bytes] = []
        self._acked_before: list[bytes] = []
        self._lost: list[_Report] = []
        self._began_ms = 0
        self._until_s = 0.0
        self._own: dict[_Message, int] = {}
        self._known: dict[_Message, int] = {}
        self.is_lately = False
        """Whether deliveries must be checked: the server was restarted lately."""

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Receive restarts, and the reports of other nodes."""
        listening = await self._connection.subscribe(self._connection.namespace.begun_jobs(), self._hear)
        try:
            yield
        finally:
            await listening.unsubscribe()

    # ---- reports of the node

    def finished(self, deliveries: Sequence[Delivery]) -> None:
        """Remember acknowledged deliveries until the server has certainly received and recorded the acks."""
        self._acked += [delivery.reply for delivery in deliveries]
        if self.is_lately:
            self._take_own((*one, _OVER) for one in map(_message_of, deliveries) if one in self._own)

    def lost(self, deliveries: Iterable[Delivery]) -> None:
        """Remember begun deliveries that are not ours any more. If the server forgot one, its next run is not the
        first."""
        self._lost += [_report_of(delivery.facts) for delivery in deliveries]

    def hold_lost(self) -> None:
        """Another holder may have what was acknowledged and not confirmed, so do not acknowledge it again."""
        self._lost += [_report_of(read_reply(reply)) for reply in (*self._acked_before, *self._acked)]
        self._acked, self._acked_before = [], []

    def confirmed(self) -> None:
        """The server has confirmed what was sent in the last turn of the hold. Call it once each turn."""
        self._acked_before, self._acked = self._acked, []
        self._lost.clear()
        if self.is_lately:
            self._publish()  # once more, for nodes that come back later
            if monotonic_s() > self._until_s + LASTS_S:
                self.is_lately = False
                self._own.clear()
                self._known.clear()

    def reconnected(self) -> None:
        """Send again the acks that may have been lost with the link. A restarted server does not get them, since the
        sequences may belong to other messages there. What it delivers again is recognised instead."""
        if self._connection.memory == self._memory:
            self.acknowledge_again()
            return
        again = self.acked
        self._memory = self._connection.memory
        self._own.clear()
        self._known.clear()
        self._take_own(_report_of(delivery.facts) for delivery in self._held())
        self._take_own(self._lost)
        self._take_own((*_report_of(read_reply(reply))[:2], _OVER) for reply in again)
        self._began_ms, self._until_s, self.is_lately = self._clock.now_ms(), monotonic_s() + self._wait_s, True
        self._publish()

    @property
    def acked(self) -> list[bytes]:
        """The reply subjects of what was acknowledged and is not certainly recorded."""
        return [*self._acked_before, *self._acked]

    def acknowledge_again(self) -> None:
        """Send once more what may have been lost."""
        with suppress(Disconnected, ConnectionLost):
            self._connection.client.send(b"".join([ack_of(reply) for reply in self.acked]))

    # ---- checks of deliveries

    def wait_s(self, delivery: Delivery) -> float:
        """Return how many seconds a delivery must wait until it is known whether another holder had begun it."""
        if delivery.stored_ms > self._began_ms:
            return 0.0
        return max(0.0, self._until_s - monotonic_s())

    def is_from_before(self, delivery: Delivery) -> bool:
        """Return whether we hold this since before the restart. Its sequence may be another message's now."""
        return self.is_lately and _message_of(delivery) in self._own

    def is_held(self, delivery: Delivery) -> bool:
        """Return whether the server forgot that a holder, here or on another node, has or had this delivery already."""
        return delivery.delivered <= self._known.get(_message_of(delivery), 0)

    def is_over(self, delivery: Delivery) -> bool:
        """Return whether the server forgot that it was finished."""
        return self._known.get(_message_of(delivery)) == _OVER

    # ---- between nodes

    def _take_own(self, reports: Iterable[_Report]) -> None:
        some = list(reports)
        self._own.update({(seq, stored_ms): delivered for seq, stored_ms, delivered in some})
        self._take(some)

    def _take(self, reports: Iterable[_Report]) -> None:
        for seq, stored_ms, delivered in reports:
            self._known[seq, stored_ms] = max(delivered, self._known.get((seq, stored_ms), 0))

    def _publish(self) -> None:
        if not self._own:
            return
        payload = msgspec.json.encode([(*message, delivered) for message, delivered in self._own.items()])
        with suppress(Disconnected, ConnectionLost):  # sent again on the next link
            self._connection.client.send(publish_frame(self._connection.namespace.begun_jobs(), "", b"", payload))

    def _hear(self, message: Message) -> None:
        try:
            self._take(_decode(message.payload))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("job_worker.bad_message", extra=fields(subject=message.subject, error=str(error)))
            return
        if not self.is_lately:
            self._until_s, self.is_lately = monotonic_s(), True


def _message_of(delivery: Delivery) -> _Message:
    return delivery.seq, delivery.stored_ms


def _report_of(facts: Facts) -> _Report:
    return facts.seq, facts.stored_ms, facts.delivered
