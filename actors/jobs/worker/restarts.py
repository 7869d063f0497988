"""What becomes of jobs that a single server forgot to have handed out, or to have been acknowledged.

nats-server writes down ten times a second what a consumer has handed out. Killed, it forgets its last tenth of a
second, and hands out once more, as if for the first time, what handlers hold at that moment or have just finished. So a
node that is back at a server that was started anew tells all nodes what it holds and has finished. What was ready
before waits here for an ack wait, as the jobs of any holder that vanished do. What somebody holds is left to him: his
acknowledgement ends it, and if he dies it comes again by itself. What is finished is acknowledged by whoever gets it.

A cluster has all of this from its other servers.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress

import msgspec

from actors.runtime.logs import fields
from streams.clock import Clock, monotonic_s
from streams.connection import Connection
from streams.delivery import Delivery, Facts, ack_of, read_reply
from streams.errors import ConnectionLost, Disconnected
from streams.frames import Message, publish_frame

log = logging.getLogger(__name__)

LASTS_S = 60.0
"""So long after a restart it may hand out what it forgot."""

_OVER = 1 << 31
"""In place of a delivery's number: it was finished, whatever the server says."""
_Message = tuple[int, int]
"""Its sequence, and when it was stored: a store that went back gives a sequence a second time."""
_Told = tuple[int, int, int]
"""A message, and its latest delivery that somebody has, or _OVER."""
_decode = msgspec.json.Decoder(list[_Told]).decode


class Restarts:
    """Of one node. `held()`: what it holds at present. `wait_s`: the consumers' ack wait."""

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
        self._lost: list[_Told] = []
        self._began_ms = 0
        self._until_s = 0.0
        self._own: dict[_Message, int] = {}
        self._known: dict[_Message, int] = {}
        self.is_lately = False
        """Whether deliveries have to be looked at: the server was started anew lately."""

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Hear of restarts, and of what others have begun."""
        listening = await self._connection.subscribe(self._connection.namespace.begun_jobs(), self._hear)
        try:
            yield
        finally:
            await listening.unsubscribe()

    # ---- what the node tells it

    def finished(self, deliveries: Sequence[Delivery]) -> None:
        """Remember what is acknowledged until the server has certainly heard, and written it down."""
        self._acked += [delivery.reply for delivery in deliveries]
        if self.is_lately:
            self._take_own((*one, _OVER) for one in map(_message_of, deliveries) if one in self._own)

    def lost(self, deliveries: Iterable[Delivery]) -> None:
        """Remember what was begun and is not ours any more; if the server forgot it, its next run is not its first."""
        self._lost += [_told_of(delivery.facts) for delivery in deliveries]

    def hold_lost(self) -> None:
        """What was acknowledged and not confirmed may be somebody else's: it is not acknowledged once more."""
        self._lost += [_told_of(read_reply(reply)) for reply in (*self._acked_before, *self._acked)]
        self._acked, self._acked_before = [], []

    def confirmed(self) -> None:
        """The server has answered what was said in the last turn of the hold; call it once each turn."""
        self._acked_before, self._acked = self._acked, []
        self._lost.clear()
        if self.is_lately:
            self._tell()  # once more, for who comes back later than we
            if monotonic_s() > self._until_s + LASTS_S:
                self.is_lately = False
                self._own.clear()
                self._known.clear()

    def reconnected(self) -> None:
        """Say again what may have been lost with the link; to a server that was started anew it is not said, for the
        sequences may be those of others there. What it hands out again is known instead."""
        again = [*self._acked_before, *self._acked]
        if self._connection.memory == self._memory:
            with suppress(Disconnected, ConnectionLost):
                self._connection.client.send(b"".join([ack_of(reply) for reply in again]))
            return
        self._memory = self._connection.memory
        self._own.clear()
        self._known.clear()
        self._take_own(_told_of(delivery.facts) for delivery in self._held())
        self._take_own(self._lost)
        self._take_own((*_told_of(read_reply(reply))[:2], _OVER) for reply in again)
        self._began_ms, self._until_s, self.is_lately = self._clock.now_ms(), monotonic_s() + self._wait_s, True
        self._tell()

    # ---- what is asked

    def wait_s(self, delivery: Delivery) -> float:
        """Return for how long a delivery has to wait until it is known whether somebody had begun it."""
        if delivery.stored_ms > self._began_ms:
            return 0.0
        return max(0.0, self._until_s - monotonic_s())

    def is_from_before(self, delivery: Delivery) -> bool:
        """Return whether we hold this since before the restart: by its sequence the server may know another by now."""
        return self.is_lately and _message_of(delivery) in self._own

    def is_held(self, delivery: Delivery) -> bool:
        """Return whether the server forgot that somebody, here or elsewhere, has just this already, or had."""
        return delivery.delivered <= self._known.get(_message_of(delivery), 0)

    def is_over(self, delivery: Delivery) -> bool:
        """Return whether the server forgot that it was finished."""
        return self._known.get(_message_of(delivery)) == _OVER

    # ---- between nodes

    def _take_own(self, told: Iterable[_Told]) -> None:
        some = list(told)
        self._own.update({(seq, stored_ms): delivered for seq, stored_ms, delivered in some})
        self._take(some)

    def _take(self, told: Iterable[_Told]) -> None:
        for seq, stored_ms, delivered in told:
            self._known[seq, stored_ms] = max(delivered, self._known.get((seq, stored_ms), 0))

    def _tell(self) -> None:
        if not self._own:
            return
        payload = msgspec.json.encode([(*message, delivered) for message, delivered in self._own.items()])
        with suppress(Disconnected, ConnectionLost):  # the next link brings it
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


def _told_of(facts: Facts) -> _Told:
    return facts.seq, facts.stored_ms, facts.delivered
