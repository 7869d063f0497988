"""Consumers that this node cannot make. Each stops what is taken from it, and nothing else.

The log has the reason once, until it changes. Heartbeats report it, so that `why` can name it. Whoever needs the
consumer tries again.
"""

import itertools
import logging
from collections.abc import Awaitable, Iterable

from actors.runtime.logs import fields
from actors.runtime.membership import NodeRecord
from streams.errors import ConnectionLost, StreamError, TopologyMismatch

log = logging.getLogger(__name__)

MOST_UNMADE = 200
"""The consumers that a node reports as missing. All others read that with each of its heartbeats."""


class Unmade:
    """Of one engine. `actor`: its name in the log."""

    def __init__(self, actor: str) -> None:
        self._events = f"{actor}.no_consumer", f"{actor}.has_consumer"
        self._reasons: dict[str, str] = {}

    @property
    def reasons(self) -> dict[str, str]:
        """Why consumers could not be made at the last try, by their names: the first `MOST_UNMADE`."""
        return dict(itertools.islice(self._reasons.items(), MOST_UNMADE))

    async def make(self, consumer: str, making: Awaitable[None]) -> bool:
        """Make a consumer, and return whether it is there. One that somebody made otherwise, or that this user may not
        make, ends nothing. Raises ConnectionLost only."""
        try:
            await making
        except ConnectionLost:
            raise
        except StreamError as error:
            why = "; ".join(error.differences) if isinstance(error, TopologyMismatch) else str(error)
            if self._reasons.get(consumer) != why:
                log.warning(self._events[0], extra=fields(consumer=consumer, error=why))
            self._reasons[consumer] = why
            return False
        if self._reasons.pop(consumer, ""):
            log.info(self._events[1], extra=fields(consumer=consumer))
        return True

    def forget(self, consumer: str) -> None:
        """Nobody needs it any more."""
        self._reasons.pop(consumer, None)


def unmade_by_all(nodes: Iterable[NodeRecord], consumer: str) -> str:
    """Return why none of these nodes could make a consumer, empty if one could or there is none."""
    reasons = [node.unmade.get(consumer, "") for node in nodes]
    return reasons[0] if reasons and all(reasons) else ""
