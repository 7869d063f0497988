"""Files are stored whole or not at all, and are the same ones that `nats object` shows."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from streams.buckets.files import CHUNK, DamagedFile, Files, FileTooLarge, files_stream
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from streams.reads.log import count_of, extent_of, purge_subject
from tests.support.natscli import NatsCli
from tests.support.server import copies


@pytest.fixture
async def files(connection: Connection) -> AsyncIterator[Files]:
    bucket = connection.namespace.bucket("FILES")
    config = {
        "name": files_stream(bucket),
        "subjects": [f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"],
        "discard": "new",
        "allow_direct": True,
        "allow_rollup_hdrs": True,
        "allow_msg_ttl": True,
        "num_replicas": copies(connection),
    }
    await connection.api(f"STREAM.CREATE.{files_stream(bucket)}", config)
    async with Publisher(connection) as publisher:
        yield Files(connection, publisher, bucket)


async def parts_of(data: bytes, size: int = 50_000) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def put(files: Files, name: str, data: bytes) -> None:
    info = await files.put(name, parts_of(data))
    assert info.size == len(data)


async def read(files: Files, name: str) -> bytes:
    info = await files.info(name)
    assert info is not None
    return b"".join([part async for part in files.read(info)])


async def messages(files: Files, connection: Connection) -> int:
    return (await extent_of(connection, files_stream(connection.namespace.bucket("FILES")))).messages


@pytest.mark.parametrize("size", [0, 1, CHUNK, CHUNK + 1, 20 * CHUNK + 7])
async def test_what_is_put_is_read(files: Files, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    await put(files, "übung mit leer.xlsx", data[:size])
    assert await read(files, "übung mit leer.xlsx") == data[:size]
    assert [info.name async for info in files.all()] == ["übung mit leer.xlsx"]


async def test_a_second_file_takes_the_place_of_the_first(files: Files, connection: Connection) -> None:
    await put(files, "a", b"x" * CHUNK * 3)
    await put(files, "a", b"y")
    assert await read(files, "a") == b"y"
    assert await messages(files, connection) == 2


async def test_a_deleted_file_is_gone_with_its_chunks(files: Files, connection: Connection) -> None:
    await put(files, "a", b"x" * CHUNK * 3)
    assert await files.delete("a")
    assert await files.info("a") is None
    assert not await files.delete("a")
    assert await messages(files, connection) == 1  # its marker, as `nats object rm` leaves it


async def test_the_files_of_an_owner_go_and_no_others(files: Files, connection: Connection) -> None:
    for name in ("a/rows.csv", "a/result-1/übung.xlsx", "a/empty", "ab/rows.csv", "a", "a b/rows.csv"):
        await put(files, name, b"" if name == "a/empty" else b"x" * CHUNK * 2)
    await put(files, "a/rows.csv", b"again")
    found = await files.ids_of("a")
    assert set(found.values()) == {"a/rows.csv", "a/result-1/übung.xlsx"}
    await put(files, "a/result-1/übung.xlsx", b"later")
    await files.delete_ids(found)
    assert await read(files, "a/result-1/übung.xlsx") == b"later"
    await files.delete_ids(await files.ids_of("a"))
    assert {info.name async for info in files.all()} == {"a/empty", "ab/rows.csv", "a", "a b/rows.csv"}
    bucket = connection.namespace.bucket("FILES")
    assert await count_of(connection, files_stream(bucket), f"$O.{bucket}.C.a.>") == 0
    assert await files.ids_of("a") == {}


async def test_what_is_too_large_leaves_nothing(files: Files, connection: Connection) -> None:
    with pytest.raises(FileTooLarge, match="longer than 100 bytes"):
        await files.put("a", parts_of(b"x" * CHUNK * 20), most_bytes=100)
    assert (await files.info("a"), await messages(files, connection)) == (None, 0)


async def test_a_put_that_is_cut_off_leaves_nothing(files: Files, connection: Connection) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * CHUNK
        raise ConnectionResetError("the uploader went away")

    with pytest.raises(ConnectionResetError):
        await files.put("a", endless())
    with anyio.CancelScope() as scope:
        async for _ in parts_of(b"x"):
            scope.cancel()
            await files.put("a", parts_of(b"x" * CHUNK * 20))
    assert (await files.info("a"), await messages(files, connection)) == (None, 0)


async def test_missing_chunks_are_told(files: Files, connection: Connection) -> None:
    info = await files.put("a", parts_of(b"x" * CHUNK * 3))
    bucket = connection.namespace.bucket("FILES")
    await purge_subject(connection, files_stream(bucket), f"$O.{bucket}.C.{info.nuid}")
    with pytest.raises(DamagedFile, match="0 bytes of 393216"):
        await read(files, "a")


@pytest.mark.parametrize("name", ["", "x" * 256])
async def test_names_are_checked(files: Files, name: str) -> None:
    with pytest.raises(ValueError, match="use 1 to 255"):
        await files.put(name, parts_of(b"x"))


async def test_the_nats_command_reads_and_writes_the_same(
    files: Files, connection: Connection, server: EmbeddedServer, tmp_path: Path
) -> None:
    nats = NatsCli.or_skip(server.url, tmp_path)
    bucket, data = connection.namespace.bucket("FILES"), b"abc" * CHUNK
    await put(files, "ours.csv", data)
    await nats.run("object", "get", bucket, "ours.csv", "--output", str(tmp_path / "got"), "--force", "--no-progress")
    assert await anyio.Path(tmp_path / "got").read_bytes() == data
    await nats.run("object", "put", bucket, str(tmp_path / "got"), "--name", "theirs.csv", "--force", "--no-progress")
    assert await read(files, "theirs.csv") == data
