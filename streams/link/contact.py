"""Whether the server of a connection still reaches the others of its cluster, by what it answers. Pure.

A server that is cut off from the others keeps its clients, and their links look sound: pings are answered, and nothing
else is. So a client has to find out by itself that another server is better. An election looks the same for some
seconds, and then ends.
"""

LEAVE_S = 10.0
"""Seconds alone after which a client leaves. An election takes four to nine."""
NOBODY_S = 300.0
"""The most seconds that a client gives a server where no node answers. There may be no node at all."""


class Contact:
    """What one connection knows of its server. Where the next servers are alone, too, the reason is elsewhere. So each
    one is given twice as long as the one before, up to `most_s`, until there is an answer."""

    def __init__(self, *, most_s: float = LEAVE_S) -> None:
        self._most_s = most_s
        self._leave_s = LEAVE_S
        self._alone: tuple[float, float] | None = None
        """When it was first heard to be alone, and last."""

    def answered(self) -> None:
        """Take an answer of the others."""
        self._alone = None
        self._leave_s = LEAVE_S

    def alone(self, now_s: float) -> bool:
        """Take an answer of a server that reaches nobody. Return whether to leave now. What comes after that is of the
        next server. Answers that are far apart tell nothing of the time between."""
        first_s, last_s = self._alone or (now_s, now_s)
        self._alone = (first_s if now_s - last_s < LEAVE_S else now_s), now_s
        if now_s - self._alone[0] < self._leave_s:
            return False
        self._alone = None
        self._leave_s = min(2 * self._leave_s, self._most_s)
        return True
