"""Counts what waits in the whole installation, for the figures: jobs, batches, dead letters, sinks and nodes.

In: reads of the server, and the live views of batches and nodes. Out: one `Backlog` for the node's figures. State: a
lease in LEASES. One of the nodes that serve figures counts, and the others say nothing of these. Of many topics it
counts some each `PERIOD_S` (topic_figures.py).
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass

from anyio.abc import TaskStatus

from actors.batch.instances import Instances
from actors.batch.rules.record import known_items, shown_state
from actors.jobs.store import JobStore
from actors.jobs.topics import Topics
from actors.runtime.actor import FATAL, ticks, until_stopped
from actors.runtime.dead_counts import DeadCounts
from actors.runtime.logs import fields
from actors.runtime.measures import Backlog
from actors.runtime.pieces import in_pieces
from penstock.node.config import ROLES
from penstock.node.jobs.topic_figures import TopicFigures
from penstock.node.node import Node
from streams.buckets.lease import Lease, lead
from streams.clock import Clock
from streams.errors import StreamError
from streams.pull.backlog import consumers_pending

log = logging.getLogger(__name__)

__all__ = ["WaitingCount"]

LEASE = "figures"
LEASE_TTL_S = 10
PERIOD_S = 10.0
_SINK = "sink_"
_Numbers = dict[tuple[str, ...], float]


@dataclass(slots=True)
class _Memory:
    """What one leader has counted."""

    topics: TopicFigures
    dead: DeadCounts


class WaitingCount:
    """The actor. `latest` has what it counted last, None while another node counts."""

    def __init__(
        self, node: Node, *, topics: Topics, jobs: JobStore, instances: Instances, server_clock: Clock
    ) -> None:
        self.latest: Backlog | None = None
        self._node = node
        self._topics = topics
        self._jobs = jobs
        self._instances = instances
        self._server_clock = server_clock

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Stand for election until the node stops."""
        await until_stopped(self._node.stop, self._campaign, task_status=task_status)

    async def _campaign(self) -> None:
        node = self._node
        await lead(node.bucket("LEASES"), LEASE, node.members.name, ttl_s=LEASE_TTL_S, body=self._lead)

    async def _lead(self, _lease: Lease) -> None:
        memory = _Memory(TopicFigures(self._node.connection, self._jobs), DeadCounts(self._node.connection))
        try:
            async for _ in ticks(lambda: PERIOD_S, self._node.stop):
                try:
                    self.latest = await self._counted(memory)
                except FATAL:
                    raise
                except StreamError as error:
                    log.info("figures.not_counted", extra=fields(error=str(error)))
        finally:
            self.latest = None

    async def _counted(self, memory: _Memory) -> Backlog:
        await memory.topics.look(self._topics.known())
        orders = await consumers_pending(self._node.connection, self._node.connection.namespace.stream("ORDERS"))
        stored_ms, now_ms = self._server_clock.now_ms(), self._node.clock.now_ms()
        nodes = Counter(role for one in self._node.members.live().values() for role in one.roles or ROLES)
        return Backlog(
            jobs={
                (topic, state): getattr(counts, state)
                for topic, counts in memory.topics.counts.items()
                for state in ("delayed", "ready", "reserved")
            },
            ready_s={
                (topic,): max(0, stored_ms - since_ms) / 1000 if since_ms else 0.0
                for topic, since_ms in memory.topics.since_ms.items()
            },
            dead={key: float(count) for key, count in (await memory.dead.look()).items()},
            **await _of_batches(self._instances, now_ms),
            sinks={(name.removeprefix(_SINK),): count for name, count in orders.items() if name.startswith(_SINK)},
            nodes={(role,): count for role, count in nodes.items()},
        )


async def _of_batches(instances: Instances, now_ms: int) -> dict[str, _Numbers]:
    """Return the figures of all batches that are not over."""
    batches, items = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    step_s: _Numbers = {}
    async for one in in_pieces(list(instances.all_unfinished())):
        batches[one.task, shown_state(one)] += 1
        items[one.task,] += max(0, (known_items(one) or 0) - one.counts.ended)
        if one.state in ("splitting", "reducing"):
            step_s[one.task,] = max(step_s.get((one.task,), 0.0), (now_ms - one.step_since_ms) / 1000)
    return {"batches": dict(batches), "items": dict(items), "step_s": step_s}
