"""Which zones live, on one cluster: those of which a node lives, by this node's own clock."""

from __future__ import annotations

from collections.abc import Callable

from actors.runtime.membership import Members
from actors.zone.rules.routing import ShardMap


class MemberLife:
    """Zones by their nodes (actors/runtime/membership.py). A node that the others may take for dead may not run. While
    this node hears nobody, it takes no zone for dead."""

    def __init__(self, members: Members, current: Callable[[], ShardMap | None]) -> None:
        self._members = members
        self._current = current

    def may_run(self) -> bool:
        """Return whether this node may act for its zone now."""
        return self._members.is_heard()

    @property
    def lapses(self) -> int:
        """How often it might not, and may again."""
        return self._members.lapses

    def living(self) -> frozenset[str]:
        """Return the zones of the live nodes."""
        return frozenset(node.zone for node in self._members.live().values() if node.zone)

    def dead(self) -> frozenset[str]:
        """Return the zones of the map of which no node lives."""
        shards = self._current()
        if shards is None or not self._members.is_heard():
            return frozenset()
        return frozenset(shards.zones()) - self.living()
