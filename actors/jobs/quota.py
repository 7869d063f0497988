"""How many jobs a topic may still take: its setting `most_waiting` minus the delayed and ready ones.

A count costs the server one look a state, so it is kept for a moment, with our own adds since. So several nodes that
add at once may exceed the limit by their adds in that moment. The limit stops a runaway producer, to the thousand, not
to the job.
"""

from collections.abc import Awaitable, Callable

from streams.clock import monotonic_s

FRESH_S = 0.25
FEW_TOPICS = 1024


class _Known:
    __slots__ = ("at_s", "waiting")

    def __init__(self, waiting: int, at_s: float) -> None:
        self.waiting = waiting
        self.at_s = at_s


class Quota:
    """Counts for the topics that have a limit. `count(topic)` returns how many are delayed and ready."""

    def __init__(self, count: Callable[[str], Awaitable[int]]) -> None:
        self._count = count
        self._known: dict[str, _Known] = {}

    async def room(self, topic: str, most_waiting: int) -> int:
        """Return how many more jobs the topic takes. Below 0: it has too many already."""
        known = self._known.get(topic)
        if known is None or monotonic_s() - known.at_s > FRESH_S:
            if len(self._known) >= FEW_TOPICS:
                self._known.clear()
            known = self._known[topic] = _Known(await self._count(topic), monotonic_s())
        return most_waiting - known.waiting

    def added(self, topic: str, count: int) -> None:
        """Count these adds."""
        known = self._known.get(topic)
        if known is not None:
            known.waiting += count
