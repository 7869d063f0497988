"""Schedules on a real server: fired once, cancelled, replaced, put if absent, and fired now by condition."""

from collections.abc import AsyncIterator

import pytest
from anyio import fail_after

from streams.clock import now_ms
from streams.connection import Connection
from streams.errors import MalformedHeader, MalformedSubject, NoStream, RevisionConflict
from streams.publisher import Publisher
from streams.puller import Puller
from streams.schedule import BACKSTOP_MS, Schedules
from streams.timetable import BadSchedule
from tests.support.server import add_consumer, add_stream, stream_state

FAR_MS = 3_600_000
ONE_LOOP = pytest.mark.asyncio(loop_factories=["asyncio"])
"""For tests that wait for the server's clock: the loop makes no difference to them."""


class Desk:
    """A stream with schedules, as the delay queue has it, and a consumer of its ready subjects."""

    def __init__(self, connection: Connection, publisher: Publisher, puller: Puller, stream: str) -> None:
        self.connection = connection
        self.stream = stream
        self.schedules = Schedules(connection, publisher, stream)
        self.ready_jobs = puller

    def delayed(self, name: str) -> str:
        return self.connection.namespace.subject("jobs", "delayed", name)

    def ready(self, name: str) -> str:
        return self.connection.namespace.subject("jobs", "ready", name)

    async def at(self, name: str, in_ms: int = FAR_MS, *, expected_seq: int | None = None) -> int:
        return await self.schedules.at(
            self.delayed(name), self.ready(name), b"x", due_ms=now_ms() + in_ms, expected_seq=expected_seq
        )

    async def stored(self) -> dict[str, int]:
        """Return how many messages wait on each subject."""
        answer = await self.connection.api(f"STREAM.INFO.{self.stream}", {"subjects_filter": ">"})
        subjects: dict[str, int] = answer["state"].get("subjects") or {}
        return subjects


@pytest.fixture
async def desk(connection: Connection, publisher: Publisher) -> AsyncIterator[Desk]:
    stream = await add_stream(
        connection,
        "JOBS",
        retention="workqueue",
        max_msgs_per_subject=1,
        allow_msg_schedules=True,
        allow_msg_ttl=True,
        allow_direct=True,
    )
    ready = connection.namespace.pattern("jobs", "ready", ">")
    await add_consumer(connection, stream, "ready", filter_subject=ready)
    async with Puller(connection, stream, "ready", capacity=100) as puller:
        yield Desk(connection, publisher, puller, stream)


@ONE_LOOP
async def test_a_message_comes_once_when_it_is_due_and_not_before(desk: Desk) -> None:
    due_ms = now_ms() + 400
    await desk.schedules.at(desk.delayed("a"), desk.ready("a"), b"body", due_ms=due_ms, headers={"Mine": "1"})
    with fail_after(20):
        job = await desk.ready_jobs.receive()
    assert due_ms <= job.stored_ms
    assert (job.subject, job.payload, job.headers["Mine"]) == (desk.ready("a"), b"body", "1")
    assert await desk.stored() == {desk.ready("a"): 1}
    assert await desk.schedules.pending(desk.delayed("a")) is None


@ONE_LOOP
async def test_what_is_overdue_comes_at_once(desk: Desk) -> None:
    await desk.schedules.at(desk.delayed("a"), desk.ready("a"), b"", due_ms=0)
    with fail_after(20):
        await desk.ready_jobs.receive()


@ONE_LOOP
async def test_every_and_cron_come_again_until_cancelled(desk: Desk) -> None:
    await desk.schedules.every(desk.delayed("e"), desk.ready("e"), b"every", every_ms=1000)
    await desk.schedules.cron(
        desk.delayed("c"), desk.ready("c"), b"cron", expression="* * * * * *", tz="Asia/Kathmandu", fired_ttl_s=60
    )
    seen: list[bytes] = []
    with fail_after(20):
        while seen.count(b"every") < 2 or seen.count(b"cron") < 2:
            job = await desk.ready_jobs.receive()
            await job.ack()
            seen.append(job.payload)
    assert await desk.schedules.cancel(desk.delayed("e"))
    assert await desk.schedules.cancel(desk.delayed("c"))
    assert await desk.schedules.pending(desk.delayed("c")) is None


