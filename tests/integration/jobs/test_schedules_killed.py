"""The leading node is killed between two steps of an occurrence, and the next one loses and doubles nothing."""

from __future__ import annotations

import anyio
import pytest

from actors.jobs.rules.schedule_record import Schedule, decode_schedule
from actors.jobs.rules.schedule_times import occurrence_id
from actors.jobs.rules.schedule_views import ScheduleView
from actors.jobs.schedule_desk import ScheduleDesk
from actors.jobs.store import JobStore
from streams.buckets.bucket import Bucket
from streams.clock import SYSTEM, now_ms
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from streams.topology.specs import wanted
from tests.support.command import node
from tests.support.moments import a_moment
from tests.support.server import make_topology

LONG_S = 60.0


@pytest.mark.parametrize("point", ["job.claim:1", "job.claim:3", "job.recur:1", "job.recur:3"])
async def test_a_tick_fires_once_though_the_leader_is_killed(
    connection: Connection, publisher: Publisher, server: EmbeddedServer, point: str
) -> None:
    namespace = connection.namespace
    await make_topology(connection, wanted(namespace, profile="fast"))
    records = Bucket(connection, publisher, namespace.bucket("RECURRING"), bytes)
    store = JobStore(connection, publisher, namespace, SYSTEM)
    arguments = ["--nats", server.url, "--namespace", namespace.name, "--sink", "none", "--http", "off"]
    arguments += ["--roles", "timer,desk"]
    wish = Schedule(every_ms=1000, overlap="allow", misfire="all")
    killed = {"PENSTOCK_LOG_FORM": "json", "PENSTOCK_CRASH_AT": point}
    async with node(*arguments, "--name", "first", environment=killed) as first:
        await first.logged("node.ready", LONG_S)
        desk = ScheduleDesk(records, SYSTEM)
        stored = (await desk.add("mail", "each", wish)).schedule
        await desk.backfill("mail", "each", *backfilled(stored))
        job_id = (await desk.trigger("mail", "each")).id
        assert await first.end(within_s=LONG_S) == -9
    async with node(*arguments, "--name", "second", environment={"PENSTOCK_LOG_FORM": "json"}):
        with anyio.fail_after(LONG_S):
            while (
                (record := await read(records)).adding
                or record.triggered
                or record.backfill
                or record.last_ms < now_ms()
            ):
                await a_moment()
    dues = [*range(stored.start_ms + 1000, record.last_ms + 1, 1000)]
    from_ms, to_ms = backfilled(stored)
    dues += [due_ms for due_ms in range(stored.start_ms - 60_000, stored.start_ms, 1000) if from_ms <= due_ms < to_ms]
    for expected in (job_id, *(occurrence_id("each", due_ms) for due_ms in dues)):
        assert await store.find("mail", expected) is not None, f"{expected} is missing"
    counts = await store.count("mail")
    assert counts.delayed + counts.ready == len(dues) + 1, "none is there twice"


def backfilled(record: ScheduleView) -> tuple[int, int]:
    """Return a range with thirty times before the start: more than one claim."""
    return record.start_ms - 30_000, record.start_ms


async def read(records: Bucket[bytes]) -> Schedule:
    entry = await records.get("mail.each")
    assert entry is not None
    return decode_schedule(entry.raw)
