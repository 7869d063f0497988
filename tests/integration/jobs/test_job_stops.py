"""A node that was asked to stop ends, whatever a handler's code does about it."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from actors.jobs.rules.job_rules import make_job
from actors.jobs.rules.topic_settings import TopicSettings
from penstock.node.last_end import LAST_S
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from streams.messages.jobs import NewJob
from streams.publish.publisher import Publisher
from streams.pull.once import PullOnce
from streams.topology.specs import wanted
from tests.support.command import Running, node
from tests.support.jobs import Jobs
from tests.support.server import make_topology

DRAIN_S = 1.0


@pytest.fixture
async def jobs(connection: Connection, publisher: Publisher) -> AsyncIterator[Jobs]:
    await make_topology(connection, wanted(connection.namespace, profile="fast"))
    async with PullOnce(connection) as pulls:
        yield Jobs(connection, publisher, pulls)


@asynccontextmanager
async def at_work(server: EmbeddedServer, jobs: Jobs, topic: str) -> AsyncIterator[Running]:
    """Run a node whose handler of the topic is at work on a job."""
    where = ("--nats", server.url, "--roles", "worker", "--app", "tests.support.stubborn_app", "--drain", str(DRAIN_S))
    namespace = {"PENSTOCK_NAMESPACE": jobs.namespace.name, "PENSTOCK_LOG_FORM": "json"}
    async with node(*where, environment=namespace) as up:
        await up.logged("node.ready")
        job = make_job(NewJob(topic=topic, id="1"), TopicSettings(), now_ms=jobs.clock.now_ms(), fresh_id="")
        await jobs.store.add_many([(job, "keep")])
        assert up.process.stdout is not None
        with anyio.fail_after(90):
            said = await up.process.stdout.receive()
        assert said.startswith(b"begun"), up.text
        yield up


@pytest.mark.parametrize("topic", ["thread", "pool", "swallow", "block"])
async def test_past_the_drain_deadline_the_process_ends_whatever_a_handler_does(
    server: EmbeddedServer, jobs: Jobs, topic: str
) -> None:
    async with at_work(server, jobs, topic) as up:
        assert await up.end(signal.SIGTERM, within_s=DRAIN_S + LAST_S + 60) == 1
        told = await up.logged("node.ended_hard")
        assert told["level"] == "error"
        assert topic == "swallow" or "stubborn_app.py" in str(told["threads"]), "it says where the code stands"


async def test_a_second_signal_ends_what_swallows_cancellation_too(server: EmbeddedServer, jobs: Jobs) -> None:
    async with at_work(server, jobs, "swallow") as up:
        up.process.send_signal(signal.SIGTERM)
        await up.logged("node.stopping")
        assert await up.end(signal.SIGTERM) == 1


async def test_signals_that_a_handler_took_are_taken_back(server: EmbeddedServer, jobs: Jobs) -> None:
    async with at_work(server, jobs, "deaf") as up:
        await up.logged("node.signal_taken", signal="SIGTERM")
        await up.logged("node.signal_taken", signal="SIGINT")
        assert await up.end(signal.SIGTERM) == 0
