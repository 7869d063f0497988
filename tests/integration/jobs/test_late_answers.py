"""Answers of the server that come late: what a caller was told holds, whatever the server did meanwhile (ADR 30)."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import anyio
import pytest
from anyio import fail_after
from msgspec.structs import replace

from actors.jobs.reservations import JobSettled, JobStale
from actors.jobs.reserves import JobReservation
from actors.jobs.rules.job_rules import BACKSTOP_MS, RESERVED_SLACK_MS
from actors.jobs.worker.job import Job as Running
from streams.clock import now_ms
from streams.embedded.server import EmbeddedServer
from streams.errors import Disconnected, OutcomeUnknown, StreamError
from streams.jobs.firing import SHOT
from streams.jobs.moves import Move, Mover
from streams.messages.jobs import encode_job
from tests.support.job_workers import handler, working
from tests.support.jobs import TOPIC, Jobs, open_jobs
from tests.support.moments import a_moment
from tests.support.server import connected, freeze, thaw

ROUNDS = 8
TTR_MS = 1_000


@asynccontextmanager
async def jobs_on(server: EmbeddedServer) -> AsyncIterator[Jobs]:
    async with connected(server) as connection, open_jobs(connection) as jobs:
        yield jobs


async def clock_reaches(at_ms: float) -> None:
    while now_ms() < at_ms:
        await a_moment()


async def handed_out(jobs: Jobs, until_ms: float) -> set[str]:
    """Return the ids of what becomes ready until then."""
    found: set[str] = set()
    while (left_s := (until_ms - now_ms()) / 1000) > 0:
        with suppress(Disconnected):  # a busy machine is late to answer
            found |= {one.job.id for one in (await jobs.hand_out(100, wait_s=left_s)).reservations}
    return found


async def taken(jobs: Jobs) -> list[JobReservation]:
    """Return jobs once there are some."""
    while True:
        with suppress(Disconnected):
            if held := (await jobs.hand_out(10, ttr_ms=TTR_MS)).reservations:
                return list(held)


@pytest.mark.parametrize("how", ["finish", "touch", "release", "bury"])
async def test_what_was_settled_while_the_server_stood_still_over_the_ttr_is_not_handed_out_again(
    own_server: EmbeddedServer, how: str
) -> None:
    """The settling lies in the server's socket while the TTR ends. When the server goes on, it loads what is due and
    takes the settling in any order."""
    with fail_after(300):
        async with jobs_on(own_server) as jobs:
            for round_ in range(ROUNDS):
                await jobs.store.add_many([(jobs.make(f"{round_}-{n}"), "keep") for n in range(10)])
                held = await taken(jobs)
                until_ms = max(one.receipt.until_ms for one in held)
                answers: list[Any] = []

                receipts = [one.receipt for one in held]

                async def settle(receipts: Any = receipts, answers: Any = answers) -> None:
                    answers += await jobs.settled(how, receipts)

                await clock_reaches(until_ms - 300)
                await freeze(own_server)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(settle)
                    await clock_reaches(until_ms + RESERVED_SLACK_MS + 40 * (round_ + 1))
                    thaw(own_server)
                again = await handed_out(jobs, now_ms() + 1_200)
                ok = {one.job.id for one, answer in zip(held, answers, strict=True) if isinstance(answer, JobSettled)}
                assert not ok & again, f"round {round_}: answered ok, and handed out again"


async def test_what_was_deleted_while_the_server_stood_still_over_its_due_time_does_not_come_back(
    own_server: EmbeddedServer,
) -> None:
    with fail_after(300):
        async with jobs_on(own_server) as jobs:
            for round_ in range(ROUNDS):
                adds = [(jobs.make(f"{round_}-{n}", delay_ms=700), "keep") for n in range(10)]
                due_ms = max(job.due_ms for job, _ in adds)
                await jobs.store.add_many(adds)  # type: ignore[arg-type]  # literals in a list
                deleted: list[str] = []

                async def delete(job_id: str, deleted: list[str] = deleted) -> None:
                    try:
                        if await jobs.store.delete(TOPIC, job_id):
                            deleted.append(job_id)
                    except OutcomeUnknown:
                        return

                await clock_reaches(due_ms - 250)
                async with anyio.create_task_group() as tasks:
                    for job, _ in adds:
                        tasks.start_soon(delete, job.id)
                    await anyio.lowlevel.checkpoint()
                    await freeze(own_server)
                    await clock_reaches(due_ms + BACKSTOP_MS + 30 * round_)
                    thaw(own_server)
                again = await handed_out(jobs, now_ms() + 800)
                assert not set(deleted) & again, f"round {round_}: deleted, and handed out"


async def test_a_reservation_that_is_confirmed_after_its_ttr_is_not_handed_out(own_server: EmbeddedServer) -> None:
    with fail_after(30):
        async with jobs_on(own_server) as jobs:
            await jobs.add()
            deliveries = await jobs.pull(1)
            handed: list[Any] = []

            async def reserve() -> None:
                handed.extend((await jobs.store.reserve_many(deliveries, ttr_ms=400)).reservations)

            await freeze(own_server)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(reserve)
                await clock_reaches(now_ms() + 600)
                thaw(own_server)
            assert handed == []
            assert (await jobs.reserve()).job.id == "1"


async def test_a_late_release_is_stale_if_the_job_was_fired_and_is_held_again(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server had loaded the schedule of the reservation, and fired it after it had stored the release. Somebody
    holds the job by the time of the look."""
    move_many, others = Mover.move_many, list[JobReservation]()

    async def followed(mover: Mover, moves: Sequence[Move], **more: Any) -> list[int | StreamError]:
        outcomes = await move_many(mover, moves, **more)
        if not moves[0].fires_ms or others:
            return outcomes
        await clock_reaches(moves[0].fires_ms)
        await jobs.publisher.publish(jobs.namespace.job("ready", TOPIC, "1"), encode_job(held.job))
        others.append(await jobs.reserve())
        return outcomes

    await jobs.add()
    held = await jobs.reserve(ttr_ms=1_000)
    monkeypatch.setattr(Mover, "move_many", followed)
    with fail_after(30):
        (answer,) = await jobs.store.release_many([held.receipt], delay_ms=60_000)
        assert isinstance(answer, JobStale)
        (ended,) = await jobs.store.finish_many([others[0].receipt], remember_s=0)
    assert isinstance(ended, JobSettled)
    assert await jobs.state() is None
    assert (await jobs.store.count(TOPIC)).delayed == 0


