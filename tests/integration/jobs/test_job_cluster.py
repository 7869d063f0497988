"""Jobs on three servers: a job's identity holds where a write is under way on one server and not yet on another."""

from collections import Counter
from pathlib import Path
from typing import Any

from anyio import create_task_group, fail_after

from actors.jobs.reservations import JobSettled, JobStale
from streams.link.connection import connect
from streams.messages.jobs import decode_job
from streams.publish.publisher import Publisher
from streams.pull.once import PullOnce
from tests.support.jobs import TOPIC, Jobs, open_jobs
from tests.support.moments import a_moment
from tests.support.processes import cluster, urls_of

HOUR = 3_600_000
COUNT = 150


async def test_one_id_is_one_job_on_three_servers(tmp_path: Path) -> None:
    """One cluster for all that is asked of it, because it takes seconds to start."""
    with fail_after(55):
        async with cluster(tmp_path) as servers, connect(urls_of(servers), name="test") as connection:
            async with open_jobs(connection) as jobs:
                others = [server.url for server in servers]
                await _two_who_add_an_id_at_once_make_one_job(jobs, others)
                await _who_finishes_and_who_releases_exclude_each_other(jobs)
                await _what_is_deleted_while_it_is_reserved_is_not_offered_again(jobs)


async def _two_who_add_an_id_at_once_make_one_job(jobs: Jobs, urls: list[str]) -> None:
    answers: list[Any] = []

    async def add(url: str, body: int) -> None:
        async with connect(url, name="other", namespace=jobs.namespace) as connection:
            async with Publisher(connection) as publisher, PullOnce(connection) as pulls:
                adding = Jobs(connection, publisher, pulls)
                for delay_ms in (HOUR, 0):
                    adds = [
                        (adding.make(f"{delay_ms}-{n}", delay_ms=delay_ms, body=body), "keep") for n in range(COUNT)
                    ]
                    answers.extend(await adding.store.add_many(adds))  # type: ignore[arg-type] # a literal in a list

    async with create_task_group() as tasks:
        for body in range(6):
            tasks.start_soon(add, urls[body % 3], body)
    new = Counter(answer.id for answer in answers if answer.is_new)
    assert set(new.values()) == {1}
    assert len(new) == 2 * COUNT
    await _counts(jobs, COUNT, COUNT, 0, 0)


async def _who_finishes_and_who_releases_exclude_each_other(jobs: Jobs) -> None:
    receipts = [one.receipt for one in (await jobs.hand_out(100)).reservations]
    answers: dict[str, list[Any]] = {}

    async def finish() -> None:
        answers["finish"] = await jobs.store.finish_many(receipts, remember_s=60)

    async def release() -> None:
        answers["release"] = await jobs.store.release_many(receipts, delay_ms=HOUR)

    async with create_task_group() as tasks:
        tasks.start_soon(finish)
        tasks.start_soon(release)
    for finished, released in zip(answers["finish"], answers["release"], strict=True):
        assert sorted([type(finished), type(released)], key=str) == sorted([JobSettled, JobStale], key=str)
    finished = sum(isinstance(answer, JobSettled) for answer in answers["finish"])
    held = len(receipts)
    await _counts(jobs, COUNT + held - finished, COUNT - held, 0, finished)


async def _what_is_deleted_while_it_is_reserved_is_not_offered_again(jobs: Jobs) -> None:
    deliveries = await jobs.pull(30)
    ids = [decode_job(delivery.payload).id for delivery in deliveries]

    async def delete(job_id: str) -> None:
        await jobs.store.delete(TOPIC, job_id)

    async with create_task_group() as tasks:
        for job_id in ids:
            tasks.start_soon(delete, job_id)
        await jobs.store.reserve_many(deliveries)
    assert [await jobs.state(job_id) for job_id in ids] == [None] * len(ids)


async def _counts(jobs: Jobs, *wanted: int) -> None:
    """Wait until that is what every server says; a replica may be a moment behind."""
    while await jobs.store.count(TOPIC) != wanted:
        await a_moment()
