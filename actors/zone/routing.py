"""The shard map in force, followed live: the key `map` of ROUTING. Its earlier values are the history of the map."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from anyio.abc import TaskStatus

from actors.runtime.live import Live
from actors.zone.rules.routing import BadMap, ShardMap, checked
from streams.buckets.bucket import Bucket
from streams.buckets.entries import Entry
from streams.errors import MalformedMessage
from streams.link.connection import Connection
from streams.reads.log import read_messages
from streams.subjects import kv_stream

MAP = "map"
"""The key of the map in force."""
Change = Callable[[ShardMap | None], ShardMap]


def decode_map(raw: bytes) -> ShardMap:
    """Return a stored map. Raises MalformedMessage, also for one that is not sound: people write records by hand."""
    try:
        return checked(msgspec.json.decode(raw, type=ShardMap))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, BadMap) as error:
        raise MalformedMessage(f"no shard map: {error}") from error


class Routing:
    """A live view of the map. `current` is cheap at any time."""

    def __init__(self, bucket: Bucket[bytes]) -> None:
        self._bucket = bucket
        self._live = Live(bucket, _map_of, unreadable="zone.bad_map", pattern=MAP, keeps_last=True)

    def current(self) -> ShardMap | None:
        """Return the map as last seen. `None`: there is none. An unreadable one does not count."""
        return self._live.get(MAP)

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` when the map has changed. It must be short. Return a function that removes it."""
        return self._live.on_change(lambda _key: listener())

    async def fresh(self) -> ShardMap | None:
        """Read the map from the leader. Raises MalformedMessage, Disconnected."""
        entry = await self._bucket.get(MAP)
        if entry is None:
            return None
        shards = decode_map(entry.raw)
        self._live.learn(MAP, shards, entry.revision)
        return shards

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Follow the bucket until cancelled. Started once the present map is known."""
        await self._live.run(task_status=task_status)


def _map_of(entry: Entry[bytes]) -> ShardMap:
    return decode_map(entry.raw)


async def change_map(bucket: Bucket[bytes], change: Change, mark: str = "") -> ShardMap:
    """Store the next map by compare-and-set, and return it. `change` makes it of the one in force, and may be called
    again after a lost race, but not if the call of this mark has made its change (streams/calls.py). A map that it
    returns as it is is not stored again, so the history has it once. Raises what `change` raises, MalformedMessage, and
    the broker's errors."""

    def stored(entry: Entry[bytes] | None) -> tuple[bytes | None, ShardMap]:
        before = None if entry is None else decode_map(entry.raw)
        if entry is not None and before is not None and mark in entry.calls:
            return None, before
        after = change(before)
        return (None if after is before else msgspec.json.encode(after)), after

    return (await bucket.update(MAP, stored, mark=mark))[0]


async def map_history(connection: Connection, bucket: Bucket[bytes]) -> list[ShardMap]:
    """Return the kept maps, the newest first. Unreadable ones are left out. Raises Disconnected, NoStream."""
    found: list[ShardMap] = []
    stream, subject = kv_stream(bucket.name), f"$KV.{bucket.name}.{MAP}"
    async for message in read_messages(connection, stream, subject, domain=bucket.domain):
        try:
            found.append(decode_map(message.payload))
        except MalformedMessage:
            continue
    return found[::-1]
