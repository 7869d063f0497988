"""Three servers on the project's cluster file: three replicas, and nothing lost when the leader is killed."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from anyio import create_task_group, fail_after

from streams.buckets.bucket import Bucket
from streams.buckets.entries import Synced
from streams.buckets.watch import Watch
from streams.clock import monotonic_s
from streams.errors import OutcomeUnknown, RevisionConflict, TopologyMismatch
from streams.link.connection import Connection, connect
from streams.publish.publisher import Outgoing, Publisher, Receipt
from streams.reads.log import last_entries
from streams.subjects import Namespace
from streams.topology.specs import wanted
from streams.topology.topology import apply, require
from tests.support.moments import a_moment
from tests.support.processes import ServerProcess, cluster, urls_of
from tests.support.server import freeze, leader_of, once_it_is_led, thaw

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])  # three servers and an election: once is enough

NS = Namespace()
SAFE = wanted(NS, profile="safe", replicas=3)


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[list[ServerProcess]]:
    async with cluster(tmp_path) as running:
        yield running


async def stream_info(connection: Connection, stream: str, **asked: str) -> dict[str, Any]:
    """Ask until a cluster that elects answers."""
    return await once_it_is_led(partial(connection.api, f"STREAM.INFO.{stream}", asked))


@asynccontextmanager
async def watching(bucket: Bucket[bytes]) -> AsyncIterator[Watch[bytes]]:
    """Watch, once the cluster makes a consumer: the server that stood still may have led it."""
    async with AsyncExitStack() as stack:
        yield await once_it_is_led(lambda: stack.enter_async_context(bucket.watch()))


async def test_three_replicas_survive_the_leaders_death(servers: list[ServerProcess]) -> None:
    """One cluster for all that is asked of it, because it takes seconds to start."""
    with fail_after(150):
        async with connect(urls_of(servers), name="test") as connection:
            await _the_topology_is_applied_with_three_replicas_and_one_is_refused(connection)
            async with Publisher(connection) as publisher:
                await _a_repeat_of_a_conditional_write_is_known_by_its_id(connection, publisher)
                await _a_write_that_keeps_meeting_its_own_first_try_is_not_told_as_lost(servers, connection)
                await _a_read_of_many_keys_has_what_was_just_written(servers)
                await _reads_are_answered_while_one_server_stands_still(servers, connection)
                await _nothing_acknowledged_is_lost_when_the_leader_is_killed(servers, connection, publisher)


async def _the_topology_is_applied_with_three_replicas_and_one_is_refused(connection: Connection) -> None:
    await apply(connection, SAFE)
    await require(connection, SAFE)
    info = await connection.api(f"STREAM.INFO.{NS.stream('ORDERS')}")
    assert info["config"]["num_replicas"] == 3
    with pytest.raises(TopologyMismatch, match="there are 3 servers"):
        await require(connection, wanted(NS, profile="safe", replicas=1))
    await require(connection, wanted(NS, profile="fast", replicas=1))  # more replicas than asked for are no fault


async def _a_repeat_of_a_conditional_write_is_known_by_its_id(connection: Connection, publisher: Publisher) -> None:
    """With three replicas, unlike with one: see marked.py, which relies on neither. Without an id it conflicts."""
    subject = NS.subject("orders", "m", "s", "repeated")
    first = await publisher.publish(subject, b"1", message_id="same", expected_seq=0)
    again = await publisher.publish(subject, b"1", message_id="same", expected_seq=0)
    assert again == Receipt(first.stream, first.seq, True)
    with pytest.raises(RevisionConflict) as caught:
        await publisher.publish(subject, b"1", expected_seq=0)
    assert caught.value.actual == first.seq


async def _a_write_that_keeps_meeting_its_own_first_try_is_not_told_as_lost(
    servers: list[ServerProcess], connection: Connection
) -> None:
    """The leader has it, and can store nothing while the others stand still."""
    leader = await leader_of(connection, f"STREAM.INFO.KV_{NS.bucket('LEDGERS')}")
    others = [server for server in servers if server.name != leader]
    (url,) = (server.url for server in servers if server.name == leader)
    async with (
        connect(url, name="alone") as alone,
        Publisher(alone, attempt_timeout_s=0.1) as publisher,
    ):
        ledgers = Bucket(alone, publisher, NS.bucket("LEDGERS"), bytes)
        try:
            for server in others:
                await freeze(server)
            with pytest.raises(OutcomeUnknown):
                await ledgers.create("mall.own", b"0")
        finally:
            for server in others:
                thaw(server)
        while await ledgers.get("mall.own") is None:
            await a_moment()


async def _a_read_of_many_keys_has_what_was_just_written(servers: list[ServerProcess]) -> None:
    """Any of the three answers a direct get, and 74 of 300 such reads did not have it."""
    for server in servers:
        async with connect(server.url, name="test") as connection, Publisher(connection) as publisher:
            tokens = Bucket(connection, publisher, NS.bucket("TOKENS"), bytes)
            for number in range(100):
                key = f"{server.name}-{number}.a"
                await tokens.create(key, b"1")
                assert [entry.key for entry in await tokens.entries(f"{server.name}-{number}.*")] == [key]


async def _reads_are_answered_while_one_server_stands_still(
    servers: list[ServerProcess], connection: Connection
) -> None:
    """Each try goes to any of the three. With six tries in five seconds, one read in some hundreds met it each time."""
    stream = f"KV_{NS.bucket('LEDGERS')}"
    leader, link = await leader_of(connection, f"STREAM.INFO.{stream}"), connection.client.connected_url
    still = next(server for server in servers if link and server.name != leader and server.port != link.port)
    await freeze(still)
    try:
        for _ in range(4):  # so many at once that a busy machine answers all of them in time
            async with create_task_group() as tasks:
                for _ in range(500):
                    tasks.start_soon(partial(last_entries, connection, stream, ["$KV.*.mall.own"], timeout_s=5.0))
    finally:
        thaw(still)


async def _nothing_acknowledged_is_lost_when_the_leader_is_killed(
    servers: list[ServerProcess], connection: Connection, publisher: Publisher
) -> None:
    ledgers = Bucket(connection, publisher, NS.bucket("LEDGERS"), bytes)
    revision = await ledgers.create("mall.s", b"0")
    leader = await leader_of(connection, f"STREAM.INFO.{NS.stream('ORDERS')}")
    victim = next(server for server in servers if server.name == leader)
    acknowledged: set[str] = set()
    ledger_steps = 0

    async def publish(worker: int) -> None:
        for number in range(100):
            key = f"{worker}-{number}"
            [outcome] = await publisher.publish_many([Outgoing(NS.order("mall", "s", key), b"order", message_id=key)])
            assert isinstance(outcome, Receipt)
            acknowledged.add(key)
            if worker == 0 and number == 20:
                victim.kill()

    async def step() -> None:
        nonlocal revision, ledger_steps
        for number in range(1, 101):
            revision = await ledgers.compare_and_set("mall.s", b"%d" % number, revision)
            ledger_steps = number

    begun_s = monotonic_s()
    async with watching(ledgers) as changes:
        async with create_task_group() as tasks:
            for worker in range(4):
                tasks.start_soon(publish, worker)
            tasks.start_soon(step)
        assert monotonic_s() - begun_s < 25 + 35  # and what a busy machine adds
        assert len(acknowledged) == 400
        stored = await stream_info(connection, NS.stream("ORDERS"), subjects_filter=NS.pattern("orders", "mall", ">"))
        assert stored["state"]["subjects"] == {NS.order("mall", "s", key): 1 for key in acknowledged}
        assert await leader_of(connection, f"STREAM.INFO.{NS.stream('ORDERS')}") != leader
        async for change in changes:  # the watch has come through the election too
            if not isinstance(change, Synced) and change.entry and change.entry.value == b"100":
                break
    entry = await ledgers.get("mall.s")
    assert entry is not None
    assert (entry.value, ledger_steps) == (b"100", 100)
    victim.start()
    await require(connection, SAFE)
