"""Schedules on a real server: each an ordinary job, added once, through crashes, changes and overlap."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import NamedTuple

import anyio
import msgspec
import pytest
from anyio.abc import TaskStatus
from msgspec import Raw
from msgspec.structs import replace

from actors.jobs.adds import Stored
from actors.jobs.replies import added_of
from actors.jobs.reservations import JobStale
from actors.jobs.rules.cron import BadRecurrence
from actors.jobs.rules.job_answers import Added, NotAdded
from actors.jobs.rules.job_rules import make_job
from actors.jobs.rules.schedule_record import Misfire, Overlap, PastRun, Schedule, decode_schedule
from actors.jobs.rules.schedule_steps import HORIZON_MS, REFILL_MS
from actors.jobs.rules.schedule_times import occurrence, occurrence_id
from actors.jobs.rules.topic_settings import TopicSettings
from actors.jobs.schedule_desk import ScheduleDesk, ScheduleRefused
from actors.jobs.scheduler import JobFinder, KnownJob, Scheduler
from actors.jobs.store import JobStore
from streams.buckets.bucket import Bucket
from streams.clock import SYSTEM, Clock, now_ms
from streams.link.connection import Connection
from streams.messages.jobs import NewJob
from streams.publish.publisher import Publisher
from streams.subjects import token_of
from streams.topology.specs import wanted
from tests.support.engine import logging_of
from tests.support.jobs import open_jobs
from tests.support.moments import a_moment
from tests.support.server import make_topology

KEY = "mail.nightly"
HOUR = 3_600_000
FAR = Schedule(cron="0 0 1 1 *", overlap="allow")
EACH_SECOND = Schedule(every_ms=1000, body=Raw(b'{"n":1}'))


class StoreDesk:
    """Adds by the store, as the desk does; refuses as long as it is told to."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self.refuses = False
        self.asked = 0
        self.deleted: list[str] = []

    async def add(self, jobs: Sequence[NewJob], *, trace_s: int) -> list[Added | NotAdded]:
        self.asked += 1
        if self.refuses:
            return [NotAdded(code="quota", reason="full") for _ in jobs]
        made = [make_job(job, TopicSettings(), now_ms=now_ms(), fresh_id="") for job in jobs]
        answers: list[Added | NotAdded] = []
        adds = [(job, new.on_same) for job, new in zip(made, jobs, strict=True)]
        for job, stored in zip(made, await self._store.add_many(adds), strict=True):
            assert isinstance(stored, Stored)
            answers.append(added_of(job, stored))
        return answers

    async def delete(self, topic: str, job_id: str) -> object:
        self.deleted.append(job_id)
        return await self._store.delete(topic, job_id)


class Ground(NamedTuple):
    """Streams and buckets, and what works on them."""

    connection: Connection
    store: JobStore
    desk: StoreDesk
    records: Bucket[bytes]
    leases: Bucket[bytes]

    def actor(self, node: str = "n1", *, store: JobFinder | None = None, clock: Clock = SYSTEM) -> Scheduler:
        return Scheduler(
            node=node,
            connection=self.connection,
            records=self.records,
            leases=self.leases,
            desk=self.desk,
            store=store or self.store,
            clock=clock,
            stop=anyio.Event(),
        )

    @property
    def schedules(self) -> ScheduleDesk:
        return ScheduleDesk(self.records, SYSTEM)

    async def put(self, record: Schedule, key: str = KEY) -> None:
        await self.records.put(key, msgspec.json.encode(record))

    async def record_when(self, holds: Callable[[Schedule], bool], key: str = KEY) -> Schedule:
        """Return the record as soon as `holds` is true of it."""
        with anyio.fail_after(20):
            async with self.records.watch(key) as changes:
                async for change in changes:
                    entry = getattr(change, "entry", None)
                    if entry is not None and holds(record := decode_schedule(entry.raw)):
                        return record
        raise AssertionError("a watch does not end")

    async def state(self, due_ms: int, name: str = "nightly") -> str:
        found = await self.store.find("mail", occurrence_id(name, due_ms))
        return "" if found is None else found.state


@pytest.fixture
async def ground(connection: Connection, publisher: Publisher) -> Ground:
    await make_topology(connection, wanted(connection.namespace, profile="fast"))
    store = JobStore(connection, publisher, connection.namespace, SYSTEM)

    def bucket(short: str) -> Bucket[bytes]:
        return Bucket(connection, publisher, connection.namespace.bucket(short), bytes)

    return Ground(connection, store, StoreDesk(store), bucket("RECURRING"), bucket("LEASES"))


@asynccontextmanager
async def running(actor: Scheduler) -> AsyncIterator[Scheduler]:
    """Run the actor until the block ends, as a node that dies: its lease is all that it gives back."""
    async with anyio.create_task_group() as tasks:
        await tasks.start(actor.run)
        yield actor
        tasks.cancel_scope.cancel()


def is_added(record: Schedule) -> bool:
    return record.added_ms > 0 and not record.adding


def has_runs(count: int) -> Callable[[Schedule], bool]:
    return lambda record: len(record.runs) >= count and not record.adding


