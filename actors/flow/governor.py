"""The governor: deals the shares of the cluster's rates to the nodes that have work under them.

One node at a time is the governor, by the lease `flow.governor`. In: requests of nodes (`AskShares`). Out: a reply to
each (`SharesDealt`). State: who has what, in memory. A new governor gives nothing more until what its predecessor gave
has ended (actors/flow/rules/governing.py). A governor that lost its lease and has it again goes on with its memory, if
nobody has governed since. Each governor writes the key `TERM` before its first reply, so its revision tells (ADR 53).
The same holds for slots, the permissions to run one call under a key (`AskSlots`, `SlotsDealt`,
actors/flow/rules/slots.py). `LookAtSlots` asks who has slots of a key (`SlotsSeen`), `ListSlots` under which keys slots
are taken (`SlotsListed`).

A node stands for election when it starts, and each time that no governor answers its requests. So a governor is there
while there is demand, and idle nodes do nothing. While the leases have no leader, since a server died, nobody can be
elected. Then the last governor has a head start, because it need not wait.

Under redelivery: a request that comes late or twice gets no reply. When it cannot go on: a governor whose lease is
over, by its own monotonic clock, does not reply, also not after it was stopped for long. A malformed request is
logged.
"""

import logging
import math
from collections.abc import Callable
from contextlib import suppress

import anyio
import msgspec
from anyio.abc import TaskStatus
from msgspec import Struct

from actors.flow.rules.governing import Governing
from actors.flow.rules.slots import Slotting
from actors.runtime.logs import fields
from streams.buckets.bucket import Bucket
from streams.buckets.lease import Lease, LeaseRecord, acquire, hold
from streams.chance import chance
from streams.clock import monotonic_s
from streams.errors import (
    Disconnected,
    MalformedMessage,
    OutcomeUnknown,
    Refused,
    RevisionConflict,
    StreamError,
)
from streams.link.connection import Connection
from streams.link.frames import Message
from streams.messages.rates import AskShares
from streams.messages.slots import AskSlots, ListSlots, LookAtSlots, decode_ask

log = logging.getLogger(__name__)

LEASE = "flow.governor"
TERM = "flow.governor.term"
"""Written by each governor once it is elected. It stays when the lease has ended."""
LEASE_TTL_S = 1
"""A killed governor has a successor within two seconds. So the nodes can still ask for what they had (`CLAIM_S`)."""
LOST_TTL_S, LOST_S = 3, 60.0
"""A node that has lost the lease holds the next ones for so long, for a minute. On a machine without a free core its
loop or the server's answers are late by a second, and the lease would be lost again and again (ADR 85)."""
IDLE_S, IDLE_TTL_S = 10.0, 3
"""Without requests for so long the lease is renewed each second. Then nobody has a share, and nobody claims one."""
AGAIN_S = 0.2
"""Between two tries to be elected."""
HEAD_START_S = 0.7
"""How much later than the last governor the others stand for election, after nobody could be elected."""
BACKLOG = 1_000
"""Requests that wait. More are dropped, and their nodes ask again."""


