"""Jobs on the wire: every released form decodes, what is encoded decodes the same, and junk is told from jobs."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from streams.messages.jobs import (
    JobDone,
    JobRecord,
    NewJob,
    body_of,
    decode_done,
    decode_job,
    encode_job,
    encode_new_job,
    is_json,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "jobs"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
decode_new_job = msgspec.json.Decoder(NewJob).decode


def test_the_released_forms_decode() -> None:
    job = decode_job((GOLDEN / "job.json").read_bytes())
    assert (job.topic, job.id, job.attempts, job.most_attempts, job.receipt) == (
        "close",
        "order 7",
        2,
        10,
        "0123456789ab",
    )
    assert bytes(job.body) == '{"order":7,"note":"ünï"}'.encode()
    done = decode_done((GOLDEN / "job_done.json").read_bytes())
    assert (done.outcome, done.finished_ms, done.receipt) == ("buried", 1760000000123, "0123456789ab")
    new = decode_new_job((GOLDEN / "new_job.json").read_bytes())
    assert (new.delay_ms, new.attempts, new.on_same, bytes(new.body)) == (1_800_000, 3, "replace", b'[1,2.50,"x"]')


def test_a_new_job_needs_no_more_than_its_topic() -> None:
    new = decode_new_job(b'{"topic":"mail"}')
    assert (new.id, bytes(new.body), new.delay_ms, new.priority, new.on_same) == ("", b"null", 0, "normal", "keep")


@given(value=JSON, history=st.lists(st.text(), max_size=3), due_ms=st.integers(0, 2**53))
def test_what_is_encoded_decodes_the_same(value: object, history: list[str], due_ms: int) -> None:
    job = JobRecord(
        topic="t",
        id="1",
        due_ms=due_ms,
        body=body_of(value),
        added_ms=1,
        ttr_ms=2,
        most_attempts=3,
        history=tuple(history),
    )
    again = decode_job(encode_job(job))
    assert msgspec.json.decode(again.body) == msgspec.json.decode(job.body)
    assert msgspec.structs.replace(again, body=job.body) == job
    new = NewJob(topic="t", body=body_of(value), due_ms=due_ms)
    assert msgspec.structs.replace(decode_new_job(encode_new_job(new)), body=new.body) == new
    done = JobDone(topic="t", id="1", finished_ms=due_ms)
    assert decode_done(encode_job(done)) == done


def test_a_later_field_is_ignored_in_what_is_stored_and_refused_in_what_is_asked() -> None:
    job = encode_job(JobRecord(topic="t", id="1", due_ms=0, added_ms=1, ttr_ms=2, most_attempts=3))
    assert decode_job(job[:-1] + b',"colour":"red"}') == decode_job(job)
    with pytest.raises(msgspec.ValidationError, match="unknown field `dealy_ms`"):
        decode_new_job(b'{"topic":"t","dealy_ms":1}')


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (b'{"topic":"t","delay_ms":"30"}', "delay_ms"),
        (b'{"topic":"t","delay_ms":true}', "delay_ms"),
        (b'{"topic":"t","delay_ms":NaN}', "malformed"),
        (b'{"topic":"t","on_same":"overwrite"}', "on_same"),
        (b'{"id":"1"}', "topic"),
        (b'{"topic":"t"', "truncated"),
        (b"\xef\xbb\xbf{}", "malformed"),
        (b"", "truncated"),
        (b"[]", "object"),
        (b'{"topic":"\xff"}', "utf|UTF"),
    ],
)
def test_a_fault_names_its_field(asked: bytes, says: str) -> None:
    with pytest.raises((msgspec.MsgspecError, UnicodeDecodeError), match=says):
        decode_new_job(asked)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"1 2", b'"\xff"', b"NaN", b"\xef\xbb\xbf1", b"[" * 100_000 + b"]" * 100_000]
)
def test_what_is_no_json_is_no_body(body: bytes) -> None:
    assert not is_json(body)


def test_any_json_is_a_body() -> None:
    assert all(map(is_json, (b"null", b" 1 ", b'"x"', b"[1,{}]", '{"ü":1}'.encode())))
    with pytest.raises(TypeError):
        body_of(object())
    assert bytes(body_of({"a": Raw(b"1.50")})) == b'{"a":1.50}'
