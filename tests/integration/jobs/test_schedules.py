"""Schedules on a real server: each an ordinary job, added once, through crashes and overlap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import anyio
import pytest
from anyio.abc import TaskStatus
from msgspec import Raw
from msgspec.structs import replace

from actors.jobs.reservations import JobStale
from actors.jobs.rules.schedule_record import Misfire, PastRun, Schedule, decode_schedule
from actors.jobs.rules.schedule_steps import HORIZON_MS, REFILL_MS
from actors.jobs.rules.schedule_times import occurrence, occurrence_id
from actors.jobs.schedule_desk import ScheduleRefused
from actors.jobs.scheduler import KnownJob
from actors.jobs.store import JobStore
from streams.clock import now_ms
from streams.subjects import token_of
from tests.support.engine import logging_of
from tests.support.jobs import open_jobs
from tests.support.moments import a_moment
from tests.support.schedule_ground import FAR, HOUR, KEY, Ground, is_added, running

EACH_SECOND = Schedule(every_ms=1000, body=Raw(b'{"n":1}'))


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
