"""What a node holds: as much as its handlers need and no more, as long as it can be sure of it."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from actors.jobs.rules import job_handling
from actors.jobs.worker.job import Job
from actors.jobs.worker.topic import TopicWorker
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection, connect
from streams.publish.publisher import Publisher
from streams.topology.specs import job_consumer
from tests.support.job_workers import Log, Working, handler, until_gone, working
from tests.support.jobs import TOPIC, Jobs, open_jobs
from tests.support.moments import a_moment
from tests.support.proxy import Proxy, proxy


@pytest.fixture
def log() -> Log:
    return Log()


# ---- the link


@pytest.fixture
def slow_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The link is silent for longer than the ack wait of three seconds, and the client has not given it up yet."""
    monkeypatch.setattr("streams.link.connection.PING_INTERVAL_S", 30)


@asynccontextmanager
async def working_behind_a_proxy(
    server: EmbeddedServer, jobs: Jobs, log: Log
) -> AsyncIterator[tuple[Proxy, TopicWorker]]:
    """Run a worker whose only link can be cut; handlers end once two of them were cancelled."""

    async def handle(job: Job) -> None:
        log("begun", job.id)
        try:
            if log.count("cancelled") < 2:
                await anyio.sleep_forever()
        except asyncio.CancelledError:
            log("cancelled", job.is_lost)
            raise

    async with (
        proxy(server.port) as link,
        connect(link.url, name="behind", namespace=jobs.namespace) as connection,
        Publisher(connection) as publisher,
        working(Jobs(connection, publisher, jobs.pulls), handler(handle)) as work,
    ):
        yield link, work.worker.topic(TOPIC)


async def test_short_cut_of_the_link_loses_nothing_and_a_long_silence_all(
    server: EmbeddedServer, jobs: Jobs, log: Log
) -> None:
    async with working_behind_a_proxy(server, jobs, log) as (link, _):
        await jobs.add("1")
        await log.has("begun 1")
        link.cut()
        await jobs.add("2")  # begun once the link is there again
        await log.has("begun 2")
        assert log.lines == ["begun 1", "begun 2"]
        link.freeze()
        await log.until(lambda log: log.count("cancelled True") == 2)
        assert (await jobs.store.count(TOPIC)).ready == 2
        link.heal()
        await until_gone(jobs, "1")
        await until_gone(jobs, "2")
    assert sorted(log.lines[4:]) == ["begun 1", "begun 2"]


async def another_ends_it(jobs: Jobs) -> None:
    """End the job that was delivered into a silent link, and is delivered again."""
    (delivery,) = await jobs.pull(1)
    assert delivery.delivered > 1
    await delivery.ack()


@pytest.mark.usefixtures("slow_pings")
async def test_what_waits_in_the_link_from_before_a_silence_is_not_begun(
    server: EmbeddedServer, jobs: Jobs, log: Log
) -> None:
    """It is another's by now. The link was silent, and is the same."""
    async with working_behind_a_proxy(server, jobs, log) as (link, _):
        link.hold("client")
        await jobs.add("1")
        await link.holds("client")
        await another_ends_it(jobs)
        link.heal()
        await jobs.add("2")
        await log.has("begun 2")
        assert link.accepted == 1
    assert log.lines[0] == "begun 2"


@pytest.mark.usefixtures("slow_pings")
async def test_what_waits_in_a_new_link_that_fell_silent_is_not_begun(
    server: EmbeddedServer, jobs: Jobs, log: Log
) -> None:
    """It is another's by now. The link was new, and was silent before the server answered on it."""
    pongs = 0

    def is_answer(chunk: bytes) -> bool:
        nonlocal pongs
        pongs += chunk.count(b"PONG")  # two are of the handshake
        return pongs > 2

    async with working_behind_a_proxy(server, jobs, log) as (link, _):
        link.cut()
        link.hold("client", at=is_answer)
        await link.holds("client")
        await jobs.add("1")
        spec = job_consumer(jobs.namespace, TOPIC)
        with anyio.fail_after(30):
            while not (await jobs.connection.api(f"CONSUMER.INFO.{spec.stream}.{spec.name}"))["num_ack_pending"]:
                await a_moment()
        await another_ends_it(jobs)
        link.heal()
        await jobs.add("2")
        await log.has("begun 2")
        assert link.accepted == 2
    assert log.lines[0] == "begun 2"


