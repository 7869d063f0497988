"""What a job's ready copy is worth after the server's machine lost its power: it is all that is left of the job.

The server of these tests does not sync by itself in so short a time (profile `fast`). What the tests write out is what
the kernel had written out by then; the cut loses the rest.
"""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from actors.runtime.broker.resurrected import ResurrectedMessages
from streams.embedded.server import EmbeddedServer, embedded_server
from streams.link.connection import connect
from streams.store_memory import StoreMemory
from streams.subjects import Namespace
from tests.support.disks import PowerDisk, power_disk
from tests.support.jobs import Jobs, open_jobs
from tests.support.moments import a_moment
from tests.support.server import until_written

JOBS = 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PowerDisk]:
    with power_disk(tmp_path) as made:
        yield made


@asynccontextmanager
async def open_server(disk: PowerDisk, namespace: Namespace) -> AsyncIterator[tuple[EmbeddedServer, Jobs]]:
    async with (
        embedded_server(disk.path / "server") as server,
        connect(server.url, name="test", namespace=namespace) as connection,
        open_jobs(connection) as jobs,
    ):
        yield server, jobs


def memory_of(jobs: Jobs, file: Path, boot: str) -> StoreMemory:
    return StoreMemory(jobs.connection, [jobs.namespace.stream("JOBS")], file=file, boot=boot)


async def write_out_acks(server: EmbeddedServer) -> None:
    """Write out what consumers know, and nothing else."""
    await until_written(server)
    for path in server.store.rglob("o.dat"):
        for place in (path, path.parent):
            opened = os.open(place, os.O_RDONLY)
            os.fsync(opened)
            os.close(opened)


async def looked(jobs: Jobs, memory: StoreMemory) -> None:
    """Return once the node with this memory has made its first look."""
    await memory.look()
    async with anyio.create_task_group() as tasks:
        await tasks.start(
            ResurrectedMessages(jobs.connection, [jobs.namespace.stream("JOBS")], memory, lambda _key: True).run
        )
        with anyio.fail_after(30):
            while memory.is_in_doubt(jobs.namespace.stream("JOBS")):
                await a_moment()
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("is_remembered", [True, False])
@pytest.mark.parametrize("in_hand", [0, 1])
async def test_jobs_that_were_handed_out_just_before_a_power_cut_are_handed_out_again(
    disk: PowerDisk, tmp_path: Path, namespace: Namespace, is_remembered: bool, in_hand: int
) -> None:
    """One that is in hand keeps the ack floor down: what was acknowledged above it is passed over just the same."""
    file = tmp_path / "seen.json"
    async with open_server(disk, namespace) as (server, jobs):
        await jobs.added(JOBS)
        disk.sync()  # two minutes have passed
        held = await jobs.pull(in_hand) if in_hand else []
        assert len((await jobs.hand_out(JOBS, ttr_ms=600_000)).reservations) == JOBS - in_hand
        if is_remembered:
            await memory_of(jobs, file, "before").look()
        await write_out_acks(server)
        disk.cut()
        await server.kill()
        assert len(held) == in_hand
    disk.back()
    async with open_server(disk, namespace) as (_, jobs):
        await looked(jobs, memory_of(jobs, file, "after"))
        again = await jobs.hand_out(JOBS, ttr_ms=600_000)
        assert {one.job.id for one in again.reservations} == {str(number) for number in range(JOBS)}
