"""The conductor without anybody to work: what it does alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from actors.batch.conductor import Conductor
from actors.batch.instances import Instances, UnknownInstance
from actors.batch.items import BatchItems
from actors.batch.rules.record import Instance, Seal
from actors.batch.rules.refusals import BatchRefused
from actors.batch.tasks import TaskLimits, TaskRecord
from actors.batch.views import SheetInput
from actors.runtime.rules.notices import Notice
from penstock.errors import UsageError
from penstock.node.batch.archive import BatchArchive, archive_folder
from penstock.node.config import Config
from penstock.rows.sheets.parsing import parse_sheet
from streams.buckets.entries import Change
from streams.buckets.files import Files, files_stream
from streams.clock import now_ms
from streams.link.connection import Connection
from streams.messages.batch import Chunk, Counts
from streams.publish.publisher import Publisher
from streams.reads.log import last_entry, purge_subject
from streams.subjects import kv_stream
from tests.support.batches import LONG_S, Plant, batch_of, plant
from tests.support.moments import a_moment

TASK = TaskRecord(task="nobody", keep_days=1)
ITEMS = 12


async def staged(items: BatchItems, instance_id: str, **facts: Any) -> Instance:
    """Store the items of an instance that is running, and return its record."""
    chunks = [Chunk(first=first, items=(Raw(b"1"),) * 3) for first in range(0, ITEMS, 3)]
    await items.stage(instance_id, 1, 0, chunks)
    return Instance(
        instance_id=instance_id,
        task="nobody",
        created_ms=0,
        step_fence=1,
        seal=Seal(fence=1, chunks=len(chunks), items=ITEMS, digest="d"),
        **{"state": "running", **facts},
    )


async def test_a_cancelled_instance_that_nobody_works_on_ends(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.batch.conductor.REOFFER_MS", 50)
    items = BatchItems(connection, publisher)
    async with plant(connection, [], roles=("conductor",)) as node:
        await node.engine.tasks.declare(TASK)
        await node.engine.instances.create(await staged(items, "alone"))
        with anyio.fail_after(LONG_S):
            while not (await node.record("alone")).open:
                await a_moment()
        await node.desk.cancel("alone")
        view = await node.until("alone", "cancelled")
    assert view.counts == Counts(cancelled=ITEMS)


async def test_who_tends_an_instance_no_more_forgets_its_offers_when_it_goes(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next instance of that id is not offered for a while, and a node keeps all that it ever offered."""
    async with plant(connection, [], roles=("conductor",)) as node:
        await node.engine.tasks.declare(TASK)
        made = await node.engine.instances.create(await staged(BatchItems(connection, publisher), "moved"))
        offered = node.engine.conductor._offers._offered
        with anyio.fail_after(LONG_S):
            while not offered.get("moved"):
                await a_moment()
            monkeypatch.setattr(node.engine.conductor, "_tends", lambda _key: False)  # another node joined
            await node.engine.instances.remove(await node.record(made.instance_id))
            while "moved" in offered:
                await a_moment()


