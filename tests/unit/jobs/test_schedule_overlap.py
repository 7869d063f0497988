"""What is run of the occurrences that overlap or were missed, and how runs end."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.jobs.rules.schedule_changes import begun, paused, removed, resumed, triggered
from actors.jobs.rules.schedule_checks import MOST_AT_ONCE
from actors.jobs.rules.schedule_record import MOST_RUNS, Misfire, Overlap, PastRun, Schedule, open_runs
from actors.jobs.rules.schedule_runs import end_look_ms, ended, with_ends, with_runs
from actors.jobs.rules.schedule_steps import (
    GRACE_MS,
    LEAD_MS,
    MOST_AHEAD,
    Step,
    added,
    cancelled,
    decide,
    taken_back,
)
from actors.jobs.rules.schedule_times import (
    latest_dues,
    next_due,
    next_dues,
)
from streams.messages.jobs import JobDone
from tests.unit.jobs.schedule_examples import CRON, EVERY_MINUTE, HOUR, MINUTE, NAME, ZONE, T, follow


def test_what_may_not_overlap_is_added_when_the_one_before_is_finished() -> None:
    record = replace(EVERY_MINUTE, overlap="skip")
    due_ms = T + MINUTE
    assert follow(record, T) == (record, [], due_ms - LEAD_MS)
    assert follow(record, due_ms - LEAD_MS)[1] == [due_ms]
    assert follow(record, due_ms - LEAD_MS, is_open=True) == (record, [], due_ms)
    assert follow(record, due_ms)[1] == [due_ms], "it was finished just in time"
    left, dues, look_ms = follow(record, due_ms, is_open=True)
    assert (dues, left.left_out, left.last_ms, look_ms) == ([], 1, due_ms, due_ms + MINUTE - LEAD_MS)


@pytest.mark.parametrize(
    ("misfire", "late_ms", "expected"),
    [
        ("skip", 10, [10]),
        ("skip", 10 * MINUTE + GRACE_MS - 1, [20]),
        ("skip", 10 * MINUTE + GRACE_MS + 1, []),
        ("once", 10, [10]),
        ("once", 10 * MINUTE + GRACE_MS + 1, [20]),
        ("all", 10, [10]),
        ("all", 30 * MINUTE, [10, 20, 30, 40]),
    ],
)
def test_what_was_missed_is_run_as_its_policy_says(misfire: Misfire, late_ms: int, expected: list[int]) -> None:
    record = Schedule(every_ms=10 * MINUTE, start_ms=T, last_ms=T, misfire=misfire, overlap="allow")
    _, dues, _ = follow(record, T + 10 * MINUTE + late_ms)
    late = [due for due in dues if due <= T + 10 * MINUTE + late_ms]
    assert late == [T + at * MINUTE for at in expected]


@pytest.mark.parametrize(("late_ms", "expected"), [(GRACE_MS, [HOUR]), (GRACE_MS + 1, [])])
def test_one_whose_jitter_may_not_be_over_was_not_missed(late_ms: int, expected: list[int]) -> None:
    record = Schedule(every_ms=HOUR, start_ms=T, last_ms=T, misfire="skip", jitter_ms=20 * MINUTE)
    step = decide(record, T + HOUR + 20 * MINUTE + late_ms, is_open=False)
    assert step.record.adding == tuple(T + due_ms for due_ms in expected)
    assert (step.missed is None) == bool(expected)


def test_what_was_skipped_is_told() -> None:
    record = Schedule(every_ms=10 * MINUTE, start_ms=T, last_ms=T, misfire="skip", overlap="allow")
    step = decide(record, T + 35 * MINUTE, is_open=False)
    assert (step.missed, step.record.adding) == ((T + 10 * MINUTE, T + 30 * MINUTE), ())
    step = decide(replace(record, misfire="once"), T + 35 * MINUTE, is_open=False)
    assert (step.missed, step.record.adding) == ((T + 10 * MINUTE, T + 20 * MINUTE), (T + 30 * MINUTE,))


def test_of_all_that_was_missed_only_the_latest_run_if_there_is_a_limit() -> None:
    record = replace(EVERY_MINUTE, misfire="all", most_missed=3)
    step = decide(record, T + 50 * MINUTE, is_open=False)
    assert step.record.adding == (T + 48 * MINUTE, T + 49 * MINUTE, T + 50 * MINUTE)
    assert step.missed == (T + MINUTE, T + 47 * MINUTE)
    step = decide(record, T + 2 * MINUTE, is_open=False)
    assert (step.record.adding, step.missed) == ((T + MINUTE, T + 2 * MINUTE), None)


@settings(max_examples=60, deadline=None)
@given(CRON, ZONE, st.integers(T, T + 300 * 86_400_000), st.integers(0, 3_600_000), st.integers(1, 9))
def test_the_latest_few_are_the_end_of_all(cron: str, tz: str, after_ms: int, span_ms: int, most: int) -> None:
    record, until_ms = Schedule(cron=cron, tz=tz), after_ms + span_ms
    within = [at for at in next_dues(record, after_ms, 1 + span_ms // 20_000) if at <= until_ms]
    assert latest_dues(record, after_ms, until_ms, most) == within[-most:]


class Overlapping(NamedTuple):
    """What became of each due time, in a world where runs take a while."""

    ran: list[int]
    deleted: list[int]
    most_open: int
    record: Schedule


def followed_through(overlap: Overlap, takes_ms: list[int]) -> Overlapping:
    """Follow a record of each minute for an hour. A run begins when its job is added and due, and takes the next of
    these times."""
    record, now_ms, most_open = replace(EVERY_MINUTE, overlap=overlap), T, 0
    ends: dict[int, int] = {}
    deleted: list[int] = []
    while now_ms < T + 60 * MINUTE:
        over = [replace(run, outcome="finished") for run in open_runs(record) if ends[run.due_ms] <= now_ms]
        record = with_ends(record, over)
        step = decide(record, now_ms, is_open=bool(open_runs(record)))
        if step.record is record:
            looks = [at_ms for at_ms in (step.look_ms, end_look_ms(record, now_ms)) if at_ms is not None]
            assert min(looks) > now_ms, "no busy loop"
            now_ms = min(looks)
            continue
        record = step.record
        deleted += record.cancelling
        ends.update(dict.fromkeys(record.cancelling, now_ms))
        for due_ms in record.adding:
            assert due_ms not in ends, "one tick fires once"
            ends[due_ms] = max(now_ms, due_ms) + takes_ms[len(ends) % len(takes_ms)]
        record = cancelled(added(record, record.adding))
        most_open = max(most_open, sum(end_ms > now_ms for end_ms in ends.values()))
    return Overlapping(sorted(ends), deleted, most_open, record)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(["skip", "allow", "buffer", "cancel"]),
    st.lists(st.integers(0, 5 * MINUTE), min_size=1, max_size=8),
)
def test_each_due_time_is_run_left_out_or_waits(overlap: Overlap, takes_ms: list[int]) -> None:
    seen = followed_through(overlap, takes_ms)
    waits = [seen.record.buffered_ms] if seen.record.buffered_ms else []
    decided = (seen.record.last_ms - T) // MINUTE
    assert len(seen.ran) + seen.record.left_out + len(waits) == decided
    assert overlap == "allow" or seen.most_open <= 1
    assert overlap == "cancel" or not seen.deleted
    assert overlap in ("skip", "buffer") or not seen.record.left_out
    if max(takes_ms) < MINUTE - LEAD_MS:
        assert (seen.record.left_out, seen.deleted, waits) == (0, [], []), "none overlaps"


def test_one_that_waits_runs_within_a_second_of_the_end_of_the_one_before() -> None:
    record = replace(EVERY_MINUTE, overlap="buffer", last_ms=T + MINUTE, runs=(PastRun(due_ms=T + MINUTE),))
    record, dues, look_ms = follow(record, T + 2 * MINUTE, is_open=True)
    assert (dues, record.buffered_ms, record.left_out) == ([], T + 2 * MINUTE, 0)
    assert (look_ms, end_look_ms(record, T + 2 * MINUTE)) == (T + 3 * MINUTE - LEAD_MS, T + 2 * MINUTE + 1000)
    record, dues, _ = follow(record, T + 3 * MINUTE, is_open=True)
    assert (dues, record.buffered_ms, record.left_out) == ([], T + 2 * MINUTE, 1)
    step = decide(record, T + 3 * MINUTE + 5, is_open=False)
    assert (step.record.adding, step.record.last_ms, step.record.buffered_ms) == ((T + 2 * MINUTE,), T + 3 * MINUTE, 0)


def test_the_next_deletes_all_that_are_open_and_none_else() -> None:
    runs = (PastRun(due_ms=T - 2), PastRun(due_ms=T - 1, outcome="finished"), PastRun(due_ms=T))
    record = replace(EVERY_MINUTE, overlap="cancel", runs=runs)
    step = decide(record, T + MINUTE, is_open=True)
    assert (step.record.adding, step.record.cancelling) == ((T + MINUTE,), (T - 2, T))
    assert decide(step.record, T + MINUTE, is_open=True).record is step.record, "they are deleted first"
    for changed in (
        paused(*NAME, step.record, now_ms=T),
        removed(step.record, now_ms=T),
        begun(*NAME, EVERY_MINUTE, step.record, now_ms=T),
    ):
        assert changed.cancelling == ()


def test_a_long_gap_is_claimed_in_parts() -> None:
    record = replace(EVERY_MINUTE, misfire="all")
    now_ms = T + 250 * MINUTE
    step = decide(record, now_ms, is_open=False)
    assert (len(step.record.adding), step.look_ms) == (MOST_AT_ONCE, now_ms)
    assert follow(record, now_ms)[1] == [T + at * MINUTE for at in range(1, 252)]


def test_a_new_record_begins_when_it_is_first_seen() -> None:
    record, dues, _ = follow(Schedule(every_ms=MINUTE, overlap="allow"), T + 1)
    assert dues == [next_due(record, T + 1)]


def hour_of(record: Schedule, *, ends_after_ms: int | None) -> list[int]:
    """Return what a leader adds within an hour. A run ends so long after it was due, or never."""
    now_ms, claimed = T, list[int]()
    while now_ms < T + 60 * MINUTE:
        if ends_after_ms is not None:
            over = [run for run in open_runs(record) if run.due_ms + ends_after_ms <= now_ms]
            record = with_ends(record, [replace(run, outcome="finished", ended_ms=now_ms) for run in over])
        step = decide(record, now_ms, is_open=True)
        if step.record is not record:
            claimed += step.record.adding
            record = added(step.record, step.record.adding)
        elif step.look_ms is not None:
            now_ms = step.look_ms
    return claimed


@pytest.mark.parametrize("misfire", ["skip", "once"])
def test_with_a_limit_of_open_runs_those_that_nobody_takes_do_not_pile_up(misfire: Misfire) -> None:
    record = Schedule(every_ms=1_000, start_ms=T, last_ms=T, overlap="allow", misfire=misfire, most_open=10)
    assert len(hour_of(record, ends_after_ms=None)) <= MOST_AHEAD + 10
    assert len(hour_of(record, ends_after_ms=900)) >= 3_600
    assert len(hour_of(replace(record, most_open=None), ends_after_ms=None)) >= 3_600


def test_after_runs_piled_up_the_newest_follows_once_some_have_ended() -> None:
    runs = tuple(PastRun(due_ms=T + n * 1_000) for n in range(1, 11))
    last_ms, now_ms = runs[-1].due_ms, T + 60 * MINUTE + 1
    record = Schedule(every_ms=1_000, start_ms=T, last_ms=last_ms, overlap="allow", misfire="skip", most_open=10)
    assert decide(replace(record, runs=runs), now_ms, is_open=True).record.adding == ()
    over = replace(record, runs=(replace(runs[0], outcome="finished"), *runs[1:]))
    step = decide(over, now_ms, is_open=True)
    assert step.record.adding == (T + 60 * MINUTE,)
    assert step.missed == (last_ms + 1_000, T + 60 * MINUTE - 1_000)


def test_what_is_years_away_waits_unadded() -> None:
    record = Schedule(cron="0 0 29 2 *", last_ms=T, overlap="allow")
    due_ms = next_due(record, T)
    step = decide(record, T, is_open=False)
    assert step.record is record
    assert step.look_ms is not None
    assert due_ms is not None
    assert 0 < due_ms - step.look_ms < 367 * 86_400_000


@pytest.mark.parametrize(
    "policy",
    [
        ("once", "skip"),
        ("skip", "skip"),
        ("once", "buffer"),
        ("once", "cancel"),
        ("once", "allow"),
        ("skip", "allow"),
        ("all", "allow"),
    ],
)
@settings(deadline=None)
@given(
    looks=st.lists(st.tuples(st.integers(0, 20 * MINUTE), st.booleans(), st.booleans()), min_size=1, max_size=30),
)
def test_none_is_added_twice_or_out_of_order_and_all_means_all(
    policy: tuple[Misfire, Overlap], looks: list[tuple[int, bool, bool]]
) -> None:
    record = Schedule(every_ms=7 * MINUTE, start_ms=T, last_ms=T, misfire=policy[0], overlap=policy[1])
    now_ms, dues = T, list[int]()
    for wait_ms, is_open, is_killed in looks:
        now_ms += wait_ms
        if is_killed:  # the claim is stored, and the next leader adds it
            step = decide(record, now_ms, is_open=is_open)
            dues += step.record.adding
            record = added(step.record, step.record.adding)
        record, more, _ = follow(record, now_ms, is_open=is_open)
        dues += more
    expected = list(range(T + 7 * MINUTE, (dues[-1] if dues else 0) + 1, 7 * MINUTE))
    assert set(dues) <= set(expected)
    assert dues == sorted(set(dues))
    if policy[0] == "all":
        assert dues == expected
        assert dues[-1] > now_ms


# ---- how runs end


def test_a_record_tells_of_its_latest_runs_and_how_they_ended() -> None:
    record, dues, _ = follow(replace(EVERY_MINUTE, misfire="all"), T + 50 * MINUTE)
    assert [run.due_ms for run in record.runs] == dues[-MOST_RUNS - 1 :], "and the one ahead"
    assert open_runs(record) == list(record.runs)
    first, second, third, *_ = record.runs
    done = JobDone(topic="mail", id="1", finished_ms=T + 9, outcome="buried", first_ms=T + 5)
    known = with_ends(
        record,
        [
            ended(run, end, now_ms=T + 7)
            for run, end in ((first, done), (second, None), (third, replace(done, first_ms=0)))
        ],
    )
    assert known.runs[:2] == (
        PastRun(due_ms=first.due_ms, started_ms=T + 5, ended_ms=T + 9, outcome="buried"),
        PastRun(due_ms=second.due_ms, ended_ms=T + 7, outcome="unknown"),
    )
    assert (known.runs[2].started_ms, known.runs[2].ended_ms) == (0, T + 9)
    assert open_runs(known) == list(record.runs[3:])
    assert with_ends(record, []) is record


@given(
    delay_ms=st.integers(1000, 10 * MINUTE),
    takes_ms=st.lists(st.integers(0, 20 * MINUTE), min_size=1, max_size=30),
    triggers=st.booleans(),
)
def test_each_begins_a_fixed_delay_after_the_end_of_the_one_before(
    delay_ms: int, takes_ms: list[int], triggers: bool
) -> None:
    record, now_ms = begun(*NAME, Schedule(fixed_delay_ms=delay_ms, initial_delay_ms=5), None, now_ms=T), T
    expected_ms = T + 5
    for take_ms in takes_ms:
        step = decide(record, now_ms, is_open=False)
        assert step.record.adding == (expected_ms,)
        record = added(step.record, step.record.adding)
        if triggers:
            asked = decide(triggered(record, now_ms=now_ms), now_ms, is_open=True).record
            record = with_ends(added(asked, asked.adding), [replace(asked.runs[-1], outcome="finished", ended_ms=1)])
        assert decide(record, expected_ms, is_open=True) == Step(record), "it waits for the end"
        ended_ms = expected_ms + take_ms
        now_ms = expected_ms
        while now_ms < ended_ms:
            look_ms = end_look_ms(record, now_ms)
            assert look_ms is not None
            now_ms = look_ms
        assert now_ms <= ended_ms + max(1000, delay_ms), "the end is seen before the next one is due"
        [run] = open_runs(record)
        record = with_ends(record, [replace(run, outcome="buried", ended_ms=ended_ms)])
        expected_ms = ended_ms + delay_ms
    assert next_dues(record, now_ms, 5) == [max(expected_ms, now_ms + 1)]


def test_what_people_asked_for_does_not_push_out_the_last_run_of_the_schedule() -> None:
    record = decide(begun(*NAME, Schedule(fixed_delay_ms=MINUTE), None, now_ms=T), T + 9, is_open=False).record
    record = added(record, record.adding)
    for number in range(3 * MOST_RUNS):
        asked = decide(triggered(record, now_ms=T + 10 + number), T + 10 + number, is_open=True).record
        record = added(asked, asked.adding)
    assert len(record.runs) == MOST_RUNS + 1
    assert (record.runs[0].kind, next_due(record, T + 100)) == ("", None)


def test_a_fixed_delay_that_was_paused_or_had_no_node_goes_on_at_once() -> None:
    run = PastRun(due_ms=T, ended_ms=T + 9, outcome="finished")
    record = Schedule(fixed_delay_ms=MINUTE, start_ms=T, last_ms=T, runs=(run,))
    for now_ms in (T + MINUTE + 8, T + 9 * MINUTE):
        assert decide(record, now_ms, is_open=False).record.adding == (T + MINUTE + 9,), "late or not"
    later = resumed(*NAME, paused(*NAME, record, now_ms=T), now_ms=T + 9 * MINUTE)
    assert decide(later, T + 9 * MINUTE, is_open=False).record.adding == (T + 9 * MINUTE + 1,)


def test_a_record_of_an_earlier_version_has_the_run_that_it_added_last() -> None:
    record = replace(EVERY_MINUTE, added_ms=T + MINUTE)
    assert with_runs(record).runs == (PastRun(due_ms=T + MINUTE),)
    assert with_runs(with_runs(record)) == with_runs(record)
    assert with_runs(EVERY_MINUTE) is EVERY_MINUTE


def test_what_is_taken_back_was_no_run_and_what_was_due_stays_one() -> None:
    record, _, _ = follow(EVERY_MINUTE, T)
    record = paused(*NAME, record, now_ms=T)
    assert taken_back(record, record.stale).runs == (PastRun(due_ms=T + MINUTE),)
    record = taken_back(record, record.stale, gone={T + MINUTE})
    assert (record.runs, record.added_ms) == ((), 0)
    assert with_runs(record).runs == (), "the next leading node does not take it for one"


def test_after_one_was_taken_back_the_one_before_is_the_latest_added() -> None:
    record, _, _ = follow(EVERY_MINUTE, T)
    record, dues, _ = follow(record, T + MINUTE)
    record = paused(*NAME, record, now_ms=T + MINUTE)
    assert taken_back(record, record.stale, gone=dues).added_ms == T + MINUTE


def test_what_expired_before_it_was_added_is_told() -> None:
    record = replace(EVERY_MINUTE, adding=(T, T + 1), runs=(PastRun(due_ms=T), PastRun(due_ms=T + 1)))
    record = added(record, record.adding, {T})
    assert (record.adding, [run.outcome for run in record.runs]) == ((), ["expired", ""])


def test_a_new_definition_keeps_what_is_known_of_the_runs_before() -> None:
    record, _, _ = follow(EVERY_MINUTE, T)
    assert begun(*NAME, Schedule(every_ms=MINUTE), record, now_ms=T).runs == record.runs


@given(st.lists(st.integers(-MINUTE, 10**9), min_size=1, max_size=5))
def test_the_longer_a_run_takes_the_rarer_are_the_looks(ages_ms: list[int]) -> None:
    runs = tuple(PastRun(due_ms=T - age_ms) for age_ms in ages_ms)
    look_ms = end_look_ms(replace(EVERY_MINUTE, runs=runs), T)
    assert look_ms is not None
    youngest_ms = min(ages_ms)
    if youngest_ms < 0:
        assert look_ms == T + 1000 - youngest_ms or look_ms - T <= 60_000
    else:
        assert 1000 <= look_ms - T <= 60_000
        assert look_ms - T <= max(1000, youngest_ms // 4)
    assert end_look_ms(EVERY_MINUTE, T) is None
