"""Which occurrences are added when: one after the other, through downtime, overlap, pauses and changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw, json
from msgspec.structs import replace

from actors.jobs.rules.cron import BadRecurrence
from actors.jobs.rules.recurrence import (
    GRACE_MS,
    LEAD_MS,
    MOST_AT_ONCE,
    Misfire,
    Overlap,
    Recurring,
    added,
    begun,
    check_recurring,
    decide,
    latest_due,
    next_due,
    next_dues,
    occurrence,
    occurrence_id,
    paused,
    removed,
    resumed,
    taken_back,
)

T = 1_770_000_000_000
MINUTE = 60_000
EVERY_MINUTE = Recurring(every_ms=MINUTE, start_ms=T, last_ms=T, overlap="allow")
CRON = st.sampled_from(["* * * * *", "*/7 3,4 * * *", "0,30 2 * * SUN", "*/20 * * * * *"])
ZONE = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"])


# ---- when


def test_every_counts_from_its_start() -> None:
    later = replace(EVERY_MINUTE, start_ms=T + 7)
    assert next_dues(later, T - 5 * MINUTE, 2) == [T + 7, T + 7 + MINUTE]
    assert next_due(later, T + 7) == T + 7 + MINUTE
    assert next_due(later, T + 6 + MINUTE) == T + 7 + MINUTE


def test_a_cron_line_has_nothing_before_its_start() -> None:
    record = Recurring(cron="0 9 * * *", tz="Europe/Berlin", start_ms=1_770_019_200_000)  # 2 Feb 2026, 09:00 in Berlin
    assert next_due(record, 0) == 1_770_019_200_000
    assert next_due(replace(record, start_ms=record.start_ms + 1), 0) == 1_770_019_200_000 + 86_400_000


@settings(max_examples=60, deadline=None)  # counts through the moments, on a busy machine
@given(CRON, ZONE, st.integers(T, T + 300 * 86_400_000), st.integers(0, 3_600_000))
def test_the_latest_is_the_last_of_the_next(cron: str, tz: str, after_ms: int, span_ms: int) -> None:
    record, until_ms = Recurring(cron=cron, tz=tz), after_ms + span_ms
    within = [at for at in next_dues(record, after_ms, 1 + span_ms // 20_000) if at <= until_ms]
    assert within == sorted(set(within))
    assert latest_due(record, after_ms, until_ms) == (within[-1] if within else None)


def test_an_occurrence_is_an_ordinary_job() -> None:
    record = Recurring(
        cron="* * * * *", body=Raw(b"[1]"), ttr_ms=9000, attempts=2, priority="low", expires_in_ms=60_000
    )
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


def test_ids_tell_the_due_time() -> None:
    assert occurrence_id("nightly", 1_795_253_400_000) == "nightly.20261121T093000Z"
    assert occurrence_id("fast", 1_795_253_400_500) == "fast.20261121T093000.500Z"


# ---- what is added


def follow(record: Recurring, now_ms: int, *, is_open: bool = False) -> tuple[Recurring, list[int], int | None]:
    """Do at one moment what a leading node does; return the record, what it added, and when it looks again."""
    found: list[int] = []
    while True:
        step = decide(record, now_ms, is_open=is_open)
        if step.record is record:
            return record, found, step.look_ms
        assert step.record.last_ms > record.last_ms, "what was decided is not decided again"
        found += step.record.adding
        record = added(step.record, step.record.adding)


def test_what_may_overlap_is_added_one_ahead() -> None:
    record, dues, look_ms = follow(EVERY_MINUTE, T)
    assert (dues, look_ms) == ([T + MINUTE], T + MINUTE)
    assert follow(record, T + 1)[1] == []
    record, dues, look_ms = follow(record, T + MINUTE)
    assert (dues, look_ms) == ([T + 2 * MINUTE], T + 2 * MINUTE)


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
    record = Recurring(every_ms=10 * MINUTE, start_ms=T, last_ms=T, misfire=misfire, overlap="allow")
    _, dues, _ = follow(record, T + 10 * MINUTE + late_ms)
    late = [due for due in dues if due <= T + 10 * MINUTE + late_ms]
    assert late == [T + at * MINUTE for at in expected]


def test_what_was_skipped_is_told() -> None:
    record = Recurring(every_ms=10 * MINUTE, start_ms=T, last_ms=T, misfire="skip", overlap="allow")
    step = decide(record, T + 35 * MINUTE, is_open=False)
    assert (step.missed, step.record.adding) == ((T + 10 * MINUTE, T + 30 * MINUTE), ())
    step = decide(replace(record, misfire="once"), T + 35 * MINUTE, is_open=False)
    assert (step.missed, step.record.adding) == ((T + 10 * MINUTE, T + 20 * MINUTE), (T + 30 * MINUTE,))


def test_a_long_gap_is_claimed_in_parts() -> None:
    record = replace(EVERY_MINUTE, misfire="all")
    now_ms = T + 250 * MINUTE
    step = decide(record, now_ms, is_open=False)
    assert (len(step.record.adding), step.look_ms) == (MOST_AT_ONCE, now_ms)
    assert follow(record, now_ms)[1] == [T + at * MINUTE for at in range(1, 252)]


def test_a_new_record_begins_when_it_is_first_seen() -> None:
    record, dues, _ = follow(Recurring(every_ms=MINUTE, overlap="allow"), T + 1)
    assert dues == [next_due(record, T + 1)]


def test_what_is_years_away_waits_unadded() -> None:
    record = Recurring(cron="0 0 29 2 *", last_ms=T, overlap="allow")
    due_ms = next_due(record, T)
    step = decide(record, T, is_open=False)
    assert step.record is record
    assert step.look_ms is not None
    assert due_ms is not None
    assert 0 < due_ms - step.look_ms < 367 * 86_400_000


@settings(deadline=None)
@given(
    policy=st.sampled_from(
        [("once", "skip"), ("skip", "skip"), ("once", "allow"), ("skip", "allow"), ("all", "allow")]
    ),
    looks=st.lists(st.tuples(st.integers(0, 20 * MINUTE), st.booleans(), st.booleans()), min_size=1, max_size=30),
)
def test_none_is_added_twice_or_out_of_order_and_all_means_all(
    policy: tuple[Misfire, Overlap], looks: list[tuple[int, bool, bool]]
) -> None:
    record = Recurring(every_ms=7 * MINUTE, start_ms=T, last_ms=T, misfire=policy[0], overlap=policy[1])
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


# ---- what people do


def all_of(move: Callable[[Recurring], Recurring]) -> Recurring:
    record, _, _ = follow(EVERY_MINUTE, T)
    return move(record)


def test_a_pause_takes_back_what_was_added_and_resuming_goes_on_from_now() -> None:
    record = all_of(paused)
    assert record.stale == (T + MINUTE,)
    assert decide(record, T + 5 * MINUTE, is_open=False) == (record, None, None)
    record = resumed(taken_back(record, (T + MINUTE,)), now_ms=T + 10 * MINUTE + 1)
    assert follow(record, T + 10 * MINUTE + 1)[1] == [T + 11 * MINUTE], "what the pause left out was not missed"


def test_nothing_is_added_before_what_is_stale_has_gone() -> None:
    record = resumed(all_of(paused), now_ms=T + 1)
    assert decide(record, T + 1, is_open=False).record is record
    assert follow(taken_back(record, record.stale), T + 1)[1] == [T + MINUTE], "the same one, added anew"


def test_a_claim_that_was_not_added_yet_goes_with_a_change() -> None:
    claimed = decide(EVERY_MINUTE, T, is_open=False).record
    assert claimed.adding == (T + MINUTE,)
    for changed in (paused(claimed), removed(claimed), begun(EVERY_MINUTE, claimed, now_ms=T)):
        assert (changed.adding, changed.stale) == ((), (T + MINUTE,))
    assert decide(removed(claimed), T + 9 * MINUTE, is_open=False).record.is_removed


def test_a_new_definition_begins_now() -> None:
    old = all_of(lambda record: record)
    new = begun(Recurring(every_ms=5 * MINUTE), old, now_ms=T + 30_000)
    assert (new.start_ms, new.last_ms, new.stale) == (T + 30_000, T + 30_000, (T + MINUTE,))
    later = begun(Recurring(every_ms=MINUTE, start_ms=T + 90_000, overlap="allow"), None, now_ms=T)
    assert follow(later, T)[1] == [T + 90_000], "the first one is at the start that was asked for"


# ---- what is refused


@pytest.mark.parametrize(
    ("record", "field", "said"),
    [
        (Recurring(), "cron", "either cron or every"),
        (Recurring(cron="* * * * *", every_ms=1000), "cron", "either cron or every"),
        (Recurring(every_ms=999), "every", "use 1s to 366d"),
        (Recurring(every_ms=-1), "every", "use 1s to 366d"),
        (Recurring(every_ms=10**18), "every", "use 1s to 366d"),
        (Recurring(cron="0 9 * * *", tz="Europe/Berlim"), "tz", "is Europe/Berlin meant?"),
        (Recurring(cron="0 9 * * *", tz="\x1b[2J"), "tz", "use a name of the IANA list"),
        (Recurring(cron="70 * * * *"), "cron", "the minute"),
        (Recurring(cron="* * * * *", ttr_ms=1), "ttr_ms", "use 1000 to"),
        (Recurring(cron="* * * * *", attempts=0), "attempts", "use 1 to"),
        (Recurring(cron="* * * * *", expires_in_ms=0), "expires_ms", "let it expire later"),
        (Recurring(cron="* * * * *", body=Raw(b"{")), "body", "send one JSON value"),
        (Recurring(cron="0 0 31 2 MON#1", tz="UTC"), "", ""),
        (Recurring(cron="* * * * *", misfire="all"), "misfire", "overlap allow"),
        (json.decode(b'{"cron": "* * * * *"}', type=Recurring), "", ""),
    ],
)
def test_what_cannot_be_followed_is_refused(record: Recurring, field: str, said: str) -> None:
    if not field:
        assert check_recurring(record) is record
        return
    with pytest.raises(BadRecurrence) as refused:
        check_recurring(record)
    assert (refused.value.field, said in str(refused.value)) == (field, True), str(refused.value)
    assert str(refused.value).isprintable()