class Governor:
    """A node's part of this. `rate_of(key)`: the cluster's rate, as this node knows it. `None`: no limit."""

    def __init__(
        self,
        *,
        node: str,
        connection: Connection,
        leases: Bucket[bytes],
        rate_of: Callable[[str], float | None],
    ) -> None:
        self._node = node
        self._connection = connection
        self._leases = leases
        self._rate_of = rate_of
        self._is_missing = anyio.Event()
        self._term: tuple[int, Governing, Slotting] | None = None
        """The revision of `TERM` as this node wrote it, and what it knew as the governor."""
        self._was_out = False
        """The last try to be elected had no answer."""
        self._lost_s = -math.inf
        """When this node lost the lease last."""
        self.elected = anyio.Event()
        """Set while this node is the governor."""

    @property
    def _ttl_s(self) -> int:
        return LEASE_TTL_S if monotonic_s() - self._lost_s > LOST_S else LOST_TTL_S

    def missing(self) -> None:
        """Stand for election: no governor answers."""
        self._is_missing.set()

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Govern when elected, until cancelled. A node that stops may need shares for its work in hand."""
        task_status.started()
        while True:
            lease = await self._try_to_acquire()
            if lease is not None:
                await hold(lease, self._lead)
                self._lost_s = monotonic_s()
            await anyio.sleep(AGAIN_S * (0.5 + chance()))
            if lease is None and not (self._was_out and self._term is not None):
                self._is_missing = anyio.Event()
                await self._is_missing.wait()

    async def _try_to_acquire(self) -> Lease | None:
        try:
            if self._was_out and self._term is None:
                await self._leases.get(LEASE)
                await anyio.sleep(HEAD_START_S)
            lease = await acquire(self._leases, LEASE, self._node, ttl_s=self._ttl_s)
        except (Disconnected, OutcomeUnknown, Refused) as error:
            self._was_out = True
            log.debug("governor.no_campaign", extra=fields(error=str(error)))
            return None
        self._was_out = False
        return lease

    async def _begin_term(self, lease: Lease) -> tuple[Governing, Slotting]:
        """Return what this governor knows: what it knew in its last term, if nobody has governed since."""
        since_s = monotonic_s()
        mark = msgspec.json.encode(LeaseRecord(holder=self._node, mark=str(lease.token), since_ms=0))
        if self._term is not None:
            revision, governing, slotting = self._term
            with suppress(RevisionConflict):  # another one has governed since
                revision = await self._leases.compare_and_set(TERM, mark, revision, timeout_s=lease.left_s)
                governing.go_on(lease.token)
                slotting.go_on(lease.token)
                self._term = revision, governing, slotting
                return governing, slotting
            self._term = None
        revision = await self._leases.put(TERM, mark, timeout_s=lease.left_s)
        self._term = revision, Governing(lease.token, since_s), Slotting(lease.token, since_s)
        return self._term[1:]

    async def _lead(self, lease: Lease) -> None:
        was_before = self._term
        try:
            governing, slotting = await self._begin_term(lease)
        except StreamError as error:
            log.info("governor.no_term", extra=fields(node=self._node, error=str(error)))
            return
        goes_on = was_before is not None and was_before[1] is governing
        send, receive = anyio.create_memory_object_stream[Message](BACKLOG)

        def heard(message: Message) -> None:
            with suppress(anyio.WouldBlock):
                send.send_nowait(message)

        with send, receive:
            subscription = await self._connection.subscribe(self._connection.namespace.rates(), heard)
            log.info("governor.leads", extra=fields(node=self._node, goes_on=goes_on))
            self.elected.set()
            try:
                while True:
                    message = None
                    with anyio.move_on_after(IDLE_S):
                        message = await receive.receive()
                    lease.ttl_s = IDLE_TTL_S if message is None else self._ttl_s
                    if message is not None:
                        await self._answer(governing, slotting, lease, message)
            finally:
                self.elected = anyio.Event()
                await subscription.unsubscribe()

    async def _answer(self, governing: Governing, slotting: Slotting, lease: Lease, message: Message) -> None:
        try:
            ask = decode_ask(message.payload)
        except MalformedMessage as error:
            log.warning("governor.malformed", extra=fields(error=str(error)))
            return
        if not lease.is_held():
            return
        match ask:
            case AskShares():
                reply: Struct | None = governing.answer(ask, self._rate_of, monotonic_s())
            case AskSlots():
                reply = slotting.answer(ask, monotonic_s())
            case LookAtSlots():
                reply = slotting.seen(ask.key, monotonic_s())
            case ListSlots():
                reply = slotting.listed(ask.most, monotonic_s())
        if reply is not None and message.reply:
            with suppress(StreamError):  # a reply that is lost is asked for again
                await self._connection.publish_core(message.reply, msgspec.json.encode(reply))
