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
from actors.fetch.ledgers import Ledgers
from actors.fetch.monitor import Monitor
from actors.fetch.settings_watch import LiveSettings
from actors.fetch.slice_allocator import SliceAllocator
from actors.fetch.sources import Sources
from actors.runtime.measures import Measures
from actors.runtime.membership import Members, NodeRecord
from actors.runtime.notify import Notifier
from actors.runtime.resurrected import ResurrectedMessages
from actors.runtime.shares import share_of, sharers
from actors.runtime.supervisor import ActorSpec
from actors.runtime.transport import Transport, open_transport
from penstock.node.node import AT_ONCE
from streams.bucket import Bucket
from streams.clock import Clock
from streams.connection import Connection
from streams.publisher import Publisher
from streams.store_memory import StoreMemory

__all__ = ["FetchEngine", "open_fetch_engine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """What the engine's actors share."""

    labels: tuple[str, ...]
    connection: Connection
    publisher: Publisher
    members: Members
    settings: LiveSettings
    ledgers: Ledgers
    sources: Sources
    transport: Transport
    measures: Measures
    memory: StoreMemory
    clock: Clock
    stop: anyio.Event


class FetchEngine:
    """One node's fetch engine."""

    def __init__(self, shared: _Shared) -> None:
        self.measures = shared.measures
        self.transport = shared.transport
        self.ledgers = shared.ledgers
        self.sources = shared.sources
        self.fetcher = _fetcher(shared)
        self.allocator = _allocator(shared)
        self.monitor = _monitor(shared)
        slices = shared.connection.namespace.stream("SLICES")
        self.resurrected = ResurrectedMessages(shared.connection, [slices], shared.memory)

    def actors(self) -> tuple[ActorSpec, ...]:
        """Return the engine's actors in start order: whoever consumes comes before whoever produces for it."""
        return (
            ActorSpec(name="sources", role="", run=self.sources.run, policy=AT_ONCE),
            ActorSpec(name="ledgers", role="", run=self.ledgers.run, policy=AT_ONCE),
            ActorSpec(name="fetcher", role="fetcher", run=self.fetcher.run, drains=True),
            ActorSpec(name="allocator", role="allocator", run=self.allocator.run),
            ActorSpec(name="monitor", role="monitor", run=self.monitor.run),
            ActorSpec(name="revenants of slices", role="monitor", run=self.resurrected.run),
        )


def _reader(shared: _Shared) -> WindowReader:
    bucket = shared.connection.namespace.bucket("DIGESTS")
    return WindowReader(
        transport=shared.transport,
        sources=shared.sources,
        publisher=shared.publisher,
        digests=Digests(Bucket(shared.connection, shared.publisher, bucket, Digest)),
        budgets=_budgets(shared.members),
        measures=shared.measures,
        namespace=shared.connection.namespace,
        clock=shared.clock,
    )


def _fetcher(shared: _Shared) -> Fetcher:
    return Fetcher(
        node=shared.members.name,
        labels=shared.labels,
        connection=shared.connection,
        publisher=shared.publisher,
        ledgers=shared.ledgers,
        sources=shared.sources,
        settings=shared.settings,
        reader=_reader(shared),
        clock=shared.clock,
        stop=shared.stop,
    )


def _allocator(shared: _Shared) -> SliceAllocator:
    return SliceAllocator(
        ledgers=shared.ledgers,
        sources=shared.sources,
        settings=shared.settings,
        members=shared.members,
        publisher=shared.publisher,
        namespace=shared.connection.namespace,
        clock=shared.clock,
    )


def _monitor(shared: _Shared) -> Monitor:
    bucket = shared.connection.namespace.bucket("LEASES")
    return Monitor(
        node=shared.members.name,
        connection=shared.connection,
        leases=Bucket(shared.connection, shared.publisher, bucket, bytes),
        ledgers=shared.ledgers,
        sources=shared.sources,
        settings=shared.settings,
        publisher=shared.publisher,
        notifier=Notifier(shared.transport),
        measures=shared.measures,
        clock=shared.clock,
        stop=shared.stop,
    )


def _budgets(members: Members) -> Budgets:
    names = sharers(members, NodeRecord.has_role)
    return Budgets(lambda per_s: share_of(per_s, names("fetcher"), members.name), is_heard=members.is_heard)


@asynccontextmanager
async def open_fetch_engine(
    *,
    labels: tuple[str, ...],
    connection: Connection,
    publisher: Publisher,
    members: Members,
    settings: LiveSettings,
    memory: StoreMemory,
    clock: Clock,
    stop: anyio.Event,
) -> AsyncIterator[FetchEngine]:
    """Open what the engine holds: its HTTP client, and the tasks that write ledgers."""

    def bucket(short: str) -> Bucket[bytes]:
        return Bucket(connection, publisher, connection.namespace.bucket(short), bytes)

    async with open_transport() as transport, anyio.create_task_group() as writers:
        shared = _Shared(
            labels=labels,
            connection=connection,
            publisher=publisher,
            members=members,
            settings=settings,
            ledgers=Ledgers(bucket("LEDGERS"), writers),
            sources=Sources(bucket("SETTINGS")),
            transport=transport,
            measures=Measures(),
            memory=memory,
            clock=clock,
            stop=stop,
        )
        yield FetchEngine(shared)
        writers.cancel_scope.cancel()
