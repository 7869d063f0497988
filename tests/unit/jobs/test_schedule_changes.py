"""What people do to a schedule: they pause, change, trigger and backfill it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from actors.jobs.rules.cron import BadRecurrence
from actors.jobs.rules.schedule_changes import backfilled, begun, is_over, paused, removed, resumed, triggered
from actors.jobs.rules.schedule_checks import check_wanted
from actors.jobs.rules.schedule_record import Misfire, Overlap, PastRun, Schedule, open_runs
from actors.jobs.rules.schedule_steps import (
    GRACE_MS,
    Step,
    added,
    decide,
    taken_back,
)
from actors.jobs.rules.schedule_times import (
    jittered,
    next_due,
    occurrence,
    occurrence_id,
)
from actors.runtime.rules.texts import time_text
from tests.unit.jobs.schedule_examples import EVERY_MINUTE, HOUR, MINUTE, NAME, T, follow


def all_of(move: Callable[[Schedule], Schedule]) -> Schedule:
    record, _, _ = follow(EVERY_MINUTE, T)
    return move(record)


def test_a_pause_takes_back_what_was_added_and_resuming_goes_on_from_now() -> None:
    record = all_of(lambda record: paused(*NAME, record, now_ms=T))
    assert record.stale == (T + MINUTE,)
    assert decide(record, T + 5 * MINUTE, is_open=False) == Step(record)
    record = resumed(*NAME, taken_back(record, (T + MINUTE,)), now_ms=T + 10 * MINUTE + 1)
    assert follow(record, T + 10 * MINUTE + 1)[1] == [T + 11 * MINUTE], "what the pause left out was not missed"


@pytest.mark.parametrize("overlap", ["skip", "allow"])
@pytest.mark.parametrize("is_taken_back", [True, False])
@given(number=st.integers(1, 10**6), after_ms=st.integers(0, 2 * HOUR))
def test_what_its_jitter_makes_due_after_a_pause_is_still_to_come(
    overlap: Overlap, is_taken_back: bool, number: int, after_ms: int
) -> None:
    daily = Schedule(
        every_ms=24 * HOUR, start_ms=T, jitter_ms=HOUR, overlap=overlap, last_ms=T + number * 24 * HOUR - 1
    )
    due_ms = daily.last_ms + 1
    job_ms, resumed_ms = jittered(*NAME, daily, due_ms), due_ms + after_ms
    record, dues, _ = follow(daily, due_ms)
    assert dues[:1] == [due_ms]
    held = paused(*NAME, record, now_ms=due_ms)
    if is_taken_back:  # else the leading node hears of the pause and of its end at once
        held = taken_back(held, held.stale, gone=held.stale)
    again = resumed(*NAME, held, now_ms=resumed_ms)
    again = taken_back(again, again.stale, gone=again.stale)
    assert (due_ms in follow(again, resumed_ms)[1]) == (resumed_ms < job_ms)


def test_what_was_run_before_its_time_is_not_run_again_after_a_pause() -> None:
    daily = Schedule(every_ms=24 * HOUR, start_ms=T, jitter_ms=HOUR, last_ms=T - 1)
    record, _, _ = follow(daily, T)
    held = paused(*NAME, record, now_ms=T)
    left = taken_back(held, held.stale)  # a person had kicked its job
    for again in (resumed(*NAME, left, now_ms=T), taken_back(resumed(*NAME, held, now_ms=T), held.stale)):
        assert T not in follow(again, T)[1]


@pytest.mark.parametrize(
    ("misfire", "pause_ms", "expected"),
    [
        ("all", HOUR, [T + MINUTE, T + 2 * MINUTE]),
        ("once", HOUR, [T + 2 * MINUTE]),
        ("skip", HOUR, []),
        ("skip", GRACE_MS // 2, [T + 2 * MINUTE]),
    ],
)
@pytest.mark.parametrize("is_claimed", [True, False])
def test_what_was_due_before_a_pause_and_not_added_comes_after_it(
    misfire: Misfire, pause_ms: int, expected: list[int], is_claimed: bool
) -> None:
    record, pause_at_ms = replace(EVERY_MINUTE, misfire=misfire), T + 2 * MINUTE + 5_000
    if is_claimed:  # by a leader that died before it added them
        record = decide(record, T + 2 * MINUTE, is_open=False).record
        assert T + 2 * MINUTE in record.adding
    record, resumed_ms = paused(*NAME, record, now_ms=pause_at_ms), pause_at_ms + pause_ms
    record = taken_back(record, record.stale, gone=record.stale)
    assert decide(record, resumed_ms, is_open=False).record is record
    record, dues, _ = follow(resumed(*NAME, record, now_ms=resumed_ms), resumed_ms)
    next_ms = next_due(EVERY_MINUTE, resumed_ms)
    assert (dues, record.owed) == ([*expected, next_ms], ()), "and none of those that were due during the pause"


def test_what_a_pause_finds_added_does_not_come_a_second_time() -> None:
    claimed = decide(replace(EVERY_MINUTE, misfire="all"), T + 2 * MINUTE, is_open=False).record
    record = paused(*NAME, claimed, now_ms=T + 2 * MINUTE)
    assert record.owed == claimed.adding == (T + MINUTE, T + 2 * MINUTE)
    record = taken_back(record, record.stale, gone={T + MINUTE})  # the leader died before it wrote down its add
    record = resumed(*NAME, record, now_ms=T + 2 * MINUTE + 1)
    assert follow(record, T + 2 * MINUTE + 1)[1] == [T + MINUTE, T + 3 * MINUTE]


def test_what_waits_for_the_one_before_waits_through_a_pause() -> None:
    record = Schedule(every_ms=MINUTE, start_ms=T, last_ms=T, overlap="buffer")
    record, _, _ = follow(record, T + MINUTE)
    record, _, _ = follow(record, T + 2 * MINUTE, is_open=True)
    record = paused(*NAME, record, now_ms=T + 2 * MINUTE)
    record = taken_back(record, record.stale)
    assert follow(record, T + 2 * MINUTE)[1] == []
    record = resumed(*NAME, record, now_ms=T + 2 * MINUTE + 1)
    assert follow(record, T + 2 * MINUTE + 1)[1] == [T + 2 * MINUTE]


def test_one_that_is_owed_does_not_run_beside_the_one_before() -> None:
    record = Schedule(every_ms=MINUTE, start_ms=T, last_ms=T, runs=(PastRun(due_ms=T),))
    record = resumed(*NAME, paused(*NAME, record, now_ms=T + MINUTE), now_ms=T + MINUTE)
    assert (follow(record, T + MINUTE)[1], record.last_ms) == ([T + MINUTE], T + MINUTE)
    left = decide(record, T + MINUTE, is_open=True).record
    assert (left.adding, left.owed, left.left_out) == ((), (), 1)


@pytest.mark.parametrize("is_added", [True, False])
@pytest.mark.parametrize("overlap", ["skip", "allow"])
def test_one_whose_time_came_before_another_definition_runs_once(overlap: Overlap, is_added: bool) -> None:
    daily = Schedule(every_ms=24 * HOUR, start_ms=T, jitter_ms=HOUR, overlap=overlap, last_ms=T - 1)
    job_ms, other = jittered(*NAME, daily, T), Schedule(cron="0 0 1 1 *", overlap=overlap)
    before = follow(daily, T)[0] if is_added else daily
    record = begun(*NAME, other, replace(before, adding=()), now_ms=job_ms - 1)
    record = taken_back(record, record.stale, gone=record.stale)
    assert T in follow(record, job_ms - 1)[1], "by the new definition"
    if is_added:
        before = replace(before, adding=(), runs=(PastRun(due_ms=T),))
        assert begun(*NAME, other, before, now_ms=job_ms).owed == (), "its job was due"
        ran = begun(*NAME, other, before, now_ms=job_ms - 1)
        assert taken_back(ran, ran.stale).owed == (), "a person had kicked its job"
        over = replace(before, runs=(PastRun(due_ms=T, outcome="finished", ended_ms=T + 1),))
        assert begun(*NAME, other, over, now_ms=job_ms - 1).owed == ()
        assert begun(*NAME, other, removed(before, now_ms=T), now_ms=job_ms - 1).owed == ()


def test_another_definition_of_a_paused_schedule_waits_for_its_resume() -> None:
    """What was due before the pause, and not added, comes then, too, and what was triggered comes at once."""
    before = paused(*NAME, follow(EVERY_MINUTE, T)[0], now_ms=T)
    before = replace(triggered(before, now_ms=T + 5), owed=(T,), buffered_ms=T - MINUTE)
    record = begun(*NAME, replace(EVERY_MINUTE, every_ms=HOUR, misfire="all"), before, now_ms=T + 10)
    assert (record.is_paused, record.every_ms, record.stale) == (True, HOUR, before.stale)
    record = taken_back(record, record.stale, gone=record.stale)
    record = decide(record, T + 11, is_open=False).record
    assert record.adding == (T + 5,)
    record = added(record, record.adding)
    assert decide(record, T + 3 * HOUR, is_open=False).record is record
    record = resumed(*NAME, record, now_ms=T + 3 * HOUR + 1)
    assert follow(record, T + 3 * HOUR + 1)[1] == [T - MINUTE, T, T + 4 * HOUR]
    again = begun(*NAME, EVERY_MINUTE, removed(before, now_ms=T + 10), now_ms=T + 10)
    assert not again.is_paused, "it was removed, and added anew"


def test_a_run_that_has_ended_is_told_after_a_pause() -> None:
    record = replace(EVERY_MINUTE, added_ms=T, runs=(PastRun(due_ms=T, outcome="finished", ended_ms=T + 1),))
    held = paused(*NAME, record, now_ms=T + 5)
    assert taken_back(held, held.stale, gone=held.stale).runs == record.runs


def test_nothing_is_added_before_what_is_stale_has_gone() -> None:
    record = resumed(*NAME, all_of(lambda record: paused(*NAME, record, now_ms=T)), now_ms=T + 1)
    assert decide(record, T + 1, is_open=False).record is record
    assert follow(taken_back(record, record.stale, record.stale), T + 1)[1] == [T + MINUTE], "the same one, added anew"


def test_one_that_came_due_before_it_was_taken_back_is_not_added_anew() -> None:
    record, dues, _ = follow(replace(EVERY_MINUTE, every_ms=1000), T)
    record = resumed(*NAME, paused(*NAME, record, now_ms=T + 999), now_ms=T + 999)
    record = taken_back(record, record.stale, gone=set(dues[1:]))
    again, added_dues, _ = follow(record, T + 1001)
    assert (added_dues[: len(dues) - 1], again.runs[0].due_ms) == (dues[1:], dues[0])


def test_a_claim_that_was_not_added_yet_goes_with_a_change() -> None:
    claimed = decide(EVERY_MINUTE, T, is_open=False).record
    assert claimed.adding == (T + MINUTE,)
    for changed in (
        paused(*NAME, claimed, now_ms=T),
        removed(claimed, now_ms=T),
        begun(*NAME, EVERY_MINUTE, claimed, now_ms=T),
    ):
        assert (changed.adding, changed.stale) == ((), (T + MINUTE,))
    assert decide(removed(claimed, now_ms=T), T + 9 * MINUTE, is_open=False).record.is_removed


def test_a_new_definition_begins_now() -> None:
    old = all_of(lambda record: record)
    new = begun(*NAME, Schedule(every_ms=5 * MINUTE), old, now_ms=T + 30_000)
    assert (new.start_ms, new.last_ms, new.stale) == (T + 30_000, T + 30_000, (T + MINUTE,))
    later = begun(*NAME, Schedule(every_ms=MINUTE, start_ms=T + 90_000, overlap="allow"), None, now_ms=T)
    assert follow(later, T)[1] == [T + 90_000], "the first one is at the start that was asked for"


def test_a_trigger_adds_a_job_now_and_moves_nothing_else() -> None:
    for before in (replace(EVERY_MINUTE, last_ms=T + MINUTE), paused(*NAME, EVERY_MINUTE, now_ms=T)):
        record = triggered(triggered(before, now_ms=T + 5), now_ms=T + 5)
        assert record.triggered == (T + 5, T + 6), "each has an id of its own"
        step = decide(record, T + 9, is_open=True)
        assert (step.record.adding, step.record.triggered, step.record.claim_ms) == ((T + 5, T + 6), (), T + 9)
        assert (step.record.last_ms, step.record.added_ms) == (before.last_ms, before.added_ms)
        assert [run.kind for run in step.record.runs[-2:]] == ["triggered", "triggered"]
        job = occurrence("mail", "nightly", replace(step.record, jitter_ms=9000), T + 5, claim=1)
        assert (job.due_ms, job.id) == (T + 9, occurrence_id("nightly", T + 5))
    full = replace(EVERY_MINUTE, triggered=tuple(range(100)))
    with pytest.raises(BadRecurrence, match="are waiting already"):
        triggered(full, now_ms=T)


@pytest.mark.parametrize("overlap", ["skip", "buffer", "cancel", "allow"])
def test_one_that_was_due_before_somebody_asked_for_a_job_comes_and_leaves_it_in_peace(overlap: Overlap) -> None:
    """Nobody led for a moment."""
    record = triggered(replace(EVERY_MINUTE, overlap=overlap), now_ms=T + MINUTE + 5)
    added_ms: list[int] = []
    while (step := decide(record, T + MINUTE + 9, is_open=bool(open_runs(record)))).record is not record:
        assert step.record.cancelling == ()
        added_ms += step.record.adding
        record = added(step.record, step.record.adding)
    assert added_ms[0] == T + MINUTE
    assert T + MINUTE + 5 in added_ms
    assert (record.left_out, record.buffered_ms) == (0, 0)


def test_each_trigger_is_a_job_of_its_own_and_its_repeat_is_none() -> None:
    record, asked = replace(EVERY_MINUTE, last_ms=T + MINUTE), list[int]()
    for number in range(150):
        again = record = triggered(record, now_ms=T, nonce=f"n{number}")
        for known in range(max(0, number - 99), number + 1):
            again = triggered(again, now_ms=T + known, nonce=f"n{known}")
        assert again is record, "repeats"
        record = decide(record, T, is_open=True).record  # the node takes each at once, in the same millisecond
        asked += record.adding
        record = added(record, record.adding)
    assert len(set(asked)) == 150
    assert T not in asked, "the schedule's own"
    later = begun(*NAME, replace(EVERY_MINUTE, every_ms=2 * MINUTE), record, now_ms=T + 1)
    assert triggered(later, now_ms=T + 2, nonce="n149") is later, "a repeat, though the definition was replaced"


@pytest.mark.parametrize(("overlap", "claims"), [("allow", [20, 20, 19]), ("skip", [1] * 59)])
def test_a_backfill_adds_each_time_of_the_range_once(overlap: Overlap, claims: list[int]) -> None:
    later = replace(EVERY_MINUTE, overlap=overlap, last_ms=T + MINUTE, expires_in_ms=1000)
    record = backfilled(later, T - 59 * MINUTE, T, now_ms=T + 1)
    dues, sizes = list[int](), list[int]()
    while record.backfill:
        if overlap == "skip":
            assert decide(record, T + 1, is_open=True).record is record, "one after the other"
        record = decide(record, T + 1, is_open=False).record
        jobs = [occurrence("mail", "nightly", record, due_ms, claim=1) for due_ms in record.adding]
        assert {(job.due_ms, job.expires_ms, job.on_same) for job in jobs} <= {(T + 1, T + 1001, "replace")}
        dues += record.adding
        sizes += [len(record.adding)] if record.adding else []
        record = added(record, record.adding)
    assert dues == [T - at * MINUTE for at in range(59, 0, -1)]
    assert (sizes, record.last_ms) == (claims, T + MINUTE)
    assert {run.kind for run in record.runs} == {"backfilled"}


def test_a_backfill_goes_by_the_wall_clock_and_before_the_start() -> None:
    now_ms = 1_795_253_400_000  # 21 Nov 2026
    record = begun(*NAME, Schedule(cron="30 9 * * *", tz="Europe/Berlin", overlap="allow"), None, now_ms=now_ms)
    record, dues, _ = follow(record, now_ms)
    record = backfilled(record, 1_792_800_000_000, 1_792_980_000_000, now_ms=now_ms)  # 24 to 26 Oct
    assert [occurrence_id("n", due_ms) for due_ms in dues] == ["n.20261122T083000Z"]
    dues = list(decide(record, now_ms, is_open=False).record.adding)
    assert [occurrence_id("n", due_ms) for due_ms in dues] == ["n.20261024T073000Z", "n.20261025T083000Z"]


def test_a_backfill_runs_nothing_beside_itself() -> None:
    runs = (PastRun(due_ms=T - 2 * MINUTE), PastRun(due_ms=T - MINUTE, outcome="buried"))
    record = replace(EVERY_MINUTE, last_ms=T + MINUTE, runs=runs)
    step = decide(backfilled(record, T - 2 * MINUTE, T, now_ms=T), T, is_open=True)
    assert step.record.adding == (T - MINUTE,), "the one before is open"
    assert [(run.due_ms, run.outcome, run.kind) for run in step.record.runs] == [
        (T - 2 * MINUTE, "", ""),
        (T - MINUTE, "", "backfilled"),
    ]


def test_what_was_triggered_runs_though_another_caller_replaces_the_definition() -> None:
    record = triggered(replace(EVERY_MINUTE, last_ms=T + MINUTE), now_ms=T, at_ms=T)
    other = replace(EVERY_MINUTE, every_ms=2 * MINUTE)
    assert begun(*NAME, other, record, now_ms=T).triggered == record.triggered == (T,)
    claimed = decide(record, T, is_open=False).record
    after = begun(*NAME, other, claimed, now_ms=T + 1)
    assert (after.adding, after.claim_ms, after.stale, after.triggered) == ((T,), claimed.claim_ms, (), ())


def test_what_was_triggered_runs_though_the_schedule_is_removed_then() -> None:
    record = triggered(replace(EVERY_MINUTE, last_ms=T + MINUTE), now_ms=T, at_ms=T)
    claimed = decide(record, T, is_open=False).record
    for gone in (removed(claimed, now_ms=T), decide(removed(record, now_ms=T), T, is_open=False).record):
        assert (gone.adding, gone.stale, is_over(gone)) == ((T,), (), False)
        assert is_over(added(gone, gone.adding))
    assert begun(*NAME, EVERY_MINUTE, removed(record, now_ms=T), now_ms=T).triggered == (T,)


def test_a_pause_holds_a_backfill_and_drops_nothing_of_it() -> None:
    record = replace(EVERY_MINUTE, overlap="skip", last_ms=T)
    claimed = decide(backfilled(record, T - 9 * MINUTE, T, now_ms=T), T, is_open=False).record
    assert claimed.adding == (T - 9 * MINUTE,)
    held = paused(*NAME, claimed, now_ms=T)
    assert (held.adding, held.stale, held.backfill) == ((T - 9 * MINUTE,), (), (T - 9 * MINUTE, T))
    held = added(held, held.adding)
    assert decide(held, T, is_open=False) == Step(held)
    assert decide(resumed(*NAME, held, now_ms=T), T, is_open=False).record.adding == (T - 8 * MINUTE,)
    assert removed(claimed, now_ms=T).adding == ()


@pytest.mark.parametrize(
    ("record", "span", "said"),
    [
        (EVERY_MINUTE, (T - MINUTE, T + 2), "lies ahead"),
        (EVERY_MINUTE, (T + 1 - MINUTE, T), "has no occurrence"),
        (EVERY_MINUTE, (T - 10_001 * MINUTE, T), f"more than 10000 occurrences; end at {time_text(T - MINUTE)}, and"),
        (Schedule(at_ms=T), (T - MINUTE, T), "trigger it"),
        (Schedule(fixed_delay_ms=MINUTE), (T - MINUTE, T), "trigger it"),
        (replace(EVERY_MINUTE, backfill=(1, 2)), (T - MINUTE, T), "is not finished"),
    ],
)
def test_a_backfill_that_makes_no_sense_is_refused(record: Schedule, span: tuple[int, int], said: str) -> None:
    with pytest.raises(BadRecurrence, match=said):
        backfilled(record, *span, now_ms=T + 1)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"null", b'{"at":"2026-11-21T09:30:00Z"}'),
        (b'{"n":  1, "at": 7}', b'{"n":1,"at":"2026-11-21T09:30:00Z"}'),
    ],
)
def test_the_body_tells_each_job_its_time(body: bytes, told: bytes) -> None:
    record = check_wanted(Schedule(cron="* * * * *", body=Raw(body), data_time="at", jitter_ms=5000))
    assert bytes(occurrence("mail", "nightly", record, 1_795_253_400_000, claim=1).body) == told
    late = bytes(occurrence("mail", "nightly", record, 1_795_253_400_007, claim=1).body)
    assert b'"at":"2026-11-21T09:30:00.007Z"' in late
