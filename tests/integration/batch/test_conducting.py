"""What is offered to executors and when, and what is left to others: the conductor, and pointers that come late."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskStatus
from msgspec import Raw

import penstock
from actors.batch.conductor import Conductor
from actors.batch.instances import Instances
from actors.batch.items import BatchItems
from actors.batch.rules.record import Instance, Seal, beat_key
from actors.batch.tasks import TaskLimits, TaskRecord
from actors.runtime.membership import Members, NodeRecord
from actors.runtime.rules.placement import owner
from streams.buckets.bucket import Bucket
from streams.clock import SYSTEM
from streams.link.connection import Connection
from streams.messages.batch import Chunk, ChunkResult, Counts, Pointer, decode_pointer, encode_message
from streams.publish.publisher import Publisher
from streams.pull.backlog import consumers_pending
from streams.reads.log import purge_subject, read_log
from streams.topology.specs import batch_consumers, wanted
from tests.support.batches import LONG_S, plant
from tests.support.moments import a_moment
from tests.support.server import make_topology

CONDUCTOR = ("conductor",)
TASK = TaskRecord(task="nobody", attempts=3, retry_base_ms=300)


async def running(items: BatchItems, instance_id: str, chunks: int) -> Instance:
    """Store so many chunks of one item, and return the record of an instance that is to run them."""
    await items.stage(instance_id, 1, 0, [Chunk(first=first, items=(Raw(b"1"),)) for first in range(chunks)])
    seal = Seal(fence=1, chunks=chunks, items=chunks, digest="d")
    return Instance(
        instance_id=instance_id, task="nobody", created_ms=0, state="running", step_fence=1, seal=seal, released=0
    )


async def offered(connection: Connection) -> list[tuple[Pointer, int]]:
    """Return the pointers that wait for executors, and when each was stored."""
    stream, pattern = connection.namespace.stream("WORK"), connection.namespace.pattern("work", ">")
    return [(decode_pointer(entry.payload), entry.stored_ms) async for entry in read_log(connection, stream, pattern)]


async def looking(connection: Connection, instance_id: str, is_so: Callable[[], Awaitable[Any]]) -> Any:
    """Have the conductor look at an instance again and again until it is so; return what was said then."""
    news = connection.namespace.subject("batch", "news", instance_id)
    with anyio.fail_after(LONG_S):
        while not (said := await is_so()):
            await connection.publish_core(news)
            await a_moment()
    return said


async def test_what_goes_round_again_is_offered_when_its_time_has_come(
    connection: Connection, publisher: Publisher
) -> None:
    items = BatchItems(connection, publisher)

    async def again() -> list[int]:
        return [stored_ms for pointer, stored_ms in await offered(connection) if pointer.round == 2]

    async with plant(connection, [], roles=CONDUCTOR) as node:
        await node.engine.tasks.declare(TASK)
        await node.engine.instances.create(await running(items, "mine", 1))
        await looking(connection, "mine", lambda: offered(connection))
        await items.add_result(await node.record("mine"), ChunkResult(chunk=0, round=1, ran=((0, 1),), again=1))
        [stored_ms] = await looking(connection, "mine", again)
        [chunk] = (await node.record("mine")).open
    assert stored_ms >= chunk.not_before_ms > 0


async def test_what_was_offered_and_is_gone_is_offered_again(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.batch.offers.REOFFER_MS", 50)
    async with plant(connection, [], roles=CONDUCTOR) as node:
        await node.engine.tasks.declare(TASK)
        await node.engine.instances.create(await running(BatchItems(connection, publisher), "mine", 1))
        [(first, _)] = await looking(connection, "mine", lambda: offered(connection))
        await purge_subject(connection, connection.namespace.stream("WORK"), ">")
        [(second, _)] = await looking(connection, "mine", lambda: offered(connection))
    assert first == second


async def test_a_large_instance_lets_out_a_part_of_its_chunks_at_a_time(
    connection: Connection, publisher: Publisher
) -> None:
    async with plant(connection, [], roles=CONDUCTOR) as node:
        await node.engine.tasks.declare(TASK)
        await node.engine.instances.create(await running(BatchItems(connection, publisher), "mine", 200))
        pointers = await looking(connection, "mine", lambda: offered(connection))
        record = await node.record("mine")
    assert 0 < len(pointers) <= 64
    assert record.released == len(record.open) <= 64


async def test_a_step_that_beats_is_left_alone_and_a_silent_one_is_begun_anew(
    connection: Connection, publisher: Publisher
) -> None:
    await make_topology(connection, wanted(connection.namespace, profile="fast"))
    beats = Bucket(connection, publisher, connection.namespace.bucket("BEATS"), bytes)
    steps = [
        Instance(
            instance_id=each,
            task="nobody",
            created_ms=0,
            state="splitting",
            step_fence=5,
            begun_fence=5,
            step_since_ms=1,
        )
        for each in ("beating", "silent")
    ]
    await beats.put(beat_key(steps[0]), b"{}")

    async def both() -> dict[str, int]:
        fences = {pointer.instance_id: pointer.fence for pointer, _ in await offered(connection)}
        return fences if len(fences) == 2 else {}

    async with plant(connection, [], roles=CONDUCTOR) as node:
        await node.engine.tasks.declare(TASK)
        for record in steps:
            await node.engine.instances.create(record)
        assert await looking(connection, "silent", both) == {"beating": 5, "silent": 6}
        assert (await node.record("beating")).step_fence == 5


@asynccontextmanager
async def another_conductor(connection: Connection, publisher: Publisher) -> AsyncIterator[anyio.CancelScope]:
    """Have a node `idle` live that conducts nothing, until the scope is cancelled."""
    bucket = Bucket(connection, publisher, connection.namespace.bucket("NODES"), bytes)
    idle = NodeRecord(node="idle", run="idle", roles=CONDUCTOR)
    other = Members(bucket, idle, clock=SYSTEM, is_connected=lambda: True)
    its_life = anyio.CancelScope()

    async def live(*, task_status: TaskStatus[None]) -> None:
        with its_life:
            await other.run(task_status=task_status)

    async with anyio.create_task_group() as nodes:
        await nodes.start(live)
        yield its_life
        its_life.cancel()


def owned_by(node: str, prefix: str) -> str:
    """Return a key that this node is to tend, of `idle` and `n1`."""
    return next(key for each in count() if owner(key := f"{prefix}{each}", ["idle", "n1"]) == node)


async def test_a_tasks_instances_are_let_in_by_one_node_alone(connection: Connection, publisher: Publisher) -> None:
    await make_topology(connection, wanted(connection.namespace, profile="fast"))
    theirs, ours, looked_at = owned_by("idle", "t"), owned_by("n1", "t"), owned_by("n1", "i")
    async with another_conductor(connection, publisher) as its_life, plant(connection, [], roles=CONDUCTOR) as node:
        for task in (theirs, ours):
            await node.engine.tasks.declare(TaskRecord(task=task))
        await node.engine.instances.create(Instance(instance_id=looked_at, task=theirs, created_ms=0))
        await node.engine.instances.create(Instance(instance_id=f"{looked_at}-2", task=ours, created_ms=0))
        await node.until(f"{looked_at}-2", "splitting")
        assert (await node.record(looked_at)).state == "pending"
        its_life.cancel()
        await node.until(looked_at, "splitting")


async def test_a_begin_that_comes_late_is_none_of_a_later_batch_of_the_id(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is deleted after its turn came. The later one is of a task that runs as many as it may."""
    move, is_late, is_over = Instances.move, anyio.Event(), anyio.Event()
    first = Instance(instance_id="mine", task="quick", created_ms=1)
    later = Instance(instance_id="mine", task="full", created_ms=2)

    async def late(instances: Instances, instance_id: str, change: Callable[[Instance], Instance]) -> Instance:
        if instance_id != "mine" or is_late.is_set():
            return await move(instances, instance_id, change)
        is_late.set()
        await instances.remove(first)
        await instances.create(later)
        try:
            return await move(instances, instance_id, change)
        finally:
            is_over.set()

    monkeypatch.setattr(Instances, "move", late)
    async with plant(connection, [], roles=CONDUCTOR) as node:
        for task in ("quick", "full"):
            await node.engine.tasks.declare(TaskRecord(task=task, limits=TaskLimits(main_concurrency=1)))
        await node.engine.instances.create(Instance(instance_id="busy", task="full", created_ms=0, state="splitting"))
        await node.engine.instances.create(first)
        with anyio.fail_after(LONG_S):
            await is_over.wait()
        assert (await node.record("mine")).state == "pending"


