"""Tells what this node began under each rate, and asks all nodes for it.

In: requests on `rates-begun` (`AskBegun`). Out: a reply to each (`NodeBegun`). State: none of its own. The counts are
in memory (actors/runtime/rules/begun.py), so a node that ends takes its own with it.

Under redelivery: a reply says how things are, so a repeat does no harm. When it cannot go on: a malformed request is
logged. A node that does not reply in time is named to whoever asked.
"""

import logging
import os
import time
from collections.abc import Callable, Collection, Sequence, Set
from contextlib import suppress
from typing import NamedTuple

import anyio
import msgspec
from anyio.abc import TaskStatus
from msgspec.structs import replace

from actors.runtime.actor import until_stopped
from actors.runtime.logs import fields
from actors.runtime.rates.client import LeasedRates
from streams.clock import monotonic_s
from streams.errors import MalformedMessage, StreamError
from streams.link.connection import Connection
from streams.link.frames import Message
from streams.messages.begun import MOST_KEYS, MOST_SECONDS, AskBegun, KeyBegun, NodeBegun, decode_begun

log = logging.getLogger(__name__)

REPLY_S = 0.6
"""How long a node may take to reply. Somebody asks each second."""
LATE_MS = 100
"""How long after a second's end its counts are asked for: what begins in it may be counted a moment later."""
BACKLOG = 100
"""Requests that wait. More are dropped, and whoever asked hears from the other nodes."""
USAGE_S = 5.0
"""Over how long, at least, a node measures what its process uses."""


class CoreUsage:
    """What this process uses of a core."""

    def __init__(self) -> None:
        self._since = (monotonic_s(), time.process_time())
        self.cores = 0.0

    def look(self) -> None:
        """Measure, if USAGE_S have passed since the last time."""
        now_s, used_s = monotonic_s(), time.process_time()
        if now_s - self._since[0] >= USAGE_S:
            self.cores = (used_s - self._since[1]) / (now_s - self._since[0])
            self._since = now_s, used_s


def machine_load() -> float:
    """Return how many programs run or wait on this machine, for each core. 0 where nobody counts them."""
    return os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else 0.0


class RateCounts:
    """One node's part. `node`: its name."""

    def __init__(self, connection: Connection, rates: LeasedRates, node: str, stop: anyio.Event) -> None:
        self._connection = connection
        self._rates = rates
        self._node = node
        self._stop = stop
        self._usage = CoreUsage()

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Reply until the node stops."""
        send, receive = anyio.create_memory_object_stream[Message](BACKLOG)

        def heard(message: Message) -> None:
            with suppress(anyio.WouldBlock):
                send.send_nowait(message)

        async def reply_all() -> None:
            while True:
                message = None
                with anyio.move_on_after(USAGE_S):
                    message = await receive.receive()
                self._usage.look()
                if message is not None:
                    await self._reply(message)

        with send, receive:
            subscription = await self._connection.subscribe(self._connection.namespace.rates_begun(), heard)
            try:
                await until_stopped(self._stop, reply_all, task_status=task_status)
            finally:
                await subscription.unsubscribe()

    async def _reply(self, message: Message) -> None:
        try:
            ask = decode_begun(message.payload, AskBegun)
        except MalformedMessage as error:
            log.warning("rates.malformed", extra=fields(error=str(error)))
            return
        if message.reply:
            cores, load = round(self._usage.cores, 3), round(machine_load(), 2)
            reply = NodeBegun(node=self._node, keys=tuple(self._known(ask)), cores=cores, load=load)
            with suppress(StreamError):  # whoever asked names the nodes that it did not hear
                await self._connection.publish_core(message.reply, msgspec.json.encode(reply))

    def _known(self, ask: AskBegun) -> Sequence[KeyBegun]:
        counted = ((key, self._rates.begun.begun(key, ask.until_s, ask.seconds)) for key in ask.keys)
        none = (0,) * min(ask.seconds, MOST_SECONDS)
        return [
            KeyBegun(key, begun or none, *self._rates.standing(key), self._rates.free_ms(key))
            for key, begun in counted
            if begun or self._rates.is_wanted(key)
        ]


class Gathered(NamedTuple):
    """What the nodes replied, and the names of the nodes that did not."""

    nodes: tuple[NodeBegun, ...]
    silent: tuple[str, ...]


async def gather_begun(
    connection: Connection, living: Callable[[], Collection[str]], keys: Sequence[str], *, until_s: int, seconds: int
) -> Gathered:
    """Ask all live nodes. `until_s`: the last second. Returns once all have replied, or after REPLY_S. Raises
    Disconnected."""
    found: dict[str, NodeBegun] = {}
    silent: set[str] = set()
    for first in range(0, max(1, len(keys)), MOST_KEYS):
        ask = AskBegun(keys=tuple(keys[first : first + MOST_KEYS]), until_s=until_s, seconds=seconds)
        replies = await _replies(connection, set(living()), ask)
        silent |= set(living()) - replies.keys()
        for node, reply in replies.items():
            before = found[node].keys if node in found else ()
            found[node] = replace(reply, keys=(*before, *reply.keys))
    return Gathered(tuple(found[node] for node in sorted(found)), tuple(sorted(silent)))


def last_second(now_ms: int) -> int:
    """Return the last full second whose counts are there. `now_ms`: by the server's clock."""
    return (now_ms - LATE_MS) // 1000 - 1


async def is_waited_for(connection: Connection, nodes: Set[str], key: str, now_ms: int) -> bool:
    """Return whether something waits on these nodes because their shares of a rate are spent. True also if none of them
    replies: nobody knows. Raises Disconnected."""
    gathered = await gather_begun(connection, lambda: nodes, [key], until_s=now_ms // 1000 - 1, seconds=1)
    known = [each for reply in gathered.nodes if reply.node in nodes for each in reply.keys]
    return nodes <= set(gathered.silent) or any(each.is_waiting for each in known)


async def _replies(connection: Connection, nodes: set[str], ask: AskBegun) -> dict[str, NodeBegun]:
    replies: dict[str, NodeBegun] = {}
    all_replied = anyio.Event()

    def on_reply(message: Message) -> None:
        with suppress(MalformedMessage):  # its node counts as silent
            reply = decode_begun(message.payload, NodeBegun)
            replies[reply.node] = reply
            if nodes <= replies.keys():
                all_replied.set()

    inbox = connection.new_inbox()
    subscription = await connection.subscribe(inbox, on_reply)
    try:
        await connection.publish_core(connection.namespace.rates_begun(), msgspec.json.encode(ask), reply=inbox)
        with anyio.move_on_after(REPLY_S):
            await all_replied.wait()
    finally:
        await subscription.unsubscribe()
    return replies