# ---- one after the other


async def test_the_next_one_is_added_ahead_and_is_an_ordinary_job(ground: Ground) -> None:
    async with running(ground.actor()):
        wish = replace(FAR, body=Raw(b'{"n":1}'), ttr_ms=9000, attempts=2)
        stored = (await ground.schedules.add("mail", "nightly", wish)).schedule
        record = await ground.record_when(is_added)
    due_ms = stored.next_ms[0]
    assert (record.added_ms, record.last_ms) == (due_ms, due_ms)
    found = await ground.store.find("mail", occurrence_id("nightly", due_ms))
    assert found is not None
    assert found.job is not None
    assert (found.state, found.job.due_ms, found.job.ttr_ms, found.job.most_attempts) == ("delayed", due_ms, 9000, 2)
    assert bytes(found.job.body) == b'{"n":1}'


async def test_they_come_one_after_the_other_each_at_its_time(ground: Ground) -> None:
    async with running(ground.actor()):
        record = replace(EACH_SECOND, overlap="allow")
        stored = (await ground.schedules.add("mail", "nightly", record)).schedule
        seen = await ground.record_when(lambda record: is_added(record) and record.added_ms >= stored.start_ms + 3000)
    for due_ms in range(stored.start_ms + 1000, seen.added_ms + 1, 1000):
        assert await ground.state(due_ms) in ("delayed", "ready")
    assert await ground.state(seen.added_ms + 1000) == ""
    assert seen.added_ms <= now_ms() + HORIZON_MS


async def test_one_claim_adds_many_that_follow_closely_and_one_read_tells_their_ends(ground: Ground) -> None:
    store = CountingStore(ground.store)
    now = now_ms() // 1000 * 1000
    runs = tuple(PastRun(due_ms=now - back_ms) for back_ms in (5000, 4000, 3000))
    at_ms = now + REFILL_MS + 2000
    record = replace(EACH_SECOND, overlap="allow", start_ms=now - 9000, last_ms=at_ms, added_ms=at_ms - 3000, runs=runs)
    async with running(ground.actor(store=store)):
        await ground.put(record)
        seen = await ground.record_when(lambda record: is_added(record) and record.added_ms > at_ms)
    assert (ground.desk.asked, len(store.asked)) == (1, 1)
    ahead = [run.due_ms for run in seen.runs if run.due_ms > at_ms]
    assert ahead == [*range(at_ms + 1000, seen.added_ms + 1, 1000)]
    assert (HORIZON_MS - REFILL_MS) // 1000 - 2 <= len(ahead) <= HORIZON_MS // 1000
    assert [run.outcome for run in seen.runs[:3]] == ["unknown"] * 3


@pytest.mark.parametrize("act", ["pause", "remove", "replace"])
async def test_a_change_takes_back_all_that_was_added_ahead(ground: Ground, act: str) -> None:
    async with running(ground.actor()):
        record = replace(EACH_SECOND, overlap="allow")
        stored = (await ground.schedules.add("mail", "nightly", record)).schedule
        before = await ground.record_when(lambda record: is_added(record) and len(record.runs) > 9)
        if act == "pause":
            await ground.schedules.pause("mail", "nightly")
        elif act == "remove":
            await ground.schedules.remove("mail", "nightly")
        else:
            await ground.schedules.add("mail", "nightly", FAR, is_replaced=True)
        changed_ms = now_ms()
        with anyio.fail_after(20):
            while (entry := await ground.records.get(KEY)) is not None and decode_schedule(entry.raw).stale:
                await a_moment()
        gone_ms = now_ms()
    dues = range(stored.start_ms + 1000, before.added_ms + 1, 1000)
    states = {due_ms: await ground.state(due_ms) for due_ms in dues}
    assert {states[due_ms] for due_ms in dues if due_ms > gone_ms} == {""}, "none comes after it"
    assert {states[due_ms] for due_ms in dues if due_ms < changed_ms - 1000} <= {"ready"}, "what was due stays a job"


async def test_a_trigger_and_a_backfill_are_added_beside_what_is_ahead(ground: Ground) -> None:
    async with running(ground.actor()):
        stored = (await ground.schedules.add("mail", "nightly", replace(EACH_SECOND, overlap="allow"))).schedule
        before = await ground.record_when(lambda record: is_added(record) and len(record.runs) > 9)
        job_id = (await ground.schedules.trigger("mail", "nightly")).id
        await ground.schedules.backfill("mail", "nightly", stored.start_ms - 30_000, stored.start_ms)
        await ground.record_when(
            lambda record: not record.triggered and not record.backfill and not record.adding and len(record.runs) > 50
        )
    found = await ground.store.find("mail", job_id)
    assert found is not None
    dues = [
        *range(stored.start_ms - 30_000, stored.start_ms, 1000),
        *range(stored.start_ms + 1000, before.added_ms, 1000),
    ]
    assert {await ground.state(due_ms) for due_ms in dues} <= {"ready", "delayed"}


