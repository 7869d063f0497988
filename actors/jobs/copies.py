"""Has the nodes drop their prefetched copies of a job that is gone.

A handler in a node runs a ready job by the delivery that it holds, and prefetches a few. So a node could still run a
job that was deleted meanwhile. The desk that deletes a job therefore requests every node that serves the topic to drop
its copies. It waits until all live nodes have replied, for an ack wait at most. A node that does not reply in that time
is dead, cut off, or was stopped. When it goes on it knows that it holds nothing any more.
"""

import asyncio
from collections.abc import Callable, Collection

import msgspec

from streams.connection import Connection
from streams.frames import Message

LONGEST_S = 3.0
"""A node that was stopped for this long knows that it holds nothing any more (actors/jobs/worker/hold.py)."""


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

    async def drop(self, topic: str, key: str) -> bool:
        """Have all copies of the job dropped. Return whether every node that serves the topic has replied."""
        missing = set(self._serving(topic))
        if not missing:
            return True
        all_replied: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_reply(message: Message) -> None:
            missing.discard(_node_of(message.payload))
            if not missing and not all_replied.done():
                all_replied.set_result(None)

        inbox = self._connection.new_inbox()
        subscription = await self._connection.subscribe(inbox, on_reply)
        try:
            request = msgspec.json.encode(GoneAsk(topic, key))
            await self._connection.publish_core(self._connection.namespace.subject("gone"), request, reply=inbox)
            async with asyncio.timeout(LONGEST_S):
                await all_replied
        except TimeoutError:
            return False
        finally:
            await subscription.unsubscribe()
        return True


def _node_of(payload: bytes) -> str:
    try:
        return msgspec.json.decode(payload, type=GoneAnswer).node
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
