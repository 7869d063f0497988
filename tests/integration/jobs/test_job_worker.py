"""Handlers in a node on a real server: what they are given, and what becomes of it, however they end."""

import asyncio
import logging
import threading
from collections.abc import Callable

import anyio
import pytest

from actors.jobs.obstacles import Obstacles
from actors.jobs.worker.job import Bury, Job, Retry
from actors.runtime.bounds import Anywhere
from streams.clock import SYSTEM
from streams.subjects import Namespace
from streams.topology.specs import job_consumer
from tests.support.job_workers import Log, handler, until_gone, working
from tests.support.jobs import Jobs, open_jobs
from tests.support.moments import a_moment
from tests.support.server import forbidding

FAST = {"backoff": "1ms", "backoff_cap": "2ms"}


@pytest.fixture(autouse=True)
def holds_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine that stands still for some seconds does not cost a worker its hold: nothing is run twice by it."""
    monkeypatch.setattr("streams.topology.specs.job_ack_wait_s", lambda _is_clustered: 30.0)


@pytest.fixture
def log() -> Log:
    return Log()


# ---- the plain case


async def test_ready_job_is_run_once_and_gone(jobs: Jobs, log: Log) -> None:
    async def handle(job: Job) -> None:
        log(job.topic, job.id, job.json(), job.attempt)

    async with working(jobs, handler(handle)):
        await jobs.add("1", body={"a": 1})
        await log.has("mail 1 {'a': 1} 1")
        await until_gone(jobs)
    assert len(log.lines) == 1


async def test_the_end_of_a_job_tells_when_it_was_first_handed_out(jobs: Jobs, log: Log) -> None:
    async def handle(job: Job) -> None:
        log(job.attempt)
        if job.attempt == 1:
            raise Retry("1s")

    before_ms = jobs.clock.now_ms()
    async with working(jobs, handler(handle)):
        await jobs.add("1", nonce="repeated")
        await log.has("2")
        await until_gone(jobs)
    found = await jobs.store.find_key("mail", "1")
    assert found is not None
    assert found.done is not None
    assert before_ms - 100 <= found.done.first_ms <= found.done.finished_ms - 900, "not the second attempt"


async def until_none_is_ready(jobs: Jobs) -> None:
    """The server takes an ack a moment after it came."""
    with anyio.fail_after(20):
        while (await jobs.store.count("mail")).ready:
            await a_moment()


async def test_a_topic_without_jobs_is_not_looked_after_until_one_comes_or_its_consumer_is_gone(
    jobs: Jobs, log: Log
) -> None:
    async def handle(job: Job) -> None:
        log(job.id)

    async def until_stirred(is_stirred: bool) -> None:
        with anyio.fail_after(20):
            while work.worker.topic("mail").is_stirred != is_stirred:
                await a_moment()

    async with working(jobs, handler(handle)) as work:
        await jobs.add("1")
        await log.has("1")
        await until_stirred(False)
        await jobs.add("2")
        await log.has("2")
        await until_stirred(False)
        stream = jobs.connection.namespace.stream("JOBS")
        await jobs.connection.api(f"CONSUMER.DELETE.{stream}.jobs_mail")
        await until_stirred(True)
        await jobs.add("3")
        await log.has("3")


@pytest.mark.three_servers
async def test_a_right_that_the_node_does_not_have_stops_its_topic_alone(
    tmp_path_factory: pytest.TempPathFactory, namespace: Namespace, log: Log
) -> None:
    async def handle(job: Job) -> None:
        log(job.topic)

    forbidden = job_consumer(namespace, "forbidden", "normal")
    async with forbidding(tmp_path_factory.mktemp("own"), namespace, forbidden) as connection:
        async with open_jobs(connection) as jobs:
            async with working(jobs, handler(handle, topic="forbidden"), handler(handle)) as work:
                await jobs.add("1", topic="forbidden")
                await jobs.add("1")
                await log.has("mail")
                unmade = work.worker.unmade.get
                obstacles = Obstacles(
                    connection,
                    work.topics,
                    lambda _: ["n"],
                    SYSTEM,
                    Anywhere(),
                    unmade=lambda _, name: unmade(name, ""),
                )
                found = await jobs.store.find("forbidden", "1")
                assert found is not None
                [why] = await obstacles.of([found])
                assert why.code == "consumer"
                assert "check this user's permissions" in why.reason
    assert log.lines == ["mail"]


async def test_many_jobs_are_each_run_once(jobs: Jobs, log: Log) -> None:
    async def handle(job: Job) -> None:
        await asyncio.sleep(0)
        log(job.id)

    await jobs.added(2_000)
    async with working(jobs, handler(handle)) as work:
        await log.until(lambda log: len(log.lines) >= 2_000)
        await work.end()
    assert sorted(map(int, log.lines)) == list(range(2_000))
    await until_none_is_ready(jobs)


@pytest.mark.three_servers
async def test_lists_hold_what_is_there_up_to_their_limit(jobs: Jobs, log: Log) -> None:
    release = anyio.Event()

    async def handle(some: list[Job]) -> None:
        log(len(some))
        await release.wait()

    await jobs.added(1_000)
    async with working(jobs, handler(handle, most=100, concurrency=2)) as work:
        topic = work.worker.topic("mail")
        topic.fetch_ahead(200)
        with anyio.fail_after(20):
            while len(log.lines) < 2 or len(topic.ready) < 200:
                await a_moment()
        release.set()
        await log.until(lambda log: sum(map(int, log.lines)) >= 1_000)
        await jobs.add("one more")
        await log.until(lambda log: log.lines[-1] == "1")  # a list does not wait to be filled
        await work.end()
    assert max(map(int, log.lines)) == 100
    assert sum(map(int, log.lines)) == 1_001
    await until_none_is_ready(jobs)


async def test_plain_function_runs_in_a_thread(jobs: Jobs, log: Log) -> None:
    seen: list[str] = []
    done = anyio.Event()
    loop = asyncio.get_running_loop()

    def handle(job: Job) -> None:
        seen.append(f"{job.id} {threading.current_thread() is threading.main_thread()}")
        loop.call_soon_threadsafe(done.set)

    async with working(jobs, handler(handle, is_async=False)):
        await jobs.add("1")
        with anyio.fail_after(20):
            await done.wait()
        await until_gone(jobs)
    assert seen == ["1 False"]


async def test_so_many_run_at_a_time_and_no_more(jobs: Jobs, log: Log) -> None:
    release = anyio.Event()

    async def handle(job: Job) -> None:
        log("begun")
        await release.wait()
        log("ended")

    await jobs.added(20)
    async with working(jobs, handler(handle, concurrency=3)) as work:
        await log.until(lambda log: log.count("begun") == 3)
        await jobs.connection.flush()
        assert log.lines == ["begun"] * 3
        release.set()
        await log.until(lambda log: log.count("ended") == 20)
        await work.end()


async def test_what_became_of_the_jobs_is_counted(jobs: Jobs) -> None:
    async def handle(job: Job) -> None:
        if job.id == "1":
            raise Bury("no")
        if job.attempt == 1:
            raise ValueError

    await jobs.added(3)
    async with working(jobs, handler(handle), settings=FAST) as work:

        def counted(outcome: str) -> float | None:
            labels = {"topic": "mail", "outcome": outcome}
            return work.measures.registry.get_sample_value("penstock_jobs_handled_total", labels)

        with anyio.fail_after(20):
            while counted("finished") != 2:
                await a_moment()
        assert (counted("failed"), counted("buried"), counted("lost")) == (2, 1, None)


# ---- failing


async def failing(jobs: Jobs, log: Log, act: Callable[[Job], object], **settings: object) -> None:
    """Run a handler that calls `act`, until the job `1` is gone or buried."""

    async def handle(job: Job) -> None:
        log("attempt", job.attempt)
        act(job)

    async with working(jobs, handler(handle), settings={**FAST, **settings}):
        await jobs.add("1")
        await until_gone_or_buried(jobs)


async def until_gone_or_buried(jobs: Jobs) -> None:
    with anyio.fail_after(20):
        while await jobs.state() not in (None, "done"):
            await a_moment()


async def test_failed_attempt_is_followed_by_the_next_with_its_history(jobs: Jobs, log: Log) -> None:
    def act(job: Job) -> None:
        if job.attempt < 3:
            raise ValueError(f"no luck {job.attempt}")

    await failing(jobs, log, act)
    assert log.lines == ["attempt 1", "attempt 2", "attempt 3"]
    assert await jobs.dead() == []


@pytest.mark.three_servers
async def test_a_job_that_is_deleted_while_it_fails_for_good_is_no_dead_letter(jobs: Jobs, log: Log) -> None:
    async def handle(job: Job) -> None:
        if job.id == "1":
            await jobs.store.delete(job.topic, job.id)
        log(job.id)
        raise Bury("no such customer")

    async with working(jobs, handler(handle)) as work:
        await jobs.added(2)
        await log.until(lambda log: len(log.lines) == 2)
        await work.end()
    assert [letter["id"] for letter in await jobs.dead()] == ["0"]


async def test_last_attempt_makes_a_dead_letter_with_the_history(jobs: Jobs, log: Log) -> None:
    def act(job: Job) -> None:
        raise ValueError(f"no luck {job.attempt}")

    async def handle(job: Job) -> None:
        log("attempt", job.attempt)
        act(job)

    async with working(jobs, handler(handle), settings=FAST):
        await jobs.add("1", attempts=3, body="x")
        await until_gone_or_buried(jobs)
    assert log.lines == ["attempt 1", "attempt 2", "attempt 3"]
    (letter,) = await jobs.dead()
    assert letter["reason"] == "attempt 3 of 3: ValueError: no luck 3"
    assert (letter["attempts"], letter["body"]["body"]) == (3, "x")
    earlier = ["ValueError: no luck 1", "ValueError: no luck 2"]
    assert [one["reason"] for one in letter["history"]] == [*earlier, letter["reason"]]
    assert [one["node"] for one in letter["history"]] == ["node1"] * 3


async def test_handlers_own_limit_of_attempts_stands_in_for_the_jobs(jobs: Jobs, log: Log) -> None:
    async def handle(job: Job) -> None:
        log("attempt", job.attempt, job.most_attempts)
        raise ValueError

    async with working(jobs, handler(handle, attempts=2), settings=FAST):
        await jobs.add("1")
        await until_gone_or_buried(jobs)
    assert log.lines == ["attempt 1 2", "attempt 2 2"]


async def test_retry_names_its_delay_and_bury_gives_up(jobs: Jobs, log: Log) -> None:
    def act(job: Job) -> None:
        if job.attempt == 1:
            raise Retry("3ms", "the bank sleeps")
        raise Bury("no such order")

    await failing(jobs, log, act, backoff="1h", backoff_cap="1h")
    (letter,) = await jobs.dead()
    assert letter["reason"] == "no such order"
    assert [one["reason"] for one in letter["history"]] == ["the bank sleeps", "no such order"]


async def test_failed_job_waits_as_long_as_its_topic_says(jobs: Jobs, log: Log) -> None:
    async def handle(job: Job) -> None:
        log("attempt", job.attempt)
        raise ValueError

    async with working(jobs, handler(handle), settings={"backoff": "1h", "backoff_cap": "2h"}):
        await jobs.add("1")
        await log.has("attempt 1")
        with anyio.fail_after(20):
            while await jobs.state() != "delayed":
                await a_moment()
    found = await jobs.store.find("mail", "1")
    assert found is not None
    assert found.job is not None
    wait_ms = found.job.due_ms - jobs.clock.now_ms()
    assert 3_500_000 < wait_ms <= 1.2 * 3_600_000
    assert found.job.attempts == 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit("mine"), "GeneratorExit: mine"),
        (asyncio.CancelledError("mine"), "CancelledError: mine"),
        (TimeoutError(), "TimeoutError"),
        (StopIteration(7), "RuntimeError: coroutine raised StopIteration"),
        (ValueError("a\nb\x00\ud800c"), "ValueError: a b  c"),
    ],
)
async def test_whatever_a_handler_raises_is_a_failed_attempt(
    jobs: Jobs, log: Log, error: BaseException, reason: str
) -> None:
    def act(job: Job) -> None:
        raise error

    async def handle(job: Job) -> None:
        log("attempt", job.attempt)
        act(job)

    async with working(jobs, handler(handle), settings=FAST):
        await jobs.add("1", attempts=1)
        await until_gone_or_buried(jobs)
        await jobs.add("2")  # the place goes on
        await log.until(lambda log: len(log.lines) >= 2)
    (letter, *_) = await jobs.dead()
    assert letter["reason"] == f"attempt 1 of 1: {reason}"


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit("mine"), ValueError("no")])
async def test_whatever_a_thread_raises_is_a_failed_attempt(jobs: Jobs, error: BaseException) -> None:
    def handle(job: Job) -> None:
        raise error

    async with working(jobs, handler(handle, is_async=False, attempts=1), settings=FAST):
        await jobs.add("1")
        await until_gone_or_buried(jobs)
    (letter,) = await jobs.dead()
    assert letter["reason"] == f"attempt 1 of 1: {type(error).__name__}: {error}"


async def test_error_that_has_no_text_is_told_all_the_same(jobs: Jobs, log: Log) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def act(job: Job) -> None:
        if job.attempt == 1:
            raise Mute
        raise Bury("done with")

    await failing(jobs, log, act)
    (letter,) = await jobs.dead()
    assert letter["history"][0]["reason"] == "Mute: (its text cannot be had: RuntimeError)"


async def test_each_job_of_a_list_has_its_own_end(jobs: Jobs, log: Log) -> None:
    async def handle(some: list[Job]) -> None:
        log(*(f"{job.id}/{job.attempt}" for job in some))
        for job in some:
            if job.id == "1":
                job.bury("number one")
            if job.id == "2" and job.attempt == 1:
                job.retry("1ms", "number two")
        if some[0].attempt == 1:
            raise ValueError("the rest")

    await jobs.added(4)
    async with working(jobs, handler(handle, most=10, concurrency=1), settings=FAST):
        with anyio.fail_after(20):
            while (counts := await jobs.store.count("mail")).ready or counts.delayed:
                await a_moment()
    seen = " ".join(log.lines).split()
    assert sorted(seen).count("1/1") == 1
    assert {"0/2", "2/2", "3/2"} <= set(seen)
    (letter,) = await jobs.dead()
    assert (letter["id"], letter["reason"]) == ("1", "number one")


async def test_what_a_handler_returns_is_ignored_and_told_once(
    jobs: Jobs, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(job: Job) -> str:
        log(job.id)
        return "done"

    await jobs.added(3)
    with caplog.at_level(logging.WARNING):
        async with working(jobs, handler(handle)) as work:
            await log.until(lambda log: len(log.lines) == 3)
            await work.end()
    assert [record.message for record in caplog.records].count("job.result_ignored") == 1
    await until_none_is_ready(jobs)


async def test_place_is_sound_after_a_handler_that_fails_while_it_is_cancelled(jobs: Jobs, log: Log) -> None:
    async def handle(job: Job) -> None:
        log("begun", job.id, job.attempt)
        if job.id == "1" and job.attempt == 1:
            try:
                await anyio.sleep_forever()
            finally:
                raise ValueError("in its clean-up")
        if job.id == "2" and job.attempt == 1:
            raise asyncio.CancelledError

    async with working(jobs, handler(handle, concurrency=1, ttr_ms=1_000), settings=FAST):
        await jobs.add("1")
        await until_gone(jobs, "1")
        await jobs.add("2")
        await until_gone(jobs, "2")
    assert log.lines == ["begun 1 1", "begun 1 2", "begun 2 1", "begun 2 2"]
