"""A task's limits: those of its code, until a person sets others."""

import penstock
from actors.batch_tasks import TaskLimits, TaskRecord, Tasks
from streams.bucket import Bucket
from streams.connection import Connection
from streams.publisher import Publisher
from streams.specs import wanted
from streams.topology import apply
from tests.support.batches import plant


def says(**limits: float) -> TaskRecord:
    return TaskRecord(task="t", limits=TaskLimits(**limits))  # type: ignore[arg-type] # some are whole


async def test_what_the_code_says_holds_but_where_a_person_said_otherwise(connection: Connection) -> None:
    await apply(connection, wanted(connection.namespace, profile="fast"))
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
