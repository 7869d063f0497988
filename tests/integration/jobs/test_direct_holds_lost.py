"""What a client that takes jobs by itself has lost, or never had, is nobody's but the next holder's."""

import asyncio
from collections.abc import AsyncIterator

import anyio
import pytest

import penstock
from actors.jobs import unwritten
from actors.jobs.rules.topic_settings import LANES
from penstock.sdk.client import Client
from streams.embedded.server import EmbeddedServer
from streams.messages.jobs import NewJob, Priority, body_of, decode_job
from streams.pull.delivery import Delivery
from streams.pull.once import PullOnce
from streams.topology.specs import job_consumer
from tests.integration.jobs.test_direct_takes import taking_of
from tests.support.desks import TOPIC, Office, open_service
from tests.support.moments import a_moment
from tests.support.proxy import proxy


@pytest.fixture
async def client(server: EmbeddedServer, office: Office, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    monkeypatch.setattr(unwritten, "LASTS_S", -1.0)  # this server was not started anew
    async with (
        open_service(office),
        penstock.connect(server.url, namespace=office.namespace.name, direct=True) as opened,
    ):
        yield opened


async def _pulled(office: Office, pulls: PullOnce, *, priority: Priority = "normal") -> Delivery:
    """Take a job as handlers in a node do."""
    consumer = job_consumer(office.namespace, TOPIC, priority).name
    [delivery] = await pulls.pull(office.namespace.jobs_stream(TOPIC), consumer, most=1, wait_s=20)
    return delivery


async def test_whoever_lost_its_hold_does_not_finish_the_next_attempt(
    client: Client, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    await office.add()
    [job] = await client.jobs.reserve_many(TOPIC, wait=10)
    monkeypatch.setattr(unwritten, "WRITE_S", -1.0)
    monkeypatch.setattr(unwritten, "SURE_S", -1.0)  # it stood still
    with anyio.fail_after(20):
        while taking_of(client)._unwritten._held:
            await a_moment()
    async with PullOnce(office.connection) as pulls:
        second = await _pulled(office, pulls)
        with pytest.raises(penstock.Stale):
            await job.finish()
        [answer] = await client.jobs.finish_many([job])
        assert answer.code == "stale"
        [is_done] = await office.store.finish_deliveries([(second, decode_job(second.payload))], remember_s=0)
        assert is_done is True, "the second attempt holds it"


async def test_what_no_caller_got_costs_no_attempt(client: Client, office: Office) -> None:
    """A caller waits at all lanes. What two of them bring in the same moment, or when it has left, goes back."""
    attempts: dict[str, int] = {}

    async def take(most: int, wait: int = 10) -> None:
        for job in await client.jobs.reserve_many(TOPIC, most=most, wait=wait):
            attempts[job.id] = job.attempt
            await job.finish()

    with anyio.fail_after(200):
        for number in range(10):
            caller = asyncio.create_task(take(1))
            while number and taking_of(client)._handout._pulls.waiting < len(LANES):
                await a_moment()
            await office.connection.flush(5)
            await office.desk.add(
                [NewJob(topic=TOPIC, id=f"{lane}-{number}", body=body_of(1), priority=lane) for lane in LANES]
            )
            await caller
            while len(attempts) < 3 * (number + 1):
                await take(3, wait=1)
    assert set(attempts.values()) == {1}


async def test_what_comes_again_at_once_had_begun_nowhere_and_costs_no_attempt(client: Client, office: Office) -> None:
    """As when a caller leaves in the moment in which the server delivers to it."""
    await office.topics.use(TOPIC, "normal")
    await office.add("early")
    async with PullOnce(office.connection) as pulls:
        await (await _pulled(office, pulls)).nak()
        [job] = await client.jobs.reserve_many(TOPIC, wait=10)
        assert (job.id, job.attempt) == ("early", 1)
        await job.finish()
        await office.add("late")
        await _pulled(office, pulls)  # and its holder vanishes
        [job] = await client.jobs.reserve_many(TOPIC, wait=20)
        assert (job.id, job.attempt) == ("late", 2)
        await job.finish()


async def test_whoever_is_cancelled_leaves_no_job_held_by_nobody(
    server: EmbeddedServer, client: Client, office: Office
) -> None:
    await office.add("once", attempts=1)  # it is written down at once
    async with proxy(server.port) as link:
        opened = penstock.connect(link.url, namespace=office.namespace.name, direct=True)
        async with opened as other:
            link.hold("server", at=b".reserved.")
            caller = asyncio.create_task(other.jobs.reserve_many(TOPIC, wait=10))
            await link.holds("server")
            caller.cancel()
            await anyio.wait_all_tasks_blocked()
            link.heal()
            with pytest.raises(asyncio.CancelledError):
                await caller
            [job] = await client.jobs.reserve_many(TOPIC, wait=20)
            assert (job.id, job.attempt) == ("once", 1)
            await job.finish()


async def test_whoever_waits_while_its_topic_gets_a_rate_is_served_by_a_desk(client: Client, office: Office) -> None:
    await office.add("first")
    for job in await client.jobs.reserve_many(TOPIC, wait=10):
        await job.finish()
    caller = asyncio.create_task(client.jobs.reserve_many(TOPIC, wait=60))
    while not taking_of(client)._handout.waiting:
        await a_moment()
    await office.set(rate=50)
    await office.add("second")
    with anyio.fail_after(60):
        assert [job.id for job in await caller] == ["second"]
