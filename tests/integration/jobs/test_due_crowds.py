"""Many jobs that are due at once, with little room in each quarter of a second: the server fires them one after the
other, no timer is there, and the records tell when."""

import pytest
from anyio import fail_after

from actors.jobs.adds import Stored
from actors.jobs.rules import due_crowds
from actors.jobs.rules.job_rules import BACKSTOP_MS
from actors.jobs.store import JobStore
from streams.embedded.server import EmbeddedServer
from streams.jobs.moves import Move, Mover
from streams.link.connection import Connection, connect
from streams.link.server_clock import server_time_s
from streams.messages.jobs import decode_job, encode_job
from streams.publish.publisher import Publisher
from streams.reads.direct_get import get_batch
from tests.support.jobs import TOPIC, Jobs
from tests.support.moments import a_moment

FEW = 40


async def fires_ms(connection: Connection, stream: str, seq: int) -> int:
    """Return when the server fires the schedule that is stored there."""
    (message,), _ = await get_batch(connection, stream, {"seq": seq, "batch": 1}, timeout_s=10)
    return round(server_time_s(message.headers["Nats-Schedule"].removeprefix("@at ")) * 1000)


async def test_the_server_fires_a_crowd_one_after_the_other_and_each_job_once(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_crowds, "ROOM", 10)
    due_ms, seen = jobs.clock.now_ms() + 500, dict[str, int]()
    with fail_after(30):
        answers = await jobs.store.add_many([(jobs.make(str(n), due_ms=due_ms), "keep") for n in range(FEW)])
        assert all(isinstance(answer, Stored) and answer.due_ms == due_ms for answer in answers)
        while len(seen) < FEW:
            for delivery in await jobs.pull(FEW):
                job = decode_job(delivery.payload)
                assert job.id not in seen
                assert delivery.stored_ms >= due_ms + BACKSTOP_MS + job.spread_ms
                seen[job.id] = job.spread_ms
                await delivery.ack()
    assert [seen[str(n)] for n in range(FEW)] == sorted(seen.values())
    assert len([spread_ms for spread_ms in seen.values() if not spread_ms]) == 10
    assert max(seen.values()) < 4 * due_crowds.QUARTER_MS


async def test_two_programs_that_delay_jobs_share_the_room(
    jobs: Jobs, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_crowds, "ROOM", 10)
    monkeypatch.setattr(due_crowds, "STEP", 1)
    due_ms = jobs.clock.now_ms() + 3_600_000
    async with (
        connect(server.url, name="other", namespace=jobs.namespace) as link,
        Publisher(link) as publisher,
    ):
        other = JobStore(link, publisher, jobs.namespace, jobs.clock)
        with fail_after(30):
            await other.add_many([(jobs.make("first", due_ms=due_ms), "keep")])  # from then on it listens
            await jobs.store.add_many([(jobs.make(str(n), due_ms=due_ms), "keep") for n in range(10)])
            spread_ms, tries = 0, 0
            while not spread_ms and tries < 10:  # the news may be on their way
                tries += 1
                await a_moment()
                await other.add_many([(jobs.make(f"next {tries}", due_ms=due_ms), "keep")])
                found = await other.find(TOPIC, f"next {tries}")
                assert found is not None
                assert found.job is not None
                spread_ms = found.job.spread_ms
            assert 0 < spread_ms <= due_crowds.QUARTER_MS
            assert tries < 9, "alone it would have had room for nine"


async def test_the_record_tells_when_the_server_fires_whatever_becomes_of_the_job(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delayed, made ready by a timer long before the server would, reserved, touched, and given back with a delay."""
    monkeypatch.setattr(due_crowds, "ROOM", 1)
    stream, due_ms = jobs.namespace.stream("JOBS"), jobs.clock.now_ms() + 1_000
    with fail_after(30):
        await jobs.store.add_many([(jobs.make(str(n), due_ms=due_ms), "keep") for n in range(FEW)])
        found = await jobs.store.find(TOPIC, str(FEW - 1))
        assert found is not None
        assert found.job is not None
        assert found.job.spread_ms > 5_000
        assert found.fires_ms == await fires_ms(jobs.connection, stream, found.seq)
        while jobs.clock.now_ms() < due_ms:
            await a_moment()
        ready, thing = jobs.namespace.job("ready", TOPIC, found.key), jobs.namespace.job_in_any_state(TOPIC, found.key)
        fired = Move(ready, encode_job(found.job), thing, found.seq, leaves=found.subject)
        seq = await Mover(jobs.connection, jobs.publisher, jobs.namespace.jobs_stream_of).move(fired)
        reservation = None
        while reservation is None:
            for one in (await jobs.hand_out(FEW, ttr_ms=2_000)).reservations:
                reservation = one if one.job.id == found.id else reservation
        assert reservation.receipt.seq > seq
        for settle in ("touch", "release"):
            held = await jobs.store.find(TOPIC, found.id)
            assert held is not None
            assert held.fires_ms == await fires_ms(jobs.connection, stream, held.seq)
            await jobs.settled(settle, [reservation.receipt])
        back = await jobs.store.find(TOPIC, found.id)
        assert back is not None
        assert back.job is not None
        assert back.state == "delayed"
        assert back.fires_ms == await fires_ms(jobs.connection, stream, back.seq)
        assert back.job.spread_ms == 0
