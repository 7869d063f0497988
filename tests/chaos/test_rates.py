"""A task's items stay within its limit in each second while workers join and die, and come near to it."""

import bisect
import math
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import anyio
import pytest
from msgspec import Struct

from streams.clock import monotonic_s
from tests.chaos.conftest import AssertWhole
from tests.support.batch_rates_app import KINDS
from tests.support.batches_chaos import open_batch_world
from tests.support.chaos import Form, eventually
from tests.support.chaos_nodes import ChaosNode

APP = "tests.support.batch_rates_app"
SEEN_S = 6.0
"""How long a death takes to be seen by the others."""
JITTER, BUSY_JITTER = 0.05, 0.1
"""Between the word that lets an item begin and its first line lie milliseconds, dozens of them on a busy machine. A
worker whose share the others still spend would add a third."""


class RateVerdict(Struct, frozen=True, kw_only=True):
    """`reached`: share of the limit, by who lived. `most`: items in the fullest second.
    `may_be`: how many it may have."""

    task: str
    limit: int
    reached: dict[str, float]
    most: int
    may_be: int
    least_share: float

    @property
    def is_whole(self) -> bool:
        return self.most <= self.may_be and min(self.reached.values()) >= self.least_share

    def line(self) -> str:
        return f"{'ok' if self.is_whole else 'FAILED'} {self}"


def judged(task: str, began_s: list[float], spans: dict[str, tuple[float, float]], form: Form) -> RateVerdict:
    """Return what the notes of a task say. The short form runs beside other tests."""
    limit, ends = int(task.rpartition("-")[2]), sorted(began_s)
    fullest = max(bisect.bisect_left(ends, at_s + 1.0) - place for place, at_s in enumerate(ends))
    reached = {
        name: (bisect.bisect(ends, upto_s) - bisect.bisect(ends, from_s)) / (upto_s - from_s) / limit
        for name, (from_s, upto_s) in spans.items()
    }
    return RateVerdict(
        task=task,
        limit=limit,
        reached={name: round(share, 3) for name, share in reached.items()},
        most=fullest,
        may_be=math.ceil(limit * (1 + (JITTER if form.is_long else BUSY_JITTER))),
        least_share=0.97 if form.is_long else 0.5,
    )


@pytest.mark.timeout(600)
async def test_a_limit_holds_in_every_second_while_workers_join_and_die(
    tmp_path: Path, form: Form, assert_whole: AssertWhole
) -> None:
    limits = (10, 500, 1500) if form.is_long else (100,)
    tasks = [f"{kind}-{limit}" for limit in limits for kind in KINDS]
    async with open_batch_world(tmp_path, app=APP) as world:
        nodes = {name: world.new_node(name, name.rstrip("123")) for name in ("conductor1", "executor1", "executor2")}
        nodes["executor3"] = world.new_node("executor3", "executor")
        for name in ("conductor1", "executor1", "executor2"):
            await nodes[name].start()
            await nodes[name].ready()
        for group in [tasks[at : at + len(KINDS)] for at in range(0, len(tasks), len(KINDS))]:
            for task in group:
                limit = int(task.rpartition("-")[2])
                await world.submit(task, task, limit * 100, 0.0)
            notes = {task: tmp_path / f"{task}.notes" for task in group}
            await eventually(partial(have_begun, notes.values()), within_s=60, otherwise="not all tasks began")
            spans = await lives(nodes, steady_s=form.pick(4, 12))
            for task in group:
                began_s = [float(line) for line in notes[task].read_text().split()]
                assert_whole(judged(task, began_s, spans, form))
                await world.cancel(task)


async def have_begun(notes: Iterable[Path]) -> bool:
    return all(each.exists() for each in notes)


async def lives(nodes: dict[str, ChaosNode], *, steady_s: float) -> dict[str, tuple[float, float]]:
    """Have a third worker join and another one die; return from when to when which ones were at work. Each task has
    begun."""
    await anyio.sleep(1.5)  # until the first second is over
    two = monotonic_s()
    await anyio.sleep(steady_s)
    joins = monotonic_s()
    await nodes["executor3"].start()
    await nodes["executor3"].ready()
    await anyio.sleep(1.5)
    three = monotonic_s()
    await anyio.sleep(steady_s)
    dies = monotonic_s()
    await nodes["executor3"].kill()
    await anyio.sleep(SEEN_S + 1.5)
    left = monotonic_s()
    await anyio.sleep(steady_s)
    return {"two": (two, joins), "three": (three, dies), "two again": (left, monotonic_s())}
