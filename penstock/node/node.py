"""The parts that the engines of one node share: its connection, its view of the others, its settings, its stop."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import anyio

from actors.fetch.settings.history import kept_values
from actors.fetch.settings.watch import LiveSettings
from actors.runtime.bounds import Anywhere, WorkBounds
from actors.runtime.broker.cluster_watch import ClusterWatch
from actors.runtime.broker.store_watch import StoreWatch
from actors.runtime.events import Events
from actors.runtime.measures import Measures
from actors.runtime.membership import Members, NodeRecord, Status
from actors.runtime.rates.client import LeasedRates
from actors.runtime.rates.slot_client import NodeSlots
from actors.runtime.supervisor import ActorSpec, Policy
from penstock.node.config import Config
from penstock.node.session import health_of, server_folder, topology_of
from streams.buckets.bucket import Bucket
from streams.clock import SYSTEM, Clock
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from streams.store_memory import StoreMemory, boot_id

__all__ = ["Node", "open_node"]

AT_ONCE = Policy(most=0, then="stop")
"""For actors without which a node is of no use: their first failure that no reconnect mends ends it. A deleted bucket
is such a failure. A node that went on would act as if the bucket had always been empty."""


@dataclass(slots=True)
class Node:
    """One node's shared parts. An engine may replace `status`, to report its load in the node's record. `bounds`: what
    may run in its zone."""

    config: Config
    connection: Connection
    publisher: Publisher
    members: Members
    settings: LiveSettings
    events: Events
    memory: StoreMemory
    store: StoreWatch
    stop: anyio.Event
    clock: Clock = SYSTEM
    status: Callable[[], Status] = field(default=Status)
    measures: Measures = field(default_factory=Measures)
    bounds: WorkBounds = field(default_factory=Anywhere)
    rates: LeasedRates = field(init=False)
    slots: NodeSlots = field(init=False)

    def __post_init__(self) -> None:
        self.rates = LeasedRates(self.connection, self.members.name)
        self.slots = NodeSlots(self.connection, self.members.name)

    def bucket(self, short: str, *, domain: str = "") -> Bucket[bytes]:
        """Return a bucket of the namespace, its values as bytes. `domain`: where it is, if not on this server."""
        name = self.connection.namespace.bucket(short)
        return Bucket(self.connection, self.publisher, name, bytes, domain=domain)

    def actors(self) -> tuple[ActorSpec, ...]:
        """Return the actors that every node runs in any role. The other actors depend on them."""
        return (
            ActorSpec(name="connection", role="", run=self._watch_connection, policy=AT_ONCE),
            ActorSpec(name="cluster", role="", run=ClusterWatch(self.connection).run),
            ActorSpec(name="store", role="", run=self.store.run),
            ActorSpec(name="events", role="", run=self.events.run),
            ActorSpec(name="settings", role="", run=self.settings.run, policy=AT_ONCE),
            ActorSpec(name="members", role="", run=self.members.run, policy=AT_ONCE),
        )

    async def _watch_connection(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        task_status.started()
        await self.connection.failure()


@asynccontextmanager
async def open_node(
    config: Config, connection: Connection, record: NodeRecord, stop: anyio.Event
) -> AsyncIterator[Node]:
    """Open the shared parts of a node's engines, on a connection to a server whose topology fits."""
    namespace = connection.namespace
    async with Publisher(connection) as publisher:

        def bucket(short: str) -> Bucket[bytes]:
            return Bucket(connection, publisher, namespace.bucket(short), bytes)

        events = Events(publisher, namespace)
        settings = LiveSettings(
            bucket("SETTINGS"),
            clock=SYSTEM,
            history=kept_values(connection, namespace.bucket("SETTINGS")),
            tell=events.tell,
        )
        members = Members(
            bucket("NODES"),
            record,
            clock=SYSTEM,
            is_connected=lambda: connection.is_connected,
            status=lambda: node.status(),
            tell=events.tell,
        )
        memory = _memory(config, connection)
        store = StoreWatch(
            connection,
            memory,
            health=partial(health_of, config, connection),
            folder=server_folder(config) if config.is_embedded else None,
        )
        node = Node(config, connection, publisher, members, settings, events, memory, store, stop)
        remove = connection.on_reconnect(members.beat_soon)
        try:
            yield node
        finally:
            remove()


def _memory(config: Config, connection: Connection) -> StoreMemory:
    """Return the node's memory of the streams that hold durable state, and of the work queues."""
    streams = topology_of(config, connection.namespace).all_streams()
    return StoreMemory(
        connection,
        [stream.name for stream in streams if stream.holds_truth or stream.retention == "workqueue"],
        # The address of an embedded server changes with each start: nodes without these roles keep no file for each.
        file=config.memory_file() if any(map(config.has_role, ("timer", "monitor", "conductor"))) else None,
        survives_power=config.profile == "safe",
        boot=boot_id(),
    )