@pytest.mark.usefixtures("slow_pings")
async def test_what_came_before_the_link_broke_is_not_begun_on_another(
    server: EmbeddedServer, jobs: Jobs, log: Log
) -> None:
    """It is another's by now. The silent link brought it at last, and broke before the server answered on it."""
    async with working_behind_a_proxy(server, jobs, log) as (link, topic):
        link.hold("client")
        await jobs.add("1")
        await link.holds("client")
        link.hold("server")
        await another_ends_it(jobs)
        link.release("client")
        with anyio.fail_after(30):
            while not topic.held:
                await a_moment()
        link.cut()
        await jobs.add("2")
        await log.has("begun 2")
    assert log.lines[0] == "begun 2"


@asynccontextmanager
async def an_end_in_a_silent_link(server: EmbeddedServer, jobs: Jobs, log: Log) -> AsyncIterator[Proxy]:
    """Run job 1, whose acknowledgement is held back in the link."""
    ends = anyio.Event()

    async def handle(job: Job) -> None:
        log("begun", job.id)
        await ends.wait()
        log("ended", job.id)

    async with (
        proxy(server.port) as link,
        connect(link.url, name="behind", namespace=jobs.namespace) as connection,
        Publisher(connection) as publisher,
        working(Jobs(connection, publisher, jobs.pulls), handler(handle)),
    ):
        await jobs.add("1")
        await log.has("begun 1")
        link.hold("server")
        ends.set()
        await log.has("ended 1")
        yield link


