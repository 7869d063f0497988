"""How carefully a topic begins its jobs after a holder of some vanished, perhaps because of one of them."""

from collections.abc import Iterable

from actors.jobs.rules.job_handling import Suspicion
from streams.pull.delivery import Delivery

SUSPECT_S = 10.0
"""How long after the last job of a vanished holder the others are handled with care."""
ALONE_S = 1.0
"""How long nothing is begun beside a job that may be its holders' death: most that kill do so at once."""
_WORSE: tuple[Suspicion, ...] = ("none", "some", "grave")


class Care:
    """The care of one topic."""

    def __init__(self) -> None:
        self.suspicion: Suspicion = "none"
        self._until_s = 0.0
        self._alone: Delivery | None = None
        self._alone_until_s = 0.0

    def grows(self, found: Suspicion, now_s: float) -> bool:
        """Take the suspicion of one more delivery. Return whether it is worse than the present one."""
        self._until_s = now_s + SUSPECT_S
        is_worse = _WORSE.index(found) > _WORSE.index(self.suspicion)
        if is_worse:
            self.suspicion = found
        return is_worse

    def is_over(self, now_s: float) -> bool:
        """Return whether the suspicion has ended just now."""
        is_over = self.suspicion != "none" and now_s > self._until_s
        if is_over:
            self.suspicion = "none"
        return is_over

    def run_alone(self, delivery: Delivery, now_s: float) -> None:
        """Begin nothing beside this job for a while."""
        self._alone, self._alone_until_s = delivery, now_s + ALONE_S

    def alone_for_s(self, now_s: float) -> float:
        """Return for how long nothing more may begin. 0: something may."""
        return max(0.0, self._alone_until_s - now_s) if self._alone is not None else 0.0

    def has_ended(self, deliveries: Iterable[Delivery]) -> bool:
        """Return whether the job that ran alone is among these, whose call has ended."""
        if self._alone is None or not any(delivery is self._alone for delivery in deliveries):
            return False
        self._alone = None
        return True
