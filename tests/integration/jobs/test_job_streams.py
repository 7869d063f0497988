"""Jobs in three streams: the topics are over all of them, and what is done with jobs is as with one."""

import signal

import anyio
import pytest

import penstock
from actors.jobs.rules.cursors import BadCursor
from actors.jobs.rules.schedule_record import Schedule
from streams.embedded.server import EmbeddedServer
from streams.errors import TopologyMismatch
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from streams.reads.log import extent_of
from streams.subjects import Namespace
from streams.topology.specs import wanted
from streams.topology.topology import learn_job_streams, require
from tests.support.command import node
from tests.support.desks import Office, codes_of, open_office, open_service
from tests.support.jobs import open_jobs
from tests.support.moments import a_moment
from tests.support.schedule_ground import open_ground, running
from tests.support.server import Reachable, connected, fresh_namespace, make_topology, topology_for
from tests.support.timers import running_timer, until_complete

NUMBER = 3
TOPICS = [f"parted-{n}" for n in range(9)]
HOUR_MS = 3_600_000


@pytest.fixture
def namespace() -> Namespace:
    return Namespace(fresh_namespace().name, NUMBER)


async def spread(office: Office) -> list[int]:
    """Return how many messages each stream has."""
    return [(await extent_of(office.connection, name)).messages for name in office.namespace.jobs_streams()]


@pytest.mark.three_servers
async def test_jobs_are_added_held_and_ended_in_the_streams_of_their_topics(office: Office) -> None:
    for topic in TOPICS:
        for job_id in "abcd":
            await office.add(job_id, topic=topic)
        assert (await office.add("a", topic=topic)).is_new is False
    assert min(await spread(office)) >= 4, "beside them are marks of sure reads"
    for topic in TOPICS:
        held = [await office.reserve(topic) for _ in range(4)]
        assert [job.id for job in held] == list("abcd")
        assert codes_of(await office.desk.finish([held[0].receipt])) == ["ok"]
        assert codes_of(await office.desk.touch([held[1].receipt])) == ["ok"]
        assert codes_of(await office.desk.release([held[2].receipt], delay_ms=HOUR_MS)) == ["ok"]
        assert codes_of(await office.desk.bury([held[3].receipt])) == ["ok"]
        assert [await office.state(job_id, topic) for job_id in "abc"] == [None, "reserved", "delayed"]
        assert await office.desk.kick(topic, "c") == 1
        assert (await office.reserve(topic)).id == "c"
        assert await office.desk.kick(topic, "d") == 1
        assert (await office.reserve(topic)).id == "d"
    assert await office.dead() == []


@pytest.mark.three_servers
async def test_receipts_of_many_topics_are_settled_by_one_call(office: Office) -> None:
    for topic in TOPICS:
        await office.add("a", topic=topic)
    receipts = [(await office.reserve(topic)).receipt for topic in TOPICS]
    assert codes_of(await office.desk.finish(receipts)) == ["ok"] * len(TOPICS)


async def test_counts_and_lists_are_of_all_streams(office: Office) -> None:
    for at, topic in enumerate(TOPICS):
        await office.try_add(*(str(n) for n in range(at + 1)), topic=topic)
        await office.add("later", topic=topic, delay_ms=HOUR_MS)
    many = await office.store.count_many(TOPICS)
    assert [(counts.ready, counts.delayed) for counts in many] == [(at + 1, 1) for at in range(len(TOPICS))]
    assert [await office.store.count(topic) for topic in TOPICS] == many
    for topic in TOPICS[-3:]:
        first = await office.store.list_jobs(topic, "ready", most=4)
        rest = await office.store.list_jobs(topic, "ready", most=100, cursor=first.cursor)
        assert [found.id for found in (*first.found, *rest.found)] == [str(n) for n in range(TOPICS.index(topic) + 1)]
    with pytest.raises(BadCursor):
        await office.store.list_jobs(TOPICS[0], "ready", cursor="9.9")


