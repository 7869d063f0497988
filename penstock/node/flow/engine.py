"""Wires the governor of one node, and the node's own shares and slots."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from actors.flow.governor import Governor
from actors.flow.rates_desk import kind_of
from actors.runtime.measures import RateFigure
from actors.runtime.rates.counts import RateCounts
from actors.runtime.supervisor import ActorSpec
from penstock.node.node import Node

__all__ = ["FlowEngine", "open_flow_engine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowEngine:
    """One node's part of the cluster's rates."""

    node: Node
    governor: Governor
    counts: RateCounts

    def actors(self) -> tuple[ActorSpec, ...]:
        """Return the engine's actors in start order. They have no role: without a governor nothing with a rate runs,
        and a role is something that one can forget."""
        return (
            ActorSpec(name="governor", role="", run=self.governor.run),
            ActorSpec(name="rates", role="", run=self.node.rates.run),
            ActorSpec(name="counts of rates", role="", run=self.counts.run),
            ActorSpec(name="slots", role="", run=self.node.slots.run),
        )


@asynccontextmanager
async def open_flow_engine(node: Node) -> AsyncIterator[FlowEngine]:
    """Open the engine. Other engines tell the node's `rates` which rates there are."""
    governor = Governor(
        node=node.members.name,
        connection=node.connection,
        leases=node.bucket("LEASES"),
        rate_of=node.rates.rate_of,
    )
    node.rates.on_silence(governor.missing)
    node.slots.on_silence(governor.missing)
    counts = RateCounts(node.connection, node.rates, node.members.name, node.stop)
    node.measures.follow_rates(lambda: _figures(node), lambda: governor.elected.is_set())
    yield FlowEngine(node=node, governor=governor, counts=counts)


def _figures(node: Node) -> Iterator[RateFigure]:
    """Yield the rates that this node spends, or has spent. Sources are too many for a figure each."""
    for key, begun in node.rates.begun.totals(node.rates.clock.now_ms() // 1000):
        kind, name = kind_of(key) or ("source", "")
        if kind != "source":
            yield RateFigure(kind, name, target=node.rates.rate_of(key) or 0.0, begun=begun)