async def test_what_waits_can_be_read(desk: Desk) -> None:
    seq = await desk.schedules.cron(
        desk.delayed("a"), desk.ready("a"), b"body", expression="0 0 9 * * MON-FRI", tz="Europe/Berlin"
    )
    pending = await desk.schedules.pending(desk.delayed("a"))
    assert pending == (seq, "0 0 9 * * MON-FRI", desk.ready("a"), "Europe/Berlin", b"body")
    assert await desk.schedules.pending(desk.delayed("b")) is None


async def test_a_second_replaces_the_first(desk: Desk) -> None:
    await desk.at("a")
    second = await desk.at("a", FAR_MS * 2)
    pending = await desk.schedules.pending(desk.delayed("a"))
    assert pending is not None
    assert pending.seq == second
    assert await desk.stored() == {desk.delayed("a"): 1}


async def test_put_if_absent_and_replace_exactly_one(desk: Desk) -> None:
    first = await desk.at("a", expected_seq=0)
    with pytest.raises(RevisionConflict) as caught:
        await desk.at("a", expected_seq=0)
    assert caught.value.actual == first
    second = await desk.at("a", expected_seq=first)
    with pytest.raises(RevisionConflict):
        await desk.at("a", expected_seq=first)
    pending = await desk.schedules.pending(desk.delayed("a"))
    assert pending is not None
    assert pending.seq == second


async def test_cancel_tells_whether_there_was_one(desk: Desk) -> None:
    first = await desk.at("a")
    second = await desk.at("a")
    assert not await desk.schedules.cancel(desk.delayed("a"), seq=first)
    assert await desk.schedules.cancel(desk.delayed("a"), seq=second)
    assert not await desk.schedules.cancel(desk.delayed("a"), seq=second)
    await desk.at("a")
    assert await desk.schedules.cancel(desk.delayed("a"))
    assert not await desk.schedules.cancel(desk.delayed("a"))
    assert await desk.stored() == {}


async def test_fire_now_delivers_and_removes_in_one_step(desk: Desk) -> None:
    seq = await desk.at("a")
    assert await desk.schedules.fire_now(desk.delayed("a"), desk.ready("a"), b"x", seq=seq, headers={"Mine": "1"})
    with fail_after(20):
        assert (await desk.ready_jobs.receive()).headers["Mine"] == "1"
    assert await desk.stored() == {desk.ready("a"): 1}
    assert not await desk.schedules.fire_now(desk.delayed("a"), desk.ready("a"), b"x", seq=seq)
    assert (await stream_state(desk.connection, desk.stream))["messages"] == 1


async def test_fire_now_leaves_a_replaced_or_cancelled_schedule_alone(desk: Desk) -> None:
    first = await desk.at("a")
    second = await desk.at("a")
    assert not await desk.schedules.fire_now(desk.delayed("a"), desk.ready("a"), b"x", seq=first)
    assert await desk.stored() == {desk.delayed("a"): 1}
    await desk.schedules.cancel(desk.delayed("a"))
    assert not await desk.schedules.fire_now(desk.delayed("a"), desk.ready("a"), b"x", seq=second)
    assert await desk.stored() == {}


