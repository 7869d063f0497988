"""What a timer reads of jobs: due times from payloads and notices, whatever stands in them."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.errors import MalformedMessage
from streams.jobs.delayed import due_of, encode_notice, read_notice
from streams.messages.jobs import JobDone, JobRecord, encode_job
from streams.subjects import token_of

IDS = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=30)
DUES = st.integers(0, 10**13)


def job(job_id: str, due_ms: int, topic: str = "mail") -> bytes:
    return encode_job(JobRecord(topic=topic, id=job_id, due_ms=due_ms, added_ms=1, ttr_ms=1_000, most_attempts=3))


@given(IDS, DUES)
def test_a_job_is_known_by_its_topic_and_key(job_id: str, due_ms: int) -> None:
    assert due_of(job(job_id, due_ms)) == (due_ms, f"mail.{token_of(job_id)}".encode())


@pytest.mark.parametrize("job_id", ["h_abc", '","due_ms":5,"', "a\\", "größe", "a b", "x" * 65, "\U0001f600"])
def test_an_id_that_looks_like_something_else_is_an_id(job_id: str) -> None:
    assert due_of(job(job_id, 7)) == (7, f"mail.{token_of(job_id)}".encode())


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{}",
        b"\xff",
        encode_job(JobDone(topic="mail", id="1", finished_ms=5)),
        job("1", 7, topic="a.b"),
        job("1", 7, topic="a b\r\nPING"),
        job("1", 7, topic="x" * 65),
        job("1", 7, topic=""),
    ],
)
def test_what_is_no_job_has_no_due_time(payload: bytes) -> None:
    assert due_of(payload) is None


@given(st.lists(st.tuples(DUES, st.integers(1, 10**12), st.text("abcXYZ_-09", min_size=1, max_size=64)), max_size=20))
def test_a_notice_tells_what_was_put_into_it(jobs: list[tuple[int, int, str]]) -> None:
    told = [(due_ms, seq, f"mail.{key}") for due_ms, seq, key in jobs]
    assert read_notice(encode_notice(told)) == [(due_ms, seq, name.encode()) for due_ms, seq, name in told]


@pytest.mark.parametrize(
    "name", ["", "mail", "mail.", ".1", "mail.a.b", "mail.*", "mail.>", "mail.a b", "mail.a\r\n", "ä.b"]
)
def test_what_cannot_be_a_job_is_left_out_of_a_notice(name: str) -> None:
    assert read_notice(encode_notice([(1, 2, name), (3, 4, "mail.1")])) == [(3, 4, b"mail.1")]


@pytest.mark.parametrize(
    "payload", [b"", b"{}", b"\xc1", msgspec.msgpack.encode({"a": 1}), msgspec.msgpack.encode([["1", 2, "mail.1"]])]
)
def test_what_is_no_notice_is_refused(payload: bytes) -> None:
    with pytest.raises(MalformedMessage, match="notice"):
        read_notice(payload)
