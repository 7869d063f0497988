"""Which requests of nodes a governor has answered. A late or repeated one gets no reply. Pure but for its memory."""

KEPT_S = 60.0
"""For how long the governor knows the number of a silent node's last request."""
SWEEP_S = 5.0


class Asked:
    """The last request of each run of a node, from an election on. `token`: of the governor's lease."""

    def __init__(self, token: int, since_s: float) -> None:
        self.token = token
        self._last: dict[str, tuple[int, float]] = {}
        self._swept_s = since_s

    def take(self, run: str, number: int, token: int, now_s: float) -> bool:
        """Return whether to reply: the request is the run's latest, and knows no newer governor."""
        last, _ = self._last.get(run, (0, 0.0))
        if number <= last or token > self.token:
            return False
        self._last[run] = number, now_s
        return True

    def sweep(self, now_s: float) -> bool:
        """Forget runs that are silent. Return whether it is time for the caller to forget, too."""
        if now_s - self._swept_s < SWEEP_S:
            return False
        self._swept_s = now_s
        self._last = {run: last for run, last in self._last.items() if now_s - last[1] < KEPT_S}
        return True
