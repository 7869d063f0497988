"""A single server that was killed may find messages again that it had removed (ADR 35). A job that is over is not run
again for that, and no job is lost for it.

tests/support/forgetting.py has the server forget all removals.
"""

from collections.abc import AsyncIterator

import anyio
import pytest

from actors.jobs.adds import Clash
from actors.jobs.deliveries import JobDeliveries
from actors.jobs.rules.job_rules import past_of
from actors.jobs.stream import JobStream
from actors.jobs.worker.job import Job
from streams.embedded.server import EmbeddedServer
from streams.jobs.moves import Move
from streams.link.connection import connect
from streams.messages.jobs import JobDone, OnSame, encode_job
from streams.reads.log import delete_entry, read_log
from tests.support.forgetting import forget_removals
from tests.support.job_workers import Log, handler, until_gone, working
from tests.support.jobs import TOPIC, Jobs, open_jobs
from tests.support.moments import a_moment

WITHIN_S = 20.0


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
async def jobs(own_server: EmbeddedServer) -> AsyncIterator[Jobs]:
    async with connect(own_server.url, name="test") as connection, open_jobs(connection) as opened:
        await opened.add("far", delay_ms=3_600_000)  # it keeps the block, as other jobs do
        yield opened


async def kill_and_forget(server: EmbeddedServer, jobs: Jobs) -> None:
    await server.kill()
    assert forget_removals(server, jobs.namespace.stream("JOBS")) > 0
    await server.start()


async def of_the_ready(jobs: Jobs) -> list[str]:
    """Return the keys of the ready jobs that the server has at present."""
    pattern = jobs.namespace.pattern("jobs", "ready", TOPIC, "*")
    return [
        entry.subject.split(".")[-1]
        async for entry in read_log(jobs.connection, jobs.namespace.stream("JOBS"), pattern)
    ]


async def until_none_is_ready(jobs: Jobs) -> None:
    with anyio.fail_after(WITHIN_S):
        while await of_the_ready(jobs):
            await a_moment()


async def test_a_delayed_job_that_was_handled_is_not_run_again(
    own_server: EmbeddedServer, jobs: Jobs, log: Log
) -> None:
    async def handle(job: Job) -> None:
        log("run", job.id, job.attempt)

    async with working(jobs, handler(handle)):
        await jobs.added(20, delay_ms=300)
        await log.until(lambda log: log.count("run") == 20)
        for job_id in range(20):
            await until_gone(jobs, str(job_id))
        await kill_and_forget(own_server, jobs)
        await until_none_is_ready(jobs)
        await jobs.add("later", delay_ms=100)
        await log.has("run later 1")
        await until_gone(jobs, "later")
    assert log.count("run") == 21, log.lines


async def test_a_job_that_was_tried_again_and_handled_is_not_run_once_more(
    own_server: EmbeddedServer, jobs: Jobs, log: Log
) -> None:
    async def handle(job: Job) -> None:
        log("run", job.id, job.attempt)
        if job.attempt == 1:
            raise ValueError("not yet")

    async with working(jobs, handler(handle, attempts=3)):
        await jobs.add("1")
        await log.has("run 1 2")
        await until_gone(jobs, "1")
        await kill_and_forget(own_server, jobs)
        await until_none_is_ready(jobs)
        await jobs.add("later")
        await log.has("run later 2")
        await until_gone(jobs, "later")
    assert log.lines.count("run 1 1") == log.lines.count("run 1 2") == 1, log.lines


async def test_a_job_that_was_finished_is_not_handed_out_again(own_server: EmbeddedServer, jobs: Jobs) -> None:
    for job_id in ("0", "1"):
        await jobs.add(job_id)
    held = (await jobs.hand_out(2, ttr_ms=4_000)).reservations
    await jobs.store.finish_many([one.receipt for one in held], remember_s=0)
    await kill_and_forget(own_server, jobs)
    assert await jobs.state("0") is None
    until_ms = held[-1].receipt.until_ms
    with anyio.fail_after(WITHIN_S):
        while jobs.clock.now_ms() < until_ms + 1_500 or await of_the_ready(jobs):
            assert not (await jobs.hand_out(10, wait_s=0.5)).reservations
    assert await jobs.state("0") is None


async def test_a_delayed_job_that_was_deleted_does_not_come(own_server: EmbeddedServer, jobs: Jobs, log: Log) -> None:
    async def handle(job: Job) -> None:
        log("run", job.id, job.attempt)

    stored = await jobs.added(20, delay_ms=3_000)
    for one in stored:
        assert await jobs.store.delete(TOPIC, one.id) == "delayed"
    await kill_and_forget(own_server, jobs)
    async with working(jobs, handler(handle)):
        await jobs.add("last", delay_ms=3_500)
        await log.has("run last 1")
        await until_none_is_ready(jobs)
    assert log.lines == ["run last 1"]
    assert await jobs.state("0") is None


