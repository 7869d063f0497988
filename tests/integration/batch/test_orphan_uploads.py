"""A file whose sender died before its instance was made is removed after its time; all others stay."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import anyio.lowlevel
import pytest

import penstock
from actors.batch.rules.refusals import BatchRefused
from actors.batch.uploads import FRESH_MS, KEEP_MS
from streams.buckets.files import CHUNK, Files, files_stream
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from streams.reads.log import extent_of
from tests.support.batches import LONG_S, plant
from tests.support.moments import a_moment

HOUR_MS = 3_600_000


@penstock.batch("of-uploads")
class OfUploads:
    async def map(self, item: dict[str, str]) -> None:
        return None


async def data(text: bytes = b"sku\na\n") -> AsyncIterator[bytes]:
    yield text


async def names(files: Files) -> set[str]:
    return {info.name async for info in files.all()}


def store(connection: Connection, publisher: Publisher) -> Files:
    return Files(connection, publisher, connection.namespace.bucket("FILES"))


async def test_an_upload_without_an_instance_goes_after_a_day(connection: Connection, publisher: Publisher) -> None:
    files = store(connection, publisher)
    async with plant(connection, ["of-uploads"]) as node:
        for name in ("dead/upload-0a1b2c3d", "dead/result.xlsx", "prices/upload.csv", "reports.xlsx"):
            await files.put(name, data())
        await node.run("of-uploads", upload=data(), name="rows.csv", id="mine")
        before = await names(files)
        now_ms = await files.stored_ms("reports.xlsx")
        assert now_ms is not None
        assert await node.engine.uploads.sweep(now_ms + KEEP_MS - HOUR_MS) == 0
        assert await names(files) == before
        assert await node.engine.uploads.sweep(now_ms + KEEP_MS + HOUR_MS) == 1
        assert await names(files) == before - {"dead/upload-0a1b2c3d"}


async def test_the_pieces_of_an_upload_that_was_never_finished_go_too(
    connection: Connection, publisher: Publisher
) -> None:
    files = store(connection, publisher)
    async with plant(connection, ["of-uploads"]) as node:
        whole = await files.put("mine/upload-00000000", data(b"x" * 2 * CHUNK))
        stream = files_stream(connection.namespace.bucket("FILES"))
        piece = f"$O.{connection.namespace.bucket('FILES')}.C.abcdef"
        await publisher.publish(piece, b"x", message_id="piece")
        now_ms = await files.stored_ms(whole.name)
        assert now_ms is not None
        assert (await extent_of(connection, stream)).messages == 4
        assert await node.engine.uploads.sweep(now_ms + HOUR_MS) == 0
        assert await files.remove_unfinished(now_ms + HOUR_MS) == 1
        assert (await extent_of(connection, stream)).messages == 3
        assert b"".join([part async for part in files.read(whole)]) == b"x" * 2 * CHUNK


async def test_a_node_looks_by_itself(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.batch.uploads.KEEP_MS", -HOUR_MS)
    files = store(connection, publisher)
    async with plant(connection, ["of-uploads"]):
        pass
    await files.put("dead/upload-0a1b2c3d", data())
    async with plant(connection, ["of-uploads"], name="n2"):
        with anyio.fail_after(LONG_S):
            while await names(files):
                await a_moment()


async def test_no_instance_is_made_of_a_file_that_may_be_removed_meanwhile(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = store(connection, publisher)
    assert FRESH_MS < KEEP_MS
    async with plant(connection, ["of-uploads"]) as node:
        await files.put("old/upload-0a1b2c3d", data())
        await files.put("mine/upload-0a1b2c3d", data())
        first = await node.submit("of-uploads", id="mine", file="mine/upload-0a1b2c3d", name="a.csv")
        await node.until("mine", "done")
        monkeypatch.setattr("actors.batch.new_batches.FRESH_MS", -HOUR_MS)
        with pytest.raises(BatchRefused, match="send it again"):
            await node.submit("of-uploads", id="old", file="old/upload-0a1b2c3d", name="a.csv")
        again = await node.submit("of-uploads", id="mine", file="mine/upload-0a1b2c3d", name="a.csv")
    assert (again.state, again.created_ms) == ("done", first.created_ms)
