"""The delay timer on a real server. The server's own schedules are set so late that only a timer can have fired."""

import anyio
import pytest

from actors.jobs.adds import Stored
from actors.jobs.rules.due_times import FEW
from actors.jobs.store import JobStore
from streams.clock import monotonic_s, now_ms
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection, connect
from streams.link.server_clock import ServerClock
from streams.messages.jobs import JobRecord
from streams.publish.publisher import Publisher
from streams.reads.log import purge_subject, read_log
from streams.subjects import Namespace
from tests.support.moments import a_moment
from tests.support.server import fresh_namespace, make_topology
from tests.support.timers import (
    SERVER_LATER_MS,
    delay,
    ready_jobs,
    running_timer,
    topology_of_timers,
    until_complete,
    until_ready,
)

pytestmark = pytest.mark.timeout(300)

WITHIN_S = 180
HOUR_MS = 3_600_000


async def waiting_ids(connection: Connection) -> set[str]:
    patterns = connection.namespace.jobs_patterns("delayed", ">")
    logs = [read_log(connection, stream, pattern) for stream, pattern in patterns.items()]
    return {entry.subject.rpartition(".")[2] for log in logs async for entry in log}


async def test_jobs_become_ready_when_they_are_due_none_early_and_each_once(
    connection: Connection, publisher: Publisher
) -> None:
    with anyio.fail_after(WITHIN_S):
        async with running_timer(connection, publisher) as firer:
            await until_complete(firer.timer)
            start_ms = now_ms() + 5_000
            for n in range(200):
                await delay(connection, publisher, f"job {n}", start_ms + 5 * n)
            ready = await until_ready(connection, 200)
            while len(firer.heard.late_s) + firer.heard.left < 200:  # the last answers
                await a_moment()
    assert {job.id for job in ready} == {f"job {n}" for n in range(200)}
    assert all(job.stored_ms >= job.due_ms for job in ready)
    places = [int(job.id.removeprefix("job ")) for job in sorted(ready, key=lambda job: job.seq)]
    # a busy machine has a partition wait for a moment
    assert max(abs(n - place) for place, n in enumerate(places)) < 50
    assert await waiting_ids(connection) == set()
    assert firer.heard.left <= 20  # the server fires what a busy machine lets wait
    assert firer.timer.known == 0


async def test_an_earlier_job_wakes_a_timer_that_sleeps_for_a_later_one(
    connection: Connection, publisher: Publisher
) -> None:
    with anyio.fail_after(WITHIN_S):
        async with running_timer(connection, publisher) as firer:
            await until_complete(firer.timer)
            await delay(connection, publisher, "later", now_ms() + HOUR_MS)
            while firer.timer.known < 1:
                await a_moment()
            await delay(connection, publisher, "sooner", now_ms() + 500)
            (ready,) = await until_ready(connection, 1)
            assert ready.id == "sooner"
            assert await waiting_ids(connection) == {"later"}


async def test_what_was_stored_before_is_found_by_the_sweep(connection: Connection, publisher: Publisher) -> None:
    await make_topology(connection, topology_of_timers(connection))
    due_ms = now_ms() + 3_000
    for n in range(50):
        await delay(connection, publisher, f"id {n}", due_ms, is_told=False)
    with anyio.fail_after(WITHIN_S):
        async with running_timer(connection, publisher) as firer:
            ready = await until_ready(connection, 50)
            assert firer.heard.left == 0
    assert all(job.stored_ms >= due_ms for job in ready)


async def test_a_job_that_was_cancelled_does_not_become_ready_and_one_replaced_does_when_it_says(
    connection: Connection, publisher: Publisher
) -> None:
    with anyio.fail_after(WITHIN_S):
        async with running_timer(connection, publisher) as firer:
            await until_complete(firer.timer)
            soon_ms = now_ms() + 6_000
            await delay(connection, publisher, "cancelled", soon_ms)
            seqs = {name: await delay(connection, publisher, name, soon_ms) for name in ("later", "never")}
            sooner = await delay(connection, publisher, "sooner", soon_ms + HOUR_MS)
            stream = connection.namespace.jobs_stream("mail")
            assert await purge_subject(connection, stream, connection.namespace.job("delayed", "mail", "cancelled"))
            await delay(connection, publisher, "later", soon_ms + 1_500, expected=seqs["later"])
            await delay(connection, publisher, "never", soon_ms + HOUR_MS, expected=seqs["never"], is_told=False)
            await delay(connection, publisher, "sooner", soon_ms + 500, expected=sooner)
            ready = await until_ready(connection, 2)
            assert {job.id: job.due_ms for job in ready} == {"later": soon_ms + 1_500, "sooner": soon_ms + 500}
            assert all(job.stored_ms >= job.due_ms for job in ready)
            assert await waiting_ids(connection) == {"never"}


