"""Rows that a loader read: each is added once, however often it is read, and whoever reads it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio import fail_after
from msgspec import Raw

from actors.jobs.adds import LATE_S, LONGEST_AGE_S
from actors.jobs.row_adds import RowAdds
from actors.jobs.worker.job import Job
from streams.clock import monotonic_s
from streams.errors import OutcomeUnknown, StoreFull
from streams.link.connection import Connection
from streams.subjects import token_of
from tests.support.job_workers import Log, handler, opened_topics, until_gone, working
from tests.support.jobs import TOPIC, Jobs, open_jobs
from tests.support.loop_turns import longest_turn_ms


@pytest.fixture
async def jobs(connection: Connection) -> AsyncIterator[Jobs]:
    async with open_jobs(connection) as opened:
        yield opened


@asynccontextmanager
async def adds(jobs: Jobs) -> AsyncIterator[RowAdds]:
    async with opened_topics(jobs.connection, jobs, {}) as topics:
        yield RowAdds(connection=jobs.connection, store=jobs.store, topics=topics, clock=jobs.clock)


def rows(*ids: str) -> Sequence[tuple[str, Raw]]:
    return [(row_id, Raw(b"1")) for row_id in ids]


async def run_all(jobs: Jobs, *ids: str) -> None:
    log = Log()

    async def handle(job: Job) -> None:
        log("done", job.id)

    async with working(jobs, handler(handle)):
        for row_id in ids:
            await log.has(f"done {row_id}")
            await until_gone(jobs, row_id)


async def test_a_row_in_flight_is_not_added_again(jobs: Jobs) -> None:
    async with adds(jobs) as door:
        assert await door.add(TOPIC, rows("1", "2"), door.since()) == [True, True]
        assert await door.add(TOPIC, rows("2", "3"), door.since()) == [False, True]


async def test_nothing_is_added_to_a_full_store(jobs: Jobs) -> None:
    async with adds(jobs) as door:
        jobs.connection.store.full = "the server's store is full"
        with pytest.raises(StoreFull):
            await door.add(TOPIC, rows("1"), door.since())
        jobs.connection.store.full = ""
        assert await door.add(TOPIC, rows("1"), door.since()) == [True]


async def test_a_row_that_ended_since_it_was_read_is_not_added(jobs: Jobs) -> None:
    """The other loader read it before its end. Its job has left no trace."""
    async with adds(jobs) as door:
        await door.add(TOPIC, rows("1"), door.since())
        read = door.since()
        await run_all(jobs, "1")
        assert await door.add(TOPIC, rows("1"), read) == [False]


async def test_a_row_that_ended_under_an_earlier_epoch_is_added_at_once(jobs: Jobs) -> None:
    """It ended without a call, since its shard had left the zone. The shard is back."""
    async with adds(jobs) as door:
        await door.add(TOPIC, rows("1"), door.since(), epoch=1)
        assert await door.add(TOPIC, rows("1"), door.since(), epoch=3) == [False]
        await run_all(jobs, "1")
        assert await door.add(TOPIC, rows("1"), door.since(), epoch=3) == [True]


async def test_a_row_that_ended_long_after_its_add_leaves_a_trace(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """By then the server may have forgotten the add. The trace takes the id's place."""
    async with adds(jobs) as door:
        await door.add(TOPIC, rows("1"), door.since())
        read, now_ms = door.since(), jobs.clock.now_ms
        monkeypatch.setattr(jobs.clock, "now_ms", lambda: now_ms() + 1_000 * LATE_S + 1_000)
        await run_all(jobs, "1")
        found = await jobs.store.find_key(TOPIC, token_of("1"))
        assert found is not None
        assert found.is_free
        assert await door.add(TOPIC, rows("1"), read) == [False]


async def test_what_was_read_too_long_ago_is_not_added(jobs: Jobs) -> None:
    async with adds(jobs) as door:
        at_s, memory = door.since()
        [answer] = await door.add(TOPIC, rows("1"), (at_s - LONGEST_AGE_S - 1, memory))
        assert isinstance(answer, OutcomeUnknown)
        [answer] = await door.add(TOPIC, rows("1"), (monotonic_s(), "before the restart"))
        assert isinstance(answer, bool | OutcomeUnknown)
        with fail_after(60):
            assert (await jobs.store.find(TOPIC, "1") is None) == isinstance(answer, OutcomeUnknown)


async def test_many_loads_of_many_rows_leave_the_loop_and_the_window_to_others(jobs: Jobs) -> None:
    """A lease is renewed by the same loop and through the same window."""
    async with adds(jobs) as door:
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, jobs.publisher.in_flight)
                await anyio.lowlevel.checkpoint()

        async def load(number: int) -> None:
            taken = await door.add(TOPIC, rows(*(f"{number}-{at}" for at in range(2_000))), door.since())
            assert taken == [True] * 2_000

        async with longest_turn_ms() as longest_ms, anyio.create_task_group() as watching:
            watching.start_soon(watch)
            async with anyio.create_task_group() as loads:
                for number in range(6):
                    loads.start_soon(load, number)
            watching.cancel_scope.cancel()
            assert longest_ms() < 25
        assert 0 < most <= 512, "of the 1,024 of the window"


async def test_rows_of_a_load_that_is_cancelled_leave_their_places_to_others(jobs: Jobs) -> None:
    async with adds(jobs) as door:
        for _ in range(2):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as loads:
                    for number in range(6):
                        loads.start_soon(door.add, TOPIC, rows(*(f"{number}-{at}" for at in range(500))), door.since())
                    with fail_after(30):
                        while not jobs.publisher.in_flight:
                            await anyio.lowlevel.checkpoint()
                    scope.cancel()
        with fail_after(30):
            assert await door.add(TOPIC, rows(*(f"last-{at}" for at in range(600))), door.since()) == [True] * 600