async def test_while_one_is_not_finished_the_next_are_left_out(ground: Ground) -> None:
    async with running(ground.actor()):
        await ground.schedules.add("mail", "nightly", EACH_SECOND)
        record = await ground.record_when(lambda record: record.left_out > 0)
        first_ms = record.added_ms
        assert (await ground.store.count("mail")).ready == 1
        await ground.store.delete("mail", occurrence_id("nightly", first_ms))
        record = await ground.record_when(lambda record: is_added(record) and record.added_ms > first_ms)
    assert (record.added_ms - first_ms) % 1000 == 0
    assert await ground.state(record.added_ms) in ("delayed", "ready")


async def test_one_waits_for_the_end_of_the_one_before_and_later_ones_are_left_out(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "actors.jobs.scheduler")
    async with open_jobs(ground.connection) as jobs, running(ground.actor()), logging_of() as logged:
        wish = replace(EACH_SECOND, overlap="buffer")
        await ground.schedules.add("mail", "nightly", wish)
        record = await ground.record_when(lambda record: record.left_out > 1)
        first, waits_ms = record.runs[0], record.buffered_ms
        assert (waits_ms - first.due_ms, len(record.runs)) == (1000, 1)
        assert (await logged.first("schedule.left_out"))["due_ms"] == waits_ms + 1000
        held = await jobs.reserve()
        await jobs.store.finish_many([held.receipt], remember_s=0)
        record = await ground.record_when(lambda record: len(record.runs) > 1 and not record.adding)
        assert (record.runs[0].outcome, record.runs[1].due_ms) == ("finished", waits_ms)
        assert (await jobs.reserve()).job.id == occurrence_id("nightly", waits_ms)


async def test_the_next_takes_the_place_of_one_that_is_held(ground: Ground) -> None:
    async with open_jobs(ground.connection) as jobs, running(ground.actor()):
        wish = replace(EACH_SECOND, overlap="cancel")
        await ground.schedules.add("mail", "nightly", wish)
        held = await jobs.reserve()
        record = await ground.record_when(lambda record: len(record.runs) > 1 and record.runs[0].outcome != "")
        assert (held.job.id, record.runs[0].outcome) == (occurrence_id("nightly", record.runs[0].due_ms), "deleted")
        [answer] = await jobs.store.finish_many([held.receipt], remember_s=0)
        assert isinstance(answer, JobStale)
        assert held.job.id in ground.desk.deleted
        assert (await jobs.reserve()).job.id != held.job.id


async def test_a_leader_that_dies_before_it_deletes_the_one_before_is_followed(ground: Ground) -> None:
    first_ms = now_ms() // 1000 * 1000 - 5000
    due_ms = first_ms + 4000
    runs = (PastRun(due_ms=first_ms), PastRun(due_ms=due_ms))
    claimed = replace(
        FAR, overlap="cancel", start_ms=1, last_ms=due_ms, added_ms=due_ms, adding=(due_ms,), cancelling=(first_ms,)
    )
    await ground.desk.add([occurrence("mail", "nightly", claimed, first_ms, claim=1)], trace_s=60)
    await ground.put(replace(claimed, runs=runs))
    async with running(ground.actor()):
        record = await ground.record_when(lambda record: record.runs[0].outcome != "")
    assert (record.runs[0].outcome, record.adding, record.cancelling) == ("deleted", (), ())
    assert (await ground.state(first_ms), await ground.state(due_ms)) == ("", "ready")


# ---- what people ask for


async def test_a_trigger_whose_schedule_is_replaced_amid_its_add_is_added_once(ground: Ground) -> None:
    at_ms = now_ms()
    run = PastRun(due_ms=at_ms, kind="triggered")
    record = replace(FAR, start_ms=1, last_ms=at_ms, adding=(at_ms,), claim_ms=at_ms, runs=(run,), body=Raw(b"1"))
    await ground.put(record)
    await ground.desk.add([occurrence("mail", "nightly", record, at_ms, claim=at_ms)], trace_s=600)  # a leader dies
    later = await ground.schedules.trigger("mail", "nightly")
    await ground.schedules.add("mail", "nightly", replace(FAR, body=Raw(b"2")), is_replaced=True)
    async with running(ground.actor()):
        await ground.record_when(lambda record: not record.triggered and not record.adding and len(record.runs) > 1)
    assert (await ground.store.count("mail")).ready == 2
    found = await ground.store.find("mail", later.id)
    assert found is not None
    assert found.job is not None
    assert bytes(found.job.body) == b"2"


async def test_a_trigger_that_no_node_led_to_add_is_added_though_the_schedule_is_removed(ground: Ground) -> None:
    await ground.schedules.add("mail", "nightly", FAR)
    first = (await ground.schedules.trigger("mail", "nightly")).id
    await ground.schedules.remove("mail", "nightly")
    async with running(ground.actor()):
        while await ground.records.get(KEY) is not None:
            await a_moment()
    found = await ground.store.find("mail", first)
    assert (found is not None and found.state, (await ground.store.count("mail")).ready) == ("ready", 1)