async def test_a_store_and_a_timer_understand_each_other(connection: Connection, publisher: Publisher) -> None:
    """The real backstop: who fires is open on a busy machine, so only what both promise is asserted."""
    with anyio.fail_after(WITHIN_S):
        async with running_timer(connection, publisher) as firer:
            await until_complete(firer.timer)
            clock = ServerClock(connection, connection.namespace.jobs_streams())
            store = JobStore(connection, publisher, connection.namespace, clock)
            await clock.measure()
            jobs = [
                JobRecord(
                    topic="mail",
                    id=f"größe {n}",
                    due_ms=clock.now_ms() + 5_000 + 3 * n,
                    added_ms=clock.now_ms(),
                    ttr_ms=60_000,
                    most_attempts=10,
                )
                for n in range(100)
            ]
            stored = await store.add_many([(job, "keep") for job in jobs])
            assert all(isinstance(each, Stored) and each.state == "delayed" for each in stored)
            assert await store.delete("mail", "größe 7") == "delayed"
            ready = await until_ready(connection, 99)
            assert {job.id for job in ready} == {job.id for job in jobs} - {"größe 7"}
            assert all(job.stored_ms >= job.due_ms for job in ready)
            while firer.timer.known:
                await a_moment()
            assert len(firer.heard.late_s) + firer.heard.left <= 100


async def test_what_is_too_late_is_left_to_the_server(connection: Connection, publisher: Publisher) -> None:
    with anyio.fail_after(WITHIN_S):
        async with running_timer(connection, publisher) as firer:
            await until_complete(firer.timer)
            due_ms = now_ms() + 1_000
            await delay(connection, publisher, "job", due_ms, server_ms=due_ms)  # no time at all before the server
            (ready,) = await until_ready(connection, 1)
            assert ready.stored_ms >= due_ms
            while not firer.heard.left:
                await a_moment()
            assert firer.heard.late_s == []


async def test_after_a_slow_moment_jobs_are_fired_again_at_once(connection: Connection, publisher: Publisher) -> None:
    """Without a look at the server the timer would leave all jobs of the next second to it."""
    with anyio.fail_after(WITHIN_S):
        async with running_timer(connection, publisher) as firer:
            await until_complete(firer.timer)
            left, rounds = 60, 0
            while left > 30:  # a busy machine leaves some to the server, too
                rounds, before = rounds + 1, firer.heard.left
                start_ms = now_ms() + 1_500
                for n in range(60):
                    due_ms = start_ms + 10 * n
                    await delay(connection, publisher, f"after {rounds}-{n}", due_ms, server_ms=due_ms + 900)
                while now_ms() < start_ms:
                    await a_moment()
                for _ in range(FEW):
                    firer.timer._trips.took(2_000.0, monotonic_s() * 1000)
                await until_ready(connection, 60 * rounds)
                while len(firer.heard.late_s) + firer.heard.left < 60 * rounds:
                    await a_moment()
                left = firer.heard.left - before


async def test_notices_that_are_none_do_no_harm(connection: Connection, publisher: Publisher) -> None:
    with anyio.fail_after(WITHIN_S):
        async with running_timer(connection, publisher) as firer:
            await until_complete(firer.timer)
            for rubbish in (b"", b"\xc1", b"\x90", b"\x91\x93\x01\x02\xa9a b\r\nPING", b"\x91\x93\x01\x02\xa1a"):
                await connection.publish_core(connection.namespace.due(0), rubbish)
            await delay(connection, publisher, "job", now_ms() + 1_000)
            assert len(await until_ready(connection, 1)) == 1


# ---- the server goes


async def test_after_a_restart_of_the_server_jobs_are_fired_as_before(own_server: EmbeddedServer) -> None:
    namespace: Namespace = fresh_namespace()
    with anyio.fail_after(WITHIN_S):
        async with (
            connect(own_server.url, name="test", namespace=namespace) as connection,
            Publisher(connection) as publisher,
            running_timer(connection, publisher) as firer,
        ):
            await until_complete(firer.timer)
            await delay(connection, publisher, "known", now_ms() + 4_000)
            await delay(connection, publisher, "not told", now_ms() + 6_000, is_told=False)
            await own_server.kill()
            await own_server.start()
            ready = await until_ready(connection, 2)
            assert all(job.stored_ms >= job.due_ms for job in ready)
            assert all(job.stored_ms < job.due_ms + SERVER_LATER_MS for job in ready)
            assert len(await ready_jobs(connection)) == 2


async def test_what_falls_due_while_the_link_is_down_is_left_to_the_server(own_server: EmbeddedServer) -> None:
    """A shot that waited for the reconnect would come long after the server's own, and make the job ready twice."""
    with anyio.fail_after(WITHIN_S):
        async with (
            connect(own_server.url, name="test", namespace=fresh_namespace()) as connection,
            Publisher(connection) as publisher,
            running_timer(connection, publisher) as firer,
        ):
            await until_complete(firer.timer)
            cut = anyio.Event()
            connection.on_disconnect(cut.set)
            due_ms = now_ms() + 2_500
            await delay(connection, publisher, "job", due_ms)
            while not firer.timer._loaded:
                await a_moment()
            await own_server.kill()
            await cut.wait()
            assert now_ms() < due_ms
            while not firer.heard.left:
                await a_moment()
            assert now_ms() >= due_ms
            await own_server.start()
            await connection.api("INFO", timeout_s=20)  # goes the way that a shot would have gone
            assert await waiting_ids(connection) == {"job"}
            assert await ready_jobs(connection) == []
