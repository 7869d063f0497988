"""What is asked of a job desk: depth, ranges by type and size, topics and ids by grammar."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from actors.jobs.rules.job_checks import check_depth, check_id, check_range, check_topic
from actors.jobs.rules.job_rules import BadJob
from actors.runtime.rules.depth import DEEPEST


@given(st.integers(0, 400))
def test_a_body_may_be_as_deep_as_every_reader_can_follow(levels: int) -> None:
    body = Raw(b"[" * levels + b"1" + b"]" * levels)
    if levels <= DEEPEST:
        check_depth(body)
    else:
        with pytest.raises(BadJob) as refused:
            check_depth(body)
        assert refused.value.field == "body"


@given(st.integers(), st.integers(0, 100), st.integers(0, 100))
def test_a_range_takes_what_is_in_it(value: int, low: int, more: int) -> None:
    if low <= value <= low + more:
        check_range("most", value, low, low + more)
    else:
        with pytest.raises(BadJob):
            check_range("most", value, low, low + more)


@pytest.mark.parametrize("value", [True, 1.0, "1", None, [1]])
def test_a_range_takes_whole_numbers_alone(value: Any) -> None:
    with pytest.raises(BadJob, match="whole number"):
        check_range("most", value, 0, 10)


@given(st.text())
def test_an_id_is_printable_and_bounded(job_id: str) -> None:
    if job_id and len(job_id) <= 255 and job_id.isprintable():
        assert check_id(job_id) == job_id
    else:
        with pytest.raises(BadJob):
            check_id(job_id)


@pytest.mark.parametrize("topic", ["", "a b", "a.b", "*", ">", "a" * 65, "größe", "default", 7, None, "a\n"])
def test_a_topic_is_a_token_and_not_the_name_of_what_is_set_for_all(topic: Any) -> None:
    with pytest.raises(BadJob) as refused:
        check_topic(topic)
    assert refused.value.field == "topic"
    assert check_topic("Mail-7_x") == "Mail-7_x"
