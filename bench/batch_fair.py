"""Whether one type's long instance costs the others time: 999 instances of nine types, alone and beside it.

The tenth type has an instance of a million items, of which ten may run a second: it runs for a day, and all that while
it waits. Rounds with and without it come in turns. Without it means that it is paused. Which of the two comes first
changes from turn to turn, since a node gets slower or quicker with what it has behind it.

`BATCH_FAIR_EACH=37` in the environment asks for so many instances of each type instead, for a quick look.
"""

from __future__ import annotations

import os
import statistics

import anyio
from msgspec import Raw

from actors.batch.desk import BatchDesk
from bench._fetch import fetch_bench
from bench.batch import LOOK_S, open_desk
from bench.harness import Result
from streams.clock import monotonic_s
from streams.messages.batch import NewBatch

NAME = "batch_fair"
LIMIT_S = 1_200
MOST = 1.10
ROUNDS = 3
LANES, EACH, ITEMS, LONG = 9, int(os.environ.get("BATCH_FAIR_EACH", "111")), 100, 1_000_000
"""Types, instances of each in a round, items of each of those, and the items of the long one."""


async def run() -> Result:
    """A node that conducts and two workers, each a process of its own, on one server."""
    async with fetch_bench() as bench:
        await bench.node("node1", "--roles", "conductor")
        for name in ("worker1", "worker2"):
            await bench.node(name, "--roles", "executor", "--app", "bench._batch_app")
        async with open_desk(bench) as desk:
            alone_s, beside_s = list[float](), list[float]()
            await _round(desk)
            long = (await desk.submit(_batch("limited", LONG))).instance_id
            await _until(desk, long, "running")
            for number in range(ROUNDS):
                for is_beside in (True, False) if number % 2 == 0 else (False, True):
                    await (desk.resume(long) if is_beside else desk.pause(long))
                    (beside_s if is_beside else alone_s).append(await _round(desk))
            is_limited = 0 <= (await desk.show(long)).counts.ended < LONG
    ratio = statistics.median(beside / alone for beside, alone in zip(beside_s, alone_s, strict=True))
    return Result(
        what=f"{LANES * EACH} instances of nine types, beside a million items of a tenth at 10 a second",
        ours=round(statistics.median(beside_s), 2),
        theirs=round(statistics.median(alone_s), 2),
        ratio=round(ratio, 3),
        target=f"<= {MOST:.2f} of the time alone",
        ok=is_limited and ratio <= MOST,
        unit=" s",
        more={
            "beside_s": " ".join(f"{took_s:.2f}" for took_s in beside_s),
            "alone_s": " ".join(f"{took_s:.2f}" for took_s in alone_s),
        },
    )


async def _round(desk: BatchDesk) -> float:
    """Run the instances of all types at once. Return how long the last one took."""
    began_s = monotonic_s()
    views = [await desk.submit(_batch(f"lane{lane}", ITEMS)) for _ in range(EACH) for lane in range(LANES)]
    for view in views:
        await _until(desk, view.instance_id, "done")
    return monotonic_s() - began_s


def _batch(task: str, items: int) -> NewBatch:
    return NewBatch(task=task, input=Raw(b'{"items":%d}' % items))


async def _until(desk: BatchDesk, instance_id: str, state: str) -> None:
    while (view := await desk.show(instance_id)).state != state:
        if view.is_over:
            raise AssertionError(f"{instance_id} ended as {view.state}: {view.reason}")
        await anyio.sleep(LOOK_S)
