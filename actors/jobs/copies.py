"""Has the nodes drop their prefetched copies of a job that is gone.

A handler in a node runs a ready job by the delivery that it holds, and prefetches a few. So a node could still run a
job that was deleted meanwhile. The desk that deletes a job therefore requests every node that serves the topic to drop
its copies. It waits until all live nodes have replied, and repeats the request, which a broken link takes along.

A node that does not reply in three seconds, and does not live any more by its own record, is dead, cut off, or was
stopped. When it goes on it begins nothing that it held before it has looked at it. A node that lives and does not
reply is one that the servers keep from us. It may still begin its copy.
"""

import asyncio
from collections.abc import Callable, Collection

import msgspec

from streams.clock import monotonic_s
from streams.errors import OutcomeUnknown
from streams.link.connection import Connection
from streams.link.frames import Message

LONGEST_S = 3.0
"""A node that was stopped for this long knows that its copies may be gone (actors/jobs/worker/hold.py)."""
AGAIN_S = 0.3
GIVE_UP_S = 8.0
"""Longer than the record of a dead node lives."""


class GoneAsk(msgspec.Struct, frozen=True):
    """A job that is gone: drop your copies of it, and reply."""

    topic: str
    key: str


class GoneAnswer(msgspec.Struct, frozen=True):
    """A node that holds no copies of it (any more)."""

    node: str


class Copies:
    """Sends the requests. `serving(topic)`: the names of the live nodes that handle it."""

    def __init__(self, connection: Connection, serving: Callable[[str], Collection[str]]) -> None:
        self._connection = connection
        self._serving = serving

    async def drop(self, topic: str, key: str) -> None:
        """Return once no node begins a copy of the job any more. Raises OutcomeUnknown if a live node does not reply,
        Disconnected, ConnectionLost."""
        missing = set(self._serving(topic))
        if not missing:
            return
        began_s = monotonic_s()
        all_replied: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_reply(message: Message) -> None:
            missing.discard(_node_of(message.payload))
            if not missing and not all_replied.done():
                all_replied.set_result(None)

        inbox = self._connection.new_inbox()
        subscription = await self._connection.subscribe(inbox, on_reply)
        try:
            request, subject = msgspec.json.encode(GoneAsk(topic, key)), self._connection.namespace.gone()
            while missing:
                await self._connection.publish_core(subject, request, reply=inbox)
                await asyncio.wait([all_replied], timeout=AGAIN_S)
                waited_s = monotonic_s() - began_s
                if waited_s > LONGEST_S:
                    missing &= set(self._serving(topic))
                if missing and waited_s > GIVE_UP_S:
                    names = ", ".join(sorted(missing))
                    raise OutcomeUnknown(f"it is gone, but the node {names} does not reply", subject=topic)
        finally:
            await subscription.unsubscribe()


def _node_of(payload: bytes) -> str:
    try:
        return msgspec.json.decode(payload, type=GoneAnswer).node
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
