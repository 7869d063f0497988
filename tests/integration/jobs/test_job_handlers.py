"""Handlers of an app in node processes, `penstock up --app`: run, drained, killed, stopped and woken."""

import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest

from actors.jobs.rules.job_rules import make_job
from actors.jobs.rules.topic_settings import TopicSettings
from streams.clock import monotonic_s
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from streams.messages.jobs import NewJob, body_of
from streams.publish.publisher import Publisher
from streams.pull.once import PullOnce
from streams.topology.specs import wanted
from tests.support.command import Running, node
from tests.support.jobs import Jobs
from tests.support.moments import a_moment
from tests.support.server import make_topology

WITHIN_S = 60.0
HANDLERS = ("up", "--roles", "worker", "--app", "tests.support.job_app")


class Note(NamedTuple):
    what: str
    id: str
    attempt: int
    pid: int


class Shop:
    """Node processes with the handlers of tests/support/job_app.py, and what these wrote down."""

    def __init__(self, server: EmbeddedServer, jobs: Jobs, path: Path) -> None:
        self.jobs = jobs
        self._server = server
        self._path = path

    def node(self, name: str, *arguments: str) -> AbstractAsyncContextManager[Running]:
        """Run a node until the block ends."""
        where = ("--nats", self._server.url, "--name", name, "--log-level", "info")
        namespace = {"PENSTOCK_NAMESPACE": self.jobs.namespace.name, "PENSTOCK_LOG_FORM": "json"}
        return node(*HANDLERS[1:], *where, *arguments, environment=namespace)

    async def add(self, topic: str, *ids: str, attempts: int = 10, **asked: object) -> None:
        body = body_of({"notes": str(self._path), **asked})
        added = [
            make_job(
                NewJob(topic=topic, id=job_id, body=body, attempts=attempts),
                TopicSettings(),
                now_ms=self.jobs.clock.now_ms(),
                fresh_id="",
            )
            for job_id in ids
        ]
        await self.jobs.store.add_many([(job, "keep") for job in added])

    def notes(self, what: str = "") -> list[Note]:
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        found = [Note(verb, job_id, int(attempt), int(pid)) for verb, job_id, attempt, pid in map(str.split, lines)]
        return [one for one in found if one.what == what or not what]

    async def until(self, what: str, count: int) -> None:
        """Wait until so many notes of this kind are there."""
        with anyio.fail_after(WITHIN_S):
            while len(self.notes(what)) < count:
                await a_moment()
        assert len(self.notes(what)) == count

    async def until_empty(self, topic: str) -> None:
        """Wait until no job of the topic waits any more; what is given back is delayed for a moment."""
        with anyio.fail_after(WITHIN_S):
            while (counts := await self.jobs.store.count(topic)).ready + counts.delayed:
                await a_moment()


@pytest.fixture
async def shop(
    server: EmbeddedServer, connection: Connection, publisher: Publisher, tmp_path: Path
) -> AsyncIterator[Shop]:
    await make_topology(connection, wanted(connection.namespace, profile="fast"))
    async with PullOnce(connection) as pulls:
        yield Shop(server, Jobs(connection, publisher, pulls), tmp_path / "notes")


async def test_app_with_handlers_of_every_kind_is_served_and_drained(shop: Shop) -> None:
    async with shop.node("n1") as running:
        await running.logged("node.ready")
        await shop.add("lists", *(f"l{n}" for n in range(50)))
        await shop.add("plain", "p1", "p2")
        await shop.add("awaits", "quick")
        await shop.until("listed", 50)
        await shop.until("ended", 3)
        await shop.add("awaits", *(f"slow{n}" for n in range(8)), takes_s=3.0)
        await shop.add("awaits", *(f"late{n}" for n in range(20)), takes_s=3.0)
        await shop.until("begun", 9)
        assert await running.end(signal.SIGTERM) == 0
    assert sorted(one.id for one in shop.notes("ended"))[-8:] == [f"slow{n}" for n in range(8)]
    assert len(shop.notes("begun")) == 9  # what was not begun is not
    with anyio.fail_after(WITHIN_S):  # what is given back is delayed for a moment
        while (await shop.jobs.store.count("awaits"))[:2] != (0, 20):
            await a_moment()
    await shop.until_empty("lists")