async def test_an_end_that_was_lost_with_the_link_is_said_on_the_next(
    server: EmbeddedServer, connection: Connection, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.topology.specs.job_ack_wait_s", lambda _is_clustered: 60.0)
    async with open_jobs(connection) as jobs, an_end_in_a_silent_link(server, jobs, log) as link:
        await link.holds("server")
        link.cut()
        await until_gone(jobs, "1", within_s=50)  # before the ack wait could give it to anybody
    assert log.lines == ["begun 1", "ended 1"]


async def test_an_end_that_was_lost_for_too_long_is_not_said_for_whoever_has_it_by_then(
    server: EmbeddedServer, jobs: Jobs, log: Log
) -> None:
    async with an_end_in_a_silent_link(server, jobs, log) as link:
        (anothers,) = await jobs.pull(1)
        assert anothers.delivered > 1
        link.cut()
        await jobs.add("2")
        await log.has("ended 2")
        assert await jobs.state("1") == "ready"
        await anothers.ack_sync()
        await until_gone(jobs, "1")
    assert log.lines == ["begun 1", "ended 1", "begun 2", "ended 2"]


async def test_a_process_that_stops_between_two_jobs_begins_none_that_may_be_anothers(jobs: Jobs, log: Log) -> None:
    """It stopped in the moment in which a place lets the loop turn before it takes the job."""

    async def handle(job: Job) -> None:
        log("begun again" if job.attempt > 1 else "begun")

    async with working(jobs, handler(handle)) as work:
        slices = work.worker.topic(TOPIC).slices
        breathe = slices.breathe

        async def stopped() -> None:
            slices.breathe = breathe  # type: ignore[method-assign]
            await breathe()
            time.sleep(3.1)  # noqa: ASYNC251 # as if the process were stopped

        slices.breathe, slices.until_s = stopped, 0.0  # type: ignore[method-assign]
        await jobs.add("1")
        await until_gone(jobs, "1")
    assert log.lines == ["begun again"]


async def test_a_stop_gives_back_nothing_that_may_be_anothers(jobs: Jobs) -> None:
    """A node was silent for too long, finds a job in its socket that may be anybody's by now, and is stopped."""

    async def handle(job: Job) -> None:
        await anyio.sleep_forever()

    async with working(jobs, handler(handle), settings={"is_paused": True}) as work:
        topic = work.worker.topic(TOPIC)
        added = await jobs.add("1")
        topic.ready.lane("normal").extend(await jobs.pull(1))
        topic._hold.confirmed_s = -math.inf
        await work.end()
    found = await jobs.store.find(TOPIC, "1")
    assert found is not None
    assert (found.state, found.seq) == ("ready", added.seq), "it was taken from whoever has it"


async def test_what_the_server_hands_out_once_more_to_its_holder_is_not_run_beside_itself(jobs: Jobs, log: Log) -> None:
    """A new leader of three servers does so with what a handler still works on."""
    may_end = anyio.Event()

    async def handle(job: Job) -> None:
        log("begun", job.id)
        if log.count("begun long") == 1 == len(log.lines):
            jobs.connection.client.send(job.delivery.frame(b"-NAK"))  # as the new leader takes it
            await may_end.wait()

    spec = job_consumer(jobs.namespace, TOPIC)
    async with working(jobs, handler(handle, concurrency=3)):
        await jobs.add("long")
        with anyio.fail_after(30):
            while not (await jobs.connection.api(f"CONSUMER.INFO.{spec.stream}.{spec.name}"))["num_redelivered"]:
                await a_moment()
        for job_id in ("2", "3"):
            await jobs.add(job_id)
            await until_gone(jobs, job_id)
        may_end.set()
        await until_gone(jobs, "long")
    assert log.lines == ["begun long", "begun 2", "begun 3"]


# ---- how much


@asynccontextmanager
async def held_up(jobs: Jobs, log: Log, *, places: int, ahead: int = 0) -> AsyncIterator[Working]:
    """Run a worker whose handlers never end."""

    async def handle(job: Job) -> None:
        log("begun", job.id)
        await anyio.sleep_forever()

    async with working(jobs, handler(handle, concurrency=places)) as work:
        work.worker.topic(TOPIC).fetch_ahead(ahead)
        yield work


async def test_slow_handlers_keep_nothing_from_other_nodes(jobs: Jobs, log: Log) -> None:
    async with held_up(jobs, log, places=3):
        await jobs.added(10)
        await log.until(lambda log: len(log.lines) == 3)
        others = await jobs.pull(10)
        while len(others) < 7:
            others += await jobs.pull(10)
        assert [delivery.delivered for delivery in others] == [1] * 7


async def test_what_was_fetched_ahead_and_will_not_be_run_soon_is_given_back(jobs: Jobs, log: Log) -> None:
    async with held_up(jobs, log, places=2, ahead=8) as work:
        topic = work.worker.topic(TOPIC)
        await jobs.added(10)
        with anyio.fail_after(20):
            while len(topic.ready) < 8:
                await a_moment()
        topic.fetch_ahead(0)  # the handler has become slow
        others = await jobs.pull(10)
        while len(others) < 8:
            others += await jobs.pull(10)
        assert [delivery.delivered for delivery in others] == [1] * 8  # given back, it has cost no attempt
        assert topic.held == 2


async def test_lanes_share_what_the_places_can_hold(jobs: Jobs, log: Log) -> None:
    async with held_up(jobs, log, places=4) as work:
        await jobs.add("low1", priority="low")
        assert log.lines == []  # nobody looks into a lane that was never used
        await work.topics.change(TOPIC, {"lanes": ["normal", "low"]})
        await log.has("begun low1")
        await jobs.added(20)
        await log.until(lambda log: len(log.lines) == 4)
        await jobs.add("low2", priority="low")
        others = await jobs.pull(20)
        while len(others) < 17:
            others += await jobs.pull(20)
        (low,) = await jobs.pull(1, priority="low")
        assert low.delivered == 1


# ---- suspects


async def test_job_that_may_have_killed_its_holders_begins_alone(
    jobs: Jobs, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_handling, "EARLY_MS", 60_000)  # as if the ack waits had passed
    begun_s: dict[str, float] = {}

    async def handle(job: Job) -> None:
        begun_s[job.id] = time.monotonic()
        log("begun", job.id, job.attempt)
        if job.id == "suspect":
            await anyio.sleep_forever()

    await jobs.add("suspect", attempts=4)
    for _ in range(2):
        (delivery,) = await jobs.pull(1)
        await delivery.nak()
    async with working(jobs, handler(handle)) as work:
        await log.has("begun suspect 3")
        topic = work.worker.topic(TOPIC)
        await jobs.added(20)
        await log.has("begun 0 1")
        assert begun_s["0"] - begun_s["suspect"] > 0.5  # a second, but for what passed before the suspect was begun
        assert topic.held <= 4  # the suspect and what runs, and the next one: not twenty that it could take with it


async def test_consumer_that_somebody_deleted_is_made_again(jobs: Jobs, log: Log) -> None:
    async def handle(job: Job) -> None:
        log(job.id)

    async with working(jobs, handler(handle)):
        await jobs.add("1")
        await log.has("1")
        await jobs.connection.api(f"CONSUMER.DELETE.{jobs.namespace.stream('JOBS')}.jobs_{TOPIC}")
        await jobs.add("2")
        await log.has("2")
