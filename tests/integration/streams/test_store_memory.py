"""A node knows of its server's streams what was last seen of them, and whether that can still be true."""

import shutil
from pathlib import Path

import anyio
import pytest

from streams.embedded.server import EmbeddedServer
from streams.errors import StreamError
from streams.link.connection import Connection, connect
from streams.publish.publisher import Publisher
from streams.store_memory import StoreMemory, WentBack
from tests.support.moments import a_moment
from tests.support.server import add_stream


async def things(connection: Connection, count: int) -> str:
    stream = await add_stream(connection, "THINGS")
    for number in range(count):
        await connection.request(connection.namespace.subject("things", str(number)))
    return stream


async def look(memory: StoreMemory) -> list[WentBack]:
    """Look as soon as the server answers again."""
    with anyio.fail_after(30):
        while True:
            try:
                return await memory.look()
            except StreamError:
                await a_moment()


@pytest.mark.parametrize(
    ("boot_before", "boot_now", "survives_power", "in_doubt"),
    [
        ("a", "a", False, False),
        ("a", "b", False, True),
        ("a", "", False, True),
        ("", "", False, True),
        (None, "a", False, True),
        ("a", "b", True, False),
        (None, "", True, False),
    ],
)
async def test_only_who_knows_that_nothing_was_lost_is_in_no_doubt(
    connection: Connection,
    tmp_path: Path,
    boot_before: str | None,
    boot_now: str,
    survives_power: bool,
    in_doubt: bool,
) -> None:
    stream, file = await things(connection, 3), tmp_path / "state" / "seen.json"
    if boot_before is not None:
        before = StoreMemory(connection, [stream], file=file, boot=boot_before, survives_power=True)
        assert await before.look() == []
    memory = StoreMemory(connection, [stream], file=file, boot=boot_now, survives_power=survives_power)
    assert await memory.look() == []
    assert memory.is_fresh
    assert memory.is_in_doubt(stream) is in_doubt
    memory.has_settled(stream)
    await memory.look()
    assert not memory.is_in_doubt(stream)


async def test_a_memory_that_cannot_be_kept_is_told_once(
    connection: Connection, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream = await things(connection, 1)
    (tmp_path / "state").write_text("is no folder")
    memory = StoreMemory(connection, [stream], file=tmp_path / "state" / "seen.json")
    for number in range(2):
        assert await memory.look() == []
        await connection.request(connection.namespace.subject("things", f"more-{number}"))
    [told] = [line.__dict__["fields"] for line in caplog.records if line.getMessage() == "store.not_remembered"]
    assert (told["file"], "PENSTOCK_STATE" in told["means"]) == (str(tmp_path / "state" / "seen.json"), True)


@pytest.mark.parametrize("is_alive", [True, False])
async def test_an_older_copy_of_the_files_is_told(own_server: EmbeddedServer, tmp_path: Path, is_alive: bool) -> None:
    store, copy, file = own_server.store / "jetstream", tmp_path / "copy", tmp_path / "seen.json"
    async with connect(own_server.url, name="test") as connection:
        stream = await things(connection, 3)
        memory = StoreMemory(connection, [stream], file=file, boot="a", survives_power=True)
        assert await memory.look() == []
        await own_server.stop()
        shutil.copytree(store, copy)
        await own_server.start()
        assert await look(memory) == []
        await connection.request(connection.namespace.subject("things", "more"))
        assert await memory.look() == []
        await own_server.stop()
        shutil.rmtree(store)
        shutil.copytree(copy, store)
        await own_server.start()
        if not is_alive:
            memory = StoreMemory(connection, [stream], file=file, boot="a", survives_power=True)
        [behind] = await look(memory)
        assert behind == WentBack(stream, 4, 3)
        assert memory.is_in_doubt(stream)
        assert await memory.look() == []


@pytest.mark.three_servers
async def test_what_is_behind_counts_at_once_on_one_server_and_once_it_has_lasted_on_three(
    connection: Connection, publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of three that is cut off from the others is behind, too, and has lost nothing."""
    stream, file = await add_stream(connection, "THINGS"), tmp_path / "seen.json"
    for number in range(3):  # by the publisher, which waits for three servers to elect
        await publisher.publish(connection.namespace.subject("things", str(number)), b"", expected_seq=0)
    await look(StoreMemory(connection, [stream], file=file))
    file.write_text(file.read_text().replace('"last_seq":3', '"last_seq":9'))
    memory = StoreMemory(connection, [stream], file=file)
    if connection.is_clustered:
        assert await look(memory) == []
        assert (memory.is_fresh, memory.is_in_doubt(stream)) == (False, False)
        monkeypatch.setattr("streams.store_memory.LASTS_S", 0.0)
    [behind] = await memory.look()
    assert (behind.had, behind.has) == (9, 3)
    assert (memory.is_fresh, memory.is_in_doubt(stream)) == (True, True)


async def test_a_killed_server_leaves_no_doubt(own_server: EmbeddedServer) -> None:
    async with connect(own_server.url, name="test") as connection:
        stream = await things(connection, 3)
        memory = StoreMemory(connection, [stream], survives_power=True)
        await memory.look()
        await own_server.kill()
        await own_server.start()
        assert await look(memory) == []
        assert not memory.is_in_doubt(stream)


async def test_what_cannot_be_written_down_is_remembered_by_the_process(connection: Connection, tmp_path: Path) -> None:
    stream, nowhere = await things(connection, 1), tmp_path / "file" / "seen.json"
    nowhere.parent.write_text("in the way")
    memory = StoreMemory(connection, [stream], file=nowhere, boot="a")
    assert await memory.look() == []
    assert await memory.look() == []
