"""What people do to a schedule: they trigger, backfill, pause, change and remove it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import anyio
import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from actors.jobs.rules.cron import BadRecurrence
from actors.jobs.rules.schedule_record import Overlap, PastRun, Schedule, decode_schedule
from actors.jobs.rules.schedule_times import occurrence, occurrence_id
from actors.jobs.schedule_desk import ScheduleRefused
from actors.jobs.scheduler import KnownJob
from streams.clock import SYSTEM, now_ms
from streams.messages.jobs import NewJob
from tests.support.jobs import open_jobs
from tests.support.loop_turns import longest_turn_ms
from tests.support.moments import a_moment
from tests.support.schedule_ground import FAR, HOUR, KEY, Ground, is_added, running

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


async def test_the_times_of_a_long_backfill_are_found_while_others_have_their_turns(ground: Ground) -> None:
    await ground.schedules.add("mail", "often", Schedule(cron="* * * * *"))
    async with longest_turn_ms() as longest_ms:
        with pytest.raises(BadRecurrence, match="more than 10000 occurrences"):
            await ground.schedules.backfill("mail", "often", now_ms() - 300 * HOUR)
        assert longest_ms() < 50


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
    desk, other, from_ms = ground.schedules, replace(FAR, cron="0 0 2 1 *"), now_ms() - 800 * 24 * HOUR

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
        return await desk.backfill("mail", "nightly", from_ms, nonce="mine")

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
