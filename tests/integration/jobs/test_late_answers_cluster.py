"""Answers that come late on three servers, whose leader stood still.

The leader compares a move's condition with what is stored, not with a firing that is on its way to the other servers.
Both are stored then, the firing first (ADR 30)."""

import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest
from anyio import fail_after

from actors.jobs.copies import Copies
from actors.jobs.reservations import JobSettled
from actors.jobs.reserves import JobReservation
from actors.jobs.rules.job_rules import BACKSTOP_MS
from actors.jobs.worker.job import Job
from streams.clock import now_ms
from streams.errors import Disconnected, OutcomeUnknown, StreamError
from streams.link.connection import connect
from streams.publish.publisher import Publisher
from streams.subjects import token_of
from streams.topology.specs import ConsumerSpec, job_consumer
from tests.support.job_workers import Log, handler, working
from tests.support.jobs import TOPIC, Jobs, open_jobs
from tests.support.moments import a_moment
from tests.support.processes import ServerProcess, cluster, urls_of
from tests.support.server import leader_of, leading
from tests.support.timers import ready_jobs, running_timer, until_complete

COUNT, ROUNDS, TTR_MS = 100, 4, 1_000


class Three:
    """Three servers, and jobs on them."""

    def __init__(self, servers: list[ServerProcess], jobs: Jobs) -> None:
        self.jobs = jobs
        self._servers = servers

    @asynccontextmanager
    async def leader_stands_still(self, until_ms: int) -> AsyncIterator[Jobs]:
        """Stop the leader of JOBS before the block, and let it go on at a time. Yields the jobs as another server's
        caller has them."""
        api = f"STREAM.INFO.{self.jobs.namespace.stream('JOBS')}"
        server = await leading(self._servers, self.jobs.connection, api)
        others = ",".join(other.url for other in self._servers if other is not server)

        async def go_on() -> None:
            await clock_reaches(until_ms)
            server.send_signal(signal.SIGCONT)

        async with (
            connect(others, name="other", namespace=self.jobs.namespace) as connection,
            Publisher(connection) as publisher,
            anyio.create_task_group() as tasks,
        ):
            await clock_reaches(until_ms - 950)
            server.send_signal(signal.SIGSTOP)
            tasks.start_soon(go_on)
            yield Jobs(connection, publisher, self.jobs.pulls)

    async def held(self) -> list[JobReservation]:
        """Return what is handed out now; a server may be a moment behind."""
        while True:
            with suppress(Disconnected):
                if held := (await self.jobs.hand_out(COUNT, ttr_ms=TTR_MS)).reservations:
                    return held

    async def hands_out(self, consumer: ConsumerSpec) -> ServerProcess:
        """Return the server that leads the consumer: neither the one that leads the stream, nor the one of our link."""
        connection, name = self.jobs.connection, f"{consumer.stream}.{consumer.name}"
        link = connection.client.connected_url
        (own,) = (server.name for server in self._servers if link is not None and server.port == link.port)
        while True:
            with suppress(StreamError):  # while they elect
                stream = await leader_of(connection, f"STREAM.INFO.{consumer.stream}")
                server = await leading(self._servers, connection, f"CONSUMER.INFO.{name}")
                if server.name not in (stream, own):
                    return server
                await connection.api(f"CONSUMER.LEADER.STEPDOWN.{name}")

    async def has_flushed(self, server: ServerProcess) -> None:
        """Wait until all that this server had for our link has come: a message behind it has."""
        inbox, came = self.jobs.connection.new_inbox(), anyio.Event()
        subscription = await self.jobs.connection.subscribe(inbox, lambda _: came.set())
        async with connect(server.url, name="other", namespace=self.jobs.namespace) as connection:
            while not came.is_set():
                await connection.publish_core(inbox, b"")
                await a_moment()
        await subscription.unsubscribe()


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Three]:
    async with cluster(tmp_path) as servers, connect(urls_of(servers), name="test") as connection:
        async with open_jobs(connection) as jobs:
            yield Three(servers, jobs)


async def clock_reaches(at_ms: float) -> None:
    while now_ms() < at_ms:
        await a_moment()


