"""The watch on a real server: present state, changes, expiry, and convergence after whatever broke it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from anyio import Event, create_task_group, fail_after

from streams.buckets.bucket import Bucket
from streams.buckets.entries import Change, Synced
from streams.buckets.watch import BEATS, HEARTBEAT_S, Watch
from streams.clock import monotonic_s
from streams.embedded.server import EmbeddedServer
from streams.errors import NoStream, Refused
from streams.link.connection import Connection, connect
from streams.publish.publisher import Publisher
from tests.support.buckets import add_bucket, bucket_of
from tests.support.moments import a_moment
from tests.support.proxy import proxy

STATE = dict[str, bytes]
ONE_LOOP = pytest.mark.asyncio(loop_factories=["asyncio"])
"""For tests that wait for the server's clock: the loop makes no difference to them."""


async def until_synced(changes: Watch[bytes], state: STATE) -> list[Change[bytes]]:
    """Apply changes up to the next Synced, and return them."""
    told: list[Change[bytes]] = []
    async for change in changes:
        if isinstance(change, Synced):
            return told
        told.append(change)
        apply_to(state, change)
    raise AssertionError("a watch does not end")


async def next_change(changes: Watch[bytes]) -> Change[bytes]:
    """Return the next change that is no Synced."""
    async for change in changes:
        if isinstance(change, Change):
            return change
    raise AssertionError("a watch does not end")


def apply_to(state: STATE, change: Change[bytes]) -> None:
    if change.entry is None:
        state.pop(change.key, None)
    else:
        state[change.key] = change.entry.value


async def deliver_subject(connection: Connection, bucket: str) -> tuple[str, str]:
    """Return name and inbox of the one consumer that reads a bucket."""
    (consumer,) = (await connection.api(f"CONSUMER.LIST.KV_{bucket}"))["consumers"]
    return consumer["name"], consumer["config"]["deliver_subject"]


async def test_the_present_state_is_told_then_each_change(connection: Connection, publisher: Publisher) -> None:
    bucket = await bucket_of(connection, publisher, bytes, history=3)
    await bucket.put("a", b"old")
    await bucket.put("a", b"1")
    await bucket.put("b.c", b"2")
    await bucket.put("gone", b"3")
    await bucket.delete("gone")
    state: STATE = {}
    with fail_after(20):
        async with bucket.watch() as changes:
            await until_synced(changes, state)
            assert state == {"a": b"1", "b.c": b"2"}
            revision = await bucket.put("a", b"4")
            change = await next_change(changes)
            assert change.entry is not None
            assert (change.key, change.entry.value, change.entry.revision) == ("a", b"4", revision)
            await bucket.delete("b.c")
            assert await next_change(changes) == Change("b.c", None)


async def test_an_empty_bucket_is_synced_at_once(connection: Connection, publisher: Publisher) -> None:
    bucket = await bucket_of(connection, publisher, bytes)
    with fail_after(20):
        async with bucket.watch() as changes:
            assert await until_synced(changes, {}) == []


async def test_a_pattern_leaves_out_the_rest(connection: Connection, publisher: Publisher) -> None:
    bucket = await bucket_of(connection, publisher, bytes)
    await bucket.put("x.1", b"")
    state: STATE = {}
    with fail_after(20):
        async with bucket.watch("y.*") as changes:
            await until_synced(changes, state)
            await bucket.put("x.2", b"")
            await bucket.put("y.2", b"")
            assert (await next_change(changes)).key == "y.2"
    assert state == {}


async def test_values_are_not_decoded_until_they_are_looked_at(connection: Connection, publisher: Publisher) -> None:
    raw = await bucket_of(connection, publisher, bytes)
    await raw.put("broken", b"{")
    bucket = Bucket(connection, publisher, raw.name, dict)
    with fail_after(20):
        async with bucket.watch() as changes:
            change = await anext(changes)
    assert isinstance(change, Change)
    assert change.entry is not None
    assert change.entry.raw == b"{"


