"""Topics whose jobs one node in each zone runs: `@penstock.job("topic", each_zone=True)` (ADR 52).

A node of a zone handles the topic `each__<zone>__<topic>`, and each node copies the jobs of the topic itself into those
of all zones. A copy has the id of its job, so a repeat adds no second one while the first is there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.jobs.rules.job_answers import NotAdded
from actors.jobs.worker.handler import Handler
from actors.jobs.worker.job import Job
from actors.runtime.logs import fields
from penstock.errors import PenstockError
from penstock.node.node import Node
from streams.messages.jobs import MACHINE_MADE, NewJob

if TYPE_CHECKING:
    from actors.zone.bindings import Bindings
    from penstock.node.jobs.engine import JobsEngine

__all__ = ["EachZone"]

log = logging.getLogger(__name__)


def zone_topic(zone: str, topic: str) -> str:
    """Return the topic of the copies for a zone. Neither name has two underscores in a row."""
    return f"each__{zone}__{topic}"


class EachZone:
    """One node's part. `engine` is set before a handler runs."""

    def __init__(self, node: Node, bounds: Bindings) -> None:
        self.engine: JobsEngine | None = None
        self._node = node
        self._bounds = bounds

    def handlers(self, registered: Mapping[str, Handler]) -> Iterator[Handler]:
        """Yield what this node handles for the registered handlers."""
        for handler in registered.values():
            if not handler.each_zone:
                yield handler
                continue
            yield self._copies_of(handler)
            zone = self._bounds.zone
            if zone:
                yield replace(handler, topic=zone_topic(zone, handler.topic), each_zone=False)
            else:
                log.warning("zone.none", extra=fields(topic=handler.topic, do="start the node with --zone"))

    def zones(self, topic: str) -> list[str]:
        """Return the zones that get the jobs of a topic: those of live nodes that handle it, and those of the shard map
        that ever did."""
        engine, shards = self.engine, self._bounds.current()
        assert engine is not None
        live = {node.zone for node in self._node.members.live().values() if zone_topic(node.zone, topic) in node.topics}
        known = shards.zones() if shards is not None else []
        return sorted(live | {zone for zone in known if zone_topic(zone, topic) in engine.topics})

    def _copies_of(self, handler: Handler) -> Handler:
        topic = handler.topic

        async def copy(job: Job) -> None:
            assert self.engine is not None
            record, zones = job.record, self.zones(topic)
            if not zones:
                raise PenstockError(f"topic {topic}: no node in any zone handles it; start one with --zone")
            copies = [
                NewJob(
                    topic=zone_topic(zone, topic),
                    id=job.id,
                    body=record.body,
                    ttr_ms=record.ttr_ms,
                    priority=record.priority,
                    attempts=record.most_attempts,
                    nonce=f"{MACHINE_MADE}each-{record.added_ms}",
                )
                for zone in zones
            ]
            for answer in await self.engine.desk.add(copies):
                if isinstance(answer, NotAdded):
                    raise PenstockError(f"topic {topic}: a copy of job {job.id} was not added: {answer.reason}")

        return Handler(topic=topic, name=f"{handler.name} in each zone", take=copy, is_async=True, lanes=handler.lanes)
