"""How many orders wait before the slowest sink. Pure.

A message of the stream of orders is a page, and the server counts messages. So the orders that wait are an estimate:
the pages times the usual size of one, as the nodes that publish them know it. The gate of a fetcher and the pages that
say why a source is not read count by this one rule.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

SINK = "sink_"
"""How the consumers of sinks begin. What others do with the orders is their own affair."""


NODES = 100
LONGEST_S = 5.0
"""How long a fetcher that sends little goes without a look."""


class SinkBacklog(NamedTuple):
    """The slowest sink's consumer, empty if there is no sink, and how many orders wait before it."""

    consumer: str
    orders: int


def sink_backlog(pending: Mapping[str, int], orders_a_message: float) -> SinkBacklog:
    """Return what waits before the slowest sink. `pending`: messages that wait before each consumer."""
    before = {name: count for name, count in pending.items() if name.startswith(SINK)}
    slowest = max(before, key=before.__getitem__, default="")
    return SinkBacklog(slowest, round(before.get(slowest, 0) * orders_a_message))


def is_worth_a_look(sent: int, room: int, since_s: float) -> bool:
    """Return whether a fetcher should look how many orders wait now: if that is long ago, or if `NODES` nodes that have
    each sent as many as this one since the last look would have filled the room that there was."""
    return since_s >= LONGEST_S or sent * NODES >= room


def usual_size(sizes: Iterable[float]) -> float:
    """Return the size of a page by which every fetcher's gate is closed, out of what each of them knows."""
    return min(sizes, default=1.0)