async def test_an_instance_is_left_to_the_node_that_tends_it_now(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.batch.conductor.LOOK_MS", 20)
    looks, look = list[str](), Conductor._tend

    async def noted(conductor: Conductor, instance_id: str) -> int | None:
        looks.append(instance_id)
        return await look(conductor, instance_id)

    monkeypatch.setattr(Conductor, "_tend", noted)
    theirs, ours = owned_by("idle", "i"), owned_by("n1", "i")
    async with plant(connection, [], roles=CONDUCTOR) as node:
        await node.engine.tasks.declare(TASK)
        for instance_id in (theirs, ours):
            await node.engine.instances.create(await running(BatchItems(connection, publisher), instance_id, 1))
        await counted(looks, theirs, 3)
        async with another_conductor(connection, publisher):
            with anyio.fail_after(LONG_S):
                while "idle" not in node.members.live():
                    await a_moment()
            looks.clear()
            await counted(looks, ours, 5)
            assert looks.count(theirs) <= 1, "the one that was under way"


async def counted(looks: list[str], instance_id: str, times: int) -> None:
    with anyio.fail_after(LONG_S):
        while looks.count(instance_id) < times:
            await a_moment()


log: dict[str, Any] = {}


@penstock.batch("held", attempts=1)
class Held:
    """Notes its splits; an item that is 0 waits at a gate."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        log["splits"] = log.get("splits", 0) + 1
        await ctx.commit(*ctx.input)

    async def map(self, item: int) -> None:
        if item == 0:
            log["began"].set()
            await log["gate"].wait()

    async def reduce(self, ctx: penstock.ReduceContext) -> None:
        return None


@pytest.fixture(autouse=True)
def fresh() -> None:
    log.clear()
    log.update(began=anyio.Event(), gate=anyio.Event())


async def test_what_runs_when_it_is_cancelled_has_the_time_to_end(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.batch.conductor.REOFFER_MS", 600_000)
    async with plant(connection, ["held"]) as node:
        await node.submit("held", [0], id="mine")
        with anyio.fail_after(LONG_S):
            await log["began"].wait()
        await node.desk.cancel("mine")
        assert (await node.run("held", [1])).state == "done"
        assert (await node.desk.show("mine")).state == "cancelling"
        log["gate"].set()
        assert (await node.until("mine", "cancelled")).counts == Counts(succeeded=1)


async def test_a_pointer_to_an_older_fence_begins_nothing(connection: Connection, publisher: Publisher) -> None:
    namespace = connection.namespace
    stream, consumer = namespace.stream("WORK"), batch_consumers(namespace, "held")[0].name
    async with plant(connection, ["held"], roles=("executor",)) as node:
        await node.engine.instances.create(
            Instance(
                instance_id="mine", task="held", created_ms=0, input=Raw(b"[1,2]"), state="splitting", step_fence=2
            )
        )
        for fence, splits in ((1, None), (2, 1)):
            pointer = Pointer(step="split", task="held", instance_id="mine", fence=fence)
            subject = namespace.subject("work", "batch", "held", "split", "mine", str(fence))
            await publisher.publish(subject, encode_message(pointer))
            with anyio.fail_after(LONG_S):
                waiting: int | None = None  # the node makes the consumer when it sees the instance
                while waiting != 0 or (splits and "splits" not in log):
                    waiting = (await consumers_pending(connection, stream)).get(consumer)
                    await a_moment()
            assert log.get("splits") == splits
        record = await node.record("mine")
    assert (record.state, record.step_fence) == ("running", 2)


@penstock.batch("looks-back")
class LooksBack:
    """Notes what waits in the queue while its steps run."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        log["waiting"] = [pointer.step for pointer, _ in await offered(log["connection"])]

    async def map(self, item: int) -> None:
        raise AssertionError("there is none")

    async def reduce(self, ctx: penstock.ReduceContext) -> None:
        log["waiting"] += [pointer.step for pointer, _ in await offered(log["connection"]) if pointer.step == "reduce"]


async def test_a_steps_pointer_is_acknowledged_when_the_step_is_over(connection: Connection) -> None:
    log["connection"] = connection
    async with plant(connection, ["looks-back"]) as node:
        await node.run("looks-back")
        with anyio.fail_after(LONG_S):
            while await offered(connection):
                await a_moment()
    assert log["waiting"] == ["split", "reduce"]
