"""The rules of jobs: what is taken, what is refused and why, states, turns, and what is written down."""

import re
from collections import Counter
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from actors.jobs.rules.job_receipt import BadReceipt, JobReceipt, read_receipt
from actors.jobs.rules.job_rules import (
    BACKSTOP_MS,
    FORGOTTEN_MS,
    FREE_TURN,
    KEPT_MS,
    MOST_PAST,
    RESERVED_SLACK_MS,
    STALE_AFTER_MS,
    TRACE_MS,
    BadJob,
    came_back,
    ended_otherwise,
    fires_of,
    freed_ms,
    given_back,
    has_fired,
    is_same_add,
    kept_s,
    lane_order,
    left_early,
    make_job,
    may_be_fired_again,
    noted,
    noted_once,
    on_same_id,
    past_of,
)
from actors.jobs.rules.topic_settings import LANES, TopicSettings
from streams.messages.jobs import (
    LARGEST_BODY,
    LONGEST_DELAY_MS,
    LONGEST_ID,
    LONGEST_TTR_MS,
    MOST_HISTORY,
    SHORTEST_TTR_MS,
    JobDone,
    JobRecord,
    NewJob,
    OnSame,
    Outcome,
    Priority,
    State,
)
from streams.subjects import TOKEN

NOW = 1_760_000_000_000
SETTINGS = TopicSettings(ttr_ms=30_000, attempts=5)
JOB = JobRecord(topic="t", id="1", due_ms=NOW, added_ms=NOW, ttr_ms=60_000, most_attempts=3)
TEXT = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=LONGEST_ID)
STATES: tuple[State, ...] = get_args(State)
POLICIES: tuple[OnSame, ...] = get_args(OnSame)


def made(**asked: Any) -> JobRecord:
    return make_job(NewJob(**{"topic": "t", **asked}), SETTINGS, now_ms=NOW, fresh_id="fresh")


# ---- a new job


def test_what_is_not_asked_for_comes_from_the_topic() -> None:
    job = made()
    assert (job.id, job.due_ms, job.added_ms, job.ttr_ms, job.most_attempts) == ("fresh", NOW, NOW, 30_000, 5)
    assert (bytes(job.body), job.priority, job.expires_ms, job.attempts) == (b"null", "normal", 0, 0)


@given(
    job_id=TEXT,
    delay_ms=st.integers(0, LONGEST_DELAY_MS),
    ttr_ms=st.integers(SHORTEST_TTR_MS, LONGEST_TTR_MS),
    attempts=st.integers(1, 1000),
    priority=st.sampled_from(LANES),
    later_ms=st.none() | st.integers(1, 10**9),
)
def test_what_is_asked_for_within_the_limits_is_what_is_made(
    job_id: str, delay_ms: int, ttr_ms: int, attempts: int, priority: Priority, later_ms: int | None
) -> None:
    job = made(
        id=job_id,
        delay_ms=delay_ms,
        ttr_ms=ttr_ms,
        attempts=attempts,
        priority=priority,
        expires_in_ms=None if later_ms is None else delay_ms + later_ms,
    )
    assert (job.id, job.due_ms, job.ttr_ms, job.most_attempts) == (job_id, NOW + delay_ms, ttr_ms, attempts)
    assert job.priority == priority
    assert job.expires_ms == (0 if later_ms is None else NOW + delay_ms + later_ms)
    absolute = made(id=job_id, due_ms=NOW + delay_ms, ttr_ms=ttr_ms, attempts=attempts, priority=priority)
    assert replace(absolute, expires_ms=job.expires_ms, body=job.body) == job


