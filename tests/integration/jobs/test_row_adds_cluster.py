"""Rows on three servers, of which one that was away leads. It does not know the adds of what ended before its term."""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from anyio import Event

from actors.jobs.adds import LONGEST_AGE_S
from actors.jobs.row_adds import RowAdds, Since
from actors.jobs.worker.job import Job
from streams.clock import monotonic_s
from streams.errors import OutcomeUnknown, StreamError
from streams.link.connection import Connection, connect
from tests.integration.jobs.test_row_adds import adds, rows
from tests.support.job_workers import handler, until_gone, working
from tests.support.jobs import TOPIC, open_jobs
from tests.support.moments import a_moment
from tests.support.processes import ServerProcess, cluster, urls_of
from tests.support.server import leader_of, leading


async def test_a_leader_that_was_away_puts_no_row_in_flight_again_that_ended_since_it_was_read(tmp_path: Path) -> None:
    may_end: defaultdict[str, Event] = defaultdict(Event)

    async def handle(job: Job) -> None:
        await may_end[job.id].wait()

    async with cluster(tmp_path) as servers, connect(urls_of(servers), name="test") as connection:
        async with open_jobs(connection) as jobs, adds(jobs) as door, working(jobs, handler(handle, concurrency=5)):
            stream = jobs.namespace.stream("JOBS")
            away = await a_follower(servers, connection, stream)
            away.kill()
            read = await added(door, "1", "2")
            may_end["1"].set()
            await until_gone(jobs, "1")
            await lead_another(connection, stream)
            away.start()
            await lead(away, connection, stream)
            assert monotonic_s() - read[0] < LONGEST_AGE_S
            [answer] = await door.add(TOPIC, rows("1"), read)
            assert isinstance(answer, OutcomeUnknown)

            read = await added(door, "3")
            may_end["2"].set()
            await until_gone(jobs, "2")
            assert await door.add(TOPIC, rows("2"), read) == [False]


async def a_follower(servers: Sequence[ServerProcess], connection: Connection, stream: str) -> ServerProcess:
    leader = await leading(servers, connection, f"STREAM.INFO.{stream}")
    return next(one for one in servers if one is not leader and one.name != connection.client.server)


async def added(door: RowAdds, *ids: str) -> Since:
    """Add rows, once that can be done. Return a moment before the first one ended."""
    while True:
        read = door.since()
        if await door.add(TOPIC, rows(*ids), read) == [True] * len(ids):
            return read
        await a_moment()


async def lead_another(connection: Connection, stream: str) -> None:
    """Have another server lead than now. It stores a snapshot, and that has no ids of what is gone."""
    before = after = await leader_of(connection, f"STREAM.INFO.{stream}")
    while after in (before, ""):
        with suppress(StreamError):
            if after:
                await connection.api(f"STREAM.LEADER.STEPDOWN.{stream}")
            after = (await connection.api(f"STREAM.INFO.{stream}"))["cluster"].get("leader", "")
        await a_moment()


async def lead(server: ServerProcess, connection: Connection, stream: str) -> None:
    """Have this server lead, once it has all that the others have."""
    while True:
        with suppress(StreamError):
            members = (await connection.api(f"STREAM.INFO.{stream}"))["cluster"]
            if members.get("leader") == server.name:
                return
            if members.get("leader") and any(
                one["name"] == server.name and one["current"] for one in members["replicas"]
            ):
                wanted = {"placement": {"preferred": server.name}}
                await connection.api(f"STREAM.LEADER.STEPDOWN.{stream}", wanted)
        await a_moment()
