"""Which occurrences are added when: one after the other, through downtime, overlap, pauses and changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw, json
from msgspec.structs import replace

from actors.jobs.rules.cron import BadRecurrence
from actors.jobs.rules.schedule_changes import backfilled, begun, is_over, paused, removed, resumed, triggered
from actors.jobs.rules.schedule_checks import MOST_AT_ONCE, check_wanted
from actors.jobs.rules.schedule_record import MOST_RUNS, Misfire, Overlap, PastRun, Schedule, open_runs
from actors.jobs.rules.schedule_runs import end_look_ms, ended, with_ends, with_runs
from actors.jobs.rules.schedule_steps import (
    CLOSE_MS,
    GRACE_MS,
    HORIZON_MS,
    LEAD_MS,
    MOST_AHEAD,
    REFILL_MS,
    SPREAD_MS,
    Step,
    added,
    cancelled,
    decide,
    first_look_ms,
    rests_until_ms,
    taken_back,
)
from actors.jobs.rules.schedule_times import (
    jittered,
    latest_due,
    latest_dues,
    next_due,
    next_dues,
    occurrence,
    occurrence_id,
)
from actors.runtime.rules.texts import time_text
from streams.messages.jobs import JobDone

T = 1_770_000_000_000
NAME = ("mail", "nightly")
MINUTE = 60_000
HOUR = 60 * MINUTE
EVERY_MINUTE = Schedule(every_ms=MINUTE, start_ms=T, last_ms=T, overlap="allow")
CRON = st.sampled_from(["* * * * *", "*/7 3,4 * * *", "0,30 2 * * SUN", "*/20 * * * * *"])
ZONE = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"])


# ---- when


def test_every_counts_from_its_start() -> None:
    later = replace(EVERY_MINUTE, start_ms=T + 7)
    assert next_dues(later, T - 5 * MINUTE, 2) == [T + 7, T + 7 + MINUTE]
    assert next_due(later, T + 7) == T + 7 + MINUTE
    assert next_due(later, T + 6 + MINUTE) == T + 7 + MINUTE


def test_a_cron_line_has_nothing_before_its_start() -> None:
    record = Schedule(cron="0 9 * * *", tz="Europe/Berlin", start_ms=1_770_019_200_000)  # 2 Feb 2026, 09:00 in Berlin
    assert next_due(record, 0) == 1_770_019_200_000
    assert next_due(replace(record, start_ms=record.start_ms + 1), 0) == 1_770_019_200_000 + 86_400_000


@settings(max_examples=60, deadline=None)  # counts through the moments, on a busy machine
@given(CRON, ZONE, st.integers(T, T + 300 * 86_400_000), st.integers(0, 3_600_000))
def test_the_latest_is_the_last_of_the_next(cron: str, tz: str, after_ms: int, span_ms: int) -> None:
    record, until_ms = Schedule(cron=cron, tz=tz), after_ms + span_ms
    within = [at for at in next_dues(record, after_ms, 1 + span_ms // 20_000) if at <= until_ms]
    assert within == sorted(set(within))
    assert latest_due(record, after_ms, until_ms) == (within[-1] if within else None)


def test_an_occurrence_is_an_ordinary_job() -> None:
    record = Schedule(cron="* * * * *", body=Raw(b"[1]"), ttr_ms=9000, attempts=2, priority="low", expires_in_ms=60_000)
    job = occurrence("mail", "nightly", record, 1_795_253_400_000, claim=7)
    assert (job.topic, job.id, bytes(job.body), job.due_ms) == (
        "mail",
        "nightly.20261121T093000Z",
        b"[1]",
        1_795_253_400_000,
    )
    assert (job.ttr_ms, job.attempts, job.priority, job.expires_ms) == (9000, 2, "low", 1_795_253_460_000)
    assert job.on_same == "keep"
    later = occurrence("mail", "nightly", record, 1_795_253_400_000, claim=8)
    assert later.nonce != job.nonce, "what was taken back may be claimed and added anew"


def test_one_that_is_due_once_is_added_once() -> None:
    once = Schedule(at_ms=T + MINUTE, last_ms=T, overlap="allow")
    assert next_dues(once, T, 5) == [T + MINUTE]
    record, dues, look_ms = follow(once, T)
    assert (dues, look_ms) == ([T + MINUTE], T + MINUTE)
    assert follow(record, T + MINUTE)[1:] == ([], None)
    _, dues, _ = follow(once, T + 9 * MINUTE)
    assert dues == [T + MINUTE], "no node was there at its time"
    assert follow(replace(once, misfire="skip"), T + 9 * MINUTE)[1] == []


def test_an_initial_delay_counts_from_the_definition() -> None:
    record = begun(*NAME, Schedule(every_ms=MINUTE, initial_delay_ms=5000), None, now_ms=T)
    assert next_dues(record, T, 2) == [T + 5000, T + 5000 + MINUTE]
    record = begun(*NAME, Schedule(cron="0 * * * *", initial_delay_ms=3_600_000), None, now_ms=T)
    assert next_dues(record, T, 1)[0] >= T + 3_600_000


@given(st.integers(T, T + 10**10), st.integers(0, MINUTE - 1), st.integers(1, 2))
def test_jitter_moves_the_job_and_leaves_its_id(due_ms: int, jitter_ms: int, claim: int) -> None:
    plain = replace(EVERY_MINUTE, expires_in_ms=1000)
    job, moved = (
        occurrence("mail", "nightly", record, due_ms, claim=claim)
        for record in (plain, replace(plain, jitter_ms=jitter_ms))
    )
    assert job.due_ms == due_ms
    assert moved.due_ms is not None
    assert moved.expires_ms == moved.due_ms + 1000
    assert (moved.id, 0 <= moved.due_ms - due_ms <= jitter_ms) == (job.id, True)
    assert moved == occurrence("mail", "nightly", replace(plain, jitter_ms=jitter_ms), due_ms, claim=claim)


def test_jitter_spreads_what_is_due_at_one_moment() -> None:
    record = replace(EVERY_MINUTE, jitter_ms=10_000)
    dues = {occurrence("mail", f"n{number}", record, T, claim=1).due_ms for number in range(100)}
    assert len(dues) > 90


def test_ids_tell_the_due_time() -> None:
    assert occurrence_id("nightly", 1_795_253_400_000) == "nightly.20261121T093000Z"
    assert occurrence_id("fast", 1_795_253_400_500) == "fast.20261121T093000.500Z"


# ---- what is added


def follow(record: Schedule, now_ms: int, *, is_open: bool = False) -> tuple[Schedule, list[int], int | None]:
    """Do at one moment what a leading node does; return the record, what it added, and when it looks again."""
    found: list[int] = []
    while True:
        step = decide(record, now_ms, is_open=is_open)
        if step.record is record:
            return record, found, step.look_ms
        is_new = step.record.last_ms > record.last_ms or step.record.buffered_ms < record.buffered_ms
        assert is_new or len(step.record.owed) < len(record.owed), "what was decided is not decided again"
        found += step.record.adding
        record = added(step.record, step.record.adding)


def test_what_may_overlap_is_added_one_ahead() -> None:
    record, dues, look_ms = follow(EVERY_MINUTE, T)
    assert (dues, look_ms) == ([T + MINUTE], T + MINUTE)
    assert follow(record, T + 1)[1] == []
    record, dues, look_ms = follow(record, T + MINUTE)
    assert (dues, look_ms) == ([T + 2 * MINUTE], T + 2 * MINUTE)


def test_those_that_follow_closely_are_added_many_ahead_and_refilled_in_time() -> None:
    record, dues, look_ms = follow(replace(EVERY_MINUTE, every_ms=1000), T)
    assert dues == [T + at * 1000 for at in range(1, HORIZON_MS // 1000)]
    assert look_ms is not None
    assert look_ms == dues[-1] - REFILL_MS
    assert follow(record, look_ms - 1)[1:] == ([], look_ms)
    record, dues, _ = follow(record, look_ms)
    assert dues == [T + at * 1000 for at in range(40, 49)], "one claim in so many seconds"
    burst = Schedule(cron="0-5 0 * * * *", start_ms=T, last_ms=T, overlap="allow")
    record, dues, look_ms = follow(burst, T)
    assert look_ms is not None
    assert (len(dues), look_ms) == (1, dues[0] - REFILL_MS), "the first of the hour, and in time those after it"
    assert [due_ms - dues[0] for due_ms in follow(record, look_ms)[1]] == [1000, 2000, 3000, 4000, 5000]


def test_a_new_leader_looks_at_close_ones_when_they_need_it_and_at_the_others_at_once() -> None:
    close, dues, _ = follow(replace(EVERY_MINUTE, every_ms=1000), T)
    assert rests_until_ms(close) == dues[-1] - REFILL_MS
    assert rests_until_ms(triggered(close, now_ms=T)) == 0
    assert rests_until_ms(paused(*NAME, close, now_ms=T)) == 0, "its jobs are taken back"
    assert rests_until_ms(replace(close, overlap="skip")) == 0
    assert rests_until_ms(follow(EVERY_MINUTE, T)[0]) == 0, "the ends of its runs are read sooner"


def test_a_new_leader_spreads_the_looks_that_nobody_had_but_those_that_wait_for_long() -> None:
    close, dues, _ = follow(replace(EVERY_MINUTE, every_ms=1000), T)
    late_ms = dues[-1] - REFILL_MS + 3_000
    assert [first_look_ms(close, late_ms, part=part) - late_ms for part in (0.0, 0.5)] == [0, SPREAD_MS // 2]
    assert first_look_ms(close, T, part=0.0) == rests_until_ms(close), "not before it needs one"
    later_ms = dues[-1] - REFILL_MS + SPREAD_MS
    assert first_look_ms(close, later_ms, part=0.5) == rests_until_ms(close), "the leader before died at once, too"
    assert first_look_ms(triggered(close, now_ms=T), late_ms, part=0.5) == 0
    assert 2 * SPREAD_MS < REFILL_MS


CLOSE = st.sampled_from(
    [
        Schedule(every_ms=1000),
        Schedule(every_ms=1500, jitter_ms=1400),
        Schedule(every_ms=7000),
        Schedule(every_ms=CLOSE_MS),
        Schedule(every_ms=CLOSE_MS - 1),
        Schedule(every_ms=61_000),
        Schedule(cron="* * * * * *"),
        Schedule(cron="*/7 * * * * *", tz="Europe/Berlin"),
        Schedule(cron="*/15 0-5 2,3 * * *", tz="Europe/Berlin"),
        Schedule(cron="0-5,30 * * * * *", tz="America/New_York"),
    ]
)
SWITCHES = st.sampled_from([T, 1_774_745_990_000, 1_792_889_990_000])
"""Some moment, and ten seconds before Berlin's clock changes in spring and in autumn."""


