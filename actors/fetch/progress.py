"""Which consumers are stuck: messages wait, a client pulls, and yet the server delivers nothing. Pure but for its
memory.

The server is known to have lost such deliveries, and a paused consumer looks the same. From within the node both look
quiet.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from streams.pull.backlog import ConsumerState


class Stuck(NamedTuple):
    """A consumer that got stuck `for_s` seconds ago, or (`is_over`) goes on."""

    stream: str
    consumer: str
    pending: int
    for_s: float
    is_over: bool


class _Seen(NamedTuple):
    delivered: int
    at_s: float
    is_told: bool = False
    pending: int = 0


class Progress:
    """Watches the progress of the consumers of some streams. Times are seconds of one monotonic clock."""

    def __init__(self, stuck_s: float) -> None:
        self.stuck_s = stuck_s
        self._seen: dict[tuple[str, str], _Seen] = {}

    def forget(self) -> None:
        """Begin anew: what was seen is old."""
        self._seen.clear()

    def stuck(self) -> list[tuple[str, str, int]]:
        """Return the consumers that are stuck: stream, name, and how many messages wait."""
        return [(*key, seen.pending) for key, seen in self._seen.items() if seen.is_told]

    def look(self, stream: str, states: Iterable[ConsumerState], at_s: float) -> list[Stuck]:
        """Take the current states of the stream's consumers. Return those that got stuck or free since then."""
        found: list[Stuck] = []
        known = {key: seen for key, seen in self._seen.items() if key[0] == stream}
        for state in states:
            key = (stream, state.name)
            seen, news = _judged(state, known.pop(key, None), at_s, self.stuck_s)
            self._seen[key] = seen
            if news:
                found.append(Stuck(stream, state.name, state.pending, at_s - seen.at_s, is_over=not seen.is_told))
        for key in known:  # deleted
            del self._seen[key]
        return found


def _judged(state: ConsumerState, before: _Seen | None, at_s: float, stuck_s: float) -> tuple[_Seen, bool]:
    """Return what is known of a consumer now, and whether that has changed."""
    is_waiting = state.pending > 0 and state.pulls > 0
    if before is None or not is_waiting or state.delivered != before.delivered:
        return _Seen(state.delivered, at_s), before is not None and before.is_told
    is_stuck = at_s - before.at_s >= stuck_s
    return before._replace(is_told=before.is_told or is_stuck, pending=state.pending), is_stuck and not before.is_told
