"""What an occurrence asks of its target: always the same, under an id that no other occurrence has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, json

from actors.jobs.rules.cron import BadRecurrence
from actors.jobs.rules.schedule_checks import check_wanted
from actors.jobs.rules.schedule_record import Schedule
from actors.jobs.rules.schedule_targets import TargetJob
from actors.jobs.rules.schedule_times import body_at, job_of, occurrence
from streams.messages.batch import NewBatch
from streams.subjects import TOKEN

T = 1_770_000_000_000
HOUR_MS = 3_600_000
BATCH = Schedule(every_ms=HOUR_MS, batch="count", body=Raw(b'{"input":{"n":3},"priority":5}'))
LOOK = Schedule(every_ms=HOUR_MS, source="mall/s1", body=Raw(b'{"last":"2h"}'))
names = st.from_regex(TOKEN, fullmatch=True)


def batch_of(topic: str, name: str, due_ms: int, tenant: str = "") -> NewBatch:
    record = Schedule(every_ms=HOUR_MS, batch="count", tenant=tenant, body=Raw(b"{}"))
    batch = json.decode(body_at(topic, name, record, due_ms), type=TargetJob).batch
    assert batch is not None
    return batch


def test_a_batch_is_a_job_of_the_built_in_topic() -> None:
    job = occurrence("reports", "nightly", check_wanted(BATCH), T, claim=1)
    assert (job.topic, job.id) == ("schedule-targets", "reports.nightly.20260202T024000Z")
    batch = json.decode(job.body, type=TargetJob).batch
    assert batch is not None
    assert (batch.task, bytes(batch.input), batch.priority) == ("count", b'{"n":3}', 5)
    assert batch.id.startswith("nightly-20260202T024000Z-")


def test_its_time_is_in_the_input() -> None:
    record = Schedule(every_ms=HOUR_MS, batch="count", body=BATCH.body, data_time="at")
    batch = json.decode(body_at("reports", "nightly", record, T), type=TargetJob).batch
    assert batch is not None
    assert json.decode(batch.input) == {"n": 3, "at": "2026-02-02T02:40:00Z"}


def test_a_look_is_the_window_before_the_occurrence() -> None:
    assert job_of("looks", "mall", check_wanted(LOOK), T)[0] == "schedule-targets"
    look = json.decode(body_at("looks", "mall", LOOK, T), type=TargetJob).look
    assert look is not None
    assert (look.source, look.start_ms, look.end_ms) == ("mall/s1", T - 2 * HOUR_MS, T)
    assert TOKEN.fullmatch(look.name)


@given(names, names, st.sampled_from(["", "acme", "a" * 24]), st.integers(0, 2**41))
def test_the_batch_has_an_id_that_a_path_can_name(topic: str, name: str, tenant: str, due_ms: int) -> None:
    batch = batch_of(topic, name, due_ms, tenant)
    assert TOKEN.fullmatch(batch.id)
    prefix = f"{tenant}--" if tenant else ""
    assert batch.id.startswith(prefix)
    assert "--" not in batch.id.removeprefix(prefix), "else it would be a tenant's"
    assert batch.id == batch_of(topic, name, due_ms, tenant).id


def test_no_two_occurrences_have_one_batch() -> None:
    ids = {
        batch_of(topic, name, due_ms).id
        for topic, name in (("a", "b-c"), ("a-b", "c"), ("a", "b--c"), ("a", "x" * 64), ("a", "x" * 63 + "y"))
        for due_ms in (T, T + 1, T + 1000)
    }
    assert len(ids) == 15


@pytest.mark.parametrize(
    ("record", "field", "said"),
    [
        (Schedule(every_ms=HOUR_MS, batch="count", body=Raw(b'{"file":"x"}')), "body", "unknown field `file`"),
        (Schedule(every_ms=HOUR_MS, batch="count", body=Raw(b"\xff")), "body", "is not what the target takes"),
        (Schedule(every_ms=HOUR_MS, batch="count", tenant="b!", body=Raw(b"{}")), "tenant", "is no tenant"),
        (Schedule(every_ms=HOUR_MS, source="mall/s1", body=Raw(b'{"last":"0s"}')), "body", "use 1s to 31d"),
        (Schedule(every_ms=HOUR_MS, source="mall/s1/x", body=LOOK.body), "source", "write PLATFORM/SOURCE"),
        (
            Schedule(every_ms=HOUR_MS, source="mall/s1", body=LOOK.body, data_time="at"),
            "data_time",
            "no place in a look",
        ),
    ],
)
def test_what_no_target_takes_is_refused(record: Schedule, field: str, said: str) -> None:
    with pytest.raises(BadRecurrence, match=said) as refused:
        check_wanted(record)
    assert refused.value.field == field