def test_what_was_due_before_is_due_still() -> None:
    assert made(due_ms=5).due_ms == 5


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        pytest.param({"topic": "a b"}, "topic", id="topic-with-blank"),
        pytest.param({"topic": "$JS.API.>"}, "topic", id="topic-of-the-server"),
        pytest.param({"topic": ""}, "topic", id="no-topic"),
        pytest.param({"topic": "default"}, "topic", id="topic-of-all-topics"),
        pytest.param({"topic": 7}, "topic", id="topic-number"),
        pytest.param({"id": "a" * 256}, "id", id="id-too-long"),
        pytest.param({"id": "a\r\nPUB x 0"}, "id", id="id-with-line-break"),
        pytest.param({"id": "a\0"}, "id", id="id-with-nul"),
        pytest.param({"id": "a\u202eb"}, "id", id="id-right-to-left"),
        pytest.param({"id": "\ud800"}, "id", id="id-lone-surrogate"),
        pytest.param({"id": 7}, "id", id="id-number"),
        pytest.param({"body": Raw(b'"' + b"x" * LARGEST_BODY + b'"')}, "body", id="body-too-large"),
        pytest.param({"body": Raw(b"{")}, "body", id="body-truncated"),
        pytest.param({"body": Raw(b'"\xff"')}, "body", id="body-no-utf8"),
        pytest.param({"body": {"a": 1}}, "body", id="body-not-encoded"),
        pytest.param({"delay_ms": -1}, "delay_ms", id="delay-negative"),
        pytest.param({"delay_ms": 10**18}, "delay_ms", id="delay-too-long"),
        pytest.param({"delay_ms": "30"}, "delay_ms", id="delay-text"),
        pytest.param({"delay_ms": True}, "delay_ms", id="delay-true"),
        pytest.param({"delay_ms": float("nan")}, "delay_ms", id="delay-nan"),
        pytest.param({"delay_ms": 1.5}, "delay_ms", id="delay-fraction"),
        pytest.param({"due_ms": -1}, "due_ms", id="due-negative"),
        pytest.param({"due_ms": NOW + LONGEST_DELAY_MS + 1}, "due_ms", id="due-too-late"),
        pytest.param({"due_ms": NOW, "delay_ms": 1}, "due_ms", id="due-and-delay"),
        pytest.param({"ttr_ms": 0}, "ttr_ms", id="ttr-zero"),
        pytest.param({"ttr_ms": LONGEST_TTR_MS + 1}, "ttr_ms", id="ttr-too-long"),
        pytest.param({"ttr_ms": "60s"}, "ttr_ms", id="ttr-text"),
        pytest.param({"attempts": 0}, "attempts", id="no-attempts"),
        pytest.param({"attempts": 10**9}, "attempts", id="attempts-too-many"),
        pytest.param({"priority": "urgent"}, "priority", id="priority-unknown"),
        pytest.param({"expires_ms": NOW}, "expires_ms", id="expires-now"),
        pytest.param({"expires_in_ms": 5, "delay_ms": 5}, "expires_in_ms", id="expires-when-due"),
        pytest.param({"expires_in_ms": 5, "expires_ms": NOW + 5}, "expires_ms", id="expires-twice"),
        pytest.param({"expires_in_ms": 0}, "expires_in_ms", id="expires-at-once"),
        pytest.param({"expires_ms": 10**18}, "expires_ms", id="expires-too-late"),
        pytest.param({"nonce": "a b"}, "nonce", id="nonce-with-blank"),
        pytest.param({"nonce": "a\r\nX: y"}, "nonce", id="nonce-with-line-break"),
        pytest.param({"nonce": "n" * 256}, "nonce", id="nonce-too-long"),
        pytest.param({"nonce": 7}, "nonce", id="nonce-number"),
    ],
)
def test_a_bad_job_names_field_value_and_what_to_write(asked: dict[str, Any], field: str) -> None:
    with pytest.raises(BadJob) as refused:
        made(**asked)
    assert refused.value.field == field
    assert refused.value.hint
    text = str(refused.value)
    assert text.startswith(f"{field} ")
    assert text.isprintable()
    assert len(text) < 300


@pytest.mark.parametrize("size", [LARGEST_BODY])
def test_the_largest_body_is_taken(size: int) -> None:
    assert len(bytes(made(body=Raw(b'"' + b"x" * (size - 2) + b'"')).body)) == size


# ---- states


def test_ours_and_the_servers_own_firing_do_not_meet() -> None:
    assert 0 < STALE_AFTER_MS < RESERVED_SLACK_MS
    assert 0 < BACKSTOP_MS < 50  # with the server's 250 ms it is below 300


# ---- the same id again


def test_an_id_that_is_over_is_free_unless_its_topic_remembers_it() -> None:
    for policy in POLICIES:
        ends = {outcome: on_same_id(policy, "done", outcome) for outcome in get_args(Outcome)}
        remembered = ends.pop("finished")
        assert remembered == ("replace" if policy == "replace" else "over")
        assert set(ends.values()) == {"replace"}


