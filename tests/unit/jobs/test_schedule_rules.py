"""Which occurrences are added when, and how many ahead."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from actors.jobs.rules.schedule_changes import begun, paused, removed, resumed, triggered
from actors.jobs.rules.schedule_checks import MOST_AT_ONCE
from actors.jobs.rules.schedule_record import MOST_RUNS, Misfire, Schedule
from actors.jobs.rules.schedule_steps import (
    CLOSE_MS,
    GRACE_MS,
    HORIZON_MS,
    MOST_AHEAD,
    REFILL_MS,
    SPREAD_MS,
    added,
    decide,
    first_look_ms,
    rests_until_ms,
    taken_back,
)
from actors.jobs.rules.schedule_times import (
    latest_due,
    next_due,
    next_dues,
    occurrence,
    occurrence_id,
)
from tests.unit.jobs.schedule_examples import CRON, EVERY_MINUTE, MINUTE, NAME, ZONE, T, follow

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
