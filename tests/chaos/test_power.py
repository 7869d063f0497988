"""Power cuts of the server's disk: a loop-mounted file system that is shut down without its log."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from itertools import count
from pathlib import Path

import anyio
import pytest

from actors.jobs.adds import Stored
from actors.jobs.reservations import JobSettled
from actors.runtime.broker.resurrected import ResurrectedMessages
from streams.embedded.server import EmbeddedServer, embedded_server
from streams.errors import StreamError
from streams.link.connection import connect
from streams.store_memory import StoreMemory
from streams.subjects import Namespace
from tests.support.chaos import Form
from tests.support.disks import PowerDisk, power_disk
from tests.support.jobs import TOPIC, Jobs, open_jobs
from tests.support.moments import a_moment
from tests.support.processes import cluster, urls_of

OLD_S = 156.0
"""The server syncs every 120 s, at worst just before the jobs came, and the kernel writes within 30 s."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PowerDisk]:
    with power_disk(tmp_path) as made:
        yield made


@asynccontextmanager
async def open_server(
    disk: PowerDisk, namespace: Namespace, *, sync_always: bool
) -> AsyncIterator[tuple[EmbeddedServer, Jobs]]:
    async with (
        embedded_server(disk.path / "server", sync_always=sync_always) as server,
        connect(server.url, name="chaos", namespace=namespace) as connection,
        open_jobs(connection) as jobs,
    ):
        yield server, jobs


class Told:
    """What was acknowledged: ids that are there, and ids that are over. What was not answered is in neither."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.over: set[str] = set()
        self.counts = {"added": 0, "finished": 0, "deleted": 0}

    @asynccontextmanager
    async def working(self, jobs: Jobs, name: str) -> AsyncIterator[None]:
        """Have eight work at the same time until the block ends."""
        is_over = anyio.Event()
        async with anyio.create_task_group() as tasks:
            for worker in range(8):
                tasks.start_soon(self.work, jobs, f"{name}-{worker}", is_over)
            yield
            is_over.set()

    async def work(self, jobs: Jobs, name: str, is_over: anyio.Event) -> None:
        """Add, finish and delete until it is over, under ids that begin so."""
        for number in count():
            if is_over.is_set():
                return
            with suppress(StreamError):
                await self._add(jobs, f"{name}-{number}", number)

    async def _add(self, jobs: Jobs, job_id: str, number: int) -> None:
        if not isinstance(await jobs.add(job_id, body="x" * 200), Stored):
            return
        self.there.add(job_id)
        self.counts["added"] += 1
        if number % 3 == 1:
            await self._delete(jobs, job_id)
        elif number % 3 == 2:
            await self._finish(jobs)

    async def _delete(self, jobs: Jobs, job_id: str) -> None:
        self.there.discard(job_id)
        if await jobs.store.delete(TOPIC, job_id) in ("ready", "delayed"):
            self.over.add(job_id)
            self.counts["deleted"] += 1

    async def _finish(self, jobs: Jobs) -> None:
        for held in (await jobs.hand_out(1, wait_s=1.0, ttr_ms=600_000)).reservations:
            self.there.discard(held.job.id)
            [settled] = await jobs.store.finish_many([held.receipt], remember_s=0)
            if isinstance(settled, JobSettled):
                self.over.add(held.job.id)
                self.counts["finished"] += 1

    async def check(self, jobs: Jobs) -> None:
        """All that is there must be there, and nothing that is over. Three servers may have to elect a leader first."""
        states: dict[str, str | None] = {}
        with anyio.fail_after(120):
            while left := sorted((self.there | self.over) - states.keys()):
                with suppress(StreamError):
                    for job_id in left:
                        states[job_id] = await jobs.state(job_id)
        lost = {job_id for job_id in self.there if states[job_id] not in ("ready", "reserved")}
        back = {job_id for job_id in self.over if states[job_id] not in (None, "done")}
        assert (lost, back) == (set(), set()), self.counts


@pytest.mark.timeout(1800)
async def test_a_power_cut_of_a_safe_server_costs_nothing_and_brings_nothing_back(
    disk: PowerDisk, namespace: Namespace, form: Form
) -> None:
    told, chance = Told(), form.chance("power")
    for round_ in range(form.pick(2, 18)):
        async with open_server(disk, namespace, sync_always=True) as (server, jobs):
            jobs.publisher._deadline_s = 1.0  # nobody will answer any more
            async with told.working(jobs, str(round_)):
                await anyio.sleep(chance.uniform(1.0, 4.0))
                disk.cut()
                await server.kill()
        disk.back()
        async with open_server(disk, namespace, sync_always=True) as (_, jobs):
            await told.check(jobs)
    assert all(told.counts.values()), told.counts


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("at_once", [3, 1])
async def test_power_cuts_of_three_servers_cost_nothing_and_bring_nothing_back(
    tmp_path: Path, namespace: Namespace, form: Form, at_once: int
) -> None:
    """Of all three at once, or of one after the other, while the others go on. What is asked meanwhile goes on, too:
    it is repeated until there is an answer."""
    told, chance = Told(), form.chance(f"power of {at_once}")
    with ExitStack() as mounted:
        disks = [mounted.enter_context(power_disk(tmp_path / f"d{at}")) for at in range(3)]
        async with (
            cluster(tmp_path, stores=[disk.path / "server" for disk in disks]) as servers,
            connect(urls_of(servers), name="chaos", namespace=namespace) as connection,
            open_jobs(connection) as jobs,
        ):
            for round_ in range(form.pick(2, 8)):
                hit = chance.sample(range(3), at_once)
                async with told.working(jobs, str(round_)):
                    await anyio.sleep(chance.uniform(1.0, 4.0))
                    for at in hit:
                        disks[at].cut()
                    for at in hit:
                        servers[at].kill()
                    await anyio.sleep(chance.uniform(0.0, 3.0))
                    for at in hit:
                        disks[at].back()
                        servers[at].start()
                    await anyio.sleep(chance.uniform(0.0, 5.0))
                await told.check(jobs)
    assert all(told.counts.values()), told.counts


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("handed_out_s", [3.0, 20.0])
async def test_a_power_cut_of_a_fast_server_costs_nothing_that_is_older_than_two_minutes(
    disk: PowerDisk, tmp_path: Path, namespace: Namespace, handed_out_s: float
) -> None:
    """The server and the kernel write what they write; the jobs are handed out so long before the cut."""
    stream, file = namespace.stream("JOBS"), tmp_path / "seen.json"
    async with open_server(disk, namespace, sync_always=False) as (server, jobs):
        await jobs.added(100)
        await anyio.sleep(OLD_S)
        assert len((await jobs.hand_out(100, ttr_ms=600_000)).reservations) == 100
        await StoreMemory(jobs.connection, [stream], file=file, boot="before").look()
        await anyio.sleep(handed_out_s)
        disk.cut()
        await server.kill()
    disk.back()
    async with open_server(disk, namespace, sync_always=False) as (_, jobs):
        memory = StoreMemory(jobs.connection, [stream], file=file, boot="after")
        await memory.look()
        async with anyio.create_task_group() as tasks:
            await tasks.start(ResurrectedMessages(jobs.connection, [stream], memory, lambda _key: True).run)
            with anyio.fail_after(30):
                while memory.is_in_doubt(stream):
                    await a_moment()
            tasks.cancel_scope.cancel()
        assert {await jobs.state(str(number)) for number in range(100)} <= {"ready", "reserved"}