def test_replace_takes_the_place_of_what_is_there_and_the_others_do_not() -> None:
    there: tuple[State, ...] = ("delayed", "ready", "reserved")
    decided = {policy: {on_same_id(policy, state) for state in there} for policy in POLICIES}
    assert decided == {"keep": {"keep"}, "replace": {"replace"}, "error": {"refuse"}}


# ---- which add it was


def test_a_nonce_of_a_caller_is_known_within_topic_and_id() -> None:
    one, other = made(id="1", nonce="key"), made(id="2", nonce="key")
    assert one.nonce == made(id="1", nonce="key").nonce != other.nonce
    assert made(id="1", topic="else", nonce="key").nonce not in (one.nonce, other.nonce)
    assert (one.trace_s * 1000, made(nonce="~abcdefghijkl").trace_s) == (KEPT_MS, 0)
    assert len({made(id=job_id, nonce="~abcdefghijkl").nonce for job_id in ("1", "2")} - {"~abcdefghijkl"}) == 2
    assert all(re.fullmatch(r"[~A-Za-z0-9_-]{1,40}", job.nonce) for job in (one, other, made(nonce="~x.y")))


@given(ends=st.lists(st.tuples(st.integers(0, 3 * KEPT_MS), st.booleans()), max_size=30))
def test_an_add_is_known_for_as_long_as_it_may_be_repeated(ends: list[tuple[int, bool]]) -> None:
    """Jobs of one id come and go; each add is known until its time has passed, of the latest ones."""
    now_ms, past = NOW, tuple[tuple[str, int], ...]()
    added: list[tuple[JobRecord, int]] = []
    for at, (step_ms, is_named) in enumerate(sorted(ends)):
        now_ms += step_ms // 30
        job = replace(made(id="1", nonce=f"n{at}" if is_named else f"~{at:012d}"), past=past)
        past = past_of(job, now_ms=now_ms)
        added.append((job, now_ms + max(TRACE_MS, job.trace_s * 1000)))
    record = JobDone(topic="mail", id="1", finished_ms=now_ms, past=past)
    fresh = [(job, until_ms) for job, until_ms in added if until_ms > now_ms]
    assert len(past) <= MOST_PAST
    for job, until_ms in added[-MOST_PAST:]:  # an older one may have gone for those that came after it
        assert is_same_add(job, record) or until_ms <= now_ms
    assert not is_same_add(made(id="1", nonce="another"), record)
    assert {nonce for nonce, _ in past} <= {job.nonce for job, _ in fresh}
    kept_ms = kept_s(past, now_ms=now_ms) * 1000
    assert kept_ms >= max((until_ms - now_ms for _, until_ms in past), default=TRACE_MS)


@pytest.mark.parametrize("outcome", get_args(Outcome))
def test_a_job_that_was_given_up_keeps_its_dead_letter_and_one_that_ended_otherwise_does_not(outcome: Outcome) -> None:
    job, later = made(id="1", nonce="~abcdefghijkl"), made(id="1", nonce="~other")
    done = JobDone(topic="t", id="1", finished_ms=NOW, outcome=outcome, past=past_of(job, now_ms=NOW))
    assert ended_otherwise(job, done) == (outcome not in ("buried", "expired"))
    assert not ended_otherwise(later, done), "another job of that id"
    assert not ended_otherwise(job, job), "it is not over"
    assert ended_otherwise(job, replace(later, past=past_of(job, now_ms=NOW))), "it was replaced"


def test_a_remembered_id_is_taken_for_its_time_and_no_longer_unless_its_caller_may_repeat() -> None:
    plain, named = made(nonce="~abcdefghijkl"), made(nonce="key")
    assert kept_s(past_of(plain, now_ms=NOW), now_ms=NOW, remember_s=1) == 1
    assert kept_s(past_of(named, now_ms=NOW), now_ms=NOW, remember_s=1) == KEPT_MS // 1000
    assert kept_s(past_of(plain, now_ms=NOW), now_ms=NOW) == TRACE_MS // 1000
    freed = [freed_ms(now_ms=NOW, remember_s=some_s, ttl_s=ttl_s) for some_s, ttl_s in ((1, 1), (1, 86_400), (0, 120))]
    assert freed == [0, NOW + 1000, 0], "0: with the record"


