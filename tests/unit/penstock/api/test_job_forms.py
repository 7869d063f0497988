"""What the job service is asked, read strictly; what the client asks, written so that it can be repeated."""

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import asdict

import penstock
from actors.jobs.rules.job_answers import NotAdded
from actors.jobs.rules.topic_settings import as_written
from actors.jobs.worker.job import duration_ms
from actors.runtime.rules.setting_values import Duration
from penstock.api.forms.jobs import FinishAsk, JobOptions, JobToAdd, OutboxOptions, PeekAsk, read_jobs
from penstock.api.forms.reading import Malformed, read_ask
from penstock.errors import PenstockError, UsageError
from penstock.sdk.client_forms import dealt, encode, millis, moment_ms, too_large
from penstock.sdk.job_replies import add_answers
from streams.messages.jobs import LARGEST_BODY, NewJob, encode_new_job
from tests.support.edits import edited_bytes

SIGNS = b'{}[]":,\\x1 \xff'
JOB = st.fixed_dictionaries(
    {"topic": st.sampled_from(["a", "größe", ""])},
    optional={
        "id": st.text(max_size=5),
        "body": st.none() | st.text(max_size=5) | st.lists(st.integers(), max_size=2),
        "delay_ms": st.integers(),
        "priority": st.sampled_from(["low", "high", "any"]),
        "unknown": st.none(),
    },
)
JOBS = edited_bytes((JOB | st.lists(JOB, max_size=3)).map(lambda value: json.dumps(value).encode()), SIGNS)
ENDS = st.fixed_dictionaries({}, optional={"id": st.text(max_size=5), "receipts": st.lists(st.text(max_size=5))})
FINISHES = edited_bytes(ENDS.map(lambda value: json.dumps(value).encode()), SIGNS)


def test_one_job_or_a_list_of_them() -> None:
    assert read_jobs(b' \n{"topic": "a"}') == ([NewJob(topic="a")], True)
    jobs, is_single = read_jobs(b' \n[{"topic": "a"}, {"topic": "b", "delay_ms": 5}]')
    assert (jobs, is_single) == ([NewJob(topic="a"), NewJob(topic="b", delay_ms=5)], False)
    assert read_jobs(b"[]") == ([], False)


def test_one_bad_of_a_list_is_answered_in_its_place() -> None:
    jobs, _ = read_jobs(b'[{"topic": "a"}, 7, {"topic": 7}, {"topic": "b", "x": 1}, {"topic": "c"}]')
    assert [isinstance(job, NewJob) for job in jobs] == [True, False, False, False, True]
    assert [job.code for job in jobs if isinstance(job, NotAdded)] == ["bad"] * 3
    assert "job 3 of the list: Object contains unknown field `x`" in str(jobs[3])


@given(JOBS)
def test_any_bytes_are_read_or_refused(payload: bytes) -> None:
    with suppress(Malformed):
        jobs, is_single = read_jobs(payload)
        sent = [json.loads(payload)] if is_single else json.loads(payload)
        assert len(jobs) == len(sent)
        for job, fields in zip(jobs, sent, strict=True):
            if isinstance(job, NewJob):
                read = asdict(job) | {"body": json.loads(bytes(job.body))}
                assert read | fields == read


@given(FINISHES)
def test_any_bytes_are_a_finish_or_refused(payload: bytes) -> None:
    with suppress(Malformed):
        ask = read_ask(payload, FinishAsk)
        read = json.loads(msgspec.json.encode(ask))
        assert read | json.loads(payload or b"{}") == read


@given(st.recursive(st.none() | st.text() | st.integers(-(2**70), 2**70), lambda inner: st.lists(inner), max_leaves=9))
def test_any_json_is_read_or_refused(value: Any) -> None:
    text = json.dumps({"topic": "a", "body": value, "id": value}).encode()
    if isinstance(value, str):
        [job], _ = read_jobs(text)
        assert isinstance(job, NewJob)
        assert (job.id, json.loads(bytes(job.body))) == (value, value)
    else:
        with pytest.raises(Malformed):
            read_jobs(text)


def test_nothing_stands_for_no_fields() -> None:
    with pytest.raises(Malformed, match="topic"):
        read_ask(b"", PeekAsk)
    assert read_ask(b"", FinishAsk) == FinishAsk()


# ---- the client's side


@given(st.lists(st.integers(), max_size=30), st.lists(st.integers(1, 5), max_size=9))
def test_jobs_are_dealt_once_in_order_to_none_more_than_it_wants(jobs: list[int], wanted: list[int]) -> None:
    dealt_out = dealt(jobs, wanted)
    assert [job for some in dealt_out for job in some] == jobs[: sum(wanted)]
    assert all(len(some) <= most for some, most in zip(dealt_out, wanted, strict=True))
    assert [some for some in dealt_out if some] == dealt_out[: len([some for some in dealt_out if some])], "the first"


