"""Handlers on three servers: one server is killed or stopped, the leader of what hands out their jobs, or the
account is full."""

import signal
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from actors.jobs.adds import Stored
from actors.jobs.worker.job import Job
from actors.jobs.worker.leaders import Leaders
from actors.jobs.worker.restarts import Restarts
from streams.clock import monotonic_s
from streams.errors import Disconnected, StoreFull
from streams.link.connection import connect
from streams.link.frames import Message, publish_frame
from streams.publish.publisher import Publisher
from streams.pull.once import PullOnce
from streams.pull.puller import Puller
from streams.topology.specs import job_consumer
from tests.support.job_workers import Log, handler, until_gone, working
from tests.support.jobs import TOPIC, Jobs, open_jobs
from tests.support.moments import a_moment
from tests.support.processes import NATS, cluster, urls_of
from tests.support.server import BUSY_S, leader_of, leading, once_it_is_led

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])  # three servers and an election: once is enough


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_a_leader_that_dies_makes_no_second_run(tmp_path: Path, how: signal.Signals) -> None:
    """One job goes on while there is no leader, one ends then, and its acknowledgement has nobody to go to. Nothing of
    either comes to another node, though the next leader has not heard from their holder for longer than a dead node's
    jobs would wait on one server."""
    log, may_end = Log(), {"short": anyio.Event(), "long": anyio.Event(), "after": anyio.Event()}
    may_end["after"].set()

    async def handle(job: Job) -> None:
        log("begun", job.id, job.attempt)
        await may_end[job.id].wait()
        log("ended", job.id, job.is_lost)

    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        servers = await enter(cluster(tmp_path))
        jobs = await enter(open_jobs(await enter(connect(urls_of(servers), name="first"))))
        spec = job_consumer(jobs.namespace, TOPIC)
        leader = await leading(servers, jobs.connection, f"CONSUMER.INFO.{spec.stream}.{spec.name}")
        for server in servers:
            if server is not leader:
                connection = await enter(connect(server.url, name=server.name, namespace=jobs.namespace))
                own = Jobs(connection, await enter(Publisher(connection)), await enter(PullOnce(connection)))
                await enter(working(own, handler(handle, concurrency=3), node=server.name))
        for job_id in ("short", "long"):
            await jobs.add(job_id)
            await log.has(f"begun {job_id} 1")
        leader.send_signal(how)
        may_end["short"].set()
        await log.has("ended short False")
        await jobs.add("after")
        await log.has("ended after False")
        await until_gone(jobs, "short")
        may_end["long"].set()
        await log.has("ended long False")
        await until_gone(jobs, "long")
    begun = sorted(line for line in log.lines if line.startswith("begun"))
    assert [line.split()[1] for line in begun] == ["after", "long", "short"]
    assert begun[1:] == ["begun long 1", "begun short 1"]  # the new leader may have given `after` to a dead request


async def test_a_leader_that_comes_late_in_a_turn_gets_the_acknowledgements(tmp_path: Path) -> None:
    """It replies, so it counts as one that has what was sent. What was sent before it came went to nobody."""
    heard: list[bytes] = []

    async with cluster(tmp_path) as servers, connect(urls_of(servers), name="test") as connection:
        async with open_jobs(connection) as jobs:
            await jobs.add("short")
            [delivery] = await jobs.pull(1)
            spec = job_consumer(jobs.namespace, TOPIC)
            await connection.api(f"CONSUMER.DELETE.{spec.stream}.{spec.name}")
            restarts = Restarts(connection, jobs.clock, wait_s=15.0, held=tuple)
            restarts.finished([delivery])

            def reply(message: Message) -> None:
                heard.append(message.payload)
                if message.reply:
                    connection.client.send(publish_frame(message.reply, "", b"", b""))

            async def comes_late(_timeout_s: float) -> None:
                if turns:
                    await connection.subscribe(delivery.reply.decode(), reply)
                    await connection.flush()
                turns.append("stored")

            turns: list[str] = []
            leaders = Leaders(connection, restarts, store=comes_late, pullers=tuple)
            with pytest.raises(Disconnected, match="no leader"):
                await leaders.confirm(5.0)
            await leaders.confirm(5.0)
    assert heard == [b"+WPI", b"", b"+WPI"]  # an empty one acknowledges