@ONE_LOOP
async def test_an_expired_key_is_told_as_deleted(connection: Connection, publisher: Publisher) -> None:
    bucket = await bucket_of(connection, publisher, bytes, has_ttl=True)
    with fail_after(20):
        async with bucket.watch() as changes:
            await until_synced(changes, {})
            await bucket.put("a", b"1", ttl_s=1)
            change = await next_change(changes)
            assert (change.key, change.entry is None) == ("a", False)
            assert await next_change(changes) == Change("a", None)


@ONE_LOOP
async def test_a_renewed_key_is_not_told_as_deleted(connection: Connection, publisher: Publisher) -> None:
    bucket = await bucket_of(connection, publisher, bytes, has_ttl=True)
    first = await bucket.put("renewed", b"1", ttl_s=6)
    await bucket.put("clock", b"", ttl_s=6)
    with fail_after(30):
        async with bucket.watch() as changes:
            await until_synced(changes, {})
            second = await bucket.compare_and_set("renewed", b"2", first, ttl_s=30)
            change = await next_change(changes)
            assert change.entry is not None
            assert (change.key, change.entry.revision) == ("renewed", second)
            assert await next_change(changes) == Change("clock", None)
            assert [entry.key for entry in await bucket.entries()] == ["renewed"]


async def test_it_converges_soon_after_the_server_was_killed(own_server: EmbeddedServer) -> None:
    async with connect(own_server.url, name="test") as connection, Publisher(connection) as publisher:
        bucket = await bucket_of(connection, publisher, bytes)
        await bucket.put("kept", b"1")
        await bucket.put("changed", b"1")
        state: STATE = {}
        with fail_after(90):
            async with bucket.watch() as changes:
                await until_synced(changes, state)
                took_s = []
                for round_ in range(3):
                    await own_server.kill()
                    await own_server.start()
                    back_s = monotonic_s()
                    value = b"after %d" % round_
                    await bucket.put("changed", value)
                    while state != {"kept": b"1", "changed": value}:
                        change = await anext(changes)
                        if isinstance(change, Change):
                            apply_to(state, change)
                    took_s.append(monotonic_s() - back_s)
                    await until_synced(changes, state)
                # the reconnect tells it; nobody waits for heartbeats that stay out
                assert min(took_s) < BEATS * HEARTBEAT_S


@asynccontextmanager
async def watched_over_a_proxy(
    server: EmbeddedServer, connection: Connection
) -> AsyncIterator[tuple[Bucket[bytes], Watch[bytes], Event]]:
    """Yield a bucket, a watch of it over another link, and an event that cuts that link once set."""
    name = await add_bucket(connection, "TEST")
    cut = Event()
    async with proxy(server.port) as link, connect(link.url, name="watcher") as other:
        async with Publisher(connection) as publisher, Publisher(other) as unused, create_task_group() as tasks:

            async def cut_it() -> None:
                link.mute()
                muted.set()
                await cut.wait()
                link.cut()

            muted = Event()
            bucket, watched = Bucket(connection, publisher, name, bytes), Bucket(other, unused, name, bytes)
            await bucket.put("kept", b"1")
            await bucket.put("vanishes", b"1")
            async with watched.watch() as changes:
                await until_synced(changes, {})
                tasks.start_soon(cut_it)
                await muted.wait()
                yield bucket, changes, cut


async def test_keys_that_vanished_unseen_are_told_as_deleted(server: EmbeddedServer, connection: Connection) -> None:
    with fail_after(30):
        async with watched_over_a_proxy(server, connection) as (bucket, changes, cut):
            await connection.api(f"STREAM.PURGE.KV_{bucket.name}", {"filter": f"$KV.{bucket.name}.vanishes"})
            await bucket.put("new", b"2")
            cut.set()
            state: STATE = {"kept": b"1", "vanishes": b"1"}
            told = await until_synced(changes, state)
    assert Change("vanishes", None) in told
    assert state == {"kept": b"1", "new": b"2"}


