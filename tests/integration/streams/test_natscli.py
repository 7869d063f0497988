"""The real `nats` command and our buckets and streams: each reads and changes what the other wrote."""

from pathlib import Path

import pytest
from anyio import fail_after
from msgspec import Struct, json

from streams.buckets.bucket import Bucket
from streams.buckets.entries import Change, Synced
from streams.buckets.lease import LeaseRecord, acquire
from streams.embedded.server import EmbeddedServer
from streams.errors import RevisionConflict
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from streams.topology.specs import fetch_consumer, wanted
from streams.topology.topology import apply, ensure_consumer, require
from tests.support.natscli import NatsCli

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])  # a foreign process does not see the loop


class Pace(Struct, frozen=True):
    slice_ms: int
    note: str = ""


@pytest.fixture
async def nats(server: EmbeddedServer, connection: Connection, tmp_path: Path) -> NatsCli:
    """The command, with the whole topology on the server."""
    cli = NatsCli.or_skip(server.url, tmp_path)
    await apply(connection, wanted(connection.namespace, profile="fast"))
    return cli


@pytest.fixture
def settings(connection: Connection, publisher: Publisher) -> Bucket[Pace]:
    return Bucket(connection, publisher, connection.namespace.bucket("SETTINGS"), Pace)


async def test_it_reads_what_we_put(nats: NatsCli, settings: Bucket[Pace]) -> None:
    await settings.put("fetch.mall", Pace(60_000))
    assert (await nats.run("kv", "get", settings.name, "fetch.mall", "--raw")).strip() == '{"slice_ms":60000,"note":""}'


async def test_we_read_and_follow_what_it_puts(nats: NatsCli, settings: Bucket[Pace]) -> None:
    with fail_after(30):
        async with settings.watch() as changes:
            assert isinstance(await anext(changes), Synced)
            await nats.run("kv", "put", settings.name, "fetch.mall", '{"slice_ms": 5, "note": "by hand"}')
            change = await anext(changes)
            assert isinstance(change, Change)
            assert change.entry is not None
            assert change.entry.value == Pace(5, "by hand")
            revision = await settings.compare_and_set("fetch.mall", Pace(6), change.entry.revision)
            await nats.run("kv", "update", settings.name, "fetch.mall", '{"slice_ms": 7}', str(revision))
            with pytest.raises(RevisionConflict):
                await settings.compare_and_set("fetch.mall", Pace(8), revision)


@pytest.mark.parametrize("verb", ["del", "purge"])
async def test_what_it_deletes_is_gone_for_us(nats: NatsCli, settings: Bucket[Pace], verb: str) -> None:
    await settings.put("a", Pace(1))
    with fail_after(30):
        async with settings.watch() as changes:
            await anext(changes)
            await anext(changes)
            await nats.run("kv", verb, settings.name, "a", "--force")
            assert await anext(changes) == Change("a", None)
        assert await settings.get("a") is None
        assert await settings.entries() == []
        await settings.create("a", Pace(2))
    assert (await nats.run("kv", "get", settings.name, "a", "--raw")).strip() == '{"slice_ms":2,"note":""}'


async def test_what_we_delete_is_gone_for_it_and_its_history_stays(nats: NatsCli, settings: Bucket[Pace]) -> None:
    for step in range(3):
        await settings.put("a", Pace(step))
    await settings.delete("a")
    assert "not found" in await nats.run("kv", "get", settings.name, "a", check=False)
    history = await nats.run("kv", "history", settings.name, "a")
    assert history.count("PUT") == 3
    assert history.count("DEL") == 1
    await nats.run("kv", "create", settings.name, "a", '{"slice_ms": 9}')
    entry = await settings.get("a")
    assert entry is not None
    assert entry.value == Pace(9)


async def test_it_lists_buckets_streams_and_consumers(nats: NatsCli, connection: Connection) -> None:
    await ensure_consumer(connection, fetch_consumer(connection.namespace, "mall", "tail"))
    names = await nats.run("kv", "ls", "--names")
    for short in ("SETTINGS", "LEDGERS", "NODES", "LEASES", "DIGESTS"):
        assert connection.namespace.bucket(short) in names
    streams = await nats.run("stream", "ls")
    for short in ("SLICES", "ORDERS", "DEAD", "EVENTS"):
        assert connection.namespace.stream(short) in streams
    slices = connection.namespace.stream("SLICES")
    assert "fetch_mall_tail" in await nats.run("consumer", "ls", slices)
    info = await nats.json("stream", "info", slices)
    assert info["config"]["description"].startswith("slices offered to fetchers")


async def test_what_it_edits_by_hand_is_noticed(nats: NatsCli, connection: Connection) -> None:
    topology = wanted(connection.namespace, profile="fast")
    await nats.run("stream", "edit", connection.namespace.stream("ORDERS"), "--max-age", "1h", "--force")
    await require(connection, topology)  # an age is the installation's business
    assert len(await apply(connection, topology)) == 1


async def test_a_lease_can_be_read_and_taken_away_by_hand(
    nats: NatsCli, connection: Connection, publisher: Publisher
) -> None:
    leases = Bucket(connection, publisher, connection.namespace.bucket("LEASES"), bytes)
    lease = await acquire(leases, "monitor", "node-1", ttl_s=30)
    assert lease is not None
    shown = await nats.run("kv", "get", leases.name, "monitor", "--raw")
    assert json.decode(shown, type=LeaseRecord).holder == "node-1"
    await nats.run("kv", "del", leases.name, "monitor", "--force")
    assert await acquire(leases, "monitor", "node-2", ttl_s=30) is not None


async def test_keys_that_we_would_refuse_are_told_and_harm_nothing(nats: NatsCli, settings: Bucket[Pace]) -> None:
    """Its grammar is wider than ours: such a key is told as it is, and others go on."""
    await nats.run("kv", "put", settings.name, "odd/key=1", "not json")
    await settings.put("fine", Pace(1))
    told: list[str] = []
    with fail_after(30):
        async with settings.watch() as changes:
            async for change in changes:
                if isinstance(change, Synced):
                    break
                told.append(change.key)
    assert sorted(told) == ["fine", "odd/key=1"]
