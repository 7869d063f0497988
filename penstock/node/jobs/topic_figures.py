"""Counts the jobs of each topic for the figures: of those topics that changed since they were counted.

A count takes eleven requests, and the server looks through the topic's jobs for most of them. Whether anything came or
went takes two, which it answers from the end of the stream and from one number. If nothing of the whole stream changed,
it takes none. State: what was counted, and where the stream was then.
"""

from collections.abc import Sequence
from typing import NamedTuple

from actors.jobs.reads import TopicCounts
from actors.jobs.store import JobStore
from streams.link.connection import Connection
from streams.reads.direct_get import get_batch
from streams.reads.log import Extent, extent_of

__all__ = ["TopicFigures"]

COUNTS_A_TURN = 40
LOOKS_A_TURN = 400
LOOK_S = 5.0


class _Seen(NamedTuple):
    """A topic as it was counted: where its stream was, and how many messages of the topic it had."""

    extent: Extent
    messages: int


class TopicFigures:
    """The counts of all topics. With many of them a turn looks at some."""

    def __init__(self, connection: Connection, jobs: JobStore) -> None:
        self._connection = connection
        self._namespace = connection.namespace
        self._jobs = jobs
        self._seen: dict[str, _Seen] = {}
        self._turn = 0
        self.counts: dict[str, TopicCounts] = {}
        self.since_ms: dict[str, int] = {}
        """Since when the first ready job of a topic waits. 0: there is none."""

    async def look(self, topics: Sequence[str]) -> int:
        """Look at the next of these topics, and count those that changed. Return how many were counted. Raises as
        `Connection.api`."""
        self._forget_all_but(topics)
        counted, looked = 0, 0
        extents = {stream: await extent_of(self._connection, stream) for stream in self._namespace.jobs_streams()}
        while counted < COUNTS_A_TURN and looked < min(LOOKS_A_TURN, len(topics)):
            self._turn = self._turn % len(topics)
            topic = topics[self._turn]
            counted += await self._count(topic, extents[self._namespace.jobs_stream(topic)])
            self._turn, looked = self._turn + 1, looked + 1
        return counted

    def _forget_all_but(self, topics: Sequence[str]) -> None:
        for topic in self._seen.keys() - set(topics):
            del self._seen[topic], self.counts[topic], self.since_ms[topic]

    async def _count(self, topic: str, extent: Extent) -> bool:
        """Count a topic if it changed since. Return whether it was counted."""
        seen = self._seen.get(topic)
        if seen is not None and seen.extent == extent:
            return False
        messages = await self._messages(topic)
        is_same = seen is not None and seen.messages == messages
        if seen is not None and is_same and not await self._messages(topic, after_seq=seen.extent.last_seq):
            self._seen[topic] = _Seen(extent, messages)
            return False
        counts = await self._jobs.count(topic)
        self.since_ms[topic] = await self._jobs.ready_since_ms(topic) if counts.ready else 0
        self.counts[topic], self._seen[topic] = counts, _Seen(extent, messages)
        return True

    async def _messages(self, topic: str, *, after_seq: int = 0) -> int:
        """Return how many messages of a topic there are."""
        stream, pattern = self._namespace.jobs_stream(topic), self._namespace.jobs_in("*", topic)
        request = {"seq": after_seq + 1, "next_by_subj": pattern, "batch": 1}
        found, _ = await get_batch(self._connection, stream, request, timeout_s=LOOK_S)
        return 1 + int(found[0].headers.get("Nats-Num-Pending", 0)) if found else 0