async def test_poison_that_kills_its_node_is_buried_and_its_neighbours_are_run(shop: Shop) -> None:
    neighbours = [f"neighbour{n}" for n in range(200)]
    async with shop.node("n1") as first:
        await first.logged("node.ready")
        await shop.add("awaits", "poison", attempts=1, kills=True)
        await shop.add("awaits", *neighbours[:100])
        assert await first.end() == -signal.SIGKILL
    async with shop.node("n2") as second:
        await second.logged("node.ready")
        await shop.add("awaits", *neighbours[100:])
        await shop.until_empty("awaits")
        assert await second.end(signal.SIGTERM) == 0
    assert {one.id for one in shop.notes("ended")} == set(neighbours)
    assert [one.id for one in shop.notes("begun")].count("poison") == 1
    (letter,) = await shop.jobs.dead()
    assert (letter["id"], letter["attempts"], letter["name"]) == ("poison", 1, "awaits")


async def test_node_that_was_stopped_settles_nothing_when_it_wakes(shop: Shop) -> None:
    async with shop.node("n1") as first:
        await first.logged("node.ready")
        await shop.add("awaits", "one", takes_s=3.0)
        await shop.until("begun", 1)
        first.process.send_signal(signal.SIGSTOP)
        async with shop.node("n2") as second:
            await second.logged("node.ready")
            await shop.until("begun", 2)  # after the ack wait it is another's
            held = await shop.jobs.store.find("awaits", "one")
            assert held is not None
            first.process.send_signal(signal.SIGCONT)
            await first.logged("job_worker.lost_hold")
            await shop.until("cancelled,True", 1)
            assert await first.end(signal.SIGTERM) == 0
            found = await shop.jobs.store.find("awaits", "one")
            # The other holds it still, or has finished it, unless a busy machine had that stand still, too.
            assert found is None or found.seq == held.seq or second.stood_still()
            await shop.until_empty("awaits")
            assert await second.end(signal.SIGTERM) == 0
    begun, ended = shop.notes("begun"), shop.notes("ended")
    assert begun[1].attempt > begun[0].attempt == 1
    if second.stood_still():
        assert {one.id for one in ended} == {"one"}
        assert (first.process.pid, 1) not in {(one.pid, one.attempt) for one in ended}
        return
    assert [one.id for one in begun] == ["one", "one"]
    assert [(one.id, one.pid) for one in ended] == [("one", begun[1].pid)]


def most_at_once(notes: list[Note], killed_s: float) -> int:
    """Return how many calls of a merchant ran at once. Those that did not end were killed."""
    spans: dict[tuple[str, int, int], list[float]] = {}
    for one in notes:
        what, merchant, at_s = one.what.split(",")
        spans.setdefault((f"{merchant} {one.id}", one.attempt, one.pid), [0.0, 0.0])[what == "to"] = float(at_s)
    most = 0
    for (name, _, _), (began_s, _) in spans.items():
        merchant = name.split()[0]
        running = [
            each
            for (other, _, _), each in spans.items()
            if other.split()[0] == merchant and each[0] <= began_s < (each[1] or killed_s)
        ]
        most = max(most, len(running))
    return most


async def test_a_node_that_is_killed_leaves_its_slots_to_others_and_no_key_has_more_calls(shop: Shop) -> None:
    governing = ("--roles", "worker,timer")
    async with shop.node("n1", *governing) as first, shop.node("n2", *governing) as second:
        await first.logged("node.ready")
        await second.logged("node.ready")
        for merchant in ("m1", "m2"):
            await shop.add("paid", *(f"{merchant}x{n}" for n in range(40)), merchant=merchant, takes_s=0.1)
        with anyio.fail_after(WITHIN_S):
            while len({one.pid for one in shop.notes() if one.what.startswith("from")}) < 2 or len(shop.notes()) < 40:
                await a_moment()
        first.process.kill()
        await first.process.wait()
        killed_s = monotonic_s()
        with anyio.fail_after(WITHIN_S):
            while len({one.id for one in shop.notes() if one.what.startswith("to")}) < 80:
                await a_moment()
    assert most_at_once(shop.notes(), killed_s) == 2