def test_the_options_of_python_callers_are_those_of_a_new_job() -> None:
    """A length of time and a moment are whole milliseconds in the message."""
    milliseconds = {Duration: int, Duration | None: int | None, datetime | None: int | None}
    options = {
        f"{name}_ms" if type_ in milliseconds else name: milliseconds.get(type_, type_)
        for name, type_ in get_type_hints(JobOptions).items()
    }
    fields = get_type_hints(NewJob)
    assert options == {
        name: fields[name] for name in fields if name not in ("topic", "body", "expires_ms", "traceparent")
    }
    assert JobOptions.__optional_keys__ - OutboxOptions.__optional_keys__ == {"on_same", "nonce"}


def test_a_job_to_add_over_http_has_the_fields_of_a_new_job() -> None:
    """Its topic is in the path, and its nonce in a header."""
    added = get_type_hints(JobToAdd)
    assert added == {
        name: type_ for name, type_ in get_type_hints(NewJob).items() if name not in ("topic", "nonce", "traceparent")
    }


@pytest.mark.parametrize("option", ["dealy", "delay_ms", "topics"])
def test_an_option_that_there_is_not_is_refused(option: str) -> None:
    unknown: Any = {option: 5}
    with pytest.raises(TypeError, match=option):
        penstock.new_job("mail", **unknown)


def test_a_new_job_has_its_id_before_it_is_sent() -> None:
    one, two = penstock.new_job("mail", {"to": 7}), penstock.new_job("mail", {"to": 7})
    assert one.id
    assert one.id != two.id
    assert bytes(one.body) == b'{"to":7}'
    assert read_jobs(encode_new_job(one)) == ([one], True)


@given(st.floats(-1e9, 1e9) | st.integers(-(10**9), 10**9))
def test_seconds_become_whole_milliseconds(seconds: float) -> None:
    assert abs(millis("delay", seconds) - seconds * 1000) <= 0.5
    assert abs(millis("delay", timedelta(seconds=seconds)) - seconds * 1000) <= 0.501


@pytest.mark.parametrize(
    "value", ["90s", "1m30s", "90000ms", 90, 90.0, timedelta(minutes=1.5), "1.5m"], ids=lambda value: repr(value)
)
def test_a_length_of_time_is_a_text_a_number_of_seconds_or_a_timedelta(value: Any) -> None:
    assert millis("delay", value) == duration_ms("delay", value, most=90_000) == 90_000
    assert as_written({"backoff": value, "attempts": 3, "remember": None}) == {
        "backoff": "90s",
        "attempts": 3,
        "remember": None,
    }


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "30", "-5s", "soon", "", None])
def test_what_is_no_length_of_time_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match="delay"):
        millis("delay", value)


def test_a_moment_has_a_zone() -> None:
    assert moment_ms("due", datetime(2030, 1, 1, tzinfo=UTC)) == 1_893_456_000_000
    assert moment_ms("due", datetime(2030, 1, 1, 5, tzinfo=timezone(timedelta(hours=5)))) == 1_893_456_000_000
    with pytest.raises(UsageError, match="zone"):
        moment_ms("due", datetime(2030, 1, 1))  # noqa: DTZ001 # that it has none is the point


def test_a_body_that_no_message_could_carry_is_answered_here() -> None:
    assert too_large(NewJob(topic="a", body=Raw(b"x" * LARGEST_BODY))) is None
    answer = too_large(NewJob(topic="a", id="b", body=Raw(b"x" * (LARGEST_BODY + 1))))
    assert answer is not None
    assert (answer.code, answer.field, answer.id) == ("bad", "body", "b")


def added(**fields: object) -> dict[str, object]:
    return {"code": "ok", "topic": "a", "id": "b", "state": "ready", "due_ms": 5, "is_same_body": True, **fields}


@pytest.mark.parametrize("told", [added(code=code, reason="so") for code in ("exists", "over", "quota")])
def test_what_is_refused_is_refused(told: dict[str, object]) -> None:
    [said] = add_answers(encode({"answers": [told]}))
    assert isinstance(said, NotAdded)
    assert said.code == told["code"]


def test_an_answer_that_cannot_be_read_is_one_clear_error() -> None:
    for payload in (b"", b"\xff", b'{"answers": 7}'):
        with pytest.raises(PenstockError, match="cannot be read"):
            add_answers(payload)
