"""Attacks on the delay queue: none lost, none early, none finished by two receipts, all ended."""

import json
import signal
import sys
from collections import Counter
from collections.abc import Awaitable
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from penstock import calls
from streams.clock import monotonic_s
from tests.chaos.conftest import Tell
from tests.support.chaos import Form, eventually
from tests.support.chaos_nodes import ChaosNode
from tests.support.jobs_chaos import HANDLED, HELD, JobsWorld, Note, open_jobs_world

POINTS = {
    "timer": ("job.fire", "job.fired"),
    "desk": ("job.add", "job.pull", "job.reserve", "job.hold", "job.finish", "job.settle", "job.letter", "job.submit"),
    "worker": ("job.run", "job.end", "job.move"),
}
"""Every point that a node of a role passes on a job's way, in order."""
PATIENCE_S = 8.0
"""A node that has not come to its point by then is killed where it is."""
LATEST_S = 3.0
OFF_MS = 2_000
"""The clock error that is promised for: of two nodes of a role, one is so much ahead and one behind."""


@pytest.fixture(autouse=True)
def _asks_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "TRY_S", 1.0)
    """A desk that was killed with a question in hand never answers."""


class Killing:
    """Kills the two nodes of one role, fifty times in the long form: anywhere, and at each of its points, in turn."""

    def __init__(self, world: JobsWorld, role: str, form: Form) -> None:
        self.crashes: Counter[str] = Counter()
        self.nodes = [world.new_node(f"{role}{number}", role) for number in (1, 2)]
        points = ("", *POINTS[role])
        times = form.pick(len(points), 50)
        self._plan = iter([points[number % len(points)] for number in range(times)])
        self._chance = form.chance(role)

    async def run(self, node: ChaosNode) -> None:
        """Start a node again and again until all is done that is planned; leave it running."""
        for point in self._plan:
            skew_ms = OFF_MS if node is self.nodes[0] else -OFF_MS
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
async def test_killed_timers_desks_and_handlers_lose_and_double_nothing(tmp_path: Path, form: Form, tell: Tell) -> None:
    count, over_s = form.pick(300, 10_000), form.pick(6, 150)
    async with open_jobs_world(tmp_path) as world:
        killings = [Killing(world, role, form) for role in POINTS]
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
        tell(verdict)


@pytest.mark.timeout(1800)
async def test_a_killed_server_costs_no_job(tmp_path: Path, form: Form, tell: Tell) -> None:
    count, chance = form.pick(300, 3_000), form.chance("server")
    async with open_jobs_world(tmp_path) as world:
        await world.start_nodes(1)
        async with anyio.create_task_group() as holding:
            holding.start_soon(world.hold, chance)
            are_killed = anyio.Event()
            add = partial(world.add, over_s=form.pick(3, 60), latest_s=LATEST_S, chance=chance, until=are_killed)
            async with anyio.create_task_group() as adding:
                for topic in (HANDLED, HELD):
                    adding.start_soon(add, topic, count)
                for _ in range(form.pick(2, 20)):
                    await anyio.sleep(chance.uniform(0.3, form.pick(1, 3)))
                    await world.server.kill()
                    world.server_kills += 1
                    await anyio.sleep(chance.uniform(0.0, form.pick(1, 3)))
                    await world.server.start()
                are_killed.set()
            verdict = await world.verdict("jobs and the server", form)
            holding.cancel_scope.cancel()
        for node in world.nodes.values():
            assert node.is_running
        tell(verdict)


async def test_a_holder_that_was_stopped_for_three_ttrs_is_refused(tmp_path: Path) -> None:
    """It can neither finish the job nor touch, release or bury it; who has it now finishes it, once."""
    ttr_s = 1
    async with open_jobs_world(tmp_path) as world:
        await world.start_nodes(1, ("timer", "desk"))
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
            taken_s = monotonic_s()
            await anyio.sleep(stopped_s + 3 * ttr_s - monotonic_s())
            await sleeper.stdin.send(b"go\n")
            sleeper.send_signal(signal.SIGCONT)
            with anyio.fail_after(30):
                answers = json.loads(await out.receive_until(b"\n", 1_000))
        assert (job_id, job.id, job.attempt) == ("one", "one", 2)
        assert job.receipt != receipt
        assert taken_s - stopped_s >= ttr_s - 0.5
        assert answers == dict.fromkeys(("touch", "release", "bury", "finish"), "stale")
        assert await world.finish([job]) == ["ok"]
        assert await world.states(HELD) == {"done": {"one"}}
        assert await world.letters() == []


async def test_a_node_that_was_stopped_in_a_handler_settles_nothing(tmp_path: Path) -> None:
    """Another node has its job after the ack wait; awake again it knows by its own clock, and the handler is ended."""
    async with open_jobs_world(tmp_path) as world:
        await world.start_nodes(1, ("timer", "desk"))
        await world.set_topic(HANDLED, remember="1h", ttr="60s")
        await world.start_nodes(2, ("worker",))
        await world.client.jobs.add(HANDLED, world.body(takes_s=1.0), id="one")

        async def noted(what: str) -> list[Note]:
            return [note for note in world.notes() if note.what == what]

        await eventually(lambda: has(noted("begun"), 1), 30, "no handler began")
        [first] = await noted("begun")
        sleeper = next(node for node in world.nodes.values() if node.pid == first.pid)
        sleeper.signal(signal.SIGSTOP)
        await eventually(lambda: has(noted("ended"), 1), 30, "nobody took it over")
        [ended] = await noted("ended")
        ends = await eventually_done(world)
        sleeper.signal(signal.SIGCONT)
        await sleeper.logged("job_worker.lost_hold")
        await world.client.jobs.add(HANDLED, world.body(), id="two")  # they work on, both
        await eventually(lambda: has(noted("ended"), 2), 30, "nobody took the next one")
        assert ended.pid != first.pid
        assert ended.attempt == 2
        assert [note.id for note in await noted("ended")] == ["one", "two"]
        assert await world.sequences(HANDLED, "one") == ends
        assert await world.letters() == []


async def has(notes: Awaitable[list[Note]], count: int) -> bool:
    return len(await notes) >= count


async def eventually_done(world: JobsWorld) -> dict[str, int]:
    """Wait until the job's end is recorded; return where."""

    async def is_done() -> bool:
        return list(await world.states(HANDLED)) == ["done"]

    await eventually(is_done, 30, "its end is not recorded")
    return await world.sequences(HANDLED, "one")
