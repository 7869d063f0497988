"""Attacks on the delay queue: none lost, none early, none finished by two receipts, all ended."""

import json
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from penstock.sdk import calls
from streams.clock import monotonic_s
from tests.chaos.conftest import AssertWhole
from tests.support.chaos import Form, eventually, kill_again_and_again
from tests.support.chaos_nodes import ChaosNode
from tests.support.jobs_chaos import HELD, JobsWorld, Note, open_jobs_world
from tests.support.jobs_handlers import TOPIC as HANDLED

T = TypeVar("T")
POINTS = {
    "timer": ("job.fire", "job.fired"),
    "desk": ("job.add", "job.pull", "job.reserve", "job.hold", "job.finish", "job.settle", "job.letter", "job.submit"),
    "worker": ("job.run", "job.end", "job.move"),
}
"""Every point that a node of a role passes on a job's way, in order."""
PATIENCE_S = 8.0
"""A node that has not come to its point by then is killed where it is."""
LATEST_S = 2.0
OFF_MS = 2_000
"""The clock error that is promised for: one node of a role is so much behind, and another ahead."""


@pytest.fixture(autouse=True)
def _asks_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "TRY_S", 1.0)
    """A desk that was killed with a question in hand never answers."""


class Killing:
    """Kills some nodes of the same roles again and again: anywhere, and at each of their points, in turn."""

    def __init__(self, world: JobsWorld, roles: Sequence[str], form: Form) -> None:
        self.crashes: Counter[str] = Counter()
        name = "all" if len(roles) > 1 else roles[0]
        self.nodes = [world.new_node(f"{name}{number}", ",".join(roles)) for number in range(form.pick(3, 2))]
        points = ["", *(point for role in roles for point in POINTS[role])]
        times = form.pick(len(points), 50)
        self._plan = iter([points[number % len(points)] for number in range(times)])
        self._chance = form.chance(name)

    async def run(self, node: ChaosNode) -> None:
        """Start a node again and again until all is done that is planned; leave it running."""
        for point in self._plan:
            skew_ms = -OFF_MS if node is self.nodes[0] else OFF_MS
            await node.start(crash_at=f"{point}:{self._chance.randint(1, 3)}" if point else "", skew_ms=skew_ms)
            await node.ready()
            code = await node.ended(PATIENCE_S if point else self._chance.uniform(0.2, 2.0))
            if code is None:
                await node.kill()
            else:
                assert code == -signal.SIGKILL, f"{node.name} ended with {code} on its way to {point}"
                self.crashes[point] += 1
        await node.start()


@pytest.mark.timeout(1800)
async def test_killed_timers_desks_and_handlers_lose_and_double_nothing(
    tmp_path: Path, form: Form, assert_whole: AssertWhole
) -> None:
    """Fifty times each in the long form; in the short one nodes that are all of it, once at each point."""
    count, over_s = form.pick(300, 10_000), form.pick(6, 150)
    async with open_jobs_world(tmp_path) as world:
        parts = [(role,) for role in POINTS] if form.is_long else [tuple(POINTS)]
        killings = [Killing(world, roles, form) for roles in parts]
        chance, holders = form.chance("jobs"), form.chance("holders")
        async with anyio.create_task_group() as holding:
            for _ in range(2):
                holding.start_soon(world.hold, holders)
            are_killed = anyio.Event()
            add = partial(world.add, over_s=over_s, latest_s=LATEST_S, chance=chance, until=are_killed)
            async with anyio.create_task_group() as adding:
                for topic in (HANDLED, HELD):
                    adding.start_soon(add, topic, count)
                async with anyio.create_task_group() as killing_:
                    for killing in killings:
                        for node in killing.nodes:
                            killing_.start_soon(killing.run, node)
                are_killed.set()
            world.facts["crashes"] = dict(sum((killing.crashes for killing in killings), Counter()))
            verdict = await world.verdict("jobs", form)
            holding.cancel_scope.cancel()
        assert_whole(verdict)


@pytest.mark.timeout(1800)
async def test_a_killed_server_costs_no_job(tmp_path: Path, form: Form, assert_whole: AssertWhole) -> None:
    count, chance = form.pick(300, 3_000), form.chance("server")
    async with open_jobs_world(tmp_path) as world:
        nodes = [world.new_node(role, role) for role in POINTS]
        await start_all(nodes)
        async with anyio.create_task_group() as holding:
            holding.start_soon(world.hold, chance)
            are_killed = anyio.Event()
            add = partial(world.add, over_s=form.pick(3, 60), latest_s=LATEST_S, chance=chance, until=are_killed)
            async with anyio.create_task_group() as adding:
                for topic in (HANDLED, HELD):
                    adding.start_soon(add, topic, count)
                await kill_again_and_again(world, form)
                are_killed.set()
            verdict = await world.verdict("jobs and the server", form)
            holding.cancel_scope.cancel()
        assert all(node.is_running for node in nodes)
        assert_whole(verdict)