async def test_counts_of_many_jobs_are_of_all_streams(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.jobs.reads.FEW_IN_ALL", 0)
    for topic in TOPICS:
        await office.add("a", topic=topic)
    assert [counts.ready for counts in await office.store.count_many(["none", *TOPICS])] == [0, *[1] * len(TOPICS)]


@pytest.mark.three_servers
async def test_an_id_is_found_and_deleted_in_every_stream(office: Office) -> None:
    for topic in TOPICS:
        await office.add("same", topic=topic, delay_ms=HOUR_MS)
    assert {found.topic for found in await office.store.find_everywhere("same")} == set(TOPICS)
    assert (await office.desk.delete(None, "same")).code == "ok"
    assert [await office.state("same", topic) for topic in TOPICS] == [None] * len(TOPICS)


async def test_overdue_jobs_of_all_streams_are_made_ready(office: Office) -> None:
    for topic in TOPICS:
        await office.add("late", topic=topic, delay_ms=HOUR_MS)
    office.clock.ahead_ms = 2 * HOUR_MS
    assert await office.store.make_overdue_ready(60_000) == len(TOPICS)
    assert [await office.state("late", topic) for topic in TOPICS] == ["ready"] * len(TOPICS)


@pytest.mark.three_servers
async def test_a_timer_fires_the_jobs_of_all_streams_each_once(office: Office, publisher: Publisher) -> None:
    for topic in TOPICS:  # these are found by its sweeps, the others by notices
        await office.add("before", topic=topic, delay_ms=4_000)
    async with running_timer(office.connection, publisher) as firer:
        await until_complete(firer.timer)
        for topic in TOPICS:
            await office.add("after", topic=topic, delay_ms=2_500)
        for topic in TOPICS:
            assert {(await office.reserve(topic)).id for _ in range(2)} == {"before", "after"}
        assert len(firer.heard.late_s) + firer.heard.left >= 2 * len(TOPICS) - 1
    for topic in TOPICS:
        assert await office.desk.reserve(topic, wait_ms=20) == []


async def test_a_killed_server_brings_back_all_streams(own_server: EmbeddedServer, namespace: Namespace) -> None:
    async with connected(own_server, namespace) as connection, open_office(connection) as office:
        receipts = []
        for topic in TOPICS:
            await office.try_add("held", "waits", topic=topic)
            receipts.append((await office.reserve(topic)).receipt)
        await own_server.kill()
        await own_server.start()
        assert codes_of(await office.desk.finish(receipts)) == ["ok"] * len(TOPICS)
        assert [(await office.reserve(topic)).id for topic in TOPICS] == ["waits"] * len(TOPICS)


async def test_schedules_add_to_their_topics_streams(connection: Connection, publisher: Publisher) -> None:
    ground = await open_ground(connection, publisher)
    async with running(ground.actor()):
        for topic in TOPICS[:4]:
            await ground.schedules.add(topic, "often", Schedule(every_ms=1_000, overlap="allow"))
        with anyio.fail_after(30):
            for topic in TOPICS[:4]:
                while not (await ground.store.count(topic)).ready:
                    await a_moment()


@pytest.mark.three_servers
async def test_a_direct_client_learns_how_many_streams_there_are(server: Reachable, office: Office) -> None:
    opened = penstock.connect(server.url, namespace=office.namespace.name, direct=True)
    async with open_service(office), opened as client:
        for topic in TOPICS:
            assert (await client.jobs.add(topic, id="direct", body=1)).is_new
        for topic in TOPICS:
            (held,) = await client.jobs.reserve_many(topic, wait=20)
            await held.finish()
    assert [await office.state("direct", topic) for topic in TOPICS] == [None] * len(TOPICS)


async def test_a_program_that_reckons_with_another_number_refuses(connection: Connection, namespace: Namespace) -> None:
    async with open_jobs(connection):
        for number in (1, NUMBER + 1):
            with pytest.raises(TopologyMismatch, match="job_streams is 3"):
                await require(connection, wanted(Namespace(namespace.name, number), profile="fast"))
        connection.namespace = Namespace(namespace.name)
        await learn_job_streams(connection)
        assert connection.namespace == namespace


async def test_a_node_learns_how_many_streams_there_are(server: EmbeddedServer, connection: Connection) -> None:
    await make_topology(connection, topology_for(connection))
    where = ("--nats", server.url, "--namespace", connection.namespace.name)
    opened = penstock.connect(server.url, namespace=connection.namespace.name)
    async with node(*where) as up, opened as client:
        await up.logged("node.ready")
        for topic in TOPICS:
            assert (await client.jobs.add(topic, id="now", body=1)).is_new
            assert (await client.jobs.add(topic, id="soon", body=2, delay=2)).is_new
        for topic in TOPICS:
            (first,) = await client.jobs.reserve_many(topic, wait=30)
            await first.finish()
            (second,) = await client.jobs.reserve_many(topic, wait=30)
            await second.bury("no use")
            assert (first.body, second.body) == (1, 2)
        assert await client.jobs.kick(TOPICS[0]) == 1
        assert (await client.jobs.counts(TOPICS[:2]))[0].ready == 1
        assert await up.end(signal.SIGTERM) == 0
