"""How many orders wait before the slowest sink. Pure.

A message of the stream of orders is a page, and the server counts messages. So the orders that wait are an estimate:
the pages times the usual size of one, as the nodes that publish them know it. The gate of a fetcher and the pages that
say why a source is not read count by this one rule.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

SINK = "sink_"
"""How the consumers of sinks begin. What others do with the orders is their own affair."""


class SinkBacklog(NamedTuple):
    """The slowest sink's consumer, empty if there is no sink, and how many orders wait before it."""

    consumer: str
    orders: int


def sink_backlog(pending: Mapping[str, int], orders_a_message: float) -> SinkBacklog:
    """Return what waits before the slowest sink. `pending`: messages that wait before each consumer."""
    before = {name: count for name, count in pending.items() if name.startswith(SINK)}
    slowest = max(before, key=before.__getitem__, default="")
    return SinkBacklog(slowest, round(before.get(slowest, 0) * orders_a_message))


def usual_size(sizes: Iterable[float]) -> float:
    """Return the size of a page by which every fetcher's gate is closed, out of what each of them knows."""
    return min(sizes, default=1.0)