async def test_whoever_was_stopped_for_longer_than_he_may_hold_settles_nothing(tmp_path: Path) -> None:
    """A client that holds a job by receipt, stopped for three TTRs, and a node in a handler, past its ack wait."""
    async with open_jobs_world(tmp_path) as world:
        await world.set_topic(HANDLED, remember="1h", ttr="60s")
        nodes = [world.new_node("doors", "timer,desk"), *(world.new_node(f"worker{n}", "worker") for n in (1, 2))]
        await start_all(nodes)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop_a_holder, world)
            tasks.start_soon(stop_a_handler, world, nodes)
        assert await world.letters() == []


async def start_all(nodes: Sequence[ChaosNode]) -> None:
    for node in nodes:
        await node.start()
    for node in nodes:
        assert await node.ready()


async def stop_a_holder(world: JobsWorld) -> None:
    """Awake again it can neither finish the job nor touch, release or bury it; who has it now finishes it, once."""
    ttr_s = 1
    await world.client.jobs.add(HELD, {"n": 1}, id="one")
    command = [sys.executable, "-m", "tests.support.jobs_holder", world.server.url, str(ttr_s)]
    async with await anyio.open_process(command, stderr=None) as sleeper:
        assert sleeper.stdin is not None
        assert sleeper.stdout is not None
        out = BufferedByteReceiveStream(sleeper.stdout)
        with anyio.fail_after(30):
            job_id, receipt = (await out.receive_until(b"\n", 1_000)).decode().split()
        sleeper.send_signal(signal.SIGSTOP)
        stopped_s = monotonic_s()
        [job] = await world.client.jobs.reserve_many(HELD, wait=30, ttr=30)
        await anyio.sleep(stopped_s + 3 * ttr_s - monotonic_s())
        await sleeper.stdin.send(b"go\n")
        sleeper.send_signal(signal.SIGCONT)
        with anyio.fail_after(30):
            answers = json.loads(await out.receive_until(b"\n", 1_000))
    assert (job_id, job.id, job.attempt) == ("one", "one", 2)
    assert job.receipt != receipt
    assert answers == dict.fromkeys(("touch", "release", "bury", "finish"), "stale")
    assert await world.finish([job]) == ["ok"]
    assert await world.states(HELD) == {"done": {"one"}}


async def stop_a_handler(world: JobsWorld, nodes: Sequence[ChaosNode]) -> None:
    """Another node has its job after the ack wait, and ends it; awake again it knows by its own clock."""
    gate = world.folder / "gate"
    await world.client.jobs.add(HANDLED, world.body(gate=str(gate)), id="one")

    async def noted(what: str, job_id: str) -> list[Note]:
        return [note for note in world.notes() if (note.what, note.id) == (what, job_id)]

    [first] = await until_some(lambda: noted("begun", "one"), "no handler began")
    sleeper = next(node for node in nodes if node.pid == first.pid)
    sleeper.signal(signal.SIGSTOP)
    gate.touch()
    [ended] = await until_some(lambda: noted("ended", "one"), "nobody took it over")
    [(subject, seq)] = await until_some(partial(ends_of, world, "one"), "its end is not recorded")
    gate.unlink()  # so that the first one's handler would go on and on
    sleeper.signal(signal.SIGCONT)
    await sleeper.logged("job_worker.lost_hold", within_s=60)
    await world.client.jobs.add(HANDLED, world.body(), id="two")
    await until_some(lambda: noted("ended", "two"), "nobody took the next one")
    await until_some(partial(ends_of, world, "two"), "the next one's end is not recorded")
    assert ended.pid != first.pid
    assert ended.attempt == 2
    assert (len(await noted("begun", "one")), len(await noted("ended", "one"))) == (2, 1)
    assert await world.sequences(HANDLED, "one") == {subject: seq}


async def until_some(look: Callable[[], Awaitable[Sequence[T]]], otherwise: str) -> Sequence[T]:
    """Wait until there is something, and return it."""
    found: Sequence[T] = ()

    async def is_some() -> bool:
        nonlocal found
        found = await look()
        return bool(found)

    await eventually(is_some, 30, otherwise)
    return found


async def ends_of(world: JobsWorld, job_id: str) -> list[tuple[str, int]]:
    """Return where the record of the job's end stands, once nothing else of the job is left."""
    found = await world.sequences(HANDLED, job_id)
    return list(found.items()) if [".done." in subject for subject in found] == [True] else []
