"""A single server that was killed may find messages again that it had removed; no job that is over is run for that.

tests/support/forgetting.py has it forget all of them. `test_the_server_forgets_by_itself` shows that it needs no help.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest

from actors.jobs.firing_mark import FiringMark
from actors.jobs.refirings import decode_mark, marks
from actors.jobs.store import JobStore, Reservation, Stored
from actors.jobs.worker.job import Job
from streams.bucket import Bucket
from streams.connection import connect
from streams.log import last_entry
from streams.server import EmbeddedServer
from streams.topology import apply
from tests.support.forgetting import forget_removals
from tests.support.job_workers import Log, handler, until_gone, working
from tests.support.jobs import TOPIC, Jobs, SetClock, open_jobs
from tests.support.timers import topology_of_timers

WITHIN_S = 20.0


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
async def jobs(own_server: EmbeddedServer) -> AsyncIterator[Jobs]:
    async with connect(own_server.url, name="test") as connection, open_jobs(connection) as opened:
        yield opened


@asynccontextmanager
async def marking(jobs: Jobs) -> AsyncIterator[None]:
    await apply(jobs.connection, topology_of_timers(jobs.connection))
    leases = Bucket(jobs.connection, jobs.publisher, jobs.namespace.bucket("LEASES"), bytes)
    mark = FiringMark(
        node="node1", connection=jobs.connection, publisher=jobs.publisher, leases=leases, clock=jobs.clock
    )
    async with anyio.create_task_group() as tasks:
        await tasks.start(mark.run)
        yield
        tasks.cancel_scope.cancel()


async def until_fired(jobs: Jobs, until_ms: int) -> None:
    """Wait until the mark is at a time."""
    with anyio.fail_after(WITHIN_S):
        while True:
            entry = await last_entry(jobs.connection, jobs.namespace.stream("JOBS"), marks(jobs.namespace)[2])
            mark = decode_mark(entry.payload) if entry else None
            if mark is not None and mark.fired_ms >= until_ms:
                return


async def until_cleared(jobs: Jobs) -> None:
    """Wait until the mark knows of the restart, and the server fires again."""
    with anyio.fail_after(WITHIN_S):
        while True:
            entry = await last_entry(jobs.connection, jobs.namespace.stream("JOBS"), marks(jobs.namespace)[1])
            mark = decode_mark(entry.payload) if entry else None
            if mark is not None and mark.server == jobs.connection.memory and mark.fired_ms:
                return


async def kill_and_forget(server: EmbeddedServer, jobs: Jobs) -> None:
    await server.kill()
    assert forget_removals(server, jobs.namespace.stream("JOBS")) > 0
    await server.start()


async def test_a_job_that_was_fired_and_handled_is_not_run_again(
    own_server: EmbeddedServer, jobs: Jobs, log: Log
) -> None:
    async def handle(job: Job) -> None:
        log("run", job.id, job.attempt)

    async with marking(jobs), working(jobs, handler(handle)):
        stored = await jobs.added(20, delay_ms=300)
        await jobs.add("far", delay_ms=3_600_000)  # keeps the block, as other jobs do
        await log.until(lambda log: log.count("run") == 20)
        await until_fired(jobs, max(one.due_ms for one in stored) + 100)
        await jobs.add("after", delay_ms=1)
        await kill_and_forget(own_server, jobs)
        await until_cleared(jobs)
        await jobs.add("later", delay_ms=100)
        await log.has("run later 1")
        await log.has("run after 1")
        await until_gone(jobs, "later")
    assert log.count("run") == 22, log.lines


async def test_a_job_that_was_finished_is_not_handed_out_again(own_server: EmbeddedServer, jobs: Jobs) -> None:
    async with marking(jobs):
        for job_id in ("0", "1"):
            await jobs.add(job_id)
        held = (await jobs.hand_out(2, ttr_ms=4_000)).reservations
        await jobs.store.finish_many([one.receipt for one in held], remember_s=0)
        await jobs.add("far", delay_ms=3_600_000)
        await kill_and_forget(own_server, jobs)
        with anyio.fail_after(WITHIN_S):
            while jobs.clock.now_ms() < held[-1].receipt.until_ms + 1_500:
                assert not (await jobs.hand_out(10, wait_s=0.5)).reservations
    assert await jobs.state("0") is None


async def test_a_job_that_was_deleted_does_not_come(own_server: EmbeddedServer, jobs: Jobs) -> None:
    async with marking(jobs):
        await jobs.add("soon", delay_ms=3_000)
        await jobs.add("far", delay_ms=3_600_000)
        await jobs.add("farther", delay_ms=7_200_000)
        for job_id in ("soon", "far"):
            assert await jobs.store.delete(TOPIC, job_id) == "delayed"
        await kill_and_forget(own_server, jobs)
        assert not (await jobs.hand_out(10, wait_s=4.0)).reservations
        await until_cleared(jobs)
        with anyio.fail_after(WITHIN_S):
            while (await jobs.store.count(TOPIC)).delayed != 1:  # the deleted one is not even there
                await anyio.lowlevel.checkpoint()


async def test_a_deleted_job_that_is_fired_at_the_start_is_dropped(
    own_server: EmbeddedServer, jobs: Jobs, log: Log
) -> None:
    """It was due after the mark, and before anybody could remove it."""

    async def handle(job: Job) -> None:
        log("run", job.id, job.attempt)

    async with marking(jobs):
        await until_fired(jobs, jobs.clock.now_ms())
        for count in range(20):
            await jobs.add(f"{count}", delay_ms=700)
            assert await jobs.store.delete(TOPIC, f"{count}") == "delayed"
        await kill_and_forget(own_server, jobs)
        assert not (await jobs.hand_out(5, wait_s=2.0)).reservations
        async with working(jobs, handler(handle)):
            await jobs.add("later")
            await log.has("run later 1")
            for count in range(20):
                await until_no_copy(jobs, f"{count}")
    assert log.lines == ["run later 1"]


async def until_no_copy(jobs: Jobs, key: str) -> None:
    """Wait until nothing of the job is on its ready subject."""
    with anyio.fail_after(WITHIN_S):
        while await last_entry(jobs.connection, jobs.namespace.stream("JOBS"), jobs.namespace.job("ready", TOPIC, key)):
            await anyio.lowlevel.checkpoint()


async def test_what_was_not_fired_before_the_kill_is_fired(own_server: EmbeddedServer, jobs: Jobs, log: Log) -> None:
    async def handle(job: Job) -> None:
        log("run", job.id, job.attempt)

    async with marking(jobs), working(jobs, handler(handle)):
        await until_fired(jobs, jobs.clock.now_ms())
        stored = await jobs.added(50, delay_ms=40)
        assert stored
        await own_server.kill()
        await own_server.start()
        await log.until(lambda log: log.count("run") >= 50)
        for job_id in range(50):
            await until_gone(jobs, str(job_id))
    assert log.count("run") == 50


async def test_nobody_leads_and_a_fired_job_still_comes(own_server: EmbeddedServer, jobs: Jobs) -> None:
    """Rather twice than never: without a mark of the new life nothing is known."""
    async with marking(jobs):
        await until_fired(jobs, jobs.clock.now_ms())
    await jobs.add("soon", delay_ms=500)
    await own_server.kill()
    await own_server.start()
    handed: list[Reservation] = []
    with anyio.fail_after(60):
        while not handed:
            handed = (await jobs.hand_out(1, wait_s=2.0)).reservations
    assert [one.job.id for one in handed] == ["soon"]


class Stalled(SetClock):
    """The clock of a caller whose add takes two seconds to be stored."""

    def __init__(self) -> None:
        super().__init__()
        self._asked = 0

    def now_ms(self) -> int:
        self._asked += 1
        return super().now_ms() - (2_000 if self._asked == 1 else 0)


async def test_a_schedule_that_is_stored_after_its_time_is_answered_when_it_is_fired(jobs: Jobs) -> None:
    """Were the server killed before it fires it, it would count as fired."""
    store = JobStore(jobs.connection, jobs.publisher, jobs.namespace, Stalled())
    late = msgspec.structs.replace(jobs.make("late"), due_ms=jobs.clock.now_ms() - 1_000)
    (stored,) = await store.add_many([(late, "keep")])
    assert isinstance(stored, Stored)
    assert stored.state == "delayed"  # as it was sent
    assert await jobs.state("late") == "ready"