async def test_what_was_settled_while_the_leader_stood_still_over_the_ttr_is_not_ready_again(three: Three) -> None:
    jobs = three.jobs
    with fail_after(300):
        for how in ("finish", "touch", "release", "bury"):
            for round_ in range(ROUNDS):
                await jobs.store.add_many([(jobs.make(f"{how}-{round_}-{n}"), "keep") for n in range(COUNT)])
                held = await three.held()
                until_ms = max(one.receipt.until_ms for one in held)
                async with three.leader_stands_still(until_ms + 800) as others:
                    answers = await others.settled(how, [one.receipt for one in held])
                ok = {one.job.id for one, answer in zip(held, answers, strict=True) if isinstance(answer, JobSettled)}
                ready = {one.id for one in await ready_jobs(jobs.connection)}
                assert not ok & ready, f"{how}, round {round_}: answered ok, and ready again"


async def test_a_finish_whose_caller_died_while_the_leader_stood_still_is_not_repeated_as_done(three: Three) -> None:
    """Nobody is left who takes back the first try, and the repeat finds its record."""
    jobs = three.jobs
    with fail_after(300):
        for round_ in range(ROUNDS):
            await jobs.store.add_many([(jobs.make(f"{round_}-{n}"), "keep") for n in range(COUNT)])
            held = await three.held()
            receipts = [one.receipt for one in held]
            until_ms = max(receipt.until_ms for receipt in receipts)
            async with three.leader_stands_still(until_ms + 800) as others:
                with anyio.move_on_after(0.3):
                    await others.settled("finish", receipts)
            answers = await jobs.settled("finish", receipts)
            ok = {one.job.id for one, answer in zip(held, answers, strict=True) if isinstance(answer, JobSettled)}
            ready = {one.id for one in await ready_jobs(jobs.connection)}
            assert not ok & ready, f"round {round_}: answered ok, and ready again"


async def test_what_becomes_due_while_the_leader_stands_still_is_run_once(three: Three) -> None:
    jobs, log = three.jobs, Log()

    async def handle(job: Job) -> None:
        log("begun", job.id, job.attempt)

    with fail_after(300):
        async with (
            running_timer(jobs.connection, jobs.publisher) as firer,
            working(jobs, handler(handle, concurrency=COUNT)),
        ):
            await until_complete(firer.timer)
            for round_ in range(ROUNDS):
                due_ms = now_ms() + 2_000
                ids = [f"{round_}-{n}" for n in range(COUNT)]
                await jobs.store.add_many([(jobs.make(one, delay_ms=due_ms - now_ms()), "keep") for one in ids])
                async with three.leader_stands_still(due_ms + BACKSTOP_MS + 100):
                    await clock_reaches(due_ms + BACKSTOP_MS + 100)
                await log.until(lambda log: len(set(log.lines)) >= (round_ + 1) * COUNT)  # noqa: B023 # at once
        await clock_reaches(now_ms() + 1_500)
    assert {line: count for line, count in Counter(log.lines).items() if count > 1} == {}


async def test_what_was_deleted_is_not_begun_by_a_delivery_that_was_on_its_way(three: Three) -> None:
    """The server that hands out stood still with deliveries in its socket. The node said that it had none of them."""
    jobs, log = three.jobs, Log()
    consumer = job_consumer(jobs.namespace, TOPIC, "normal")
    copies = Copies(jobs.connection, lambda _: {"node1"})

    async def handle(job: Job) -> None:
        log("begun", job.id)

    async def delete(job_id: str, deleted: set[str]) -> None:
        if await jobs.store.delete(TOPIC, job_id) is not None:
            with suppress(OutcomeUnknown):
                await copies.drop(TOPIC, token_of(job_id))
                deleted.add(job_id)

    with fail_after(300):
        async with working(jobs, handler(handle, concurrency=2)):
            for round_ in range(ROUNDS):
                server = await three.hands_out(consumer)
                ids = [f"{round_}-{n}" for n in range(COUNT)]
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(jobs.store.add_many, [(jobs.make(one), "keep") for one in ids])
                    await log.until(lambda log: log.count(f"begun {round_}-") > 3)  # noqa: B023 # at once
                    server.send_signal(signal.SIGSTOP)
                deleted = set[str]()
                async with anyio.create_task_group() as tasks:
                    for one in ids:
                        tasks.start_soon(delete, one, deleted)
                told_at = len(log.lines)
                server.send_signal(signal.SIGCONT)
                await three.has_flushed(server)
                assert not {line.split()[1] for line in log.lines[told_at:]} & deleted, f"round {round_}"
