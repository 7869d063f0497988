"""Has the nodes drop what they fetched ahead of a job that is gone.

A handler in a node runs a ready job by the delivery that it holds, and fetches a few ahead; one that was deleted
meanwhile would still be run. So who deletes asks every node that serves the topic to drop its copies, and waits until
all that live have answered, for an ack wait at most: a node that does not answer in that time is dead, cut off, or
stood still, and when it goes on it knows that it holds nothing any more.
"""

import asyncio
from collections.abc import Callable, Collection

import msgspec

from streams.connection import Connection
from streams.frames import Message

LONGEST_S = 3.0
"""A node that stood still for so long knows that it holds nothing any more (actors/jobs/worker/hold.py)."""


class GoneAsk(msgspec.Struct, frozen=True):
    """A job that is gone: drop your copies of it, and answer."""

    topic: str
    key: str


class GoneAnswer(msgspec.Struct, frozen=True):
    """A node that holds no copies of it (any more)."""

    node: str


class Copies:
    """Asks the nodes. `serving(topic)`: the names of the live nodes that handle it."""

    def __init__(self, connection: Connection, serving: Callable[[str], Collection[str]]) -> None:
        self._connection = connection
        self._serving = serving

    async def drop(self, topic: str, key: str) -> bool:
        """Have all copies of the job dropped; return whether every node that serves the topic has said so."""
        missing = set(self._serving(topic))
        if not missing:
            return True
        all_said: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def heard(message: Message) -> None:
            missing.discard(_node_of(message.payload))
            if not missing and not all_said.done():
                all_said.set_result(None)

        inbox = self._connection.new_inbox()
        subscription = await self._connection.subscribe(inbox, heard)
        try:
            ask = msgspec.json.encode(GoneAsk(topic, key))
            await self._connection.publish_core(self._connection.namespace.subject("gone"), ask, reply=inbox)
            async with asyncio.timeout(LONGEST_S):
                await all_said
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
