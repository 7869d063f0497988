"""The lines of `bench scale` about topics and jobs."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import anyio

from actors.jobs.adds import Stored
from actors.jobs.desk import JobDesk
from actors.jobs.reads import JobReads
from actors.jobs.rules.job_answers import MOST_TOPICS, Added
from actors.jobs.stream import JobStream
from bench._delayed import FILLED, Bed, lateness_bed, memory_mb
from bench._fetch import fetch_bench
from bench._quiet import cpu_s
from bench._scale import Line
from bench.jobs import open_bench_desk
from streams.clock import monotonic_s
from streams.messages.jobs import MOST_JOBS, NewJob, body_of
from streams.publish.publisher import Outgoing
from streams.topology.specs import job_consumer
from streams.topology.topology import ensure_consumer

SIZES = (10_000, 100_000)
TOPICS = (300, 3_000)
WAITING, MANY_WAITING = (100_000, 1_000_000), (1_000_000, 10_000_000)
JOBS_A_TOPIC = 10
PAGE, PAGES, LOOKS, FIRST_ADDS = 100, 40, 5, 200
LISTED_S, PAGE_MS, FIRST_ADD_MS, ADD_MS = 1.0, 10.0, 20.0, 20.0
LOOK_S = 0.02
TAKES = 300
PARTS = 8
TAKE_PART = 0.35
MONTH_MS, YEAR_MS = 30 * 86_400_000, 365 * 86_400_000
BODY = body_of("x" * 198)


class _Topics(NamedTuple):
    """What was measured with so many topics."""

    list_s: float
    count_s: float
    add_ms: float
    slow_add_ms: float


class _Waiting(NamedTuple):
    """What was measured with so many waiting jobs."""

    first_page_ms: float
    page_ms: float
    add_ms: float
    slow_add_ms: float
    count_s: float
    megabytes: float
    restart_s: float


async def lines() -> list[Line]:
    """Measure each in turn."""
    return [await _adds(), *await _of_topics(), *await _of_taken_topics(), *await _of_waiting_jobs(WAITING)]


async def far_lines() -> list[Line]:
    """Measure what waits at ten times as much. It needs 6 GB of disk, 6 GB of memory, and a quarter of an hour."""
    return await _of_waiting_jobs(MANY_WAITING)


async def _adds() -> Line:
    """Store ready jobs of one topic, in lists as long as a call may have."""
    costs: list[float] = []
    async with fetch_bench() as bench:
        namespace = bench.connection.namespace
        for size in SIZES:
            jobs = [Outgoing(namespace.job("ready", f"scale{size}", str(n)), b"{}") for n in range(size)]
            began_s = monotonic_s()
            for first in range(0, size, MOST_JOBS):
                await bench.publisher.publish_many(jobs[first : first + MOST_JOBS])
            costs.append((monotonic_s() - began_s) * 1e6 / size)
    return Line(what="ready jobs are stored", things="jobs", unit="us a job", sizes=SIZES, costs=(costs[0], costs[1]))


# ---- topics


async def _of_topics() -> list[Line]:
    """List and count topics with ten jobs each, and add the first job of new ones."""
    small, large = [await _with_topics(size) for size in TOPICS]

    def line(what: str, unit: str, costs: tuple[float, float], reached: float, most: float, of: str) -> Line:
        return Line(
            what=what, things="topics", unit=unit, sizes=TOPICS, costs=costs, reached=reached, most=most, of=of
        )  # fmt: skip

    def each_us(one_s: float, other_s: float) -> tuple[float, float]:
        return one_s * 1e6 / TOPICS[0], other_s * 1e6 / TOPICS[1]

    listed, counted = each_us(small.list_s, large.list_s), each_us(small.count_s, large.count_s)
    adds = (small.add_ms, large.add_ms)
    return [
        line("jobs topics", "us a topic", listed, large.list_s, LISTED_S, "s"),
        line("jobs count", "us a topic", counted, large.count_s, LISTED_S, "s"),
        line("a new topic's first add", "ms", adds, large.slow_add_ms, FIRST_ADD_MS, "ms at p99"),
    ]


async def _with_topics(size: int) -> _Topics:
    async with fetch_bench() as bench, open_bench_desk(bench) as desk:
        for number in range(size):
            jobs = [NewJob(topic=f"t{number}", id=f"{n}", body=BODY) for n in range(JOBS_A_TOPIC)]
            assert all(isinstance(answer, Added) for answer in await desk.add(jobs))
        await _until(lambda: _knows(desk, size))
        took_ms: list[float] = []
        for number in range(FIRST_ADDS):
            began_s = monotonic_s()
            [answer] = await desk.add([NewJob(topic=f"new{number}", id="1", body=BODY)])
            took_ms.append((monotonic_s() - began_s) * 1000)
            assert isinstance(answer, Added)
        return _Topics(
            list_s=await _median_s(lambda: _list_topics(desk)),
            count_s=await _median_s(lambda: _count_topics(desk)),
            add_ms=statistics.median(took_ms),
            slow_add_ms=statistics.quantiles(took_ms, n=100)[98],
        )


async def _of_taken_topics() -> list[Line]:
    """Take jobs of one topic while others have consumers, with jobs in one stream and in several (ADR 83). In one the
    server needs more for each consumer that is there: that is known, and has no limit here. In several it needs a part
    of that."""
    found: list[Line] = []
    for job_streams, most in ((1, None), (PARTS, TAKE_PART)):
        small, large = [await _with_taken_topics(size, job_streams) for size in TOPICS]
        found.append(
            Line(
                what=f"a job is reserved and finished, the server's CPU, streams of jobs: {job_streams}",
                things="taken topics", unit="ms", sizes=TOPICS, costs=(small, large), most_growth=20.0,
                reached=large / found[0].costs[1] if found else None, most=most, of="of one stream's",
            )
        )  # fmt: skip
    return found


async def _with_taken_topics(size: int, job_streams: int) -> float:
    """Return how many milliseconds of the server's CPU a job costs that is reserved and finished."""
    async with fetch_bench(job_streams=job_streams) as bench, open_bench_desk(bench) as desk:
        for number in range(size):
            await ensure_consumer(bench.connection, job_consumer(bench.connection.namespace, f"t{number}"))
        await desk.add([NewJob(topic="t0", id=f"{n}", body=BODY) for n in range(TAKES)])
        before_s = cpu_s(bench.server_pid)
        for _ in range(TAKES):
            [reserved] = await desk.reserve("t0", wait_ms=10_000)
            [answer] = await desk.finish([reserved.receipt])
            assert answer.code == "ok"
        return (cpu_s(bench.server_pid) - before_s) * 1000 / TAKES