@ONE_LOOP
async def test_fired_on_time_with_the_server_as_backstop_each_comes_once(desk: Desk) -> None:
    """A timer fires at the meant time; what it leaves out comes from the server a little later."""
    names = [f"n{number}" for number in range(60)]
    due_ms = now_ms() + 400
    later_ms = due_ms + 10 * BACKSTOP_MS
    seqs = {n: await desk.schedules.at(desk.delayed(n), desk.ready(n), b"x", due_ms=later_ms) for n in names}
    with fail_after(30):
        while now_ms() < due_ms:
            await desk.connection.flush()
        for name in names[:50]:
            assert await desk.schedules.fire_now(desk.delayed(name), desk.ready(name), b"x", seq=seqs[name])
        jobs = [await desk.ready_jobs.receive() for _ in names]
    assert sorted(job.subject for job in jobs) == sorted(map(desk.ready, names))
    assert all(job.stored_ms >= due_ms for job in jobs[:50])
    assert all(job.stored_ms >= later_ms for job in jobs[50:])
    assert not any([await desk.schedules.fire_now(desk.delayed(n), desk.ready(n), b"x", seq=seqs[n]) for n in names])
    assert await desk.stored() == {desk.ready(name): 1 for name in names}


async def test_bad_times_and_targets_are_refused_before_they_are_sent(desk: Desk) -> None:
    before = await stream_state(desk.connection, desk.stream)
    delayed, ready = desk.delayed("a"), desk.ready("a")
    with pytest.raises(BadSchedule, match="due_ms -1"):
        await desk.schedules.at(delayed, ready, b"", due_ms=-1)
    with pytest.raises(BadSchedule, match="every_ms -1000"):
        await desk.schedules.every(delayed, ready, b"", every_ms=-1000)
    with pytest.raises(BadSchedule, match="six are needed"):
        await desk.schedules.cron(delayed, ready, b"", expression="0 9 * * *")
    with pytest.raises(BadSchedule, match="is Asia/Tokyo meant"):
        await desk.schedules.cron(delayed, ready, b"", expression="@daily", tz="Asia/Tokio")
    with pytest.raises(BadSchedule, match="its target is itself"):
        await desk.schedules.at(delayed, delayed, b"", due_ms=now_ms())
    with pytest.raises(BadSchedule, match="fired_ttl_s 0"):
        await desk.schedules.at(delayed, ready, b"", due_ms=now_ms(), fired_ttl_s=0)
    for target in (f"{ready}.*", f"{ready}.>", "", "a b"):
        with pytest.raises(MalformedSubject):
            await desk.schedules.at(delayed, target, b"", due_ms=now_ms())
    assert await stream_state(desk.connection, desk.stream) == before


async def test_what_only_the_server_can_refuse_says_what_to_do(desk: Desk) -> None:
    elsewhere = desk.connection.namespace.subject("elsewhere", "a")
    with pytest.raises(BadSchedule, match=r"the server refuses the target: .*take the target"):
        await desk.schedules.at(desk.delayed("a"), elsewhere, b"", due_ms=now_ms())
    with pytest.raises(BadSchedule, match="the server refuses the time"):
        await desk.schedules.cron(desk.delayed("a"), desk.ready("a"), b"", expression="0 0 0 31 2 *")
    assert await desk.stored() == {}


@pytest.mark.parametrize(
    "name", ["Nats-Schedule-Target", "nats-rollup", "Nats-TTL", "Nats-Expected-Last-Sequence", "NATS-Msg-Id"]
)
async def test_headers_that_command_the_server_are_refused(desk: Desk, name: str) -> None:
    with pytest.raises(MalformedHeader, match="are the server's"):
        await desk.schedules.at(desk.delayed("a"), desk.ready("a"), b"", due_ms=now_ms(), headers={name: "1"})
    with pytest.raises(MalformedHeader, match="are the server's"):
        await desk.schedules.fire_now(desk.delayed("a"), desk.ready("a"), b"", seq=1, headers={name: "1"})


async def test_a_stream_without_schedules_or_no_stream_is_told(connection: Connection, publisher: Publisher) -> None:
    stream = await add_stream(connection, "PLAIN", "plain", ">")
    schedules = Schedules(connection, publisher, stream)
    subject, target = (connection.namespace.subject("plain", name) for name in ("a", "b"))
    with fail_after(20):
        with pytest.raises(BadSchedule, match="schedules"):
            await schedules.at(subject, target, b"", due_ms=now_ms())
        with pytest.raises(NoStream):
            await Schedules(connection, publisher, "NONE").cancel(subject)
