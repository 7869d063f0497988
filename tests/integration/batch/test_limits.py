"""A task's limits: those of its code, until a person sets others."""

from contextlib import AsyncExitStack

import anyio
import anyio.lowlevel

import penstock
from actors.batch.rules.record import Instance
from actors.batch.tasks import TaskLimits, TaskRecord, Tasks
from penstock.sdk.batches import task_handlers
from streams.buckets.bucket import Bucket
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection, connect
from streams.publish.publisher import Publisher
from streams.topology.specs import wanted
from tests.support.batches import LONG_S, Plant, plant
from tests.support.moments import a_moment
from tests.support.server import make_topology


def says(**limits: float) -> TaskRecord:
    return TaskRecord(task="t", limits=TaskLimits(**limits))  # type: ignore[arg-type] # some are whole


async def test_what_the_code_says_holds_but_where_a_person_said_otherwise(connection: Connection) -> None:
    await make_topology(connection, wanted(connection.namespace, profile="fast"))
    async with Publisher(connection) as publisher:
        bucket = Bucket(connection, publisher, connection.namespace.bucket("TASKS"), bytes)
        tasks = Tasks(bucket)

        async def declared(record: TaskRecord) -> TaskLimits:
            await tasks.declare(record)
            return (await tasks.limit("t", lambda record: record.limits)).limits

        assert await declared(says(item_rate=500, item_concurrency=4)) == TaskLimits(item_rate=500, item_concurrency=4)
        assert await declared(says(item_rate=50, item_concurrency=4)) == TaskLimits(item_rate=50, item_concurrency=4)
        await tasks.limit("t", lambda _: TaskLimits(item_rate=7, item_concurrency=4))
        assert await declared(says(item_rate=90, item_concurrency=6)) == TaskLimits(item_rate=7, item_concurrency=6)
        await bucket.put("t", b'{"task":"t","limits":{"item_rate":3}}')  # as it was written before
        assert await declared(says(item_rate=90)) == TaskLimits(item_rate=3)


async def test_who_declares_a_task_knows_it_at_once(connection: Connection) -> None:
    """Nothing follows the bucket here."""
    await make_topology(connection, wanted(connection.namespace, profile="fast"))
    async with Publisher(connection) as publisher:
        bucket = Bucket(connection, publisher, connection.namespace.bucket("TASKS"), bytes)
        first, second = Tasks(bucket), Tasks(bucket)
        heard: list[str] = []
        second.on_change(heard.append)
        await first.declare(says(item_rate=5))
        await first.limit("t", lambda _: TaskLimits(item_rate=7))
        await second.declare(says(item_rate=5))  # which stores nothing
    assert first.known() == second.known() == ("t",)
    assert first.current("t").limits == TaskLimits(item_rate=7)
    assert second.current("t").limits == TaskLimits(item_rate=7)
    assert heard == ["t"]


@penstock.batch("paced", item_rate=50, main_concurrency=3)
class Paced:
    async def map(self, item: object) -> None:
        return None


async def test_a_limit_is_taken_back_to_what_the_code_says(connection: Connection) -> None:
    async with plant(connection, ["paced"]) as node:
        changed = await node.desk.limit("paced", {"item_rate": 9, "main_concurrency": 1})
        assert changed.limits == TaskLimits(item_rate=9, main_concurrency=1)
        taken_back = await node.desk.limit("paced", {"item_rate": None})
        assert taken_back.limits == TaskLimits(item_rate=50, main_concurrency=1)


may_end: list[anyio.Event] = []


@penstock.batch("one-at-a-time", main_concurrency=1)
class OneAtATime:
    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(0)

    async def map(self, item: int) -> None:
        await may_end[0].wait()


async def test_why_counts_no_paused_batch_among_those_that_run(connection: Connection) -> None:
    may_end[:] = [anyio.Event()]
    async with plant(connection, ["one-at-a-time"]) as node:
        for name in ("first", "second", "third"):
            await node.submit("one-at-a-time", id=name)
            await node.until(name, "running")
            if name != "third":
                await node.desk.pause(name)
        await node.submit("one-at-a-time", id="waits")
        told = await node.desk.why("waits")
        assert (told.code, told.reason) == ("concurrency", "1 batches of its task run, as many as may at a time")
        may_end[0].set()
        await node.until("third", "done")
        await node.until("waits", "done")


