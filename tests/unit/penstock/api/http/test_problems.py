"""Problems: short, printable, and nothing of the value beyond its beginning."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from penstock.api.http.problems import PROBLEM_TYPE, refused, shown, trouble_of, written
from streams.errors import Disconnected, NoStream, OutcomeUnknown, Refused, StoreFull, StreamError, TooLarge


@given(some.text())
def test_a_shown_value_is_short_and_printable(text: str) -> None:
    said = shown(text)
    assert len(said) <= 83
    assert said.isascii()
    assert said.isprintable()


def test_a_problem_is_json_by_rfc_9457() -> None:
    problem = refused(
        422, "bad", "is no topic", what="topic", value="a\r\nb", hint="use letters", retry_after_s=0
    ).problem
    body, kind = written(problem, "/v1/topics")
    assert kind == PROBLEM_TYPE
    assert msgspec.json.decode(body) == {
        "status": 422,
        "title": "Unprocessable Content",
        "code": "bad",
        "detail": "is no topic",
        "what": "topic",
        "value": "a\\x0d\\x0ab",
        "hint": "use letters",
    }


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StoreFull("full", subject="s"), 507),
        (TooLarge("large", subject="s"), 413),
        (Disconnected("gone"), 503),
        (NoStream("none", subject="s"), 503),
        (OutcomeUnknown("silence", subject="jobs.ready.secret.id"), 504),
        (Refused("no", subject="s"), 503),
    ],
)
def test_the_brokers_trouble_is_told_without_its_names(error: StreamError, status: int) -> None:
    problem = trouble_of(error).problem
    assert problem.status == status
    assert "secret" not in written(problem, "/v1/topics")[0].decode()
    assert problem.retry_after_s or status == 413