async def test_a_trigger_adds_a_job_now_once_and_the_schedule_goes_on(ground: Ground) -> None:
    async with running(ground.actor()):
        await ground.schedules.add("mail", "nightly", FAR)
        before = await ground.record_when(is_added)
        job_id = (await ground.schedules.trigger("mail", "nightly")).id
        record = await ground.record_when(lambda record: not record.triggered and not record.adding)
        found = await ground.store.find("mail", job_id)
        assert (found is not None and found.state, record.added_ms) == ("ready", before.added_ms)
        assert (await ground.schedules.pause("mail", "nightly")).is_changed
        await ground.schedules.trigger("mail", "nightly")
        await ground.record_when(
            lambda record: len([run for run in record.runs if run.kind]) == 2 and not record.adding
        )
    assert (await ground.store.count("mail")).ready == 2


async def test_a_person_who_asks_between_the_claim_and_the_job_makes_no_second_one(ground: Ground) -> None:
    async with open_jobs(ground.connection) as jobs:
        due_ms = now_ms() - 1000
        claimed = replace(FAR, start_ms=1, last_ms=due_ms, added_ms=due_ms, adding=(due_ms,), claim_ms=due_ms)
        await ground.desk.add([occurrence("mail", "nightly", claimed, due_ms, claim=due_ms)], trace_s=60)
        held = await jobs.reserve()  # by the leader that died before it said so
        await jobs.store.finish_many([held.receipt], remember_s=0)
        await ground.put(claimed)
        await ground.schedules.trigger("mail", "nightly")
        async with running(ground.actor()):
            await ground.record_when(lambda record: not record.triggered and is_added(record))
        assert (await ground.store.count("mail")).ready == 1, "the trigger's job alone"


@pytest.mark.parametrize("overlap", ["allow", "skip"])
async def test_a_backfill_runs_each_time_of_the_range_again_or_for_the_first_time(
    ground: Ground, overlap: Overlap
) -> None:
    hour_ms = now_ms() // HOUR * HOUR
    dues = [hour_ms - HOUR * at for at in (3, 2, 1)]
    wish = Schedule(cron="0 * * * *", overlap=overlap, data_time="at", start_ms=hour_ms + 24 * HOUR)
    async with open_jobs(ground.connection) as jobs, running(ground.actor()):
        await ground.desk.add([NewJob(topic="mail", id=occurrence_id("nightly", dues[1]))], trace_s=60)
        before = await jobs.reserve()
        await jobs.store.finish_many([before.receipt], remember_s=60)
        await ground.schedules.add("mail", "nightly", wish)
        await ground.schedules.backfill("mail", "nightly", dues[0], hour_ms)
        seen = []
        for _ in dues:
            held = await jobs.reserve()
            seen.append(msgspec.json.decode(held.job.body)["at"])
            while overlap != "allow" and (await ground.store.count("mail")).ready:  # the ack of its copy takes a moment
                await a_moment()
            await jobs.store.finish_many([held.receipt], remember_s=0)
        record = await ground.record_when(
            lambda record: [run.outcome for run in record.runs if run.kind] == ["finished"] * 3
        )
    assert (sorted(seen) if overlap == "allow" else seen) == [
        f"{datetime.fromtimestamp(due_ms / 1000, UTC):%Y-%m-%dT%H:%M:%S}Z" for due_ms in dues
    ]
    assert ([run.due_ms for run in record.runs if run.kind], record.backfill) == (dues, None)
    with pytest.raises(BadRecurrence, match="lies ahead"):
        await ground.schedules.backfill("mail", "nightly", dues[0], now_ms() + HOUR)


async def test_a_backfill_leaves_alone_what_still_runs_though_its_record_does_not_tell(ground: Ground) -> None:
    """A record tells of its latest runs. Of those that may overlap, earlier ones may run still."""
    hour_ms = now_ms() // HOUR * HOUR
    dues = [hour_ms - HOUR * at for at in (3, 2, 1)]
    async with open_jobs(ground.connection) as jobs, running(ground.actor()):
        await ground.desk.add([NewJob(topic="mail", id=occurrence_id("nightly", dues[1]))], trace_s=60)
        held = await jobs.reserve()
        await ground.schedules.add("mail", "nightly", Schedule(cron="0 * * * *", overlap="allow"))
        await ground.schedules.backfill("mail", "nightly", dues[0], hour_ms)
        await ground.record_when(lambda record: not record.backfill and is_added(record))
        assert await ground.state(dues[1]) == "reserved"
        await jobs.store.finish_many([held.receipt], remember_s=60)
        assert [await ground.state(due_ms) for due_ms in dues] == ["ready", "done", "ready"]


# ---- crashes


async def test_what_was_claimed_before_a_crash_is_added_by_the_next_leader(ground: Ground) -> None:
    due_ms = now_ms() + HOUR
    claimed = replace(FAR, last_ms=due_ms, added_ms=due_ms, adding=(due_ms,))
    await ground.put(claimed)
    async with running(ground.actor()):
        await ground.record_when(lambda record: not record.adding)
        assert await ground.state(due_ms) == "delayed"
        await ground.put(claimed)  # as if it had crashed after the job, and before the record said so
        await ground.record_when(lambda record: not record.adding)
    assert (await ground.store.count("mail")).delayed == 1