@penstock.batch("busy-places", item_rate=1_000, concurrency=1, chunk_items=1)
class Busy:
    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*range(4))

    async def map(self, item: int) -> None:
        await may_end[0].wait()


@penstock.batch("slow-rate", item_rate=0.01)
class Slow(Busy):
    pass


async def test_why_names_the_rate_only_while_items_wait_for_it(connection: Connection) -> None:
    may_end[:] = [anyio.Event()]
    async with plant(connection, ["busy-places", "slow-rate"]) as node:
        for task, codes in (("busy-places", {"at_work", "turn"}), ("slow-rate", {"rate"})):
            await node.submit(task, id=task)
            await node.until(task, "running")
            with anyio.fail_after(LONG_S):
                while not codes >= {(await node.desk.why(task, item)).code for item in (None, 3)}:
                    await a_moment()
        may_end[0].set()
        await node.desk.cancel("slow-rate")
        await node.until("slow-rate", "cancelled")
        await node.until("busy-places", "done")


@penstock.batch("paused-early")
class PausedEarly:
    splits = 0

    async def split(self, ctx: penstock.SplitContext) -> None:
        PausedEarly.splits += 1

    async def map(self, item: object) -> None:
        return None


async def test_a_split_that_waits_for_its_worker_does_not_begin_while_paused(connection: Connection) -> None:
    work = connection.namespace.stream("WORK")

    async def waiting() -> int:
        return int((await connection.api(f"STREAM.INFO.{work}"))["state"]["messages"])

    async with plant(connection, [], name="n0", roles=("conductor",)) as node:
        await node.engine.tasks.declare(task_handlers()["paused-early"].record)
        await node.engine.instances.create(Instance(instance_id="i", task="paused-early", created_ms=0))
        with anyio.fail_after(LONG_S):
            while not await waiting():
                await a_moment()
        await node.desk.pause("i")
        async with plant(connection, ["paused-early"], name="n1", roles=("executor",)):
            with anyio.fail_after(LONG_S):
                while await waiting():
                    await a_moment()
            assert PausedEarly.splits == 0
            await node.desk.resume("i")
            assert (await node.until("i", "done")).items == 0
    assert PausedEarly.splits == 1


@penstock.batch("in-a-row", item_rate=30)
class InARow:
    began = 0

    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*range(ctx.input))

    async def map(self, item: int) -> None:
        InARow.began += 1


async def test_a_small_instance_does_not_stand_behind_a_large_one_of_its_task(connection: Connection) -> None:
    """A long row of chunks let out at once would be 640 items."""
    async with plant(connection, ["in-a-row"]) as node:
        large = await node.submit("in-a-row", 5_000, tenant="a")
        with anyio.fail_after(LONG_S):
            while InARow.began < 30:
                await a_moment()
        before = InARow.began
        assert (await node.run("in-a-row", 1, tenant="b", priority=100)).state == "done"
        assert InARow.began - before < 550
        await node.desk.cancel(large.instance_id)
        await node.until(large.instance_id, "cancelled")


@penstock.batch("few-at-once", item_concurrency=2, chunk_items=5)
class FewAtOnce:
    now = most = 0

    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*range(ctx.input))

    async def map(self, item: int) -> None:
        FewAtOnce.now += 1
        FewAtOnce.most = max(FewAtOnce.most, FewAtOnce.now)
        await anyio.sleep(0.01)
        FewAtOnce.now -= 1


async def test_workers_beyond_the_limit_have_no_part_until_one_leaves(
    connection: Connection, server: EmbeddedServer
) -> None:
    async def join(stack: AsyncExitStack, name: str) -> Plant:
        link = await stack.enter_async_context(connect(server.url, name=name, namespace=connection.namespace))
        return await stack.enter_async_context(plant(link, ["few-at-once"], name=name))

    async with AsyncExitStack() as staying:
        stayers = [await join(staying, name) for name in ("n3", "n4")]
        async with AsyncExitStack() as leaving:
            leavers = [await join(leaving, name) for name in ("n1", "n2")]
            with anyio.fail_after(LONG_S):
                for node in (*leavers, *stayers):
                    while len(node.members.names()) < 4 or not all(each.tasks for each in node.members.live().values()):
                        await a_moment()
            view = await stayers[0].run("few-at-once", 100)
            assert (view.state, view.counts.succeeded, FewAtOnce.most) == ("done", 100, 2)
        assert (await stayers[0].run("few-at-once", 10)).counts.succeeded == 10