@settings(deadline=None, max_examples=150)
@given(
    wish=CLOSE,
    begins_ms=SWITCHES,
    misfire=st.sampled_from(["skip", "once", "all"]),
    waits_ms=st.lists(st.sampled_from([0, 1, 400, 5_000, 9_000, 45_000, 130_000]), min_size=1, max_size=12),
    is_killed=st.booleans(),
)
def test_claims_ahead_skip_none_repeat_none_and_stay_bounded(
    wish: Schedule, begins_ms: int, misfire: Misfire, waits_ms: list[int], is_killed: bool
) -> None:
    record = begun(*NAME, replace(wish, misfire=misfire, overlap="allow"), None, now_ms=begins_ms)
    now_ms, claimed, missed = begins_ms, list[int](), list[tuple[int, int]]()
    for wait_ms in waits_ms:
        while True:  # a leader that looks when it is to look, until it is killed
            step = decide(record, now_ms, is_open=True)
            if step.record is record:
                break
            new, last_ms = step.record.adding, claimed[-1] if claimed else 0
            assert last_ms < min(new, default=last_ms + 1), "each once, in order"
            assert len(new) <= MOST_AT_ONCE
            if new and new[-1] > now_ms:
                assert len(new) <= MOST_AHEAD
                assert len(new) == 1 or new[-1] < now_ms + HORIZON_MS
            oldest_ms = now_ms - (GRACE_MS if misfire == "skip" else 10**9)
            assert min(new, default=now_ms) >= oldest_ms
            claimed += new
            missed += [step.missed] if step.missed else []
            record = added(step.record, step.record.adding)
            assert len([run for run in record.runs if run.due_ms <= now_ms]) <= MOST_RUNS + 1
            assert len(record.runs) <= MOST_RUNS + 1 + MOST_AHEAD
            assert {due_ms for due_ms in claimed if due_ms > now_ms} <= {run.due_ms for run in record.runs}
        assert step.look_ms is not None
        assert step.look_ms > now_ms, "no busy loop"
        assert rests_until_ms(record) <= step.look_ms
        now_ms = max(now_ms + wait_ms, step.look_ms if not is_killed else 0)
    all_ms = next_dues(record, begins_ms, len(claimed) + 10**4, claimed[-1])
    left_out = sorted(set(all_ms) - set(claimed))
    assert set(claimed) <= set(all_ms)
    assert all(any(first <= due_ms <= last for first, last in missed) for due_ms in left_out)
    assert misfire != "all" or not left_out


