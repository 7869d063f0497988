"""Jobs that come due while the server's store is full, so full that it cannot even fire them."""

import json
from pathlib import Path

import anyio

from actors.jobs.adds import Stored
from actors.jobs.overdue import OverdueJobs
from actors.jobs.worker.job import Job
from streams.embedded.server import embedded_server
from streams.link.connection import connect
from streams.reads.log import purge_subject
from tests.support.job_workers import Log, handler, until_gone, working
from tests.support.jobs import TOPIC, Jobs, open_jobs
from tests.support.moments import a_moment

FAR_MS = 3_600_000
TTR_MS = 3_000


async def fill(jobs: Jobs) -> None:
    """Store what is far away until nothing at all fits."""
    number = 0
    for size in (250_000, 20_000, 2_000, 200, 1):
        stored = True
        while stored:
            number += 1
            stored = isinstance(await jobs.add(f"fill{number}", delay_ms=FAR_MS, body="x" * size), Stored)


async def test_what_came_due_while_the_store_was_full_is_handed_out_when_there_is_room(tmp_path: Path) -> None:
    store = tmp_path / "server"
    config = f"jetstream {{\n  store_dir: {json.dumps(str(store / 'jetstream'))}\n  max_file_store: 20MB\n}}"
    async with (
        embedded_server(store, config=config) as server,
        connect(server.url, name="test") as connection,
        open_jobs(connection) as jobs,
        anyio.create_task_group() as tasks,
    ):
        await tasks.start(OverdueJobs(connection, jobs.store).run)
        await jobs.add("held")
        held = await jobs.reserve(ttr_ms=TTR_MS)
        await jobs.added(5, delay_ms=TTR_MS)
        connection.store.full = "the server's store is full"
        await fill(jobs)
        with anyio.fail_after(20):
            while jobs.clock.now_ms() < held.job.until_ms + 1_500:
                await a_moment()
        assert not (await jobs.hand_out(10, wait_s=0.5)).reservations, "it fits"
        await purge_subject(connection, jobs.namespace.stream("JOBS"), jobs.namespace.job("delayed", TOPIC, "fill1"))
        connection.store.full = ""
        came: dict[str, int] = {}
        with anyio.fail_after(30):
            while len(came) < 6:
                for one in (await jobs.hand_out(10, wait_s=1)).reservations:
                    assert one.job.id not in came
                    came[one.job.id] = one.job.attempts
        assert came == {"held": 2, **{f"{number}": 1 for number in range(5)}}
        tasks.cancel_scope.cancel()


async def test_a_delayed_job_that_ends_while_the_store_is_full_is_not_run_again(tmp_path: Path) -> None:
    """Its end cannot be written down, so it is acknowledged alone."""
    store = tmp_path / "server"
    config = f"jetstream {{\n  store_dir: {json.dumps(str(store / 'jetstream'))}\n  max_file_store: 20MB\n}}"
    log, may_end = Log(), anyio.Event()

    async def handle(job: Job) -> None:
        log("run", job.id, job.attempt)
        await may_end.wait()

    async with (
        embedded_server(store, config=config) as server,
        connect(server.url, name="test") as connection,
        open_jobs(connection) as jobs,
        working(jobs, handler(handle)),
    ):
        await jobs.added(5, delay_ms=100)
        await log.until(lambda log: log.count("run") == 5)
        await fill(jobs)
        may_end.set()
        for number in range(5):
            await until_gone(jobs, str(number))
    assert log.count("run") == 5, log.lines
