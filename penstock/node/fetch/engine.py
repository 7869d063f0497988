"""Wires the fetch engine of one node: what its actors share, and the actors with their roles."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from actors.fetch.budget import Budgets
from actors.fetch.digests import Digest, Digests
from actors.fetch.fetcher.lanes import Fetcher
from actors.fetch.fetcher.window import WindowReader
from actors.fetch.grants import Grants
from actors.fetch.learning import LearnedLimits
from actors.fetch.ledgers import Ledgers
from actors.fetch.monitor import Monitor
from actors.fetch.slice_allocator import MONITOR, SliceAllocator
from actors.fetch.sources import Sources
from actors.runtime.broker.resurrected import ResurrectedMessages
from actors.runtime.notices.notify import Notifier
from actors.runtime.rates.requests import WantedRates
from actors.runtime.rules.placement import KEYS_EACH
from actors.runtime.supervisor import ActorSpec
from actors.runtime.tending import tended_by
from actors.runtime.transport import Transport, open_transport
from penstock.node.mail import mail_server
from penstock.node.node import AT_ONCE, Node
from streams.buckets.bucket import Bucket

__all__ = ["FetchEngine", "open_fetch_engine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchEngine:
    """One node's fetch engine."""

    notifier: Notifier
    ledgers: Ledgers
    learned: LearnedLimits
    sources: Sources
    fetcher: Fetcher
    allocator: SliceAllocator
    monitor: Monitor
    resurrected: ResurrectedMessages

    @property
    def crowd(self) -> int:
        """How many times ten thousand sources this node knows."""
        return len(self.sources) // KEYS_EACH

    @property
    def leads(self) -> tuple[str, ...]:
        """The leases that this node holds while it follows the ledgers."""
        return (MONITOR,) if self.monitor.is_leading else ()

    def actors(self) -> tuple[ActorSpec, ...]:
        """Return the engine's actors in start order: whoever consumes comes before whoever produces for it."""
        return (
            ActorSpec(name="sources", role="", run=self.sources.run, policy=AT_ONCE),
            ActorSpec(name="ledgers", role="", run=self.ledgers.run, policy=AT_ONCE),
            ActorSpec(name="limits", role="", run=self.learned.run, policy=AT_ONCE),
            ActorSpec(name="fetcher", role="fetcher", run=self.fetcher.run, drains=True),
            ActorSpec(name="allocator", role="allocator", run=self.allocator.run),
            ActorSpec(name="monitor", role="monitor", run=self.monitor.run),
            ActorSpec(name="resurrected slices", role="monitor", run=self.resurrected.run),
        )


@asynccontextmanager
async def open_fetch_engine(node: Node, *, rates: WantedRates | None = None) -> AsyncIterator[FetchEngine]:
    """Open what the engine holds: its HTTP client, and the tasks that write ledgers. `rates`: in place of the node's
    shares of the cluster's."""
    sources = Sources(node.bucket("SETTINGS"))
    async with open_transport() as transport, anyio.create_task_group() as writers:
        ledgers = Ledgers(node.bucket("LEDGERS"), writers)
        notifier = Notifier(transport, mail_server(node.config))
        budgets = Budgets(rates or node.rates)
        learned = LearnedLimits(ledgers, node.bucket("DIGESTS"), budgets, node.clock)
        yield FetchEngine(
            notifier=notifier,
            ledgers=ledgers,
            learned=learned,
            sources=sources,
            fetcher=Fetcher(
                node=node.members.name,
                labels=node.config.labels,
                connection=node.connection,
                publisher=node.publisher,
                ledgers=ledgers,
                sources=sources,
                settings=node.settings,
                reader=_reader(node, transport, ledgers, sources, budgets, learned),
                clock=node.clock,
                stop=node.stop,
                bounds=node.bounds,
            ),
            allocator=SliceAllocator(
                ledgers=ledgers,
                sources=sources,
                settings=node.settings,
                members=node.members,
                publisher=node.publisher,
                namespace=node.connection.namespace,
                clock=node.clock,
            ),
            monitor=Monitor(
                node=node.members.name,
                connection=node.connection,
                leases=node.bucket("LEASES"),
                ledgers=ledgers,
                sources=sources,
                settings=node.settings,
                publisher=node.publisher,
                notifier=notifier,
                measures=node.measures,
                clock=node.clock,
                stop=node.stop,
                on_lead=node.members.beat_soon,
            ),
            resurrected=ResurrectedMessages(
                node.connection,
                [node.connection.namespace.stream("SLICES")],
                node.memory,
                tended_by(node.members, "monitor"),
            ),
        )
        writers.cancel_scope.cancel()


def _reader(
    node: Node,
    transport: Transport,
    ledgers: Ledgers,
    sources: Sources,
    budgets: Budgets,
    learned: LearnedLimits,
) -> WindowReader:
    namespace = node.connection.namespace
    return WindowReader(
        transport=transport,
        ledgers=ledgers,
        sources=sources,
        publisher=node.publisher,
        digests=Digests(Bucket(node.connection, node.publisher, namespace.bucket("DIGESTS"), Digest)),
        grants=Grants(node.bucket("DIGESTS")),
        budgets=budgets,
        measures=node.measures,
        namespace=namespace,
        clock=node.clock,
        learned=learned,
        bounds=node.bounds,
    )
