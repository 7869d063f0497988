"""A single server that was killed has forgotten its last tenth of a second; no job is run twice for that."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pytest
from msgspec.structs import replace

from actors.jobs.adds import Stored
from actors.jobs.worker.job import Job
from streams.clock import monotonic_s
from streams.embedded.server import EmbeddedServer
from streams.jobs.moves import Move, Mover
from streams.link.connection import connect
from streams.messages.jobs import JobDone, encode_job
from streams.publish.publisher import Publisher
from tests.support.job_workers import Log, handler, until_gone, working
from tests.support.jobs import TOPIC, Jobs, open_jobs
from tests.support.moments import a_moment

JOBS = [f"{number}" for number in range(40)]
"""So many that the server has not written down that the last were handed out."""


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
async def jobs(own_server: EmbeddedServer) -> AsyncIterator[Jobs]:
    async with connect(own_server.url, name="test") as connection, open_jobs(connection) as opened:
        yield opened


@asynccontextmanager
async def two_nodes(server: EmbeddedServer, jobs: Jobs, log: Log, open_: anyio.Event) -> AsyncIterator[None]:
    """Run two workers whose handlers wait for `open_`."""

    async def handle(job: Job) -> None:
        log("begun", job.id, job.attempt)
        await open_.wait()
        log("ended", job.id)

    one = handler(handle, concurrency=len(JOBS))
    async with (
        connect(server.url, name="other", namespace=jobs.namespace) as connection,
        Publisher(connection) as publisher,
        working(jobs, one, node="node1"),
        working(Jobs(connection, publisher, jobs.pulls), one, node="node2"),
    ):
        yield


async def begin_and_kill(server: EmbeddedServer, jobs: Jobs, log: Log) -> float:
    """Return when the server was killed."""
    for job_id in JOBS:
        await jobs.add(job_id)
    await log.until(lambda log: log.count("begun") == len(JOBS))
    killed_s = monotonic_s()
    await server.kill()
    return killed_s


async def test_what_runs_is_not_begun_beside_it(
    own_server: EmbeddedServer, jobs: Jobs, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    ends = anyio.Event()
    async with two_nodes(own_server, jobs, log, ends):
        killed_s = await begin_and_kill(own_server, jobs, log)
        await own_server.start()
        await jobs.add("later")
        away_s = monotonic_s() - killed_s
        await log.has("begun later 1")
        await jobs.add("much later", delay_ms=8_000)
        await log.has("begun much later 1")
        ends.set()
        for job_id in JOBS:
            await until_gone(jobs, job_id)
    # On a busy machine the server may be away, or the workers may stand still, for longer than their hold lasts.
    is_late = away_s > 2 or "job_worker.loop_blocked" in caplog.messages
    assert log.count("begun") == len(JOBS) + 2 or is_late


async def test_what_ended_is_not_begun_again(own_server: EmbeddedServer, jobs: Jobs, log: Log) -> None:
    """It was acknowledged while the server was down."""
    ends = anyio.Event()
    async with two_nodes(own_server, jobs, log, ends):
        await begin_and_kill(own_server, jobs, log)
        ends.set()
        await log.until(lambda log: log.count("ended") == len(JOBS))
        await own_server.start()
        for job_id in JOBS:
            await until_gone(jobs, job_id)
        await jobs.add("much later", delay_ms=8_000)
        await log.has("begun much later 1")
    assert log.count("begun") == len(JOBS) + 1, " ".join(log.lines[40:])


async def test_what_was_lost_runs_again_and_that_is_its_second_run(
    own_server: EmbeddedServer, jobs: Jobs, log: Log
) -> None:
    """The server was away for longer than a hold lasts."""
    ends = anyio.Event()
    async with two_nodes(own_server, jobs, log, ends):
        await begin_and_kill(own_server, jobs, log)
        await anyio.sleep(4)
        await own_server.start()
        await log.until(lambda log: log.count("begun") == 2 * len(JOBS))
        ends.set()
        for job_id in JOBS:
            await until_gone(jobs, job_id)
    assert sorted(log.lines[len(JOBS) : 2 * len(JOBS)]) == sorted(f"begun {job_id} 2" for job_id in JOBS)


async def test_a_job_that_has_the_sequence_of_another_after_the_store_went_back_is_run(
    own_server: EmbeddedServer, jobs: Jobs, log: Log, tmp_path: Path
) -> None:
    """An older copy is put back, or the power failed: the sequences of what nodes hold are given once more."""
    ends, store, copy = anyio.Event(), own_server.store / "jetstream", tmp_path / "copy"
    async with two_nodes(own_server, jobs, log, ends):
        await own_server.stop()
        shutil.copytree(store, copy)
        await own_server.start()
        await begin_and_kill(own_server, jobs, log)
        shutil.rmtree(store)
        shutil.copytree(copy, store)
        await own_server.start()
        ends.set()
        ids = [f"new-{job_id}" for job_id in JOBS]
        for job_id in ids:
            await jobs.add(job_id)
        await log.until(lambda log: all(f"begun {job_id} 1" in log.lines for job_id in ids))


async def test_what_is_deleted_while_it_is_held_back_is_not_begun(
    own_server: EmbeddedServer, jobs: Jobs, log: Log
) -> None:
    async def handle(job: Job) -> None:
        log("begun", job.id)

    async with working(jobs, handler(handle), settings={"is_paused": True}) as work:
        for job_id in ("1", "2"):
            await jobs.add(job_id)
        await own_server.kill()
        await own_server.start()
        await work.topics.change(TOPIC, {"is_paused": None})
        with anyio.fail_after(20):
            while work.worker.topic(TOPIC).held < 2:
                await a_moment()
        assert not log.lines
        assert await jobs.store.delete(TOPIC, "1") == "ready"
        await jobs.connection.request(jobs.namespace.gone(), msgspec.json.encode({"topic": TOPIC, "key": "1"}))
        await until_gone(jobs, "2")
    assert log.lines == ["begun 2"]


async def test_what_comes_again_though_its_end_was_written_down_is_not_begun(jobs: Jobs, log: Log) -> None:
    """Whoever ended it died before he acknowledged it."""

    async def handle(job: Job) -> None:
        log("begun", job.id)

    (traced,) = await jobs.store.add_many([(replace(jobs.make("1"), trace_s=60), "keep")])
    assert isinstance(traced, Stored)
    await jobs.add("2")
    deliveries = await jobs.pull(2)
    record = JobDone(topic=TOPIC, id="1", finished_ms=jobs.clock.now_ms(), outcome="finished")
    subject, thing = jobs.namespace.job("gone", TOPIC, "1"), jobs.namespace.job_in_any_state(TOPIC, "1")
    await Mover(jobs.connection, jobs.publisher, jobs.namespace.jobs_stream_of).move(
        Move(subject, encode_job(record), thing, traced.seq)
    )
    for delivery in deliveries:
        delivery.forget()
    async with working(jobs, handler(handle)):
        await log.has("begun 2")
        await until_gone(jobs, "2")
    assert log.lines == ["begun 2"]
