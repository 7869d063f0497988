"""Which shards a zone has waited for long enough: their former owner has had `drain_ms`, by this node's clock."""

from __future__ import annotations

from actors.zone.rules.routing import ShardMap
from streams.clock import monotonic_s


class Overdue:
    """Remembers when this node first heard that a shard is its zone's."""

    def __init__(self, zone: str) -> None:
        self._zone = zone
        self._due: dict[str, tuple[int, float]] = {}

    def of(self, shards: ShardMap) -> frozenset[str]:
        """Return the shards of the zone whose former owner has had its time."""
        due_s, before = monotonic_s() + shards.drain_ms / 1000, self._due
        self._due = {}
        for shard in shards.shards_of(self._zone):
            since = shards.since.get(shard, 0)
            known = before.get(shard)
            self._due[shard] = known if known is not None and known[0] == since else (since, due_s)
        return frozenset(shard for shard, (_, at_s) in self._due.items() if monotonic_s() >= at_s)