@settings(deadline=None, max_examples=60)
@given(
    wish=CLOSE,
    after_ms=st.integers(0, 40_000),
    acts=st.lists(
        st.tuples(st.sampled_from(["pause", "remove", "replace", "resume"]), st.integers(0, 3_000)),
        min_size=1,
        max_size=5,
    ),
)
def test_a_change_takes_back_all_that_is_ahead_and_nothing_is_run_twice(
    wish: Schedule, after_ms: int, acts: list[tuple[str, int]]
) -> None:
    """Jobs that wait are a dict by their time. A job runs when it is due, and nothing else runs."""
    record, now_ms = begun(*NAME, replace(wish, jitter_ms=0, overlap="allow"), None, now_ms=T), T
    waiting, ran = set[int](), list[int]()

    def lead(until_ms: int) -> None:
        nonlocal record, now_ms
        while True:
            gone = {due_ms for due_ms in record.stale if due_ms in waiting}
            waiting.difference_update(gone)
            record = taken_back(record, record.stale, {*gone, *(set(record.stale) - set(ran))})
            step = decide(record, now_ms, is_open=False)
            if step.record is not record:
                assert not waiting.intersection(step.record.adding)
                waiting.update(step.record.adding)
                record = added(step.record, step.record.adding)
                continue
            now_ms, before_ms = min(until_ms, step.look_ms or until_ms), now_ms
            due = sorted(due_ms for due_ms in waiting if due_ms <= now_ms)
            waiting.difference_update(due)
            ran.extend(due)
            if now_ms == until_ms or now_ms <= before_ms:
                return

    lead(T + after_ms)
    for act, wait_ms in acts:
        asked_ms = now_ms
        if act == "pause" and not record.is_paused:
            record = paused(*NAME, record, now_ms=asked_ms)
        elif act == "resume" and record.is_paused:
            record = resumed(*NAME, record, now_ms=asked_ms)
        elif act == "replace":
            record = begun(
                *NAME, replace(wish, jitter_ms=0, overlap="allow", start_ms=record.start_ms), record, now_ms=asked_ms
            )
        elif act == "remove":
            record = removed(record, now_ms=asked_ms)
        assert act == "resume" or waiting <= set(record.stale) or not record.stale
        now_ms += wait_ms % 700  # the leader hears of it a little later, and what is due meanwhile runs
        due = sorted(due_ms for due_ms in waiting if due_ms <= now_ms)
        waiting.difference_update(due)
        ran.extend(due)
        heard_ms = now_ms
        lead(now_ms + wait_ms)
        if record.is_paused:
            assert not [due_ms for due_ms in ran if due_ms > heard_ms], "nothing is run after it"
            assert not waiting
        if record.is_removed:
            break
    assert len(ran) == len(set(ran)), "none twice"


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


