"""Handlers and time: what overruns, what is lost, what waits, what is given back, and what is never begun."""

import asyncio
import logging
import threading
import time

import anyio
import msgspec
import pytest

from actors.jobs.adds import Clash
from actors.jobs.rules import job_handling
from actors.jobs.worker.job import Job, JobLost
from streams.link.connection import Connection
from streams.subjects import token_of
from tests.support.job_workers import Log, handler, until_gone, working
from tests.support.jobs import TOPIC, Jobs
from tests.support.moments import a_moment

FAST = {"backoff": "1ms", "backoff_cap": "2ms"}


@pytest.fixture
def log() -> Log:
    return Log()


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records]


# ---- time to run


async def test_handler_that_overruns_is_cancelled_and_has_failed(jobs: Jobs, log: Log) -> None:
    async def handle(job: Job) -> None:
        log("begun", job.attempt)
        try:
            if job.attempt == 1:
                await anyio.sleep_forever()
        except asyncio.CancelledError:
            log("cancelled", job.is_lost)
            raise

    async with working(jobs, handler(handle, ttr_ms=1_000), settings=FAST):
        await jobs.add("1")
        await log.has("begun 2")
        await until_gone(jobs)
    assert log.lines == ["begun 1", "cancelled True", "begun 2"]


async def test_overrun_is_told_in_the_dead_letter(jobs: Jobs) -> None:
    async def handle(job: Job) -> None:
        await anyio.sleep_forever()

    async with working(jobs, handler(handle, ttr_ms=1_000, attempts=1), settings=FAST):
        await jobs.add("1")
        with anyio.fail_after(20):
            while await jobs.state() != "done":
                await a_moment()
    (letter,) = await jobs.dead()
    assert letter["reason"] == "attempt 1 of 1: TimeoutError: it overran its 1 s to run"


async def test_handler_that_swallows_its_cancellation_has_failed_too(jobs: Jobs, log: Log) -> None:
    async def handle(job: Job) -> None:
        log("begun", job.attempt)
        if job.attempt == 1 and job.id == "1":
            try:
                await anyio.sleep_forever()
            except asyncio.CancelledError:
                log("swallowed")

    async with working(jobs, handler(handle, ttr_ms=1_000, concurrency=1), settings=FAST):
        await jobs.add("1")
        await until_gone(jobs)
        await jobs.add("2")  # the place is sound
        await until_gone(jobs, "2")
    assert log.lines == ["begun 1", "swallowed", "begun 2", "begun 1"]


async def test_touch_gives_a_handler_more_time(jobs: Jobs, log: Log) -> None:
    async def handle(job: Job) -> None:
        for _ in range(12):
            await anyio.sleep(0.3)
            job.touch()
        log("ended", job.attempt)

    async with working(jobs, handler(handle, ttr_ms=3_000)):
        await jobs.add("1")
        await until_gone(jobs)
    assert log.lines == ["ended 1"]


async def test_thread_that_overruns_keeps_its_place_and_says_nothing(
    jobs: Jobs, caplog: pytest.LogCaptureFixture
) -> None:
    go_on, seen = threading.Event(), list[str]()

    def handle(job: Job) -> None:
        seen.append(f"begun {job.id}")
        assert go_on.wait(30)
        try:
            job.touch()
        except JobLost:
            seen.append(f"lost {job.is_lost}")

    async def told(event: str) -> None:
        with anyio.fail_after(20):
            while event not in events(caplog):
                await a_moment()

    with caplog.at_level(logging.WARNING):
        async with working(jobs, handler(handle, is_async=False, ttr_ms=1_000, concurrency=1)) as work:
            await jobs.added(2)
            await told("job.thread_overran")
            assert work.worker.topic(TOPIC).held == 0  # it is not kept from others any more
            await jobs.connection.flush()
            assert seen == ["begun 0"]
            work.stop()
            go_on.set()
            await told("job.handler_came_back")
            await work.end()
    assert seen == ["begun 0", "lost True"]
    counts = await jobs.store.count(TOPIC)
    assert counts.ready + counts.delayed == 2  # its end did not count, and what was not begun was given back


# ---- what is lost


