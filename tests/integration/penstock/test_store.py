"""A node on a disk that is nearly full, full, and has room again: nothing new, everything else, and no hand needed."""

import json
import shutil
import signal
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from penstock.admin.doctor import examine
from penstock.node.config import Config
from penstock.sdk.calls import client_error
from streams.buckets.files import Files
from streams.embedded.server import embedded_server
from streams.errors import StoreFailed
from streams.link.connection import connect
from streams.link.store_health import RESTART, room_at
from streams.publish.publisher import Publisher
from streams.subjects import Namespace
from streams.topology.specs import wanted
from streams.topology.topology import apply
from tests.support.command import Running, node, penstock
from tests.support.disks import fill, small_disk
from tests.support.moments import a_moment

JOBS = "/v1/topics/mail/jobs"
RESERVE = "/v1/topics/mail/reserve"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "96m") as folder:
        yield folder


class Door:
    """The node's gateway."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def ask(self, path: str, body: object = None, method: str = "") -> tuple[int, Any]:
        async with self._session.request(method or ("GET" if body is None else "POST"), path, json=body) as answer:
            return answer.status, await answer.json()

    async def finishes(self, jobs: list[Any]) -> bool:
        status, told = await self.ask("/v1/receipts/finish", {"receipts": [job["receipt"] for job in jobs]})
        return status == 200 and told["ok"] == len(jobs)

    async def is_ready(self) -> bool:
        return (await self.ask("/ready"))[0] == 200


@asynccontextmanager
async def up(disk: Path) -> AsyncIterator[tuple[Running, Door]]:
    async with node("--data", str(disk / "data"), "--sink", "none", "--http", "127.0.0.1:0") as running:
        port = (await running.logged("gateway.listens"))["port"]
        await running.logged("node.ready")
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            yield running, Door(session)


def take_all_but_what_is_kept(disk: Path) -> Path:
    """Leave half of the room that is kept for settling and deleting; return the file to remove."""
    free, kept = room_at(disk)
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(free - kept // 2))
    return ballast


async def until(condition: Callable[[], Awaitable[bool]], within_s: float = 60) -> None:
    with anyio.fail_after(within_s):
        while not await condition():
            await a_moment()


async def is_in_trouble(door: Door) -> bool:
    return not await door.is_ready()


async def test_on_a_full_disk_nothing_is_added_and_the_rest_goes_on(disk: Path) -> None:
    async with up(disk) as (running, door):
        assert (await door.ask(JOBS, [{"id": str(number)} for number in range(10)]))[0] == 200
        assert await door.is_ready()
        ballast = take_all_but_what_is_kept(disk)
        await until(lambda: is_in_trouble(door))
        status, told = await door.ask("/ready")
        assert (status, told["code"]) == (503, "unavailable")
        assert "full" in told["detail"]
        status, told = await door.ask(JOBS, {"id": "new"})
        assert (status, told["code"]) == (507, "unavailable")
        assert "delete" in told["hint"]
        status, held = await door.ask(RESERVE, {"most": 3})
        assert (status, len(held["jobs"])) == (200, 3)
        assert await door.finishes(held["jobs"])
        left = next(str(number) for number in range(10) if str(number) not in {job["id"] for job in held["jobs"]})
        assert (await door.ask(f"{JOBS}/{left}", method="DELETE"))[0] == 200
        looked = await penstock("doctor", "--data", str(disk / "data"), "--json")
        [store] = [check for check in looked.json()["checks"] if check["name"] == "store"]
        assert (store["level"], "full" in store["found"]) == ("fail", True)
        await running.logged("store.troubled", kind="store_full")
        await running.logged("notice")
        ballast.unlink()
        await until(door.is_ready)
        assert (await door.ask(JOBS, {"id": "new"}))[0] in (200, 201)
        await running.logged("store.well")


async def test_a_file_that_the_command_line_stores_needs_room_too(disk: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "rows.csv"
    sheet.write_text("sku\nA1\n")
    async with up(disk) as (_, door):
        take_all_but_what_is_kept(disk)
        await until(lambda: is_in_trouble(door))
        at = ("--data", str(disk / "data"))
        refused = await penstock("batch", "submit", str(sheet), "--task", "any", *at)
        assert (refused.code, "store is full" in refused.err) == (1, True), refused.err


async def test_an_upload_onto_a_failed_store_ends_soon_and_says_what_to_do(disk: Path, namespace: Namespace) -> None:
    """The monitoring address is not known, so only the silence of the stream shows it."""

    async def parts() -> AsyncIterator[bytes]:
        yield bytes(3 << 20)

    async with (
        embedded_server(disk / "server") as server,
        connect(server.url, name="test", namespace=namespace) as connection,
        Publisher(connection) as publisher,
    ):
        await apply(connection, wanted(namespace, profile="fast"))
        store = Files(connection, publisher, namespace.bucket("FILES"))
        await store.put("before", parts())
        ballast = fill(disk)
        with anyio.fail_after(15), pytest.raises(StoreFailed, match=r"OBJ_.*no space left on device") as failed:
            await store.put("large", parts())
        told = str(client_error(failed.value))
        assert told.endswith(RESTART)
        ballast.unlink()
        checks = await examine(Config(nats=server.url, namespace=namespace.name))
        [found] = [check for check in checks if check.name == "store"]
        assert (found.level, found.do) == ("fail", RESTART)
        assert "FILES: no space left on device" in found.found


async def test_a_node_that_starts_on_a_full_disk_serves_what_is_there(disk: Path) -> None:
    async with up(disk) as (running, door):
        assert (await door.ask(JOBS, {"id": "1", "body": "x" * 200_000}))[0] == 201
        take_all_but_what_is_kept(disk)
        await until(lambda: is_in_trouble(door))
        assert await running.end(signal.SIGTERM) == 0
    async with up(disk) as (running, door):
        told = await running.logged("store.troubled", kind="store_full")
        assert "make room" in told["do"]
        assert (await door.ask(JOBS, {"id": "2"}))[0] == 507
        [job] = (await door.ask(RESERVE, {"wait_ms": 10_000}))[1]["jobs"]
        assert await door.finishes([job])


async def test_without_any_room_a_node_says_what_to_do(disk: Path) -> None:
    async with up(disk) as (running, _):
        assert await running.end(signal.SIGTERM) == 0
    fill(disk)
    refused = await penstock("up", "--data", str(disk / "data"), "--sink", "none", "--http", "off")
    assert refused.code == 1
    assert "remove something else from this disk" in refused.err


async def test_a_store_that_could_not_be_written_works_again_by_itself(disk: Path) -> None:
    """nats-server keeps a stream closed that it could not write once; the node starts its server again."""
    async with up(disk) as (running, door):
        assert (await door.ask(JOBS, {"id": "before"}))[0] == 201
        ballast = fill(disk)
        await running.logged("store.troubled", kind="store_failed")
        status, told = await door.ask("/ready")
        assert (status, "failed" in told["detail"]) == (503, True)
        with anyio.fail_after(25):
            status, told = await door.ask(JOBS, {"id": "new"})
        assert (status, told["code"]) == (503, "unavailable")
        assert "nothing was done" in told["detail"]
        ballast.unlink()
        await running.logged("server.restarts")
        await until(door.is_ready)
        assert (await door.ask(JOBS, {"id": "new"}))[0] == 201
        assert (await door.ask(f"{JOBS}/before"))[0] == 200
        assert await running.end(signal.SIGTERM) == 0


@asynccontextmanager
async def failing_writes(file: Path, pid: int) -> AsyncIterator[None]:
    """Let each write of a process to a file end with an I/O error. Skips the test where that cannot be had."""
    if shutil.which("strace") is None:
        pytest.skip("I/O errors need strace")
    trace = ["strace", "-f", "-p", str(pid), "-P", str(file), "-e", "inject=write,pwrite64:error=EIO"]
    process = await anyio.open_process(trace, stdin=None, stdout=None)
    assert process.stderr is not None
    said = await process.stderr.receive()
    if b"attached" not in said:
        process.kill()
        await process.wait()
        pytest.skip(f"I/O errors need the right to trace: {said.decode(errors='replace').strip()}")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read, process.stderr)
        try:
            yield
        finally:
            process.terminate()
            with anyio.CancelScope(shield=True):
                await process.wait()
            tasks.cancel_scope.cancel()


async def _read(stream: AsyncIterable[bytes]) -> None:
    async for _ in stream:
        pass


async def test_a_disk_that_fails_is_told_and_works_again(disk: Path) -> None:
    """The add that meets the error is of unknown outcome; those after it are refused at once."""
    async with up(disk) as (running, door):
        assert (await door.ask(JOBS, {"id": "before"}))[0] == 201
        [file] = (disk / "data" / "server").rglob("streams/PENSTOCK_JOBS/msgs/1.blk")
        pid = json.loads((disk / "data" / "server" / "server.json").read_text())["pid"]
        async with failing_writes(file, pid), anyio.create_task_group() as tasks:
            tasks.start_soon(door.ask, JOBS, {"id": "unlucky"})
            told = await running.logged("store.troubled", kind="store_failed")
            assert "PENSTOCK_JOBS" in told["text"]
            tasks.cancel_scope.cancel()
        await running.logged("server.restarts")
        await until(door.is_ready)
        assert (await door.ask(JOBS, {"id": "new"}))[0] == 201
        assert (await door.ask(f"{JOBS}/before"))[0] == 200
        assert await running.end(signal.SIGTERM) == 0


async def test_where_jobs_cannot_be_written_what_settles_them_is_refused_at_once_too(disk: Path) -> None:
    """There is too little room for the node to start its server again, until the ballast goes."""
    async with up(disk) as (running, door):
        assert (await door.ask(JOBS, [{"id": str(number)} for number in range(3)]))[0] == 200
        [held] = (await door.ask(RESERVE, {"most": 1}))[1]["jobs"]
        others = [str(number) for number in range(3) if str(number) != held["id"]]
        ballast = take_all_but_what_is_kept(disk)
        await running.logged("store.troubled", kind="store_full")
        [file] = (disk / "data" / "server").rglob("streams/PENSTOCK_JOBS/msgs/1.blk")
        pid = json.loads((disk / "data" / "server" / "server.json").read_text())["pid"]
        async with failing_writes(file, pid), anyio.create_task_group() as tasks:
            tasks.start_soon(door.ask, f"{JOBS}/{others[0]}", None, "DELETE")
            await running.logged("store.troubled", kind="store_failed")
            tasks.cancel_scope.cancel()
        with anyio.fail_after(25):
            finished = await door.ask("/v1/receipts/finish", {"receipts": [held["receipt"]]})
            deleted = await door.ask(f"{JOBS}/{others[1]}", method="DELETE")
            reserved = await door.ask(RESERVE, {"most": 1})
        for status, told in (finished, deleted, reserved):
            assert (status, told["code"], "nothing was done" in told["detail"]) == (503, "unavailable", True)
        ballast.unlink()
        await running.logged("server.restarts")
        await until(door.is_ready)
        assert await door.finishes([held])
        assert (await door.ask(f"{JOBS}/{others[1]}", method="DELETE"))[0] == 200
        assert await running.end(signal.SIGTERM) == 0
