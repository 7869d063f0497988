"""What tests of a sink watch: its store, its dead letters, its events."""

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import anyio
import msgspec

from actors.fetch.stores.store import Store
from streams.link.connection import Connection
from streams.link.frames import Message
from streams.messages.fetch import DeadLetter, FetchEvent, Order, decode_dead_letter, decode_event, encode
from streams.messages.ids import order_message_id
from streams.publish.publisher import Outgoing, Publisher
from streams.topology.specs import sink_consumer
from streams.topology.topology import ensure_consumer
from tests.support.moments import a_moment
from tests.support.server import add_stream

T = TypeVar("T")


@dataclass
class Seen(Generic[T]):
    """Things that happened, and a way to wait for more of them."""

    all: list[T] = field(default_factory=list)
    _changed: anyio.Event = field(default_factory=anyio.Event)

    def add(self, *things: T) -> None:
        self.all.extend(things)
        self._changed.set()
        self._changed = anyio.Event()

    async def until(self, is_enough: Callable[[list[T]], object], within_s: float = 30.0) -> None:
        """Wait until `is_enough` of all things is true."""
        with anyio.fail_after(within_s):
            while not is_enough(self.all):
                await self._changed.wait()


class Watched:
    """A store that tells which orders it was handed, and which of them it took."""

    def __init__(self, store: Store) -> None:
        self.name = store.name
        self._store = store
        self.handed: Seen[Order] = Seen()
        self.taken: Seen[Order] = Seen()
        self.batches: list[int] = []

    async def open(self) -> None:
        await self._store.open()

    async def store(self, orders: Sequence[Order]) -> int:
        self.handed.add(*orders)
        changed = await self._store.store(orders)
        self.batches.append(len(orders))
        self.taken.add(*orders)
        return changed

    async def close(self) -> None:
        await self._store.close()


@dataclass
class Told:
    """What the broker was told: dead letters and events, as they are published."""

    letters: Seen[DeadLetter]
    events: Seen[FetchEvent]

    def tags(self) -> list[str]:
        return [str(type(event).__struct_config__.tag) for event in self.events.all]


@asynccontextmanager
async def told(connection: Connection) -> AsyncIterator[Told]:
    """Listen to the namespace's dead letters and events."""
    heard = Told(Seen(), Seen())

    def letter(message: Message) -> None:
        heard.letters.add(decode_dead_letter(message.payload))

    def event(message: Message) -> None:
        heard.events.add(decode_event(message.payload))

    names = connection.namespace
    subscriptions = [
        await connection.subscribe(names.pattern("dead", ">"), letter),
        await connection.subscribe(names.pattern("events", ">"), event),
    ]
    yield heard
    for subscription in subscriptions:
        await subscription.unsubscribe()


async def add_sink_streams(connection: Connection, *, ack_wait_s: float = 30.0) -> None:
    """Create the streams around a sink named `main`, and its consumer."""
    await add_stream(connection, "ORDERS")
    await add_stream(connection, "DEAD", discard="new")
    await add_stream(connection, "EVENTS")
    spec = sink_consumer(connection.namespace, "main")
    await ensure_consumer(connection, msgspec.structs.replace(spec, ack_wait_s=ack_wait_s))


async def publish_orders(connection: Connection, publisher: Publisher, orders: Sequence[Order]) -> None:
    names = connection.namespace
    await publisher.publish_many(
        [Outgoing(names.order(o.platform, o.source, o.order_key), encode(o), order_message_id(o)) for o in orders]
    )


async def unsettled(connection: Connection) -> tuple[int, int]:
    """Return how many orders the sink's consumer has still to deliver, and how many wait for an answer."""
    await connection.flush()
    spec = sink_consumer(connection.namespace, "main")
    info = await connection.api(f"CONSUMER.INFO.{spec.stream}.{spec.name}")
    return info["num_pending"], info["num_ack_pending"]


def stored(path: Path) -> dict[str, int]:
    """Return the version of each order in a SQLite file."""
    return {str(key): int(version) for key, version in _rows(path, "SELECT order_key, version FROM orders")}


def changes(path: Path) -> list[tuple[str, int]]:
    """Return what was applied to a SQLite file, in order."""
    found = _rows(path, "SELECT order_key, version FROM order_changes ORDER BY change_id")
    return [(str(key), int(version)) for key, version in found]


def _rows(path: Path, sql: str) -> list[tuple[str, int]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


async def until_settled(connection: Connection) -> None:
    """Wait until the broker has nothing left. Three servers agree on the acknowledgements a moment later."""
    with anyio.fail_after(20):
        while await unsettled(connection) != (0, 0):
            await a_moment()
