"""How many of a task's items are at work at a time, and who may begin one that may not run twice."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from msgspec import Raw

import penstock
from actors.batch.executor.lanes import Admitted, Item, first
from actors.batch.executor.one_by_one import run_marked
from actors.batch.executor.rounds import Round
from actors.batch.items import BatchItems
from penstock.sdk.batches import task_handlers
from streams.errors import RevisionConflict
from streams.link.connection import Connection
from streams.messages.batch import Counts, Outcome, Pointer
from streams.publish.publisher import Publisher
from streams.topology.specs import wanted
from tests.support.batches import LONG_S, plant
from tests.support.server import make_topology

ITEMS = 24


class AtWork:
    """What the tasks of one test did, and how many of their items were at work at the same time, at the most."""

    def __init__(self) -> None:
        self.ran: Counter[int] = Counter()
        self.now = 0
        self.most = 0


log = AtWork()


@pytest.fixture(autouse=True)
def fresh() -> None:
    log.__init__()  # type: ignore[misc] # the tasks hold the object


class _Noting:
    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*range(ITEMS))

    async def map(self, item: int) -> None:
        log.ran[item] += 1
        log.now += 1
        log.most = max(log.most, log.now)
        for _ in range(20):  # so that others would begin beside it
            await anyio.lowlevel.checkpoint()
        log.now -= 1

    async def reduce(self, ctx: penstock.ReduceContext) -> None:
        return None


@penstock.batch("at-work", concurrency=4, chunk_items=3)
class Wide(_Noting):
    """As many at a time as the process likes."""


@penstock.batch("at-work-few", item_concurrency=2, concurrency=4, chunk_items=3)
class Few(_Noting):
    """Two at a time."""


@penstock.batch("at-work-once", item_concurrency=1, is_idempotent=False, chunk_items=3)
class Once(_Noting):
    """One at a time, and never again."""


@pytest.mark.parametrize(
    ("task", "trusted", "most"),
    [("at-work", 5, None), ("at-work", 0, 1), ("at-work-few", 5, 2), ("at-work-few", 0, 1), ("at-work-once", 5, 1)],
    ids=["unlimited", "suspected", "limited", "limited and suspected", "one at a time, once"],
)
async def test_no_more_items_are_at_work_than_may_be(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, task: str, trusted: int, most: int | None
) -> None:
    """`trusted`: of as many deliveries nobody suspects an item; with 0 every chunk looks as if its executors had
    died."""
    monkeypatch.setattr("actors.batch.executor.chunks.TRUSTED", trusted)
    async with plant(connection, [task]) as node:
        view = await node.run(task)
    assert view.counts == Counts(succeeded=ITEMS)
    assert log.ran == Counter(range(ITEMS))
    assert log.most > 1 if most is None else log.most <= most


class Meeting:
    """Lets items in when all who run the round have come to its first one."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.came = 0
        self.all_came = anyio.Event()

    def is_shut(self) -> bool:
        return False

    def ended(self, outcomes: Sequence[Outcome]) -> None:
        pass

    async def admit(self, waiting: deque[Item], most: int) -> Admitted:
        self.came += 1
        if self.came == self.most:
            self.all_came.set()
        await self.all_came.wait()
        return Admitted(first(waiting, most))


async def test_of_two_that_hold_one_round_only_one_begins_its_items(
    connection: Connection, publisher: Publisher
) -> None:
    await make_topology(connection, wanted(connection.namespace, profile="fast"))
    pointer = Pointer(step="map", task="at-work-once", instance_id="mine", chunk=0, round=1)
    turn = Round("mine", dict.fromkeys(range(3), 1), most=1)
    rows = [(index, Raw(b"%d" % index)) for index in range(3)]
    gate = Meeting(2)
    ended: list[list[Outcome]] = []
    refused: list[Any] = []

    async def run() -> None:
        items = BatchItems(connection, publisher)
        try:
            ended.append(await run_marked(task_handlers()["at-work-once"], turn, pointer, rows, items, gate))
        except RevisionConflict as error:
            refused.append(error)

    with anyio.fail_after(LONG_S):
        async with anyio.create_task_group() as both:
            both.start_soon(run)
            both.start_soon(run)
    assert (len(ended), len(refused)) == (1, 1)
    assert [outcome.status for outcome in ended[0]] == ["ok"] * 3
    assert log.ran == Counter(range(3))