async def test_what_a_leader_was_sent_as_it_handed_over_is_sent_to_the_next(tmp_path: Path) -> None:
    """It told those who wait for jobs. No turn was without a reply."""
    async with cluster(tmp_path) as servers, connect(urls_of(servers), name="test") as connection:
        async with open_jobs(connection) as jobs:
            await jobs.add("short")
            spec = job_consumer(jobs.namespace, TOPIC)
            async with Puller(connection, spec.stream, spec.name, capacity=2) as puller:
                delivery = await puller.receive()
                restarts = Restarts(connection, jobs.clock, wait_s=15.0, held=tuple)
                leaders = Leaders(connection, restarts, store=_stored, pullers=lambda: [puller])
                await leaders.confirm(5.0)
                restarts.finished([delivery])  # and its acknowledgement went to nobody
                delivery.forget()
                await once_it_is_led(
                    partial(connection.api, f"CONSUMER.LEADER.STEPDOWN.{spec.stream}.{spec.name}", timeout_s=BUSY_S)
                )
                with anyio.fail_after(30):
                    while not puller.is_troubled:
                        await anyio.lowlevel.checkpoint()
                await leader_of(connection, f"CONSUMER.INFO.{spec.stream}.{spec.name}")
                await leaders.confirm(5.0)
                await until_gone(jobs, "short", within_s=10)


async def _stored(_timeout_s: float) -> None:
    """Most of the servers are there."""


async def test_what_comes_after_the_leaders_were_silent_waits_until_its_other_holder_may_have_ended_it(
    tmp_path: Path,
) -> None:
    """A new leader does not know what the last one handed out in its last moment, and hands it out once more."""
    log = Log()

    async def handle(job: Job) -> None:
        log("begun", job.id)

    async with cluster(tmp_path) as servers, connect(urls_of(servers), name="test") as connection:
        async with open_jobs(connection) as jobs, working(jobs, handler(handle)) as work:
            topic = work.worker.topic(TOPIC)
            topic._hold._failed_s = monotonic_s()
            await jobs.add("both")
            with anyio.fail_after(10):
                while not topic.held:
                    await a_moment()
            await connection.api(f"STREAM.PURGE.{jobs.namespace.stream('JOBS')}")  # as its other holder's ack does
            await jobs.add("after")
            await log.has("begun after")
    assert log.lines == ["begun after"]


LIMITED = "accounts { A { jetstream { max_file: 6M }, users: [ { user: a, password: a } ] } }\nno_auth_user: a\n"


async def test_jobs_are_run_while_the_account_is_full(tmp_path: Path) -> None:
    """It refuses what confirms that most of the servers are there. Only what ends jobs makes room."""
    log, is_full, config = Log(), anyio.Event(), tmp_path / "limited.conf"
    config.write_text((NATS / "cluster" / "server.conf").read_text() + LIMITED)

    async def handle(job: Job) -> None:
        await is_full.wait()
        log("ended", job.id)

    async with cluster(tmp_path, config=config) as servers, connect(urls_of(servers), name="test") as connection:
        async with open_jobs(connection) as jobs, working(jobs, handler(handle)) as work:
            answers: list[object] = []
            while not answers or not isinstance(answers[-1], StoreFull):
                ids = [f"{len(answers) + n}" for n in range(10)]
                answers += await jobs.store.add_many([(jobs.make(one, body="x" * 20_000), "keep") for one in ids])
            full_s, hold = monotonic_s(), work.worker.topic(TOPIC)._hold
            with anyio.fail_after(20):
                while hold.confirmed_s < full_s:
                    await a_moment()
            assert await jobs.state("0") == "ready"  # a look is certain only if a message is stored, and none can be
            is_full.set()
            added = sum(isinstance(answer, Stored) for answer in answers)
            await log.until(lambda log: log.count("ended") == added)