async def test_another_node_takes_over(ground: Ground) -> None:
    one, two, killed = ground.actor("n1"), ground.actor("n2"), anyio.CancelScope()

    async def first(*, task_status: TaskStatus[None]) -> None:
        with killed:
            await one.run(task_status=task_status)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            await tasks.start(first)
            await one.elected.wait()
            record = replace(EACH_SECOND, overlap="allow", misfire="all")
            stored = (await ground.schedules.add("mail", "nightly", record)).schedule
            await ground.record_when(is_added)
            await tasks.start(two.run)
            killed.cancel()
            await two.elected.wait()
            assert not one.elected.is_set()
            seen = await ground.record_when(is_added)
            after = await ground.record_when(lambda record: is_added(record) and record.added_ms > seen.added_ms)
            tasks.cancel_scope.cancel()
    for due_ms in range(stored.start_ms + 1000, after.added_ms + 1, 1000):
        assert await ground.state(due_ms) in ("delayed", "ready"), "none is missing, and none could come twice"


@pytest.mark.parametrize(("misfire", "count"), [("skip", 0), ("once", 1), ("all", 5)])
async def test_what_was_missed_while_no_node_was_there_is_run_as_its_policy_says(
    ground: Ground, misfire: Misfire, count: int
) -> None:
    at_ms = now_ms()
    start_ms = at_ms - 2 * HOUR - 120_000  # two minutes late by now, more than just late
    record = Schedule(every_ms=HOUR // 2, start_ms=start_ms, last_ms=start_ms - 1, misfire=misfire, overlap="allow")
    dues = [start_ms + at * HOUR // 2 for at in range(6)]
    async with running(ground.actor()), logging_of() as logged:
        await ground.put(record)
        await ground.record_when(lambda record: is_added(record) and record.added_ms == dues[5])
        told = logged.of("schedule.missed")
    assert [await ground.state(due_ms) for due_ms in dues] == [""] * (5 - count) + ["ready"] * count + ["delayed"]
    missed = {"skip": (dues[0], dues[4]), "once": (dues[0], dues[3])}.get(misfire)
    assert [(each["first_ms"], each["to_ms"]) for each in told] == ([missed] if missed else [])


class PausedMeanwhile(NamedTuple):
    """A finder that has a person pause the schedule while the leader looks for its jobs."""

    ground: Ground
    paused: list[Schedule]

    async def find_many(self, keys: Sequence[tuple[str, str]], *, is_sure: bool) -> Mapping[tuple[str, str], KnownJob]:
        if self.paused:
            await self.ground.put(self.paused.pop())
        return await self.ground.store.find_many(keys, is_sure=is_sure)


async def test_what_is_decided_and_not_stored_is_not_called_missed(ground: Ground) -> None:
    start_ms = now_ms() - 2 * HOUR
    runs = (PastRun(due_ms=start_ms),)
    record = Schedule(every_ms=HOUR // 2, start_ms=start_ms, last_ms=start_ms, added_ms=start_ms, runs=runs)
    await ground.put(record)
    finder = PausedMeanwhile(ground, [replace(record, is_paused=True)])
    async with running(ground.actor(store=finder)), logging_of() as logged:
        assert (await ground.record_when(lambda record: bool(record.runs[0].outcome))).is_paused
        assert logged.of("schedule.missed") == []


async def test_a_desk_that_refuses_is_asked_again(ground: Ground) -> None:
    ground.desk.refuses = True
    async with running(ground.actor()), logging_of() as logged:
        await ground.schedules.add("mail", "nightly", FAR)
        told = await logged.first("schedule.failed")
        assert "quota: full" in told["error"]
        assert (await ground.record_when(lambda record: bool(record.adding))).added_ms
        ground.desk.refuses = False
        record = await ground.record_when(is_added)
        assert await ground.state(record.added_ms) == "delayed"
        assert len(logged.of("schedule.failed")) == 1, "told once"


# ---- how runs end


async def test_a_run_is_told_with_its_start_and_its_end(ground: Ground) -> None:
    async with open_jobs(ground.connection) as jobs, running(ground.actor()):
        await ground.schedules.add("mail", "nightly", EACH_SECOND)
        first = await ground.record_when(is_added)
        assert [run.due_ms for run in first.runs] == [first.added_ms]
        held = await jobs.reserve()
        begun_ms = now_ms()
        await jobs.store.finish_many([held.receipt], remember_s=0)
        record = await ground.record_when(lambda record: record.runs[0].outcome == "finished")
    [run, *_] = record.runs
    assert abs(run.started_ms - begun_ms) < 60_000
    assert run.due_ms <= run.started_ms <= run.ended_ms <= now_ms() + 1000


async def test_the_next_begins_a_fixed_delay_after_the_end_of_the_one_before(ground: Ground) -> None:
    async with open_jobs(ground.connection) as jobs, running(ground.actor()):
        await ground.schedules.add("mail", "nightly", Schedule(fixed_delay_ms=1500))
        for count in (1, 2, 3):
            held = await jobs.reserve()
            if count == 2:
                await jobs.store.bury_many([held.receipt], reason="it failed")
            else:
                await jobs.store.finish_many([held.receipt], remember_s=0)
            record = await ground.record_when(has_runs(count + 1))
            before, after = record.runs[count - 1 :]
            assert after.due_ms == before.ended_ms + 1500
    assert [run.outcome for run in record.runs] == ["finished", "buried", "finished", ""]


async def test_what_may_overlap_is_told_too_and_what_has_left_no_trace_is_unknown(ground: Ground) -> None:
    at_ms = now_ms() // 1000 * 1000
    runs = tuple(PastRun(due_ms=due_ms) for due_ms in (at_ms - 3000, at_ms - 2000))
    record = replace(FAR, start_ms=1, last_ms=at_ms - 1000, added_ms=at_ms - 2000, runs=runs)
    async with running(ground.actor()):
        await ground.desk.add([occurrence("mail", "nightly", record, runs[0].due_ms, claim=1)], trace_s=60)
        await ground.put(record)
        seen = await ground.record_when(lambda record: is_added(record) and record.runs[1].outcome == "unknown")
        assert seen.runs[0].outcome == "", "its job waits for a worker"
        await ground.store.delete("mail", occurrence_id("nightly", runs[0].due_ms))
        seen = await ground.record_when(lambda record: record.runs[0].outcome != "")
    assert [run.outcome for run in seen.runs] == ["deleted", "unknown", ""]


async def test_one_that_it_was_too_late_to_add_has_expired(ground: Ground) -> None:
    due_ms = now_ms() - HOUR
    record = replace(FAR, start_ms=1, last_ms=due_ms, added_ms=due_ms, adding=(due_ms,), expires_in_ms=1000)
    async with running(ground.actor()):
        await ground.put(replace(record, runs=(PastRun(due_ms=due_ms),)))
        seen = await ground.record_when(is_added)
    assert seen.runs[0].outcome == "expired"


# ---- what people change


async def test_a_pause_takes_back_what_is_not_due_and_resuming_adds_it_anew(ground: Ground) -> None:
    async with running(ground.actor()):
        await ground.schedules.add("mail", "nightly", FAR)
        record = await ground.record_when(is_added)
        assert (await ground.schedules.pause("mail", "nightly")).is_changed
        assert not (await ground.schedules.pause("mail", "nightly")).is_changed
        await ground.record_when(lambda record: record.is_paused and not record.stale)
        assert await ground.state(record.added_ms) == ""
        assert (await ground.schedules.resume("mail", "nightly")).is_changed
        await ground.record_when(lambda record: not record.adding and record.last_ms == record.added_ms)
        assert await ground.state(record.added_ms) == "delayed"
    assert not (await ground.schedules.resume("mail", "nightly")).is_changed


async def test_what_was_due_before_a_pause_while_no_node_led_comes_after_it(ground: Ground) -> None:
    """One of them was claimed and added by a leader that died before it wrote that down."""
    start_ms = now_ms() - 5_000
    dues = [start_ms, start_ms + 1000, start_ms + 2000]
    record = Schedule(every_ms=1000, start_ms=start_ms, last_ms=start_ms, overlap="allow", misfire="all")
    record = replace(record, adding=(start_ms,), claim_ms=start_ms, added_ms=start_ms, runs=(PastRun(due_ms=start_ms),))
    await ground.put(record)
    await ground.desk.add([occurrence("mail", "nightly", record, start_ms, claim=start_ms)], trace_s=600)
    await ground.schedules.pause("mail", "nightly")
    paused_ms = now_ms()
    async with running(ground.actor()):
        await ground.record_when(lambda record: not record.stale)
        assert [await ground.state(due_ms) for due_ms in dues] == ["ready", "", ""]
        while now_ms() < paused_ms + 1100:
            await a_moment()
        await ground.schedules.resume("mail", "nightly")
        resumed_ms = now_ms()
        record = await ground.record_when(lambda record: not record.is_paused and not record.owed and not record.adding)
    assert [await ground.state(due_ms) for due_ms in dues] == ["ready"] * 3
    assert not [run for run in record.runs if paused_ms < run.due_ms < resumed_ms - 1000], "what fell due in the pause"


class Ahead:
    """A clock by which what is due within the hour is due."""

    def now_ms(self) -> int:
        return now_ms() + HOUR


@pytest.mark.parametrize("is_due", [True, False])
async def test_a_job_that_is_due_and_not_fired_yet_is_not_taken_back(ground: Ground, is_due: bool) -> None:
    """No timer runs, and the server fires a quarter of a second late."""
    due_ms = now_ms() + HOUR - 60_000
    record = Schedule(every_ms=HOUR, start_ms=due_ms, last_ms=due_ms, added_ms=due_ms, runs=(PastRun(due_ms=due_ms),))
    await ground.desk.add([occurrence("mail", "nightly", record, due_ms, claim=1)], trace_s=600)
    await ground.put(replace(record, is_paused=True, stale=(due_ms,)))
    async with running(ground.actor(clock=Ahead() if is_due else SYSTEM)):
        record = await ground.record_when(lambda record: not record.stale)
    assert (await ground.state(due_ms), len(record.runs)) == (("delayed", 1) if is_due else ("", 0))


class FiringStore:
    """The store of several servers, where a job is fired though it was deleted a moment before: both were on their way.
    It is fired before the second look."""

    def __init__(self, ground: Ground, job: NewJob) -> None:
        self._ground = ground
        self._job = job
        self._looks = 0

    async def find_many(self, keys: Sequence[tuple[str, str]], *, is_sure: bool) -> Mapping[tuple[str, str], KnownJob]:
        self._looks += 1
        if self._looks == 2:
            await self._ground.desk.add([replace(self._job, due_ms=now_ms(), nonce="fired")], trace_s=600)
        return await self._ground.store.find_many(keys, is_sure=is_sure)


async def test_a_job_that_is_fired_while_it_is_taken_back_stays_a_run(ground: Ground) -> None:
    due_ms = now_ms() + HOUR
    record = Schedule(every_ms=HOUR, start_ms=due_ms, last_ms=due_ms, added_ms=due_ms, runs=(PastRun(due_ms=due_ms),))
    job = occurrence("mail", "nightly", record, due_ms, claim=1)
    await ground.desk.add([job], trace_s=600)
    await ground.put(replace(record, is_paused=True, stale=(due_ms,)))
    async with running(ground.actor(store=FiringStore(ground, job))):
        record = await ground.record_when(lambda record: not record.stale)
    assert (await ground.state(due_ms), [run.due_ms for run in record.runs]) == ("ready", [due_ms])


async def test_one_whose_time_came_before_another_definition_has_the_new_body(ground: Ground) -> None:
    start_ms = now_ms()
    wish = Schedule(every_ms=48 * HOUR, jitter_ms=47 * HOUR, start_ms=start_ms, body=Raw(b'{"n":1}'))
    await ground.put(replace(wish, last_ms=start_ms - 1))
    async with running(ground.actor()):
        await ground.record_when(is_added)
        await ground.schedules.add("mail", "nightly", replace(wish, body=Raw(b'{"n":2}')), is_replaced=True)
        await ground.record_when(lambda record: is_added(record) and not record.stale)
        found = await ground.store.find("mail", occurrence_id("nightly", start_ms))
    assert found is not None
    assert found.job is not None
    assert (found.state, bytes(found.job.body)) == ("delayed", b'{"n":2}')


async def test_a_trigger_that_is_repeated_adds_no_second_job(ground: Ground) -> None:
    at_ms = now_ms()
    async with running(ground.actor()):
        await ground.schedules.add("mail", "nightly", FAR)
        first = await ground.schedules.trigger("mail", "nightly", at_ms=at_ms)
        assert await ground.schedules.trigger("mail", "nightly", at_ms=at_ms) == first
        await ground.record_when(lambda record: at_ms in [run.due_ms for run in record.runs] and not record.adding)
        assert await ground.schedules.trigger("mail", "nightly", at_ms=at_ms) == first
        await ground.schedules.trigger("mail", "nightly", at_ms=at_ms + 1)
        record = await ground.record_when(lambda record: len([run for run in record.runs if run.kind]) > 1)
    assert [run.due_ms for run in record.runs if run.kind] == [at_ms, at_ms + 1]
    with pytest.raises(BadRecurrence, match="lies ahead"):
        await ground.schedules.trigger("mail", "nightly", at_ms=now_ms() + HOUR)


@pytest.mark.parametrize("act", ["add", "pause", "resume", "remove", "backfill"])
async def test_a_late_repeat_of_a_change_changes_nothing(ground: Ground, act: str) -> None:
    """Something else was asked for meanwhile, and done."""
    desk, other = ground.schedules, replace(FAR, cron="0 0 2 1 *")

    async def change() -> object:
        match act:
            case "add":
                return await desk.add("mail", "nightly", FAR, is_replaced=True, nonce="mine")
            case "pause":
                return await desk.pause("mail", "nightly", nonce="mine")
            case "resume":
                return await desk.resume("mail", "nightly", nonce="mine")
            case "remove":
                return await desk.remove("mail", "nightly", nonce="mine")
        return await desk.backfill("mail", "nightly", now_ms() - 800 * 24 * HOUR, nonce="mine")

    async with running(ground.actor()):
        if act != "add":
            await desk.add("mail", "nightly", FAR)
        if act == "resume":
            await desk.pause("mail", "nightly")
        await change()
        match act:
            case "add":
                await desk.add("mail", "nightly", other, is_replaced=True)
            case "pause":
                await desk.resume("mail", "nightly")
            case "resume":
                await desk.pause("mail", "nightly")
            case "remove":
                await ground.record_when(lambda record: record.is_removed and not record.stale)
                assert [line async for line in desk.lines()] == []
                await change()
                await desk.add("mail", "nightly", other)
            case "backfill":
                await ground.record_when(lambda record: not record.backfill and not record.adding)
        before = await ground.record_when(lambda record: (is_added(record) and not record.stale) or record.is_paused)
        await change()
        entry = await ground.records.get(KEY)
    assert entry is not None
    after = decode_schedule(entry.raw)
    assert (after.cron, after.is_paused, after.is_removed, after.backfill) == (
        before.cron,
        act == "resume",
        False,
        None,
    )


async def test_what_is_known_of_a_removed_schedule_goes(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.jobs.rules.schedule_changes.TRACE_MS", 300)
    async with running(ground.actor()):
        await ground.schedules.add("mail", "nightly", FAR)
        await ground.record_when(is_added)
        await ground.schedules.remove("mail", "nightly", nonce="mine")
        with anyio.fail_after(60):
            while await ground.records.get(KEY) is not None:
                await a_moment()


async def test_another_definition_takes_the_place_of_the_first(ground: Ground) -> None:
    async with running(ground.actor()):
        await ground.schedules.add("mail", "nightly", FAR)
        first = await ground.record_when(is_added)
        other = replace(FAR, cron="0 0 2 1 *")
        with pytest.raises(ScheduleRefused, match="replace it, or use another name"):
            await ground.schedules.add("mail", "nightly", other)
        assert not (await ground.schedules.add("mail", "nightly", FAR)).is_changed
        await ground.schedules.add("mail", "nightly", other, is_replaced=True)
        second = await ground.record_when(lambda record: is_added(record) and record.cron == other.cron)
    assert (await ground.state(first.added_ms), await ground.state(second.added_ms)) == ("", "delayed")


async def test_what_is_removed_goes_with_its_job_but_not_with_one_that_somebody_had(ground: Ground) -> None:
    async with running(ground.actor()):
        await ground.schedules.add("mail", "nightly", FAR)
        record = await ground.record_when(is_added)
        found = await ground.store.find("mail", occurrence_id("nightly", record.added_ms))
        assert found is not None
        assert found.job is not None
        # it was handed out before, and waits for its next attempt
        tried = replace(found.job, attempts=1, nonce="~another-one")
        [_] = await ground.store.add_many([(tried, "replace")])
        await ground.schedules.remove("mail", "nightly")
        with anyio.fail_after(20):
            while await ground.records.get(KEY) is not None:
                await a_moment()
        assert await ground.state(record.added_ms) == "delayed"
        await ground.schedules.add("mail", "nightly", replace(FAR, cron="0 0 3 1 *"))
        record = await ground.record_when(is_added)
        await ground.schedules.remove("mail", "nightly")
        with anyio.fail_after(20):
            while await ground.records.get(KEY) is not None:
                await a_moment()
        assert await ground.state(record.added_ms) == ""
    assert [line async for line in ground.schedules.lines()] == []
    with pytest.raises(ScheduleRefused, match="no schedule mail/nightly; there is none at all"):
        await ground.schedules.show("mail", "nightly")


@pytest.mark.parametrize(
    ("key", "raw", "said"),
    [
        (KEY, b'{"cron": "61 * * * *"}', "the minute is not understood"),
        (KEY, b'{"cron": "* * * * *", "tz": "Mars/Olympus"}', "unknown"),
        (KEY, b'{"every_ms": 0}', "either cron or every"),
        (KEY, b'{"every_ms": "10m"}', "Expected `int"),
        (KEY, b"{", "no schedule"),
        (KEY, b"\xff", "no schedule"),
        ("mail", b"{}", "is not TOPIC.NAME"),
        ("a.b.c", b"{}", "is not TOPIC.NAME"),
    ],
)
async def test_a_record_that_cannot_be_followed_is_told_and_holds_up_no_other(
    ground: Ground, key: str, raw: bytes, said: str
) -> None:
    async with running(ground.actor()), logging_of() as logged:
        await ground.records.put(key, raw)
        told = await logged.first("schedule.failed")
        assert (told["key"], said in told["error"]) == (key, True), told
        await ground.put(FAR, "mail.other")
        await ground.record_when(is_added, "mail.other")
        if key == KEY:
            [bad, _] = [line async for line in ground.schedules.lines("mail")]
            assert (bad.state, said in bad.fault) == ("unreadable", True)
            with pytest.raises(ScheduleRefused, match="replace it with a correct one"):
                await ground.schedules.pause("mail", "nightly")
            await ground.put(FAR)
            await ground.record_when(is_added)


class CountingStore:
    """The store, and how often it was asked for a job."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self.asked: list[str] = []

    async def find_many(self, keys: Sequence[tuple[str, str]], *, is_sure: bool) -> Mapping[tuple[str, str], KnownJob]:
        self.asked.append(",".join(key for _, key in keys))
        return await self._store.find_many(keys, is_sure=is_sure)


async def test_a_job_that_has_not_ended_is_looked_at_once_a_second_at_most_beside_each_add(ground: Ground) -> None:
    store = CountingStore(ground.store)
    record = replace(EACH_SECOND, overlap="skip")
    async with running(ground.actor(store=store)):
        await ground.schedules.add("mail", "nightly", record)
        first = await ground.record_when(is_added)
        left_out = await ground.record_when(lambda record: record.left_out >= 2)
    assert set(store.asked) == {token_of(occurrence_id("nightly", first.added_ms))}
    assert len(store.asked) <= 4 * (1 + left_out.left_out) + 4