async def test_an_id_that_was_deleted_and_is_used_again_has_the_new_job_alone(
    own_server: EmbeddedServer, jobs: Jobs, log: Log
) -> None:
    """The first job's schedule fires while the second one is delayed."""

    async def handle(job: Job) -> None:
        log("run", job.id, job.body.decode())

    await jobs.add("1", body="first", delay_ms=3_000)
    assert await jobs.store.delete(TOPIC, "1") == "delayed"
    await jobs.add("1", body="second", delay_ms=5_000)
    await kill_and_forget(own_server, jobs)
    async with working(jobs, handler(handle)):
        await log.has('run 1 "second"')
        await until_gone(jobs, "1")
    assert log.lines == ['run 1 "second"']


async def test_a_job_that_was_replaced_is_not_handed_out_beside_the_one_in_its_place(
    own_server: EmbeddedServer, jobs: Jobs
) -> None:
    await jobs.add("1", body="first", delay_ms=2_000)
    await jobs.add("1", body="second", priority="high", policy="replace")
    await kill_and_forget(own_server, jobs)
    (delivery,) = await jobs.pull(1)
    handed = await jobs.store.reserve_many([delivery])
    assert delivery.is_settled
    assert not handed.reservations
    await until_none_is_ready(jobs)
    (second,) = (await jobs.store.reserve_many(await jobs.pull(1, priority="high"))).reservations
    assert bytes(second.job.body) == b'"second"'


async def test_a_ready_job_that_was_deleted_is_not_handed_out_again(own_server: EmbeddedServer, jobs: Jobs) -> None:
    await jobs.added(1)
    assert await jobs.store.delete(TOPIC, "0") == "ready"
    await jobs.add("other")
    await kill_and_forget(own_server, jobs)
    assert sorted(await of_the_ready(jobs)) == ["0", "other"]
    handed = [*(await jobs.hand_out()).reservations, *(await jobs.hand_out(wait_s=1.0)).reservations]
    assert [one.job.id for one in handed] == ["other"]
    await until_none_is_ready(jobs)


async def test_a_job_whose_id_is_used_again_in_another_lane_is_handed_out(
    own_server: EmbeddedServer, jobs: Jobs
) -> None:
    """The firing of the one before lies on top of it, until that is dropped."""
    await jobs.add("1", body="first", delay_ms=2_000)
    await jobs.store.delete(TOPIC, "1")
    await jobs.add("1", body="second", priority="high")
    await kill_and_forget(own_server, jobs)
    with anyio.fail_after(WITHIN_S):
        while not await of_the_ready(jobs):
            await a_moment()
    assert not (await jobs.store.reserve_many(await jobs.pull(1, priority="high"))).reservations
    assert not (await jobs.store.reserve_many(await jobs.pull(1))).reservations
    (second,) = (await jobs.store.reserve_many(await jobs.pull(1, priority="high"))).reservations
    assert bytes(second.job.body) == b'"second"'


async def test_of_two_deliveries_of_one_id_each_is_looked_at(own_server: EmbeddedServer, jobs: Jobs, log: Log) -> None:
    """A second job of the id waits in another lane, and both come with one look."""

    async def handle(job: Job) -> None:
        log("run", job.id, job.body.decode())

    for job_id in ("1", "2", "3"):
        await jobs.add(job_id, body="first", delay_ms=2_000)
        await jobs.store.delete(TOPIC, job_id)
        await jobs.add(job_id, body="second", priority="high")
    await kill_and_forget(own_server, jobs)
    with anyio.fail_after(WITHIN_S):
        while len(await of_the_ready(jobs)) < 3:
            await a_moment()
    deliveries = [*await jobs.pull(3, priority="high"), *await jobs.pull(3)]
    stream = JobStream(jobs.connection, jobs.publisher, jobs.namespace, jobs.clock)
    whose = await JobDeliveries(stream).whose(deliveries)
    assert [whose[one] for one in deliveries] == ["unknown"] * 3 + ["nobody's"] * 3
    for delivery in deliveries:
        await delivery.nak()
    async with working(jobs, handler(handle), settings={"lanes": ["high", "normal"]}):
        for job_id in ("1", "2", "3"):
            await log.has(f'run {job_id} "second"')
            await until_gone(jobs, job_id)
    assert log.count("run") == 3, log.lines


