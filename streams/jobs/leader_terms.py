"""Since when the leader of a stream leads.

The servers of a cluster know the message ids of what was stored, also of what is gone. A server that was away (stopped,
killed, cut off) may take up the stream from a snapshot, and then gets what is still there. It never hears of the ids of
what was stored and removed meanwhile, and takes such an id for new when it leads (nats-server 2.15.1). All of that was
removed before its term began. So whoever relies on an id asks whether the leader has led since.
"""

import math
from collections.abc import Mapping
from typing import Any

import anyio

from streams.clock import monotonic_s
from streams.link.connection import Connection
from streams.link.server_clock import server_time_s
from streams.reads.leader_get import info_of_leader

FRESH_S = 0.1
"""An answer serves all who ask within so many seconds. No leader follows another one so soon, unless a person asks for
it."""


class LeaderTerm:
    """The term of a stream's leader. Safe for many callers at once. It has no beginning where the stream is on one
    server."""

    def __init__(self, connection: Connection, stream: str) -> None:
        self._connection = connection
        self._stream = stream
        self._lock = anyio.Lock()
        self._led_s = self._asked_s = -math.inf

    async def ask(self, timeout_s: float) -> float:
        """Return when the present leader began to lead, or a moment later, in monotonic seconds. Raises as
        `info_of_leader`."""
        if not self._connection.is_clustered:
            return -math.inf
        since_s = monotonic_s() - FRESH_S
        async with self._lock:
            if self._asked_s < since_s:
                asked_s = monotonic_s()
                info = await info_of_leader(self._connection, self._stream, timeout_s=timeout_s)
                self._asked_s, self._led_s = asked_s, monotonic_s() - _led_for_s(info)
            return self._led_s


def _led_for_s(info: Mapping[str, Any]) -> float:
    """Return for how long a leader has led, by its own clock. One that just ends does not tell: 0."""
    if info["config"]["num_replicas"] == 1:
        return math.inf
    since = info["cluster"].get("leader_since")
    return max(0.0, server_time_s(info["ts"]) - server_time_s(since)) if since else 0.0
