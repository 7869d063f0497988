"""One server of three, the leader of JOBS, is cut off from the two others. Its clients and nodes still reach it."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest

from actors.jobs.rules.job_answers import Added, Reserved
from actors.jobs.worker.job import Job
from streams.errors import NoStream, StreamError
from streams.link.connection import connect
from streams.pull.once import PullOnce
from streams.store_memory import StoreMemory
from tests.support.desks import TOPIC, Office, open_office, open_second_office
from tests.support.job_workers import Log, handler, working
from tests.support.jobs import Jobs
from tests.support.moments import a_moment
from tests.support.processes import Links, cluster, open_links, urls_of
from tests.support.server import leading

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])  # three servers and an election: once is enough

HOUR = 3_600_000
NOT_KNOWN = ("unknown", "unavailable")


class Parted(NamedTuple):
    """A desk at the leader that is to be cut off, and one at another server."""

    links: Links
    leader: int
    cut_off: Office
    other: Office

    def part(self) -> None:
        self.links.cut_off(self.leader)


@pytest.fixture
async def parted(tmp_path: Path) -> AsyncIterator[Parted]:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        links = await enter(open_links())
        servers = await enter(cluster(tmp_path, links=links))
        first = await enter(connect(urls_of(servers), name="first"))
        with anyio.fail_after(60):
            office = await enter(open_office(first))
            leads = await leading(servers, first, f"STREAM.INFO.{office.namespace.stream('JOBS')}")
        leader = servers.index(leads)
        sides = [await enter(connect(servers[at % 3].url, name=f"n{at}")) for at in (leader, leader + 1)]
        yield Parted(links, leader, *[await enter(open_second_office(side)) for side in sides])


async def told(ask: Awaitable[object]) -> object:
    """Return what is answered. Errors say that nothing is known, or nothing was done."""
    try:
        answer = await ask
    except StreamError:
        return "unknown"
    return answer[0].code if isinstance(answer, list) else answer


async def all_told(asks: dict[str, Awaitable[object]]) -> dict[str, object]:
    """Ask all at the same time."""
    answers: dict[str, object] = {}

    async def ask(name: str, one: Awaitable[object]) -> None:
        answers[name] = await told(one)

    async with anyio.create_task_group() as tasks:
        for name, one in asks.items():
            tasks.start_soon(ask, name, one)
    return answers


async def until_done(office: Office, job_id: str) -> None:
    """Add a job as soon as the servers at this side have elected a leader."""
    while True:
        (answer,) = await office.try_add(job_id, delay_ms=HOUR)
        if isinstance(answer, Added):
            return


async def reserved(office: Office) -> Reserved:
    """Reserve a job as soon as the servers at this side have elected a leader of its consumer."""
    while True:
        with suppress(NoStream):
            return await office.reserve(ttr_ms=HOUR)


async def deleted(office: Office, job_id: str) -> str:
    """Delete a job as a client does, again until it is known whether it was done. Return the code."""
    while True:
        with suppress(StreamError):
            return (await office.desk.delete(TOPIC, job_id, nonce="once")).code


async def test_a_leader_that_is_cut_off_tells_nothing_that_is_no_longer_so(parted: Parted, tmp_path: Path) -> None:
    """The two others delete one job and add one. At the third, which does not know, each answer by what it has is
    wrong: the deleted job is there, the new one is not, and an add of the deleted id makes none."""
    here, there = parted.cut_off, parted.other
    with anyio.fail_after(120):
        await here.add("gone", delay_ms=HOUR)
        parted.part()
        await until_done(there, "new")
        assert (await there.desk.delete(TOPIC, "gone")).code == "ok"
        await there.add("held")
        receipt = (await reserved(there)).receipt
        answers = await all_told(
            {
                "look at the deleted job": here.state("gone"),
                "look at the new job": here.state("new"),
                "delete the new job": here.desk.delete(TOPIC, "new"),
                "delete the new job of any topic": here.desk.delete(None, "new"),
                "add the deleted job": here.try_add("gone", delay_ms=HOUR),
                "finish": here.desk.finish([receipt]),
                "release": here.desk.release([receipt]),
                "touch": here.desk.touch([receipt]),
            }
        )
        assert {name: answer for name, answer in answers.items() if answer not in NOT_KNOWN} == {}
        for office in (there, here):  # the server that is cut off has less, and has not gone back in time
            memory = StoreMemory(office.connection, [office.namespace.stream("JOBS")], file=tmp_path / "seen.json")
            assert await memory.look() == []
        parted.links.join()
        await until_done(here, "after")
        assert await here.state("gone") is None
        assert await here.state("new") == "delayed"
        assert (await here.desk.finish([receipt]))[0].code == "ok"


async def test_a_node_that_is_cut_off_begins_nothing_and_loses_what_it_runs(parted: Parted) -> None:
    """It holds a job beside the two that it runs. The others delete that one. Its own server replies to all that it
    sends, and knows nothing of it."""
    here, there = parted.cut_off, parted.other
    log, may_end = Log(), anyio.Event()

    async def handle(job: Job) -> None:
        log("begun", job.id)
        try:
            await (anyio.sleep_forever() if job.id == "stays" else may_end.wait())
        finally:
            log("ended", job.id, job.is_lost)

    async with PullOnce(here.connection) as pulls:
        jobs = Jobs(here.connection, here.publisher, pulls)
        async with working(jobs, handler(handle, concurrency=2)) as work:
            work.worker.topic(TOPIC).fetch_ahead(1)
            for job_id in ("stays", "ends"):
                await here.add(job_id)
                await log.has(f"begun {job_id}")
            await here.add("held")
            with anyio.fail_after(20):
                while work.worker.topic(TOPIC).held < 3:
                    await a_moment()
            parted.part()
            with anyio.fail_after(60):
                await until_done(there, "new")
                assert await deleted(there, "held") == "ok"
            may_end.set()
            await log.has("ended ends False")
            await log.has("ended stays True")
            parted.links.join()
            with anyio.fail_after(60):
                await until_done(here, "after")
            await here.add("last")
            await log.has("begun last")
    assert "begun held" not in log.lines