# ---- what people do


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


# ---- what is refused


@pytest.mark.parametrize(
    ("record", "field", "said"),
    [
        (Schedule(), "cron", "either cron or every"),
        (Schedule(cron="* * * * *", every_ms=1000), "cron", "either cron or every"),
        (Schedule(every_ms=999), "every_ms", "use 1s to 366d"),
        (Schedule(every_ms=-1), "every_ms", "use 1s to 366d"),
        (Schedule(every_ms=10**18), "every_ms", "use 1s to 366d"),
        (Schedule(cron="0 9 * * *", tz="Europe/Berlim"), "tz", "is Europe/Berlin meant?"),
        (Schedule(cron="0 9 * * *", tz="\x1b[2J"), "tz", "use a name of the IANA list"),
        (Schedule(cron="70 * * * *"), "cron", "the minute"),
        (Schedule(cron="* * * * *", ttr_ms=1), "ttr_ms", "use 1000 to"),
        (Schedule(cron="* * * * *", attempts=0), "attempts", "use 1 to"),
        (Schedule(cron="* * * * *", expires_in_ms=0), "expires_ms", "let it expire later"),
        (Schedule(cron="* * * * *", body=Raw(b"{")), "body", "send one JSON value"),
        (Schedule(cron="0 0 31 2 MON#1", tz="UTC"), "", ""),
        (Schedule(cron="* * * * *", misfire="all"), "misfire", "overlap allow"),
        (Schedule(cron="* * * * *", misfire="all", overlap="buffer"), "misfire", "overlap buffer leaves some out"),
        (Schedule(cron="* * * * *", misfire="all", overlap="allow", most_missed=100), "", ""),
        (Schedule(cron="* * * * *", misfire="all", overlap="allow", most_missed=101), "most_missed", "1 to 100"),
        (Schedule(cron="* * * * *", misfire="all", overlap="allow", most_missed=0), "most_missed", "1 to 100"),
        (Schedule(cron="* * * * *", most_missed=5), "most_missed", "limits misfire all"),
        (Schedule(cron="* * * * *", most_open=0), "most_open", "1 to 20"),
        (Schedule(cron="* * * * *", body=Raw(b"[1]"), data_time="at"), "data_time", "a JSON object"),
        (Schedule(cron="* * * * *", body=Raw(b"{"), data_time="at"), "data_time", "a JSON object"),
        (Schedule(cron="* * * * *", data_time="a\nb"), "data_time", "no name of a field"),
        (Schedule(cron="* * * * *", data_time="a" * 65), "data_time", "1 to 64"),
        (Schedule(cron="* * * * *", backfill=(-1, T)), "adding", "out of range"),
        (json.decode(b'{"cron": "* * * * *"}', type=Schedule), "", ""),
        (Schedule(cron="* * * * *", at_ms=T), "cron", "either cron or every or fixed_delay or at"),
        (Schedule(every_ms=1000, fixed_delay_ms=1000), "cron", "either cron or every or fixed_delay or at"),
        (Schedule(fixed_delay_ms=999), "fixed_delay_ms", "use 1s to 366d"),
        (Schedule(fixed_delay_ms=1000, overlap="allow"), "overlap", "fixed_delay waits for its end"),
        (Schedule(fixed_delay_ms=1000, start_ms=T, runs=(PastRun(due_ms=T),)), "", ""),
        (Schedule(at_ms=T, start_ms=T + 1), "at_ms", "before the start"),
        (Schedule(at_ms=T, start_ms=T), "", ""),
        (Schedule(at_ms=-1), "at_ms", "out of range"),
        (Schedule(at_ms=10**15), "at_ms", "out of range"),
        (Schedule(every_ms=1000, initial_delay_ms=-1), "initial_delay_ms", "use 0s to 366d"),
        (Schedule(every_ms=1000, start_ms=T, initial_delay_ms=5), "initial_delay_ms", "stands beside a start"),
        (Schedule(every_ms=1000, jitter_ms=1000), "jitter_ms", "use less than 1000ms"),
        (Schedule(every_ms=1000, jitter_ms=999), "", ""),
        (Schedule(cron="0 * * * *", jitter_ms=3_600_000), "jitter_ms", "use less than 3600000ms"),
        (Schedule(cron="0 * * * *", jitter_ms=-1), "jitter_ms", "out of range"),
        (Schedule(cron="0 8,20,21 * * *", jitter_ms=2 * HOUR), "jitter_ms", "use less than 3600000ms"),
        (Schedule(at_ms=T, jitter_ms=3_600_000), "", ""),
    ],
)
def test_what_cannot_be_followed_is_refused(record: Schedule, field: str, said: str) -> None:
    if not field:
        assert check_wanted(record) is record
        return
    with pytest.raises(BadRecurrence) as refused:
        check_wanted(record)
    assert (refused.value.field, said in str(refused.value)) == (field, True), str(refused.value)
    assert str(refused.value).isprintable()
