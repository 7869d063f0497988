"""How fast a topic's jobs, or a task's items, are let out: this node's part of each rate, spent evenly by all who do.

A rate is the cluster's; a node spends the rate divided by the live nodes that hand out the topic's jobs, by handlers or
by their desk, so that a node that comes or goes changes the parts within a heartbeat (ADR 10). Nothing here sleeps:
what is not granted says how long to wait. State: memory only. After a restart a node begins with one burst, a tenth of
a second's worth.
"""

from collections.abc import Callable

from actors.runtime.rules.pacing import Pace, Rate, acquire, conforming
from streams.clock import monotonic_s

__all__ = ["ReleaseRates"]

BURST_S = 0.1
FEW_PACES = 256


class ReleaseRates:
    """Grants releases. One object a node; `per_s(topic)` is the topic's rate, 0 for none; `nodes(topic)` share it."""

    def __init__(
        self,
        per_s: Callable[[str], float],
        nodes: Callable[[str], int],
        *,
        now_ms: Callable[[], float] = lambda: monotonic_s() * 1000,
    ) -> None:
        self._per_s = per_s
        self._nodes = nodes
        self._now_ms = now_ms
        self._paces: dict[str, Pace] = {}

    def take(self, topic: str, most: int) -> tuple[int, int]:
        """Return how many of `most` jobs may be let out now, and if none, how many milliseconds to wait at least."""
        rate = self._rate(topic)
        if rate is None:
            return most, 0
        now_ms, pace = self._now_ms(), self._paces.get(topic, Pace())
        granted = min(most, conforming(pace, rate, now_ms))
        if granted:
            self._keep(topic, acquire(pace, rate, now_ms, granted)[0], now_ms)
            return granted, 0
        return 0, max(1, round(acquire(pace, rate, now_ms)[1]))

    def give_back(self, topic: str, count: int) -> None:
        """Take back what was granted and not used."""
        rate, pace = self._rate(topic), self._paces.get(topic)
        if rate is not None and pace is not None and count > 0:
            self._paces[topic] = Pace(pace.spent_ms - count * rate.interval_ms)

    def _rate(self, topic: str) -> Rate | None:
        per_s = self._per_s(topic) / max(1, self._nodes(topic))
        return Rate(per_s, max(1, int(per_s * BURST_S))) if per_s > 0 else None

    def _keep(self, topic: str, pace: Pace, now_ms: float) -> None:
        """Keep a pace; those that are not spent beyond now say nothing any more."""
        if len(self._paces) >= FEW_PACES and topic not in self._paces:
            self._paces = {name: kept for name, kept in self._paces.items() if kept.spent_ms > now_ms}
        self._paces[topic] = pace