async def _knows(desk: JobDesk, size: int) -> bool:
    return len(desk.known_topics()) >= size


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await holds():
            return
        await anyio.sleep(LOOK_S)


async def _list_topics(desk: JobDesk) -> None:
    after = ""
    while page := desk.topics(after=after):
        after = page[-1].topic


async def _count_topics(desk: JobDesk) -> None:
    after = ""
    while names := desk.topic_names(after=after, limit=MOST_TOPICS):
        await desk.count_many(names)
        after = names[-1]


async def _median_s(act: Callable[[], Awaitable[None]]) -> float:
    took_s: list[float] = []
    for _ in range(LOOKS):
        began_s = monotonic_s()
        await act()
        took_s.append(monotonic_s() - began_s)
    return statistics.median(took_s)


# ---- waiting jobs


async def _of_waiting_jobs(sizes: tuple[int, int]) -> list[Line]:
    """Read and count jobs of one topic that are due in a month or later, and start their server again."""
    found: list[_Waiting] = []
    async with lateness_bed() as bed:
        now_ms, before_mb = bed.clock.now_ms(), memory_mb(bed.server.pid)
        there = 0
        for size in sizes:
            await bed.fill(size - there, range(now_ms + MONTH_MS, now_ms + YEAR_MS), first=there)
            there = size
            reads = JobReads(JobStream(bed.connection, bed.publisher, bed.namespace, bed.clock))
            pages_ms = await _pages_ms(reads)
            adds_ms = await _adds_ms(bed, size)
            count_s = await _median_s(lambda reads=reads, size=size: _counted(reads, size))  # type: ignore[misc]
            used_mb, began_s = memory_mb(bed.server.pid) - before_mb, monotonic_s()
            await bed.server.restart()
            restart_s = monotonic_s() - began_s
            await _until(bed.is_answered)
            page_ms, slow_ms = statistics.median(pages_ms[1:]), statistics.quantiles(adds_ms, n=100)[98]
            found.append(
                _Waiting(pages_ms[0], page_ms, statistics.median(adds_ms), slow_ms, count_s, used_mb, restart_s)
            )
    small, large = found

    def line(what: str, unit: str, costs: tuple[float, float], *limit: float, of: str = "ms") -> Line:
        reached, most = limit or (None, None)
        return Line(
            what=what, things="waiting jobs", unit=unit, sizes=sizes, costs=costs, reached=reached, most=most, of=of
        )

    def each(one: float, other: float, factor: float) -> tuple[float, float]:
        return one * factor / sizes[0], other * factor / sizes[1]

    pages, adds = (small.page_ms, large.page_ms), (small.add_ms, large.add_ms)
    return [
        line("a page of 100", "ms", pages, large.page_ms, PAGE_MS),
        line("a job is added", "ms", adds, large.slow_add_ms, ADD_MS, of="ms at p99"),
        line("a node's first page", "us a job", each(small.first_page_ms, large.first_page_ms, 1e3)),
        line("jobs count of a topic", "us a job", each(small.count_s, large.count_s, 1e6)),
        line("waiting jobs", "bytes a job", each(small.megabytes, large.megabytes, 1e6)),
        line("the embedded server starts again", "us a job", each(small.restart_s, large.restart_s, 1e6)),
    ]


async def _pages_ms(reads: JobReads) -> list[float]:
    """Read pages one after the other, and then the first ones again."""
    took_ms: list[float] = []
    for _ in range(2):
        cursor = ""
        for _ in range(PAGES):
            began_s = monotonic_s()
            page = await reads.list_jobs(FILLED, "delayed", cursor=cursor, most=PAGE)
            took_ms.append((monotonic_s() - began_s) * 1000)
            assert len(page.found) == PAGE
            cursor = page.cursor
    return took_ms


async def _adds_ms(bed: Bed, size: int) -> list[float]:
    """Add delayed jobs one after the other to those that wait. They are of another topic."""
    took_ms: list[float] = []
    for number in range(FIRST_ADDS):
        now_ms = bed.clock.now_ms()
        job = bed.job(size + number, now_ms + YEAR_MS, now_ms)
        began_s = monotonic_s()
        [answer] = await bed.store.add_many([(job, "keep")])
        took_ms.append((monotonic_s() - began_s) * 1000)
        assert isinstance(answer, Stored)
    return took_ms


async def _counted(reads: JobReads, size: int) -> None:
    assert (await reads.count(FILLED)).delayed == size