def test_the_end_of_a_schedule_is_known_until_the_server_can_have_fired_it_again() -> None:
    """Also where the id is used again meanwhile."""
    delayed = made(id="1", delay_ms=3_600_000, nonce="~abcdefghijkl")
    held = replace(made(id="1", nonce="~abcdefghijkl"), receipt="mark", until_ms=NOW + 600_000)
    for job in (delayed, held):
        later = replace(made(id="1", nonce="~mnopqrstuvwx"), past=past_of(job, now_ms=NOW))
        past = past_of(later, now_ms=fires_of(job) + FORGOTTEN_MS - 1)
        assert past[1:] == ((job.nonce, fires_of(job) + FORGOTTEN_MS),)
        assert kept_s(past_of(job, now_ms=NOW, remember_s=1), now_ms=NOW, remember_s=1) == 1


def test_the_end_outlives_a_schedule_that_was_left_early_too() -> None:
    """Kicked, released, or touched for a shorter time."""
    delayed = made(id="1", delay_ms=3_600_000, nonce="~abcdefghijkl")
    kicked = left_early(replace(delayed, due_ms=NOW + 1), fires_ms=fires_of(delayed), now_ms=NOW)
    assert past_of(kicked, now_ms=NOW) == past_of(delayed, now_ms=NOW)
    later = left_early(kicked, fires_ms=NOW + 5, now_ms=NOW)
    assert later.latest_ms == fires_of(delayed)
    assert left_early(delayed, fires_ms=NOW, now_ms=NOW) == delayed == left_early(delayed, fires_ms=0, now_ms=NOW)


def test_a_job_that_came_back_and_is_delayed_fires_when_it_is_due() -> None:
    """It still has the receipt of its last holder."""
    held = replace(made(id="1"), receipt="mark", until_ms=NOW + 1_000)
    assert fires_of(held) == NOW + 1_000 + RESERVED_SLACK_MS
    assert fires_of(replace(held, due_ms=NOW + 9_000)) == NOW + 9_000 + BACKSTOP_MS


def test_a_job_of_a_crowd_fires_later_and_its_timers_copy_is_the_only_one_for_longer() -> None:
    job = replace(made(id="1", delay_ms=1_000), spread_ms=700)
    assert fires_of(job) == job.due_ms + BACKSTOP_MS + 700
    assert not may_be_fired_again(job, fires_of(job) - 1)
    assert may_be_fired_again(job, fires_of(job))


def test_a_schedule_that_fired_behind_a_move_is_told_from_what_came_of_the_move() -> None:
    delayed = made(id="1", delay_ms=1000, nonce="~aaaaaaaaaaaa")
    at_ms = fires_of(delayed)
    assert has_fired(replace(delayed, due_ms=NOW), delayed, fires_ms=at_ms)  # kicked, and its schedule fired too
    assert not has_fired(replace(delayed, due_ms=NOW), replace(delayed, due_ms=NOW), fires_ms=at_ms)
    other = replace(delayed, nonce="~bbbbbbbbbbbb", due_ms=NOW + 9)
    assert has_fired(other, delayed, fires_ms=at_ms)  # replaced by another
    assert not has_fired(other, other, fires_ms=at_ms)
    held = replace(delayed, attempts=1, receipt="aa", until_ms=NOW + 5000)
    touched, again = replace(held, until_ms=NOW + 9000), replace(held, attempts=2, receipt="bb", until_ms=NOW + 9900)
    ended = JobDone(topic="mail", id="1", finished_ms=NOW, past=past_of(held, now_ms=NOW))
    for found in (held, again):
        assert has_fired(touched, found, fires_ms=fires_of(held))
        assert has_fired(ended, found, fires_ms=fires_of(held))
    assert not has_fired(touched, touched, fires_ms=fires_of(held))
    assert not has_fired(ended, other, fires_ms=fires_of(held))  # the id was free, and is taken anew
    deleted = replace(ended, past=(("a delete's own", NOW + 9000), *ended.past))
    taking = replace(other, past=past_of(held, now_ms=NOW))
    for moved in (deleted, taking):
        assert has_fired(moved, again, fires_ms=fires_of(held))  # and somebody has reserved it since


def test_a_timers_copy_that_was_stored_before_the_schedules_own_time_is_the_only_one() -> None:
    job = made(id="1", due_ms=NOW)
    assert not may_be_fired_again(job, NOW)
    assert not may_be_fired_again(job, NOW + BACKSTOP_MS - 1)
    assert may_be_fired_again(job, NOW + BACKSTOP_MS)


# ---- turns


