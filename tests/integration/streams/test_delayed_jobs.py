"""The sweep over JOBS and the reading of single jobs, on a real server."""

from itertools import count

import anyio
import pytest

from streams.errors import NoStream
from streams.jobs.delayed import DelayedJobs
from streams.jobs.timetable import at_line
from streams.link.connection import Connection
from streams.messages.jobs import JobDone, JobRecord, encode_job
from streams.publish.publisher import Outgoing, Publisher
from streams.subjects import token_of
from tests.support.jobs import topology_of_jobs
from tests.support.server import make_topology

pytestmark = pytest.mark.timeout(300)

LATER_MS = 4_000_000_000_000


def stored(connection: Connection, state: str, job_id: str, due_ms: int) -> Outgoing:
    """Return the message of a job in a state; a delayed one is a schedule."""
    key, namespace = token_of(job_id), connection.namespace
    job = JobRecord(topic="mail", id=job_id, due_ms=due_ms, added_ms=1, ttr_ms=60_000, most_attempts=3)
    payload = encode_job(JobDone(topic="mail", id=job_id, finished_ms=5) if state == "done" else job)
    schedule = {
        "Nats-Schedule": at_line(due_ms + 45),
        "Nats-Schedule-Target": namespace.job("ready-high", "mail", key),
        "X-Own": "kept",
    }
    return Outgoing(namespace.job(state, "mail", key), payload, f"{state}{key}", schedule if state == "delayed" else {})


async def swept(connection: Connection, after_seq: int = 0) -> tuple[set[tuple[int, bytes]], int]:
    found: set[tuple[int, bytes]] = set()
    stream = connection.namespace.stream("JOBS")
    last = await DelayedJobs(connection, connection.namespace).sweep(stream, found.update, after_seq=after_seq)
    return found, last


@pytest.mark.parametrize("others", [0, 100, 4_000])
async def test_a_sweep_finds_every_delayed_job(connection: Connection, publisher: Publisher, others: int) -> None:
    """Alone, among some others, and among so many that the delayed ones are asked for alone."""
    await make_topology(connection, topology_of_jobs(connection.namespace))
    ids = [f"id {n}" if n % 3 else f"id-{n}" for n in range(1_100)]
    await publisher.publish_many([stored(connection, "done", f"other {n}", 0) for n in range(others)])
    await publisher.publish_many([stored(connection, "delayed", each, LATER_MS + n) for n, each in enumerate(ids)])
    found, last = await swept(connection)
    assert found == {(LATER_MS + n, f"mail.{token_of(each)}".encode()) for n, each in enumerate(ids)}
    assert last == others + 1_100
    assert await swept(connection, last - 1) == ({(LATER_MS + 1_099, b"mail." + token_of(ids[-1]).encode())}, last)
    assert await swept(connection, last) == (set(), last)
    assert (await swept(connection, last + 1_000))[0] == set()


async def test_a_sweep_comes_to_an_end_while_jobs_are_added_faster_than_it_reads(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.jobs.delayed.SHORTEST_PAGE", 10)
    await make_topology(connection, topology_of_jobs(connection.namespace))
    await publisher.publish_many([stored(connection, "delayed", f"old-{n}", LATER_MS) for n in range(100)])
    found: set[tuple[int, bytes]] = set()

    async def keep_adding() -> None:
        for round_ in count():
            await publisher.publish_many(
                [stored(connection, "delayed", f"new-{round_}-{n}", LATER_MS) for n in range(100)]
            )

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep_adding)
            jobs, stream = DelayedJobs(connection, connection.namespace), connection.namespace.stream("JOBS")
            last = await jobs.sweep(stream, found.update, rest=1.0)
            tasks.cancel_scope.cancel()
    assert found >= {(LATER_MS, b"mail." + token_of(f"old-{n}").encode()) for n in range(100)}
    assert last < 1_000, "it reads what there was when it began"


async def test_a_sweep_of_nothing(connection: Connection) -> None:
    with pytest.raises(NoStream):
        await swept(connection)
    await make_topology(connection, topology_of_jobs(connection.namespace))
    assert await swept(connection) == (set(), 0)


async def test_single_jobs_are_read_with_what_it_takes_to_fire_them(
    connection: Connection, publisher: Publisher
) -> None:
    await make_topology(connection, topology_of_jobs(connection.namespace))
    await publisher.publish_many(
        [
            stored(connection, "delayed", "1", LATER_MS),
            stored(connection, "ready", "2", LATER_MS),
            stored(connection, "delayed", "3 ü", LATER_MS + 1),
        ]
    )
    names = [f"mail.{token_of(each)}".encode() for each in ("1", "2", "3 ü", "4")]
    reader = DelayedJobs(connection, connection.namespace)
    found, unanswered = await reader.read(names)
    one, three = sorted(found, key=lambda job: job.seq)
    assert not unanswered
    assert (one.name, one.due_ms, one.seq, one.server_ms) == (names[0], LATER_MS, 1, LATER_MS + 45)
    assert (three.name, three.due_ms, three.seq) == (names[2], LATER_MS + 1, 3)
    assert one.target == connection.namespace.job("ready-high", "mail", "1")
    assert one.own == "X-Own: kept\r\n"
    assert await reader.read([]) == ([], set())
    reader.close()
    assert await reader.read(names[:1]) == ([one], set())


async def test_who_closes_a_reader_listens_no_more(connection: Connection) -> None:
    await make_topology(connection, topology_of_jobs(connection.namespace))
    reader, before = DelayedJobs(connection, connection.namespace), set(connection.client._subs)
    await reader.read([b"mail.1"])
    assert set(connection.client._subs) > before
    reader.close()
    assert set(connection.client._subs) == before


async def test_reads_beside_one_another_each_get_their_own_jobs(connection: Connection, publisher: Publisher) -> None:
    await make_topology(connection, topology_of_jobs(connection.namespace))
    ids = [f"id-{n}" for n in range(60)]
    await publisher.publish_many([stored(connection, "delayed", each, LATER_MS) for each in ids])
    names = [f"mail.{token_of(each)}".encode() for each in ids]
    reader, found = DelayedJobs(connection, connection.namespace), dict[int, list[bytes]]()

    async def read(part: int) -> None:
        jobs, _ = await reader.read(names[part::3])
        found[part] = [job.name for job in jobs]

    async with anyio.create_task_group() as tasks:
        for part in range(3):
            tasks.start_soon(read, part)
    assert {part: sorted(each) for part, each in found.items()} == {part: sorted(names[part::3]) for part in range(3)}
