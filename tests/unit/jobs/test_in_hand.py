"""A job as its handler sees it: its body, its time, and the answers that count."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from actors.jobs.worker.job import BadBody, Bury, Call, Job, JobLost, Retry
from actors.runtime.rules.setting_values import BadSetting
from streams.clock import monotonic_s
from streams.link.frames import Message
from streams.messages.jobs import JobRecord
from streams.pull.delivery import Delivery

REPLY = b"$JS.ACK.JOBS.c.1.17.42.1763715427233604179.9"


class Holder:
    def send(self, frame: bytes) -> None: ...
    def settled(self, delivery: Delivery) -> None: ...
    async def ask(self, subject: str, payload: bytes, timeout_s: float) -> Message:
        raise NotImplementedError


def job_of(body: bytes = b"null", ttr_s: float = 60.0) -> Job:
    record = JobRecord(
        topic="t", id="one", due_ms=1_500, body=msgspec.Raw(body), added_ms=500, ttr_ms=60_000, most_attempts=10
    )
    call = Call()
    call.begin(ttr_s, monotonic_s())
    return Job(record, Delivery(Holder(), b"t", REPLY, b"", None), 2, 10, call)


def test_job_tells_what_it_is() -> None:
    job = job_of(b'{"a": [1, 2]}')
    assert (job.topic, job.id, job.attempt, job.most_attempts, job.priority) == ("t", "one", 2, 10, "normal")
    assert (job.body, job.json()) == (b'{"a": [1, 2]}', {"a": [1, 2]})
    assert job.due == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    assert (job.due_ms, job.added.timestamp()) == (1_500, 0.5)
    assert repr(job) == "Job('t', 'one', attempt=2)"


def test_body_is_read_as_a_type_or_refused_as_poison() -> None:
    assert job_of(b'{"a": 1}').read(dict[str, int]) == {"a": 1}
    with pytest.raises(BadBody, match="not what the handler takes") as refused:
        job_of(b'{"a": "x"}').read(dict[str, int])
    assert isinstance(refused.value, Bury)


def test_time_to_run_is_counted_down_and_begins_anew_with_a_touch() -> None:
    job = job_of(ttr_s=10)
    assert 9 < job.left_s <= 10
    assert job.deadline.tzinfo is UTC
    job.touch()
    assert 9 < job.left_s <= 10
    job.touch("2h")
    assert 7_190 < job.left_s <= 7_200
    with pytest.raises(BadSetting, match="too short"):
        job.touch(timedelta(milliseconds=5))


@pytest.mark.parametrize("state", ["is_lost", "is_over"])
def test_what_is_lost_or_over_cannot_be_touched(state: str) -> None:
    job = job_of()
    setattr(job.call, state, True)
    assert job.is_lost == (state == "is_lost")
    with pytest.raises(JobLost, match=r"job t/one: attempt 2 is over"):
        job.touch()


def test_last_answer_stands_and_none_is_taken_after_the_end() -> None:
    job = job_of()
    job.bury("no such order")
    job.retry("5m", "the bank sleeps")
    assert isinstance(job.answer, Retry)
    assert (job.answer.delay_ms, job.answer.reason) == (300_000, "the bank sleeps")
    job.call.is_over = True
    with pytest.raises(JobLost):
        job.bury("too late")
    assert isinstance(job.answer, Retry)


@pytest.mark.parametrize(
    ("delay", "delay_ms"), [(None, None), (0, 0), (1.5, 1_500), ("1h", 3_600_000), (timedelta(seconds=2), 2_000)]
)
def test_retry_takes_a_delay_in_any_form(delay: Any, delay_ms: int | None) -> None:
    assert Retry(delay).delay_ms == delay_ms


@pytest.mark.parametrize("delay", [-1, "-1s", "5", "soon", True, float("inf"), "11000d", timedelta(days=-1)])
def test_delay_that_is_none_is_refused(delay: Any) -> None:
    with pytest.raises(BadSetting):
        Retry(delay)
