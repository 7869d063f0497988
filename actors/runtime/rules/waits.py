"""Keys that wait, each until a moment of its own. Pure but for its memory, from which past moments go now and then."""

from collections.abc import Hashable
from typing import Generic, TypeVar

from actors.runtime.rules.sweeps import Sweeps

K = TypeVar("K", bound=Hashable)
FEW = 64


class Waits(Generic[K]):
    """The moments, in any unit that all calls share."""

    def __init__(self) -> None:
        self._until: dict[K, float] = {}
        self._sweeps = Sweeps(FEW)

    def put(self, key: K, now: float, wait: float) -> None:
        """Have the key wait at least so long from now on."""
        if self._sweeps.is_due(len(self._until)):
            self._until = {each: until for each, until in self._until.items() if until > now}
            self._sweeps.swept(len(self._until))
        self._until[key] = max(now + wait, self._until.get(key, 0.0))

    def left(self, key: K, now: float) -> float:
        """Return how much longer the key waits. 0: it does not wait."""
        return max(0.0, self._until.get(key, 0.0) - now)
