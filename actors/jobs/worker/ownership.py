"""Whether a delivered job is this node's to run: at once, only after a look (doubts.py), or not at all."""

from collections.abc import Sequence

from actors.jobs.deliveries import Whose
from actors.jobs.stream import NEAR_MS, is_doubtful, key_of
from actors.jobs.worker.shared import Shared
from streams.clock import monotonic_s
from streams.pull.delivery import Delivery

DELETED_S, MOST_DELETED = 120.0, 10_000
"""How long, and of how many jobs, a delivery may still be on its way after the job was deleted."""


class Ownership:
    """The ownership of one topic's deliveries."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._hold = shared.hold
        self._restarts = shared.restarts
        self._deleted: dict[str, float] = {}

    def deleted(self, key: str) -> None:
        """Remember that the job of this key was deleted. A delivery of it may be on its way from another server."""
        self._deleted.pop(key, None)
        self._deleted[key] = now_s = monotonic_s()
        while len(self._deleted) > MOST_DELETED or now_s - self._deleted[next(iter(self._deleted))] > DELETED_S:
            del self._deleted[next(iter(self._deleted))]

    def look_in_s(self, delivery: Delivery) -> float | None:
        """Return in how many seconds to ask `whose` delivery this is. `None`: it may run at once."""
        if self._restarts.is_lately:
            wait_s = self._restarts.wait_s(delivery)
            if wait_s or self._restarts.is_held(delivery):
                return wait_s
        if is_doubtful(delivery, self._shared.connection, self._shared.clock):
            return NEAR_MS / 1000
        if again_s := self._hold.until_acknowledged_s():
            return again_s
        if delivery.delivered > 1 or self._hold.is_in_doubt or self._may_be_over(delivery):
            return 0.0
        return None

    def _may_be_over(self, delivery: Delivery) -> bool:
        is_deleted = bool(self._deleted) and key_of(delivery) in self._deleted
        return is_deleted or self._shared.settling.may_be_over(delivery)

    async def whose(self, deliveries: Sequence[Delivery]) -> dict[Delivery, Whose]:
        """Return whose these deliveries are. If the node may have missed something while they were read (see hold.py),
        the result is empty, and the caller asks again."""
        doubts = self._hold.doubts
        found: dict[Delivery, Whose] = {}
        for delivery in deliveries:
            if self._restarts.is_over(delivery):
                found[delivery] = "nobody's"
            elif self._restarts.is_held(delivery):
                found[delivery] = "another's"
        left = [delivery for delivery in deliveries if delivery not in found]
        found |= await self._shared.settling.whose(left)
        return found if self._hold.may_begin(monotonic_s()) and self._hold.doubts == doubts else {}
