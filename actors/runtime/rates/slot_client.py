"""This node's slots: the cluster's permissions to run a call under a key, as the governor deals them (ADR 43).

In: calls that begin, wait and end, and replies of the governor. Out: one request for all keys, each half a second, and
at once for a key that has calls and no slot. State: the slots, in memory. A node without such calls sends nothing.

Under redelivery: each request has a number, and only the reply to the last one counts. When it cannot go on: a slot
that is not renewed ends, its calls are cut, and nothing begins under the key until a governor replies. When the node
stops, it hands back its slots.
"""

import logging
import math
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import anyio
import msgspec
from anyio.abc import TaskStatus

from actors.runtime.actor import FATAL
from actors.runtime.logs import fields
from actors.runtime.rates.governor_link import LEAVE_S, RETRY_S, GovernorLink
from actors.runtime.rules.slots_held import HeldSlots, SlotCall, SlotCut, SlotLimit
from streams.clock import monotonic_s
from streams.errors import StreamError
from streams.link.connection import Connection
from streams.messages.rates import ANSWER_S
from streams.messages.slots import decode_slots

log = logging.getLogger(__name__)

LOOK_S = 0.1
"""How often it is looked whether a slot with a call has ended, at least."""


class SlotListener(Protocol):
    """Whoever has calls under keys."""

    def may_begin(self, key: str) -> None:
        """Calls that wait under the key may begin."""

    def is_full(self, key: str, count: int) -> None:
        """So many calls that wait under the key are to be dropped, after those that may begin."""


class NodeSlots:
    """The slots of one node, of all kinds of keys."""

    def __init__(self, connection: Connection, node: str) -> None:
        self._connection = connection
        self._held = HeldSlots(node, secrets.token_hex(8))
        self._listeners: dict[str, SlotListener] = {}
        self._governor = GovernorLink(silent="slots.no_governor", back="slots.governed_again")
        self._has_calls = anyio.Event()

    def of(self, owner: str, listener: SlotListener) -> "OwnerSlots":
        """Return the slots of one owner of keys, as `jobs.<topic>`."""
        self._listeners[owner] = listener
        return OwnerSlots(self, owner)

    def on_silence(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each request that no governor answers."""
        self._governor.on_silence = listener

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Ask for slots until cancelled, and hand them back."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch_ends)
                task_status.started()
                while True:
                    await self._governor.until_due()
                    await self._ask()
        finally:
            with anyio.move_on_after(LEAVE_S, shield=True), suppress(StreamError):
                for ask in self._held.asks(monotonic_s(), is_last=True):
                    await self._connection.publish_core(self._connection.namespace.rates(), msgspec.json.encode(ask))

    # ---- for the owners

    def begin(self, key: str, limit: SlotLimit, on_cut: Callable[[SlotCut], None]) -> SlotCall | None:
        call = self._held.begin(key, limit, monotonic_s(), on_cut)
        if call is not None:
            self._has_calls.set()
        return call

    def end(self, call: SlotCall) -> None:
        self._governor.ask_at(self._held.end(call, monotonic_s()))

    def room(self, key: str) -> int:
        return self._held.room(key, monotonic_s())

    def wait(self, key: str, limit: SlotLimit, count: int) -> None:
        if self._held.wait(key, limit, count):
            self._governor.ask_at(monotonic_s())

    # ---- asking

    async def _ask(self) -> None:
        self._end_slots()
        self._governor.begin(monotonic_s())
        again_s = math.inf
        try:
            for ask in self._held.asks(monotonic_s()):
                sent_s = monotonic_s()
                message = await self._connection.request(
                    self._connection.namespace.rates(), msgspec.json.encode(ask), timeout_s=ANSWER_S
                )
                heard = self._held.hear(decode_slots(message.payload), sent_s, monotonic_s())
                again_s = min(again_s, RETRY_S if heard is None else heard.again_s)
                self._governor.hear()
                if heard is not None:
                    _notify(heard.cut)
                    for key in heard.more:
                        self._listener(key).may_begin(_own(key))
                    for key, count in heard.full:
                        self._listener(key).is_full(_own(key), count)
        except FATAL:
            raise
        except StreamError as error:
            again_s = RETRY_S
            self._governor.miss(error)
        if self._held:
            self._governor.ask_at(self._governor.asked_s + again_s)

    def _listener(self, key: str) -> SlotListener:
        return self._listeners[key.partition(":")[0]]

    async def _watch_ends(self) -> None:
        while True:
            end_s = self._held.next_end_s()
            if end_s == math.inf:
                self._has_calls = anyio.Event()
                await self._has_calls.wait()
            else:
                await anyio.sleep(min(LOOK_S, max(0.0, end_s - monotonic_s())))
                self._end_slots()

    def _end_slots(self) -> None:
        """Cut the calls whose slots have ended."""
        lost = self._held.end_slots(monotonic_s())
        if lost:
            log.error("slots.lost", extra=fields(keys=sorted({call.key for call in lost})[:10], calls=len(lost)))
            _notify(lost)


class OwnerSlots:
    """The slots of one owner's keys: of one topic of jobs, or of one task of batches."""

    def __init__(self, slots: NodeSlots, owner: str) -> None:
        self._slots = slots
        self._prefix = f"{owner}:"
        self.end = slots.end

    def begin(self, key: str, limit: SlotLimit, on_cut: Callable[[SlotCut], None]) -> SlotCall | None:
        """Begin a call under a key. `None`: there is no free slot. Call `wait`, and begin when the listener hears of
        it. End a call by `end`."""
        return self._slots.begin(self._prefix + key, limit, on_cut)

    def room(self, key: str) -> int:
        """Return how many calls may begin under a key."""
        return self._slots.room(self._prefix + key)

    def wait(self, key: str, limit: SlotLimit, count: int) -> None:
        """Take how many calls wait under a key."""
        self._slots.wait(self._prefix + key, limit, count)


def _own(key: str) -> str:
    return key.partition(":")[2]


def _notify(calls: Sequence[SlotCall]) -> None:
    for call in calls:
        if call.cut is not None:
            call.on_cut(call.cut)
