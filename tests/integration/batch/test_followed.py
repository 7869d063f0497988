"""Tasks and instances as a node follows them: records that vanish, also while nobody follows, and unreadable ones."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from actors.batch.instances import Instances
from actors.batch.rules.record import Instance
from actors.batch.tasks import TaskRecord, Tasks, UnknownTask, decode_task
from streams.buckets.bucket import Bucket
from streams.buckets.entries import Entry
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.support.buckets import bucket_of


@asynccontextmanager
async def following(view: Tasks | Instances) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(30):
            await tasks.start(view.run)
        yield
        tasks.cancel_scope.cancel()


@pytest.fixture
async def bucket(connection: Connection, publisher: Publisher) -> Bucket[bytes]:
    return await bucket_of(connection, publisher, bytes, has_ttl=True)


async def test_a_task_that_vanished_while_nobody_followed_is_known_no_more(bucket: Bucket[bytes]) -> None:
    tasks, heard = Tasks(bucket), list[str]()
    tasks.on_change(heard.append)
    for name in ("kept", "vanished"):
        await bucket.put(name, msgspec.json.encode(TaskRecord(task=name)))
    async with following(tasks):
        assert tasks.known() == ("kept", "vanished")
    await bucket.delete("vanished")
    heard.clear()
    async with following(tasks):
        assert (tasks.known(), heard) == (("kept",), ["vanished"])
        with pytest.raises(UnknownTask):
            tasks.current("vanished")


async def test_a_limit_that_a_person_sets_while_the_code_declares_its_own_stays(
    bucket: Bucket[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks, persons = Tasks(bucket), Tasks(bucket)
    await tasks.declare(TaskRecord(task="t"))
    get = bucket.get

    async def overtaken(key: str) -> Entry[bytes] | None:
        entry = await get(key)
        monkeypatch.undo()
        await persons.limit("t", lambda record: replace(record.limits, item_rate=5.0))
        return entry

    monkeypatch.setattr(bucket, "get", overtaken)
    await tasks.declare(TaskRecord(task="t", version="2"))
    stored = await get("t")
    assert stored is not None
    record = decode_task(stored.raw)
    assert (record.version, record.limits.item_rate) == ("2", 5.0)


async def test_an_instance_that_vanished_while_nobody_followed_counts_no_more(bucket: Bucket[bytes]) -> None:
    instances, heard = Instances(bucket), list[str]()
    instances.on_change(heard.append)
    for name in ("kept", "vanished"):
        await instances.create(Instance(instance_id=name, task="t", created_ms=0))
    async with following(instances):
        assert [each.instance_id for each in instances.unfinished("t")] == ["kept", "vanished"]
    await instances.remove(await instances.get("vanished"))
    heard.clear()
    async with following(instances):
        assert [each.instance_id for each in instances.unfinished("t")] == ["kept"]
        assert [each.instance_id for each in instances.known()] == ["kept"]
        assert (instances.seen("vanished"), heard) == (None, ["vanished"])


async def test_an_unreadable_task_keeps_what_was_in_force_and_is_unknown_where_nothing_was(
    bucket: Bucket[bytes],
) -> None:
    await bucket.put("new", b"{")
    await bucket.put("old", msgspec.json.encode(TaskRecord(task="old", version="1")))
    tasks = Tasks(bucket)
    heard = anyio.Event()
    async with following(tasks):
        tasks.on_change(lambda _task: heard.set())
        await bucket.put("old", b"{")
        with anyio.fail_after(30):
            await heard.wait()
        assert (tasks.current("old").version, tasks.known()) == ("1", ("old",))
        assert tasks.of_any("never").task == "never"
        with pytest.raises(UnknownTask):
            tasks.of_any("new")