@pytest.mark.parametrize("trouble", ["a hole in the sequence", "a heartbeat that knows of more"])
async def test_a_gap_makes_it_read_anew(connection: Connection, publisher: Publisher, trouble: str) -> None:
    bucket = await bucket_of(connection, publisher, bytes)
    await bucket.put("a", b"1")
    state: STATE = {}
    with fail_after(20):
        async with bucket.watch() as changes:
            await until_synced(changes, state)
            if trouble == "a hole in the sequence":
                subject = f"$KV.{bucket.name}.a".encode()  # by hand: the server lets no client reply to its own acks
                changes._delivered(subject, b"$JS.ACK.S.C.1.99.99.0.0", b"never stored", None)
            else:
                _, inbox = await deliver_subject(connection, bucket.name)
                connection.client.send(_heartbeat(inbox, "1000"))
            told = await until_synced(changes, state)
    assert [change.key for change in told] == ["a"]
    assert state == {"a": b"1"}


@ONE_LOOP
async def test_silence_makes_it_read_anew(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.buckets.watch.ALONE_S", 2)
    bucket = await bucket_of(connection, publisher, bytes)
    await bucket.put("a", b"1")
    with fail_after(30):
        async with bucket.watch() as changes:
            await until_synced(changes, {})
            name, _ = await deliver_subject(connection, bucket.name)
            await connection.api(f"CONSUMER.DELETE.KV_{bucket.name}.{name}")
            await bucket.put("b", b"2")
            state: STATE = {}
            while state != {"a": b"1", "b": b"2"}:  # a silence before the deletion makes it read anew once more
                await until_synced(changes, state)


async def test_a_cluster_that_elects_is_asked_again(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = await bucket_of(connection, publisher, bytes)
    await bucket.put("a", b"1")
    api, refused = connection.api, 0

    async def electing(suffix: str, body: object | None = None, **more: Any) -> dict[str, Any]:
        nonlocal refused
        if suffix.startswith("CONSUMER.CREATE.") and refused < 2:
            refused += 1
            raise Refused("JetStream system temporarily unavailable", subject=suffix, code=503, err_code=10008)
        return await api(suffix, body, **more)

    state: STATE = {}
    with fail_after(30):
        async with bucket.watch() as changes:
            await until_synced(changes, {})
            monkeypatch.setattr(connection, "api", electing)
            changes._break()
            await bucket.put("b", b"2")
            while state != {"a": b"1", "b": b"2"}:
                await until_synced(changes, state)
    assert refused == 2


@ONE_LOOP
async def test_a_deleted_bucket_is_told_loudly(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.buckets.watch.MISSING_FOR_S", 0.1)
    monkeypatch.setattr("streams.buckets.watch.ALONE_S", 2)
    bucket = await bucket_of(connection, publisher, bytes)
    with fail_after(30):
        async with bucket.watch() as changes:
            await until_synced(changes, {})
            await connection.api(f"STREAM.DELETE.KV_{bucket.name}")
            with pytest.raises(NoStream, match="stream not found"):
                await anext(changes)


async def test_a_slow_reader_holds_up_the_server_and_loses_nothing(
    connection: Connection, publisher: Publisher
) -> None:
    """More than the server's flow-control window: unanswered requests would stop it, unasked ones flood us."""
    bucket = await bucket_of(connection, publisher, bytes)
    amount = 10_000
    for number in range(amount):
        await connection.publish_core(f"$KV.{bucket.name}.k{number}", bytes(1000))
    await connection.flush()
    state: STATE = {}
    with fail_after(60):
        async with bucket.watch() as changes:
            await bucket.put("read", b"")  # a whole round trip, in which the server may send what it likes
            await until_synced(changes, state)
    assert len(state) == amount + 1


async def test_leaving_the_watch_stops_the_server_sending(connection: Connection, publisher: Publisher) -> None:
    bucket = await bucket_of(connection, publisher, bytes)
    async with bucket.watch() as changes:
        await until_synced(changes, {})
        _, inbox = await deliver_subject(connection, bucket.name)
    with fail_after(20):
        while True:
            (consumer,) = (await connection.api(f"CONSUMER.LIST.KV_{bucket.name}"))["consumers"]
            assert consumer["config"]["deliver_subject"] == inbox
            if not consumer.get("push_bound"):
                break
            await a_moment()
    assert consumer["config"]["inactive_threshold"] > 0  # and so the server removes it


def _heartbeat(inbox: str, last_consumer: str) -> bytes:
    block = f"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: {last_consumer}\r\n\r\n".encode()
    return b"HPUB %b %d %d\r\n%b\r\n" % (inbox.encode(), len(block), len(block), block)