async def test_what_has_been_kept_long_enough_is_removed_with_its_items_and_files(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so is what tells that they are gone."""
    monkeypatch.setattr("actors.batch.instances.GONE_S", 1)
    monkeypatch.setattr("streams.buckets.files.GONE_S", 1)
    items, files = BatchItems(connection, publisher), Files(connection, publisher, connection.namespace.bucket("FILES"))

    async def data() -> AsyncIterator[bytes]:
        yield b"x"

    made: dict[str, Instance] = {}
    async with plant(connection, [], roles=("conductor",)) as node:
        await node.engine.tasks.declare(TASK)
        for instance_id in ("old", "old2"):
            await items.begin(instance_id, 0, 1, [0], expected_seq=0)
            await files.put(f"{instance_id}/result.xlsx", data())
            ended_ms = 1 if instance_id == "old" else 10**14
            record = await staged(items, instance_id, state="done", counts=Counts(succeeded=ITEMS), ended_ms=ended_ms)
            made[instance_id] = await node.engine.instances.create(record)
        with anyio.fail_after(LONG_S):
            while {record.instance_id for record in node.engine.instances.known()} != {"old2"}:
                await a_moment()
        assert [info.name async for info in files.all()] == ["old2/result.xlsx"]
        assert await items.chunk(made["old"], 0) is None
        assert await items.chunk(made["old2"], 0) is not None
        assert [(await items.begun(each, 0, 1))[0] for each in ("old", "old2")] == [[], [0]]
        namespace = connection.namespace
        left = {kv_stream(namespace.bucket("INSTANCES")): 1, files_stream(namespace.bucket("FILES")): 2}
        with anyio.fail_after(LONG_S):
            for stream, messages in left.items():
                while (await connection.api(f"STREAM.INFO.{stream}"))["state"]["messages"] != messages:
                    await a_moment()


async def test_what_is_seen_of_an_instance_is_all_that_lists_show_and_no_more(connection: Connection) -> None:
    async with plant(connection, [], roles=("conductor",)) as node:
        given, result = Raw(b'"' + b"x" * 60_000 + b'"'), Raw(b'{"files":["a"]}')
        made = Instance(
            instance_id="i", task="nobody", created_ms=1, input=given, state="done", result=result, ended_ms=10**14
        )
        await node.engine.instances.create(made)
        with anyio.fail_after(LONG_S):
            while (seen := node.engine.instances.seen("i")) is None:
                await a_moment()
        assert len(msgspec.json.encode(seen)) < 500
        assert ([await node.desk.show("i")], "") == await node.desk.all()
        assert (await node.record("i")).input == given


async def test_a_result_that_nobody_fetched_is_kept_for_its_days_and_then_gone(
    connection: Connection, publisher: Publisher
) -> None:
    items, files = BatchItems(connection, publisher), Files(connection, publisher, connection.namespace.bucket("FILES"))

    async def data() -> AsyncIterator[bytes]:
        yield b"rows"

    day_ms = 86_400_000
    ended = {"yesterday": now_ms() - day_ms - 60_000, "today": now_ms() - day_ms + 3_600_000}
    async with plant(connection, [], roles=("conductor",)) as node:
        await node.engine.tasks.declare(TASK)
        for instance_id, ended_ms in ended.items():
            await files.put(f"{instance_id}/result.xlsx", data())
            result = Raw(b'{"files":["result.xlsx"]}')
            await node.engine.instances.create(
                await staged(items, instance_id, state="done", ended_ms=ended_ms, result=result)
            )
        with anyio.fail_after(LONG_S):
            while node.engine.instances.seen("yesterday") is not None or node.engine.instances.seen("today") is None:
                await a_moment()
        with pytest.raises(UnknownInstance):
            await node.desk.result("yesterday")
        _, parts = await node.desk.result("today")
        assert b"".join([part async for part in parts]) == b"rows"


async def test_those_that_have_not_ended_are_known_by_their_task(connection: Connection) -> None:
    async with plant(connection, [], roles=("conductor",)) as node:
        instances = node.engine.instances
        await node.engine.tasks.declare(TASK)
        for number in range(3):
            await instances.create(Instance(instance_id=f"i{number}", task="nobody", created_ms=0))
        await node.until("i2", "splitting")
        await node.desk.cancel("i0")
        await node.until("i0", "cancelled")
        with anyio.fail_after(LONG_S):
            while len(instances.unfinished("nobody")) != 2:
                await a_moment()
        assert {record.instance_id for record in instances.unfinished("nobody")} == {"i1", "i2"}
        await instances.remove(await instances.get("i1"))
        await instances.create(Instance(instance_id="i1", task="another", created_ms=0))
        with anyio.fail_after(LONG_S):
            while not instances.unfinished("another"):
                await a_moment()
        assert [record.instance_id for record in instances.unfinished("nobody")] == ["i2"]


async def test_an_instance_of_a_task_that_nobody_declared_waits_for_it(connection: Connection) -> None:
    async with plant(connection, [], roles=("conductor",)) as node:
        await node.engine.instances.create(Instance(instance_id="early", task="nobody", created_ms=0))
        await node.engine.tasks.declare(TASK)
        view = await node.until("early", "splitting")
        assert view.task == "nobody"


async def known(node: Plant, record: TaskRecord) -> None:
    """Declare a task, and wait until the node knows it."""
    await node.engine.tasks.declare(record)
    with anyio.fail_after(LONG_S):
        while record.task not in node.engine.tasks.known():
            await a_moment()


async def test_a_step_that_nobody_has_begun_waits_for_whoever_comes(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody serves the task for longer than thirty begins would take."""
    monkeypatch.setattr("actors.batch.conductor.BEAT_TTL_S", 0)
    monkeypatch.setattr("actors.batch.conductor.LOOK_MS", 1)
    monkeypatch.setattr("actors.batch.offers.REOFFER_MS", 50)
    looks, keep = 0, Conductor._keep_step

    async def counted(conductor: Conductor, record: Instance) -> Instance:
        nonlocal looks
        looks += 1
        return await keep(conductor, record)

    monkeypatch.setattr(Conductor, "_keep_step", counted)
    async with plant(connection, [], roles=("conductor",)) as node:
        await known(node, TASK)
        await node.engine.instances.create(Instance(instance_id="early", task="nobody", created_ms=0))
        with anyio.fail_after(LONG_S):
            while looks < 3:  # by then it is offered
                await a_moment()
            first = await node.record("early")
            while looks < 60:
                await a_moment()
            assert await node.record("early") == first
            work, pointers = connection.namespace.stream("WORK"), connection.namespace.pattern("work", ">")
            await purge_subject(connection, work, pointers)
            while await last_entry(connection, work, pointers) is None:
                await a_moment()
            assert await node.record("early") == first


async def rows() -> AsyncIterator[bytes]:
    yield b"sku\na\n"


async def test_an_instance_whose_tasks_record_is_removed_can_be_cancelled_and_is_dropped(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.batch.conductor.REOFFER_MS", 50)
    items, namespace = BatchItems(connection, publisher), connection.namespace
    async with plant(connection, [], roles=("conductor",)) as node:
        sheet = Raw(msgspec.json.encode(SheetInput(file="left/upload-1")))
        await node.engine.instances.create(await staged(items, "left", input=sheet))
        with anyio.fail_after(LONG_S):
            while not (await node.record("left")).open:
                await a_moment()
        await node.desk.cancel("left")
        assert (await node.until("left", "cancelled")).counts == Counts(cancelled=ITEMS)
        work = await connection.api(f"STREAM.INFO.{namespace.stream('WORK')}")
        assert work["state"]["messages"] > 0
        files = Files(connection, publisher, namespace.bucket("FILES"))
        for name in ("left/upload-1", "left/result-2/of.csv", "leftover/upload-1"):
            await files.put(name, rows())
        await node.engine.instances.move("left", lambda record: replace(record, ended_ms=1))
        with anyio.fail_after(LONG_S):
            while node.engine.instances.seen("left") is not None:
                await a_moment()
        assert [info.name async for info in files.all()] == ["leftover/upload-1"]
        work = await connection.api(f"STREAM.INFO.{namespace.stream('WORK')}")
        assert work["state"]["messages"] == 0


async def test_what_was_begun_counts_before_the_watch_tells_it(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch tells only that there are instances, and nothing more of them."""
    late: list[str] = []
    async with plant(connection, [], roles=("conductor",)) as node:
        live = node.engine.instances._live
        heard = live._hear

        def hear(change: Change[bytes]) -> None:
            if change.key in live:
                late.append(change.key)
            else:
                heard(change)

        monkeypatch.setattr(live, "_hear", hear)
        await known(node, replace(TASK, limits=TaskLimits(main_concurrency=3)))
        for number in range(9):
            await node.engine.instances.create(
                Instance(instance_id=f"i{number}", task="nobody", created_ms=0, priority=number)
            )
        with anyio.fail_after(LONG_S):
            while len(list(node.engine.instances.known())) < 9 or len(late) < 3:
                await a_moment()
        states = [(await node.record(f"i{number}")).state for number in range(9)]
    assert sorted(states) == ["pending"] * 6 + ["splitting"] * 3


async def test_paused_ones_hold_no_place(connection: Connection, publisher: Publisher) -> None:
    items = BatchItems(connection, publisher)
    async with plant(connection, [], roles=("conductor",)) as node:
        await known(node, replace(TASK, limits=TaskLimits(main_concurrency=1)))
        await node.engine.instances.create(await staged(items, "paused", is_paused=True))
        await node.engine.instances.create(Instance(instance_id="next", task="nobody", created_ms=0, tenant="b"))
        await node.until("next", "splitting")
        await node.engine.instances.create(Instance(instance_id="third", task="nobody", created_ms=0))
        await node.desk.pause("next")
        await node.until("third", "splitting")


async def test_a_delete_whose_desk_died_is_ended_by_the_conductor(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.batch.conductor.HALF_DELETED_MS", 0)
    items = BatchItems(connection, publisher)
    async with plant(connection, [], roles=("conductor",)) as node:
        await node.engine.tasks.declare(TASK)
        record = await staged(items, "half", state="done", ended_ms=10**14, deleted_ms=now_ms())
        await node.engine.instances.create(record)
        with anyio.fail_after(LONG_S):
            while await items.chunk(record, 0) is not None:
                await a_moment()


async def test_what_is_deleted_is_gone_and_its_id_is_free(connection: Connection, publisher: Publisher) -> None:
    items = BatchItems(connection, publisher)
    async with plant(connection, [], roles=("conductor",)) as node:
        await node.engine.tasks.declare(TASK)
        record = await staged(items, "over", state="cancelled", ended_ms=10**14, counts=Counts(cancelled=ITEMS))
        await node.engine.instances.create(record)
        await node.desk.submit(batch_of("nobody", id="begun"))
        with pytest.raises(BatchRefused, match=r"begun is (pending|splitting); cancel it first") as refused:
            await node.desk.delete("begun")
        assert refused.value.code == "state"
        assert (await node.desk.delete("over")).state == "cancelled"
        assert await items.chunk(record, 0) is None
        with pytest.raises(UnknownInstance):
            await node.desk.delete("over")
        assert (await node.desk.submit(batch_of("nobody", id="over"))).items is None


async def test_what_goes_is_kept_as_files_and_stays_while_it_cannot_be(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("actors.batch.conductor.ARCHIVE_AGAIN_MS", 50)
    items = BatchItems(connection, publisher)
    (tmp_path / "nobody").write_text("a file in the way")
    notices: list[Notice] = []
    async with plant(connection, [], roles=("conductor",), calls={"batch_archive": str(tmp_path)}) as node:
        node.node.store.tell = notices.append
        await node.engine.tasks.declare(TASK)
        record = await staged(items, "kept", state="done", ended_ms=1, counts=Counts(succeeded=ITEMS))
        await node.engine.instances.create(record)
        await node.engine.instances.create(
            Instance(instance_id="split", task="nobody", created_ms=0, state="failed", reason="no", ended_ms=1)
        )
        with anyio.fail_after(LONG_S):
            while not notices:
                await a_moment()
        assert (await node.record("kept")).deleted_ms == 0
        (tmp_path / "nobody").unlink()
        with anyio.fail_after(LONG_S):
            while [*node.engine.instances.known()]:
                await a_moment()
    assert {each.kind for each in notices} == {"archive_down", "archive_up"}
    assert f"cannot be written: {tmp_path}, batch " in notices[0].text
    folder = tmp_path / "nobody"
    assert sorted(path.name for path in folder.iterdir()) == ["kept.0.jsonl", "kept.0.xlsx", "split.0.jsonl"]
    first, *others = [msgspec.json.decode(line) for line in (folder / "kept.0.jsonl").read_bytes().splitlines()]
    assert (first["instance_id"], first["counts"]["succeeded"], len(others)) == ("kept", ITEMS, ITEMS)
    assert others[3] == {"index": 3, "item": 1, "status": "cancelled", "info": None}
    rows = [row async for rows in parse_sheet(folder / "kept.0.xlsx") for row in rows]
    assert (len(rows), rows[0][1]["row"]) == (ITEMS, 1)


async def test_what_the_archive_could_not_write_to_its_end_leaves_no_part(
    connection: Connection, publisher: Publisher, tmp_path: Path
) -> None:
    items, notices = BatchItems(connection, publisher), list[Notice]()
    (tmp_path / "nobody" / "kept.0.jsonl").mkdir(parents=True)
    async with plant(connection, [], roles=("conductor",), calls={"batch_archive": str(tmp_path)}) as node:
        node.node.store.tell = notices.append
        await node.engine.tasks.declare(TASK)
        await node.engine.instances.create(await staged(items, "kept", state="done", ended_ms=1))
        with anyio.fail_after(LONG_S):
            while not notices:
                await a_moment()
    assert [path.name for path in (tmp_path / "nobody").iterdir()] == ["kept.0.jsonl"]


async def test_what_was_retried_and_ended_while_the_archive_was_written_stays(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    looked = list[Instance]()
    move_own = Instances.move_own

    async def moved(self: Instances, own: Instance, move: Callable[[Instance], Instance]) -> Instance:
        looked.append(await move_own(self, own, move))
        return looked[-1]

    async def keep(_self: BatchArchive, instance_id: str) -> bool:
        """Meanwhile a person retries it, and it ends."""
        await node.engine.instances.move(instance_id, lambda before: replace(before, passes=2, ended_ms=now_ms()))
        return True

    monkeypatch.setattr(BatchArchive, "keep", keep)
    monkeypatch.setattr(Instances, "move_own", moved)
    async with plant(connection, [], roles=("conductor",), calls={"batch_archive": str(tmp_path)}) as node:
        await node.engine.tasks.declare(TASK)
        await node.engine.instances.create(
            Instance(instance_id="kept", task="nobody", created_ms=0, state="failed", reason="no", ended_ms=1)
        )
        with anyio.fail_after(LONG_S):
            while not looked:
                await a_moment()
        assert (looked[0].passes, looked[0].deleted_ms) == (2, 0)


async def test_an_archive_that_is_not_there_is_told_at_the_start(connection: Connection, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"batch_archive: .* is no directory; make it first"):
        archive_folder(Config(batch_archive=str(tmp_path / "none")))
    assert archive_folder(Config(batch_archive=str(tmp_path / "none"), roles=("desk",))) is None