@pytest.mark.parametrize("policy", ["keep", "error", "replace"])
async def test_an_id_that_is_over_is_free_though_its_job_is_fired_again(
    own_server: EmbeddedServer, jobs: Jobs, policy: OnSame
) -> None:
    await jobs.add("1", body="first", delay_ms=2_000)
    await jobs.store.delete(TOPIC, "1")
    await kill_and_forget(own_server, jobs)
    with anyio.fail_after(WITHIN_S):
        while not await of_the_ready(jobs):
            await a_moment()
    added = await jobs.add("1", body="second", policy=policy)
    assert added.is_new
    handed = [*(await jobs.hand_out()).reservations, *(await jobs.hand_out(wait_s=1.0)).reservations]
    assert [bytes(one.job.body) for one in handed] == [b'"second"']


async def test_a_job_that_waits_or_is_held_is_run_though_its_schedule_is_fired_again(
    own_server: EmbeddedServer, jobs: Jobs, log: Log
) -> None:
    """The second firing takes the place of the first one's copy, which was all there was of the job."""

    async def handle(job: Job) -> None:
        log("run", job.id)

    stored = await jobs.added(20, delay_ms=300)
    with anyio.fail_after(WITHIN_S):
        while len(await of_the_ready(jobs)) < len(stored):
            await a_moment()
    await kill_and_forget(own_server, jobs)
    async with working(jobs, handler(handle)):
        for one in stored:
            await log.has(f"run {one.id}")
            await until_gone(jobs, one.id)


@pytest.mark.parametrize("is_taken_back", [False, True])
async def test_an_end_is_taken_back_or_keeps_its_job_from_running_and_never_both(
    own_server: EmbeddedServer, jobs: Jobs, is_taken_back: bool
) -> None:
    """The server's own firing followed an end, and nothing was removed that came back. Whoever ended the job late takes
    the end back, while another looks whether the firing is over."""
    await jobs.add("1", delay_ms=1_500)
    found = await jobs.store.find_key(TOPIC, "1")
    assert found is not None
    assert found.job is not None
    end = JobDone(topic=TOPIC, id="1", finished_ms=0, past=past_of(found.job, now_ms=jobs.clock.now_ms()))
    subject = jobs.namespace.job("gone", TOPIC, "1")
    receipt = await jobs.publisher.publish(subject, encode_job(end))
    await own_server.kill()
    await own_server.start()
    (delivery,) = await jobs.pull(1)
    stream = JobStream(jobs.connection, jobs.publisher, jobs.namespace, jobs.clock)
    deliveries = JobDeliveries(stream)
    assert deliveries.may_be_over(delivery)
    if is_taken_back:
        messages = await deliveries._messages_of([delivery])
        assert await delete_entry(jobs.connection, stream.stream(TOPIC), receipt.seq, erase=True)
        assert not await deliveries._is_over(delivery, messages[delivery])
    else:
        assert await deliveries.whose([delivery]) == {delivery: "nobody's"}
        moved = Move(subject, encode_job(end), stream.subject("*", TOPIC, "1"), found.seq, fires_ms=found.fires_ms)
        assert await stream.has_stayed(moved, receipt.seq, jobs.clock.now_ms()) == receipt.seq


async def test_an_add_that_takes_the_place_of_a_firing_is_not_hidden_by_the_end_that_drops_it(
    own_server: EmbeddedServer, jobs: Jobs
) -> None:
    await jobs.add("1", body="first", delay_ms=2_000)
    await jobs.store.delete(TOPIC, "1")
    await kill_and_forget(own_server, jobs)
    (delivery,) = await jobs.pull(1)
    deliveries = JobDeliveries(JobStream(jobs.connection, jobs.publisher, jobs.namespace, jobs.clock))
    messages = await deliveries._messages_of([delivery])
    assert (await jobs.add("1", body="second", delay_ms=60_000)).is_new
    assert await deliveries._is_over(delivery, messages[delivery])
    await delivery.ack()
    assert await jobs.state("1") == "delayed"


async def test_what_is_kept_in_place_of_an_add_is_run(jobs: Jobs) -> None:
    """The server has its schedule, and should have fired it long ago."""
    await jobs.add("1", body="first", delay_ms=60_000)
    jobs.connection._memory_since_s -= 60
    jobs.clock.ahead_ms = 120_000
    assert isinstance(await jobs.add("1", policy="error"), Clash)
    assert await jobs.state("1") == "delayed"
    kept = await jobs.add("1", body="second")
    assert (kept.is_new, kept.state) == (False, "ready")
    assert [bytes(one.job.body) for one in (await jobs.hand_out()).reservations] == [b'"first"']