async def test_job_that_the_node_cannot_hold_is_lost_and_its_handler_cancelled(
    jobs: Jobs, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    """The loop stands still for longer than the ack wait, as in a process that was stopped."""

    async def handle(job: Job) -> None:
        log("begun", job.id, job.attempt)
        try:
            if job.id == "2" and job.attempt == 1:
                time.sleep(3.2)  # noqa: ASYNC251  # what must not be done is what is tested
                log("slept")
            else:
                await anyio.sleep_forever()
        except asyncio.CancelledError:
            log("cancelled", job.id, job.is_lost)
            raise

    with caplog.at_level(logging.ERROR):
        async with working(jobs, handler(handle, concurrency=2)):
            await jobs.add("1")
            await log.has("begun 1 1")
            await jobs.add("2")
            await log.has("cancelled 1 True")
            await jobs.connection.flush()
            assert (await jobs.store.count(TOPIC)).ready == 2  # neither was settled
    assert log.lines[:4] == ["begun 1 1", "begun 2 1", "slept", "cancelled 1 True"]
    assert {"job_worker.loop_blocked", "job_worker.lost_hold"} <= set(events(caplog))
    blocked, *_ = [record for record in caplog.records if record.message == "job_worker.loop_blocked"]
    assert any("test_job_worker_time.py" in line and "handle" in line for line in blocked.__dict__["fields"]["at"])


# ---- what is never begun


async def test_expired_job_is_not_run(jobs: Jobs, log: Log) -> None:
    async def handle(job: Job) -> None:
        log(job.id)

    await jobs.add("1", expires_in_ms=500)
    await jobs.add("2")
    jobs.clock.ahead_ms = 1_000
    async with working(jobs, handler(handle)):
        await until_gone(jobs, "2")
        with anyio.fail_after(20):
            while await jobs.state("1") != "done":
                await a_moment()
    assert log.lines == ["2"]
    (letter,) = await jobs.dead()
    assert letter["reason"].startswith("expired: it was not started in time: ")


async def test_job_whose_holders_vanished_too_often_is_buried_unrun(
    jobs: Jobs, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_handling, "EARLY_MS", 60_000)  # as if the ack waits had passed

    async def handle(job: Job) -> None:
        log(job.id, job.attempt)

    await jobs.add("1", attempts=2)
    await jobs.add("2", attempts=3)
    for _ in range(2):
        for delivery in await jobs.pull(2):
            await delivery.nak()
    async with working(jobs, handler(handle)):
        await until_gone(jobs, "2")
        with anyio.fail_after(20):
            while await jobs.state("1") != "done":
                await a_moment()
    assert log.lines == ["2 3"]
    (letter,) = await jobs.dead()
    assert (letter["id"], letter["attempts"]) == ("1", 2)
    assert "vanished" in letter["reason"]


async def test_message_that_is_no_job_is_set_aside(jobs: Jobs, log: Log) -> None:
    async def handle(job: Job) -> None:
        log(job.id)

    await jobs.publisher.publish(jobs.namespace.job("ready", TOPIC, "bad"), b"{no json")
    await jobs.add("1")
    async with working(jobs, handler(handle)):
        await until_gone(jobs)
        with anyio.fail_after(20):
            while not await jobs.dead():
                await a_moment()
    assert log.lines == ["1"]
    (letter,) = await jobs.dead()
    assert (letter["id"], letter["is_base64"]) == ("bad", True)


async def test_job_deleted_while_it_waits_here_is_not_begun(jobs: Jobs, log: Log, connection: Connection) -> None:
    release = anyio.Event()

    async def handle(job: Job) -> None:
        log(job.id)
        await release.wait()

    odd_id = "an id with blanks"
    async with working(jobs, handler(handle, concurrency=1)) as work:
        topic = work.worker.topic(TOPIC)
        topic.fetch_ahead(3)
        await jobs.add("1")
        await log.has("1")
        for job_id in ("2", odd_id, "3"):
            await jobs.add(job_id)
        with anyio.fail_after(20):
            while len(topic.ready) < 3:
                await a_moment()
        for job_id in ("2", odd_id):
            assert await jobs.store.delete(TOPIC, job_id) == "ready"
            gone = msgspec.json.encode({"topic": TOPIC, "key": token_of(job_id)})
            answer = await connection.request(jobs.namespace.gone(), gone)
            assert msgspec.json.decode(answer.payload) == {"node": "node1"}
        other = await connection.request(jobs.namespace.gone(), b'{"topic": "other", "key": "3"}')
        bad = await connection.request(jobs.namespace.gone(), b"no json")
        assert other.payload == bad.payload
        release.set()
        await until_gone(jobs, "3")
    assert log.lines == ["1", "3"]


# ---- pause, rate, priorities


async def test_paused_topic_begins_nothing_until_it_goes_on(jobs: Jobs, log: Log) -> None:
    async def handle(job: Job) -> None:
        log(job.id)

    async with working(jobs, handler(handle), settings={"is_paused": True}) as work:
        await jobs.added(3)
        with anyio.move_on_after(0.3):
            await log.until(lambda log: log.lines)
        assert log.lines == []
        await work.topics.change(TOPIC, {"is_paused": None})
        await log.until(lambda log: len(log.lines) == 3)
        await until_gone(jobs, "2")
        await work.topics.change(TOPIC, {"is_paused": True})
        with anyio.fail_after(20):
            while not work.topics.current(TOPIC).is_paused:
                await a_moment()
        await jobs.add("later")
        with anyio.move_on_after(0.3):
            await log.has("later")
        assert "later" not in log.lines
    counts = await jobs.store.count(TOPIC)
    assert (counts.ready + counts.delayed, counts.reserved) == (1, 0)  # delayed: it was on its way, and was given back


async def test_rate_is_never_exceeded_and_all_is_run(jobs: Jobs, log: Log) -> None:
    begun_s: list[float] = []

    async def handle(job: Job) -> None:
        begun_s.append(time.monotonic())
        log(job.id)

    async with working(jobs, handler(handle), settings={"rate": 100}) as work:
        added_s = time.monotonic()
        await jobs.added(60)
        await log.until(lambda log: len(log.lines) == 60)
        await work.end()
    burst = 10
    for count in range(burst + 1, 60):
        assert begun_s[count] - added_s >= (count - burst) / 100


async def test_urgent_jobs_go_first_and_the_others_are_not_starved(jobs: Jobs, log: Log) -> None:
    release = anyio.Event()

    async def handle(job: Job) -> None:
        log(job.id.rstrip("0123456789"))
        await release.wait()

    async with working(jobs, handler(handle, concurrency=1), settings={"lanes": ["high", "normal", "low"]}) as work:
        topic = work.worker.topic(TOPIC)
        topic.fetch_ahead(200)
        await jobs.add("first")
        await log.has("first")
        for priority in ("low", "normal", "high"):
            await jobs.store.add_many([(jobs.make(f"{priority}{n}", priority=priority), "keep") for n in range(40)])
        with anyio.fail_after(20):
            while len(topic.ready) < 120:
                await a_moment()
        release.set()
        await log.until(lambda log: len(log.lines) == 121)
        await work.end()
    assert {line: log.lines[1:41].count(line) for line in log.lines[1:41]} == {"high": 35, "low": 5}
    assert [log.lines.count(line) for line in ("high", "normal", "low")] == [40, 40, 40]


# ---- stopping


async def test_stop_lets_what_runs_end_and_gives_back_the_rest(jobs: Jobs, log: Log) -> None:
    release = anyio.Event()

    async def handle(job: Job) -> None:
        log("begun", job.id)
        await release.wait()
        log("ended", job.id)

    async with working(jobs, handler(handle, concurrency=2)) as work:
        topic = work.worker.topic(TOPIC)
        topic.fetch_ahead(6)
        await jobs.added(8)
        await log.until(lambda log: log.count("begun") == 2)
        with anyio.fail_after(20):
            while len(topic.ready) < 6:
                await a_moment()
        work.stop()
        unbegun = await jobs.pull(1)
        assert [delivery.delivered for delivery in unbegun] == [1]  # written anew: it has cost no attempt
        assert not work.has_ended.is_set()
        assert TOPIC in work.worker.topics
        release.set()
        await work.end()
        assert not work.worker.topics, "nobody replies any more to who deletes a job"
    assert sorted(log.lines) == ["begun 0", "begun 1", "ended 0", "ended 1"]
    with anyio.fail_after(20):
        while (await jobs.store.count(TOPIC)).ready != 6:  # an ack takes a moment
            await a_moment()


async def test_job_cut_short_by_the_end_of_the_node_is_given_back_without_an_attempt(jobs: Jobs, log: Log) -> None:
    async def handle(job: Job) -> None:
        log("begun", job.attempt)
        await anyio.sleep_forever()

    for _ in range(3):  # each a node that is stopped, and whose drain deadline passes
        begun = len(log.lines)
        async with working(jobs, handler(handle, attempts=2)):
            await jobs.add("1")
            await log.until(lambda log, begun=begun: len(log.lines) > begun)  # type: ignore[misc]
    assert log.lines == ["begun 1"] * 3
    (delivery,) = await jobs.pull(1)
    assert delivery.delivered == 1
    assert await jobs.dead() == []


async def test_task_that_outlives_its_handler_can_say_nothing_more(jobs: Jobs, log: Log) -> None:
    async def linger(job: Job, release: anyio.Event) -> None:
        await release.wait()
        for say in (job.bury, job.retry, job.touch):
            try:
                say()
            except JobLost:
                log("too late")

    release = anyio.Event()
    async with anyio.create_task_group() as tasks:

        async def handle(job: Job) -> None:
            tasks.start_soon(linger, job, release)

        async with working(jobs, handler(handle)):
            await jobs.add("1")
            await until_gone(jobs)
            release.set()
            await log.until(lambda log: len(log.lines) == 3)
    assert log.lines == ["too late"] * 3
    assert await jobs.dead() == []


async def test_finished_job_is_remembered_where_the_topic_says_so(jobs: Jobs, log: Log) -> None:
    async def handle(job: Job) -> None:
        log(job.id)

    async with working(jobs, handler(handle), settings={"remember": "1h"}):
        await jobs.add("1")
        with anyio.fail_after(20):
            while await jobs.state() != "done":
                await a_moment()
        again = await jobs.add("1")
        assert isinstance(again, Clash)
        assert again.state == "done"
    assert log.lines == ["1"]
    assert (await jobs.store.count(TOPIC)).ready == 0