@pytest.mark.parametrize("how", ["delete", "replace"])
async def test_who_ends_a_timers_late_copy_waits_whether_the_servers_own_follows(
    own_server: EmbeddedServer, how: str
) -> None:
    """A timer's copy was stored after the schedule's time: the server may have loaded the schedule, and store its own
    copy after whatever is done to the first."""
    with fail_after(60):
        async with jobs_on(own_server) as jobs:
            now = now_ms()
            late = replace(jobs.make("1"), due_ms=now - BACKSTOP_MS - 50)
            (stored,) = await jobs.store.add_many([(late, "keep")])
            began_ms = now_ms()
            async with anyio.create_task_group() as tasks:
                if how == "delete":
                    tasks.start_soon(jobs.store.delete, TOPIC, "1")
                else:
                    tasks.start_soon(jobs.store.add_many, [(jobs.make("1", delay_ms=600_000), "replace")])  # type: ignore[arg-type] # a literal in a list
                found = await jobs.store.find(TOPIC, "1")
                assert found is not None
                assert found.seq == stored.seq  # type: ignore[union-attr]
            assert now_ms() - began_ms >= 400, "nobody waited"
            found = await jobs.store.find(TOPIC, "1")
            assert (found and found.state) == (None if how == "delete" else "delayed")


@pytest.mark.parametrize("by", ["handler", "caller"])
async def test_of_a_timers_late_copy_and_the_servers_own_one_is_run(own_server: EmbeddedServer, by: str) -> None:
    """The server stores its copy a moment after the timer's, in its place. A handler and a desk wait for that."""
    ran: list[str] = []

    async def handle(job: Running) -> None:
        ran.append(job.id)

    async def reserve(jobs: Jobs) -> None:
        while "after" not in ran:
            ran.extend(one.job.id for one in (await jobs.hand_out(1, wait_s=5)).reservations)

    async with jobs_on(own_server) as jobs, anyio.create_task_group() as tasks:
        with fail_after(30):
            late = replace(jobs.make("late"), due_ms=now_ms() - BACKSTOP_MS - 50)
            fired = {"Nats-Scheduler": jobs.namespace.job("delayed", TOPIC, "late"), "Nats-Schedule-Next": "purge"}

            async def copy(headers: dict[str, str]) -> None:
                subject = jobs.namespace.job("ready", TOPIC, "late")
                await jobs.publisher.publish(subject, encode_job(late), headers=headers)

            async with AsyncExitStack() as stack:
                if by == "handler":
                    await stack.enter_async_context(working(jobs, handler(handle)))
                else:
                    tasks.start_soon(reserve, jobs)
                await copy({**fired, SHOT.decode(): "1"})
                await clock_reaches(now_ms() + 200)
                await copy(fired)
                await jobs.add("after", delay_ms=1_000)
                while "after" not in ran:
                    await a_moment()
    assert ran == ["late", "after"]