@given(start=st.integers(0, 1000), lanes=st.sets(st.sampled_from(LANES), min_size=1))
def test_each_turn_looks_into_every_lane_and_every_lane_comes_first_in_time(start: int, lanes: set[Priority]) -> None:
    orders = [lane_order(turn, tuple(lanes)) for turn in range(start, start + FREE_TURN)]
    assert all(set(order) == lanes for order in orders)
    firsts = Counter(order[0] for order in orders)
    ordered = [lane for lane in LANES if lane in lanes]
    assert firsts[ordered[-1]] >= 1
    assert firsts[ordered[0]] >= FREE_TURN - 1


def test_high_comes_before_normal_before_low() -> None:
    assert lane_order(0) == ("high", "normal", "low")
    assert lane_order(FREE_TURN - 1) == ("low", "normal", "high")


# ---- what is written down


def test_a_failed_attempt_is_a_line() -> None:
    job = noted(replace(JOB, attempts=2, holder="n", receipt="m", until_ms=5), at_ms=NOW, node="a b", reason="no\nluck")
    assert job.history == ("attempt 2 at 2025-10-09T08:53:20Z on a_b: no\nluck",)
    assert (job.holder, job.receipt, job.until_ms, job.attempts) == ("", "", 0, 2)


@given(st.lists(st.text(), max_size=30), st.text(max_size=500))
def test_history_is_bounded_and_keeps_the_last(reasons: list[str], last: str) -> None:
    job = JOB
    for reason in [*reasons, last]:
        job = noted(job, at_ms=NOW, node="", reason=reason)
    assert len(job.history) <= MOST_HISTORY
    assert job.history[-1].endswith(f": {last[:200]}")


def test_a_job_that_is_tried_again_is_none_that_was_put_off() -> None:
    assert noted(replace(JOB, attempts=1, put_off=3), at_ms=NOW, node="n", reason="boom").put_off == 0


def test_an_attempt_that_is_noted_is_not_noted_again() -> None:
    tried = replace(JOB, attempts=1)
    once = noted_once(tried, at_ms=NOW, node="n", reason="boom")
    assert once.history == ("attempt 1 at 2025-10-09T08:53:20Z on n: boom",)
    assert noted_once(once, at_ms=NOW, node="n", reason="buried") is once
    assert len(noted_once(replace(once, attempts=2), at_ms=NOW, node="n", reason="boom").history) == 2


def test_a_job_whose_ttr_ran_out_says_so_when_it_is_handed_out_again() -> None:
    back = came_back(replace(JOB, attempts=1, holder="till-3", until_ms=NOW, receipt="m"))
    assert back.history == ("attempt 1 at 2025-10-09T08:53:20Z on till-3: its TTR ran out",)
    assert back.receipt == ""
    assert came_back(JOB) is JOB


def test_a_job_given_back_costs_an_attempt_only_if_it_shall() -> None:
    held = replace(JOB, attempts=2, holder="h", until_ms=NOW, receipt="m")
    free = given_back(held, counts=False, at_ms=NOW, reason="")
    assert (free.attempts, free.history, free.receipt) == (1, (), "")
    told = given_back(held, counts=False, at_ms=NOW, reason="not paid yet")
    assert (told.attempts, len(told.history)) == (1, 1)
    failed = given_back(held, counts=True, at_ms=NOW, reason="")
    assert (failed.attempts, len(failed.history)) == (2, 1)


# ---- receipts

RECEIPTS = st.builds(
    JobReceipt,
    topic=st.from_regex(TOKEN, fullmatch=True),
    key=st.from_regex(TOKEN, fullmatch=True),
    seq=st.integers(0, 2**63 - 1),
    until_ms=st.integers(0, 10**15),
    mark=st.text("0123456789abcdef", min_size=12, max_size=12),
    nonce=st.from_regex(re.compile(r"[~A-Za-z0-9_-]{0,40}", re.ASCII), fullmatch=True),
)


@given(RECEIPTS)
def test_a_receipt_reads_back(receipt: JobReceipt) -> None:
    assert read_receipt(str(receipt)) == receipt


@pytest.mark.parametrize(
    "text",
    ["", "a.b.1.2", "a.b.1.2.0123456789ab\n", "a.b.-1.2.0123456789ab", "*.b.1.2.0123456789ab", "a.b.1.2.X", "a" * 9999],
)
def test_what_is_no_receipt_is_told(text: str) -> None:
    with pytest.raises(BadReceipt, match="is no receipt"):
        read_receipt(text)
